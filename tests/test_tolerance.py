"""The tolerance of numerical tests, and the CPU capabilities under which they are repeated."""

import os
import subprocess
import sys
from pathlib import Path

import numerics
import pytest
import torch
from tolerance import tolerance
from torch.testing import assert_close

TESTS = Path(__file__).parent


@pytest.mark.numerical
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("depth, size", [(1, 8), (2, 64), (6, 512)])
def test_other_orders_of_summation_are_within_a_quarter_and_a_wrong_factor_is_not(dtype, depth, size):
    generator = torch.Generator().manual_seed(0)
    weights = torch.randn(depth, size, size, generator=generator, dtype=torch.float64).to(dtype) / size**0.5
    states = torch.randn(20, size, generator=generator, dtype=torch.float64).to(dtype)
    order = torch.randperm(size, generator=generator)

    def forward(weights, order):
        found = states
        for weight in weights:
            found = torch.nn.functional.layer_norm(found, (size,))
            found = found[:, order, None].mul(weight[order]).sum(1)
        return found

    expected, limit = forward(weights, torch.arange(size)), tolerance(dtype, depth=depth, size=size)
    assert_close(forward(weights, order), expected, **{name: value / 4 for name, value in limit.items()})
    assert not torch.allclose(expected * (1 + 1e-3), expected, **limit)


FLAGS = {
    "default": "flags\t\t: fpu sse sse2",
    "avx2": "flags\t\t: fpu sse avx2 fma",
    "avx512": "flags\t\t: avx2 fma avx512f avx512dq avx512bw avx512vl",
}


@pytest.mark.parametrize("best", FLAGS)
def test_the_runs_are_the_older_ones_that_the_processor_can_imitate(best):
    names = list(FLAGS)
    found = numerics.environments(f"processor\t: 0\n{FLAGS[best]}\n")
    assert list(found) == (names[: names.index(best)] or ["default"])
    assert all(set(variables) == set(numerics.VARIABLES) for variables in found.values() if best != "default")
    for cpuinfo in ("", "processor\t: 0\nFeatures\t: fp asimd\n"):  # another platform runs once as it is
        assert numerics.environments(cpuinfo) == {"default": {}}


@pytest.mark.slow
def test_torch_obeys_the_environment_of_each_run():
    source = Path("/proc/cpuinfo")
    for name, variables in numerics.environments(source.read_text() if source.exists() else "").items():
        code = "import torch; print(torch.backends.cpu.get_cpu_capability())"
        command = [sys.executable, "-c", code]
        shown = subprocess.run(command, env={**os.environ, **variables}, capture_output=True, text=True, check=True)
        assert not variables or shown.stdout.strip().lower() == name


def test_the_exit_code_says_whether_any_run_failed(monkeypatch, capsys):
    codes = iter([1, 0])
    monkeypatch.setattr(numerics, "environments", lambda cpuinfo: {"default": {"A": "1"}, "avx2": {"A": "2"}})
    monkeypatch.setattr(
        numerics.subprocess, "run", lambda command, env: subprocess.CompletedProcess(command, next(codes))
    )
    assert numerics.main(["-x"]) == 1
    shown = capsys.readouterr().out
    assert "default  failed" in shown and "avx2     passed" in shown


@pytest.mark.parametrize("folder", ["attention", "models"])
def test_every_test_file_of_a_numerical_folder_is_marked(folder):
    files = sorted((TESTS / folder).glob("test_*.py"))
    unmarked = [file.name for file in files if "\npytestmark = pytest.mark.numerical\n" not in file.read_text()]
    assert files and unmarked == []

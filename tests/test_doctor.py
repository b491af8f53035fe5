"""benchmarks/doctor.py: what it finds is printed and stored, faults included, and it needs nothing but PyTorch."""

import getpass
import json
import platform
import re
import sys
from pathlib import Path

import pytest
import scripts
import torch
from light import python_without_extras

from attnorm.attention.linear import kernels
from attnorm.attention.linear.blockwise import Blockwise
from attnorm.attention.linear.flash import FlashOnCPU

FOLDER = scripts.ROOT / "benchmarks"
sys.path.insert(0, str(FOLDER))
doctor = scripts.load("benchmarks/doctor")
import checkup  # noqa: E402 - found in benchmarks/
from checkup import LeftOut, SelfCheck, Sizes, Speed  # noqa: E402

TINY = Sizes((8, 16), (torch.float32,), (64, 512), (torch.float32,), batch=1, heads=1, width=8, rounds=2)
NAMES = ["SDPA", "softmax", "dnas", "hnas"]
FIELDS = {"format", "versions", "machine", "problem", "self_checks", "speed", "left_out", "slower"}
MISSING = f"OSError: cannot open {Path.home()}/libs/kernel.so"


@pytest.fixture(autouse=True)
def fresh():
    kernels.forget()
    yield
    kernels.forget()


def examined(folder: Path, sizes: Sizes = TINY, *typed: str) -> dict:
    """The file that the doctor writes."""
    out = folder / "found.json"
    doctor.main(["--out", str(out), *typed], sizes)
    return json.loads(out.read_text())


@pytest.mark.slow
def test_the_file_has_what_is_promised_and_no_names_or_paths(tmp_path, capsys):
    found, printed = examined(tmp_path), capsys.readouterr().out
    assert found.keys() == FIELDS
    assert {"python", "torch", "attnorm", "entmax"} <= found["versions"].keys()
    assert found["machine"]["cpu_capability"] == torch.backends.cpu.get_cpu_capability()
    assert found["versions"]["torch"] in printed and found["machine"]["cpu_capability"] in printed
    assert [(it["width"], it["causal"]) for it in found["self_checks"]] == [
        (8, False), (8, True), (16, False), (16, True),
    ]  # fmt: skip
    for it in found["self_checks"]:
        assert it["outcomes"] == {"flash_attention_for_cpu": None, "blockwise": None}
        assert it["kernel"] == "flash_attention_for_cpu"
    assert [(it["length"], it["attention"]) for it in found["speed"]] == [(n, it) for n in (64, 512) for it in NAMES]
    by = {(it["length"], it["attention"]): it["computed_by"] for it in found["speed"]}
    assert by[64, "dnas"] == "dense" and by[512, "dnas"] == "flash_attention_for_cpu"
    for it in found["speed"]:
        assert it["rounds"] >= 1 and it["milliseconds"] > 0 and it["megabytes"] > 0
        assert it["lowest"] <= it["ratio"] <= it["highest"]
        assert it["attention"] != "SDPA" or it["ratio"] == it["memory_ratio"] == 1
    stored = (tmp_path / "found.json").read_text()
    for name in (str(Path.home()), str(tmp_path), str(Path.cwd()), platform.node()):
        assert name not in stored
    assert not re.search(rf"\b{re.escape(getpass.getuser())}\b", stored)


class Raising(FlashOnCPU):
    name = "broken"

    def forward(self, *given):
        raise OSError(MISSING.partition(": ")[2])


class WrongForWide(FlashOnCPU):
    """Wrong for heads of width 16 with a causal mask alone."""

    name = "broken"

    def forward(self, q, k, v, bias, scale, causal):
        out, total = super().forward(q, k, v, bias, scale, causal)
        return (1.1 * out if causal and q.shape[-1] == 16 else out), total


@pytest.mark.slow
def test_a_kernel_that_fails_its_self_check_is_reported_with_the_reason_and_the_case(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(kernels, "candidate_kernels", lambda *case: [Raising()])
    found, printed = examined(tmp_path), capsys.readouterr().out
    for it in found["self_checks"]:
        assert it["kernel"] == "blockwise"
        assert it["outcomes"] == {"broken": "OSError: cannot open <path>", "blockwise": None}
    assert "FAILED / FAILED" in printed and MISSING in printed and "(and 3 more)" in printed
    assert {it["computed_by"] for it in found["speed"] if it["length"] == 512} >= {"blockwise"}
    assert str(Path.home()) not in (tmp_path / "found.json").read_text()
    kernels.forget()
    monkeypatch.setattr(kernels, "candidate_kernels", lambda *case: [WrongForWide()])
    found = examined(tmp_path)
    failed = [it for it in found["self_checks"] if it["outcomes"]["broken"] is not None]
    assert [(it["width"], it["causal"], it["kernel"]) for it in failed] == [(16, True, "blockwise")]
    assert "ok / FAILED" in capsys.readouterr().out


def test_the_last_resort_is_checked_too(monkeypatch):
    monkeypatch.setattr(Blockwise, "forward", Raising.forward)
    [plain, causal] = checkup.kernel_checks(torch.device("cpu"), [torch.float32], [8])
    assert plain.outcomes == causal.outcomes == {"flash_attention_for_cpu": None, "blockwise": MISSING}


@pytest.mark.slow
def test_what_takes_too_long_is_left_out_and_the_first_length_never_is(tmp_path, capsys):
    found = examined(tmp_path, TINY._replace(lengths=(16, 2**20)), "--seconds=0.001")
    assert [it["attention"] for it in found["speed"]] == NAMES
    assert [(it["length"], it["attention"]) for it in found["left_out"]] == [(2**20, name) for name in NAMES]
    assert "0 s are left" in found["left_out"][0]["why"]
    printed = capsys.readouterr().out
    assert "SDPA for N = 1,048,576 and above: a step would take" in printed
    assert "softmax, dnas, hnas for N = 1,048,576 and above: SDPA is left out" in printed


@pytest.mark.slow
def test_an_attention_that_fails_is_left_out_alone(monkeypatch):
    def build(name):
        module = torch.nn.Module()
        module.attend = Raising().forward if name == "dnas" else checkup.sdpa
        return module

    monkeypatch.setattr(checkup, "build_normalizer", build)
    found = [*checkup.speeds(TINY, torch.float32, "cpu", 60)]
    assert [it for it in found if isinstance(it, LeftOut)] == [LeftOut("float32", 64, "dnas", MISSING)]
    assert {(it.length, it.attention) for it in found if isinstance(it, Speed)} == {
        (length, name) for length in (64, 512) for name in ("SDPA", "softmax", "hnas")
    }


def why(ratio, by, refused=None, control=1.0, rounds=5, ms=9.0, length=1024, device="cuda") -> str:
    """Why dnas is slower than expected where SDPA uses `flash_attention`; '' if it is not."""
    case, rest = ("bfloat16", length), (8.0, 1.0)
    found = [
        Speed(*case, "SDPA", "flash_attention", rounds, ms, 1.0, 1.0, 1.0, *rest),
        Speed(*case, "softmax", "flash_attention", rounds, ms * control, control, control, control, *rest),
        Speed(*case, "dnas", by, rounds, ms * ratio, ratio, ratio, ratio, *rest),
    ]
    used = "flash_attention" if by == "dense" else by
    check = SelfCheck("bfloat16", 8, False, used, {**(refused or {}), used: None})
    slow = checkup.slower(found, [check], TINY._replace(heads=4), device)
    return "; ".join(line for it in slow if it.attention == "dnas" for line in it.why)


def test_what_is_slower_than_expected_is_explained(monkeypatch):
    assert why(2.4, "flash_attention") == ""
    assert why(2.6, "flash_attention") == "no reason is known"
    assert "above 512 x 512" in why(2.6, "dense")
    assert why(2.6, "blockwise", {"flash_attention": "gone", "efficient_attention": "off"}) == (
        "flash_attention failed its self-check: gone; efficient_attention failed its self-check: off; "
        "blockwise computes it: no fused kernel passed"
    )
    assert why(2.6, "blockwise") == "blockwise computes it: no fused kernel serves this dtype"
    assert why(2.6, "efficient_attention") == "efficient_attention computes it, and flash_attention computes SDPA"
    assert "softmax, which calls SDPA, took 1.50 times" in why(2.6, "flash_attention", control=1.5)
    assert why(2.6, "flash_attention", rounds=1) == "noise: a single round"
    assert "starting the kernels" in why(2.6, "flash_attention", ms=0.1)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    on_cpu = {"by": "flash_attention_for_cpu", "device": "cpu"}
    assert why(2.6, **on_cpu, length=2**14) == "no reason is known"
    assert why(2.6, **on_cpu, length=2**15) == "the backward pass takes 2 of 4 heads at a time, for 3 threads"


def refused(capsys, *typed):
    """What is said of arguments that are refused before anything is measured."""
    with pytest.raises(SystemExit) as ended:
        doctor.main(typed, TINY)
    assert ended.value.code == 2
    return capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize(
    ("typed", "wanted"),
    [
        ("--seconds=-1", "--seconds -1: expected a number above 0"),
        ("--out=no/such/folder.json", "--out no/such/folder.json: expected the name of a file in a folder"),
        ("--out=.", "--out .: expected the name of a file"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(typed, wanted, capsys):
    assert wanted in refused(capsys, typed)


NO_DRIVER = "no device visible: Found no NVIDIA driver on your system"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
@pytest.mark.parametrize(
    "cuda, hidden, why",
    [
        (None, None, "torch is a CPU build; to install one with CUDA: "),
        ("12.6", None, NO_DRIVER),
        ("12.6", "", f"{NO_DRIVER}; CUDA_VISIBLE_DEVICES= is set"),
    ],
)
def test_without_a_gpu_the_reason_is_given(tmp_path, capsys, monkeypatch, cuda, hidden, why):
    def init():
        raise RuntimeError("Found no NVIDIA driver on your system. Please check.\nMore.")

    monkeypatch.setattr(torch.version, "cuda", cuda)
    monkeypatch.setattr(torch.cuda, "init", init)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if hidden is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", hidden)
    assert f"--device cuda: {why}" in refused(capsys, "--device=cuda")
    monkeypatch.setattr(checkup, "speeds", lambda *_: [])
    assert examined(tmp_path)["machine"]["no_gpu"].startswith(why)
    assert f"no GPU: {why}" in capsys.readouterr().out


def test_a_request_for_a_kernel_that_does_not_exist_is_refused(capsys, monkeypatch):
    monkeypatch.setenv("ATTNORM_KERNEL", "tritton")
    assert "error: ATTNORM_KERNEL='tritton': allowed: 'triton'" in refused(capsys)


def test_paths_are_removed_from_any_text():
    given = ["RuntimeError: /home/a b/x.so: no file", r"C:\Users\a\x.dll", "~/x", "MI210 / MI250 in 2 s"]
    wanted = ["RuntimeError: <path> <path> no file", "<path>", "<path>", "MI210 / MI250 in 2 s"]
    assert doctor.without_paths({"why": given, "n": 1}) == {"why": wanted, "n": 1}


@pytest.mark.slow
def test_the_doctor_needs_no_other_package(tmp_path):
    code = f"""
import sys
sys.path.insert(0, {str(FOLDER)!r})
import doctor
import torch
from checkup import Sizes
sizes = Sizes((8,), (torch.float32,), (32,), (torch.float32,), 1, 1, 8, 1)
doctor.main(["--out", {str(tmp_path / "found.json")!r}, "--device", "cpu"], sizes)
"""
    ended = python_without_extras(code)
    assert ended.returncode == 0, ended.stderr
    assert json.loads((tmp_path / "found.json").read_text()).keys() == FIELDS

"""The kernels in Triton, by its interpreter on the CPU: float32 and float16 against the formula in float64.

The interpreter multiplies the bit patterns of bfloat16, so bfloat16 is only compiled. Tests of the compiled kernels are
in another process, because Triton decides when it is imported whether to interpret kernels (see tests/conftest.py).
"""

import importlib.util
import logging
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import reference
import torch
from reference import BATCH, HEADS, case, randn, value_and_gradients
from tolerance import rounding

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.linear import kernels, on_triton, self_check
from attnorm.attention.linear.flash import Call
from attnorm.attention.linear.logsumexp import attention
from attnorm.attention.linear.on_triton import Blocks, Triton
from attnorm.attention.normalizers.shared import key_bias

pytestmark = pytest.mark.numerical

CPU = torch.device("cpu")
ROOT = Path(__file__).parents[3]
INSTALLED = importlib.util.find_spec("triton") is not None
with_triton = pytest.mark.skipif(not INSTALLED, reason="needs Triton: pip install triton")
interpreted = pytest.mark.skipif(
    not INSTALLED or os.environ.get("TRITON_INTERPRET") != "1",
    reason="needs Triton (pip install triton) and TRITON_INTERPRET=1, which is set where there is no GPU",
)
FLOATS = (torch.float32, torch.float16)
N = 41
KEYS = torch.rand(BATCH, N, generator=torch.Generator().manual_seed(1)) > 0.3
QUERIES = torch.rand(BATCH, N, generator=torch.Generator().manual_seed(2)) > 0.3
RAGGED = torch.arange(N) < torch.tensor([[N], [11]])
SEGMENTS = torch.randint(0, 3, (BATCH, N), generator=torch.Generator().manual_seed(3))
MASKS = {
    "ragged": Mask(queries=RAGGED, keys=RAGGED),
    "segments": Mask(queries=QUERIES, keys=KEYS, segments=SEGMENTS),
    "an example without keys": Mask(keys=KEYS & torch.tensor([[True], [False]])),
}
NAMES = ("softmax", "dnas", "hnas", "sinkhorn", "sink", "dnas_slack")
BLOCKS_OF = on_triton.blocks_of
PARTS = ("output", "q", "k", "v", "prior")


@pytest.fixture(autouse=True)
def on_request(monkeypatch):
    """The linear-memory path at any length by the kernels in Triton, in small blocks, with nothing decided yet."""
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})
    monkeypatch.setattr(on_triton, "blocks_of", lambda *kernel: Blocks(32, 16, 4, 2))
    monkeypatch.setenv("ATTNORM_KERNEL", "triton")
    kernels.forget()
    yield
    kernels.forget()


@pytest.fixture
def small(monkeypatch):
    """A self-check of a small problem that still has more than one block of queries and of keys, because the
    interpreter is slow."""
    for name, size in {"HEADS": 1, "QUERIES": 40, "KEYS": 45}.items():
        monkeypatch.setattr(self_check, name, size)


# -------------------------------------------------------------------------------------------------------- the formula


@interpreted
@pytest.mark.long
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_kernels_agree_with_float64(dtype, causal, small):
    """Output, logsumexp and all gradients: with masked keys, a finite bias and no bias; a width that is padded."""
    assert self_check.disagreement(Triton(), CPU, dtype, 33, causal) is None


@interpreted
@pytest.mark.long
@pytest.mark.parametrize("dtype, width", [*zip(FLOATS * 2, (16, 1, 128, 64), strict=True)], ids=str)
def test_heads_of_all_widths_in_the_blocks_in_which_they_are_used(dtype, width, small, monkeypatch):
    monkeypatch.setattr(on_triton, "blocks_of", BLOCKS_OF)
    assert self_check.disagreement(Triton(), CPU, dtype, width, causal=width == 64) is None


@interpreted
@pytest.mark.long
@pytest.mark.parametrize("name, dtype", [*((name, torch.float32) for name in NAMES), ("dnas", torch.float16)], ids=str)
def test_normalizers_compute_the_dense_formula(name, dtype, monkeypatch):
    """Output and gradients of q, k, v and the prior, which is the bias, with their own self-check left out."""
    monkeypatch.setattr(kernels, "disagreement", lambda *case: None)
    module, exact = build_normalizer(name), build_normalizer(name).double()
    inputs = reference.make_qkv(N, N, width=8, dtype=dtype)
    inputs.append(randn(1, HEADS, 1, N, seed=5, dtype=torch.float32))
    masks = [(mask, False) for mask in MASKS] + [(mask, True) for mask in MASKS if name in ("softmax", "sink")]
    for which, causal in masks:
        mask = Mask(MASKS[which].queries, MASKS[which].keys, causal, MASKS[which].segments)
        found = value_and_gradients(lambda q, k, v, u, m=mask: module.attend(q, k, v, m, log_prior=u), inputs)
        wanted = value_and_gradients(
            lambda q, k, v, u, m=mask: reference.dense_attend(exact, q, k, v, m, u), [x.double() for x in inputs]
        )
        for part, a, b in zip(PARTS, found, wanted, strict=True):
            with case(which, causal, part):
                assert a.isfinite().all()
                assert (a - b).norm() <= 2 * rounding(dtype, size=N) * b.norm()
    assert {outcome["kernel"] for outcome in kernels.self_checks().values()} == {"triton"}


@interpreted
def test_blocks_of_masked_keys_at_the_end_are_skipped():
    """Their keys and values are not a number, and never read. Their gradients are 0."""
    q, k, v = reference.make_qkv(20, 80, width=16, dtype=torch.float32)
    bias = randn(BATCH, HEADS, 1, 80, seed=4, dtype=torch.float32).masked_fill(torch.arange(80) >= 30, -torch.inf)
    k[..., 32:, :] = v[..., 32:, :] = torch.nan
    out, total = Triton().forward(q, k, v, bias, 0.3, False)
    grads = Triton().backward(torch.ones_like(out), total, Call(q, k, v, bias, out, total, 0.3, False), True)
    assert all(x.isfinite().all() for x in (out, total, *grads))
    assert not any(x[..., 32:, :].any() for x in grads[1:3]) and not grads[3][..., 30:].any()


@interpreted
def test_strides_do_not_matter():
    """Tensors that are expanded or transposed give bit for bit the results of contiguous ones."""
    q, k, v = reference.make_qkv(9, 20, width=16, dtype=torch.float32)
    strange = [x.mT.contiguous().mT for x in (q, k, v)]
    grad = torch.ones(()).expand(q.shape)
    biases = (
        randn(BATCH, HEADS, 1, 40, dtype=torch.float32)[..., ::2],
        torch.ones(1, 1, 1, 1).expand(BATCH, HEADS, 1, 20),
    )
    for bias in biases:
        results = []
        for tensors, b, g in (((q, k, v), bias.contiguous(), grad.contiguous()), (strange, bias, grad)):
            out, total = Triton().forward(*tensors, b, 0.3, False)
            grads = Triton().backward(g, total, Call(*tensors, b, out, total, 0.3, False), True)
            results.append((out, total, *grads))
        assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


# ------------------------------------------------------------------------------------------------------ planted faults

FAULTS = {
    "keys are forgotten": (-1, "tl.load(seen + pair)", "tl.load(seen + pair) - 40"),
    "a fault of the mask": (0, ">= (start_m", "> (start_m"),
    "a fault of the mask in the gradients": (
        1,
        "scale, i, start_m, keys, BLOCK_M",
        "scale, i - 1, start_m, keys, BLOCK_M",
    ),
    "a fault of the mask in the gradients of keys": (0, ">= j[:, None]", "> j[:, None]"),
    "sums are not rescaled": (0, "mean = mean * shrink[:, None]", "mean = mean"),
    "a logsumexp in base 2": (0, "tl.log2(total)) / LOG2_E", "tl.log2(total))"),
    "no gradient of the logsumexp": (0, "row_delta -= load_vector", "row_delta -= 0 * load_vector"),
    "the scale is missing in dQ": (0, "scale * grad,", "grad,"),
    "the scale is missing in dK": (0, "scale * sum_k,", "sum_k,"),
    "tensors of another example": (0, "strides[0]", "0"),
    "a wrong gradient of the bias": (0, "sum_bias += tl.sum(grad_s, 1)", "sum_bias += tl.sum(p, 1)"),
}


@interpreted
@pytest.mark.long
@pytest.mark.parametrize("fault", FAULTS)
def test_the_self_check_sees_planted_faults(fault, small, tmp_path, monkeypatch):
    which, old, new = FAULTS[fault]
    source = Path(on_triton.__file__).with_name("triton_kernels.py").read_text()
    pieces = source.split(old)
    assert len(pieces) > 1, "the line to be replaced is gone"
    if which < 0:
        source = new.join(pieces)
    else:
        source = old.join(pieces[: which + 1]) + new + old.join(pieces[which + 1 :])
    path = tmp_path / "faulty_kernels.py"
    path.write_text(source)
    spec = importlib.util.spec_from_file_location("faulty_kernels", path)
    faulty = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(faulty)
    monkeypatch.setattr(on_triton, "load_kernels", lambda device: faulty)
    assert self_check.disagreement(Triton(), CPU, torch.float32, 16, causal="mask" in fault) is not None


# ---------------------------------------------------------------------------------------------------------- the choice


def names(device="cuda:0", dtype=torch.bfloat16, width=64):
    return [kernel.name for kernel in kernels.candidate_kernels(torch.device(device), dtype, width)]


def test_the_kernels_are_off_unless_they_are_requested(monkeypatch):
    requested = names(), names(dtype=torch.float32), names("cpu")
    assert all(found[0] == "triton" for found in requested)
    assert "triton" not in names(dtype=torch.float64) + names(width=129) + names("cpu", torch.float64)
    monkeypatch.delenv("ATTNORM_KERNEL")
    assert (names(), names(dtype=torch.float32), names("cpu")) == tuple(found[1:] for found in requested)


def test_another_request_is_refused_by_name(monkeypatch):
    monkeypatch.setenv("ATTNORM_KERNEL", "tritn")
    with pytest.raises(ValueError, match=r"ATTNORM_KERNEL='tritn': allowed: 'triton'"):
        names()


def warning_of_attention(caplog):
    """The warning while attention is computed, which is as without the request."""
    q, k, v = reference.make_qkv(9, 7, width=8, dtype=torch.float32)
    with caplog.at_level(logging.WARNING):
        found = attention(q, k, v, None, 0.3)
    assert (found - (0.3 * q @ k.mT).softmax(-1) @ v).norm() <= rounding(torch.float32, size=9) * found.norm()
    (record,), (outcome,) = caplog.records, kernels.self_checks().values()
    assert outcome["kernel"] == "flash_attention_for_cpu" and [*outcome["refused"]] == ["triton"]
    return record.getMessage()


def test_without_triton_a_warning_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "triton", None)
    monkeypatch.delitem(sys.modules, "attnorm.attention.linear.triton_kernels", raising=False)
    monkeypatch.delattr("attnorm.attention.linear.triton_kernels", raising=False)
    assert "pip install triton" in warning_of_attention(caplog)


@interpreted
def test_what_fails_the_self_check_is_not_used(small, monkeypatch, caplog):
    monkeypatch.setattr(on_triton, "with_seen", lambda bias: (None, None))
    message = warning_of_attention(caplog)
    assert "triton is not used for cpu float32" in message and "failed its self-check: output with" in message


@interpreted
def test_what_passes_the_self_check_is_used_and_reported(small, caplog):
    attention(*reference.make_qkv(9, 7, width=8, dtype=torch.float32), None, 0.3)
    assert kernels.self_checks() == {"cpu float32 8": {"kernel": "triton", "refused": {}}} and not caplog.records


# --------------------------------------------------------------------------------------------------------- the compiler


def compiled_rows(*arguments):
    """Runs benchmarks/kernel_compile.py and returns its exit status and the rows of its table."""
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    command = [sys.executable, str(ROOT / "benchmarks/kernel_compile.py"), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    rows = [line for line in done.stdout.splitlines() if re.match(r"\| (forward|backward)", line)]
    assert rows, done.stderr
    return done.returncode, rows


@with_triton
@pytest.mark.long
def test_a_kernel_compiles_for_tensor_cores_without_spills():
    status, rows = compiled_rows("--kernels", "forward", "--targets", "sm_90", "--dtypes", "bfloat16", "--widths", "64")
    assert status == 0 and len(rows) == 1 and "wgmma" in rows[0]


@with_triton
@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("target", "variant"),
    [("sm_80", ""), ("sm_90", ""), ("sm_100", ""), ("gfx942", ""), ("sm_90", "--causal"), ("sm_90", "--plain")],
)
def test_all_kernels_compile_for_tensor_cores_without_spills_and_with_bounded_shared_memory(target, variant):
    status, rows = compiled_rows("--targets", target, *variant.split())
    assert status == 0, "\n".join(rows)
    assert len(rows) == 3 * 3 * 2  # kernels, dtypes, widths

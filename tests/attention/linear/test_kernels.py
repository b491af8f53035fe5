"""The kernels of linear-memory attention: the fallback, the self-check that decides between them, and the operators."""

import logging
import random
import threading
from itertools import product

import pytest
import reference
import torch
from reference import case, randn
from simulated_gpu import KernelInChannels
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.linear import flash, kernels, operators, self_check, tiles
from attnorm.attention.linear.blockwise import Blockwise
from attnorm.attention.linear.logsumexp import attention
from attnorm.attention.normalizers.shared import key_bias

pytestmark = pytest.mark.numerical

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
CPU = torch.device("cpu")
TIGHT = {"rtol": 1e-10, "atol": 1e-10}


class Missing(KernelInChannels):
    name = "missing"

    def plain_forward(self, q, k, v, scale, causal):
        return torch.ops.aten._no_operator_of_this_name(q, k, v, scale=scale)


class Raising(KernelInChannels):
    name = "raising"

    def plain_backward(self, *known):
        raise RuntimeError("no kernel image is available\nfor execution on the device")


class WrongValue(KernelInChannels):
    name = "wrong_value"

    def plain_forward(self, q, k, v, scale, causal):
        out, total = super().plain_forward(q, k, v, scale, causal)
        out[..., -1, :] = out[..., -2, :]  # the last query, as a kernel that forgets a part of a block
        return out, total


class WrongLogsumexp(KernelInChannels):
    name = "wrong_logsumexp"

    def plain_forward(self, q, k, v, scale, causal):
        out, total = super().plain_forward(q, k, v, scale, causal)
        return out, total / 0.6931471805599453  # in base 2


class WrongGradient(KernelInChannels):
    name = "wrong_gradient"

    def plain_backward(self, *known):
        *grads, grad_v = super().plain_backward(*known)
        grad_v[..., -1, :] = 0.0
        return *grads, grad_v


class NotFinite(KernelInChannels):
    name = "not_finite"

    def plain_backward(self, *known):
        grad_q, grad_k, grad_v = super().plain_backward(*known)
        return grad_q, torch.full_like(grad_k, torch.nan), grad_v


class ForgottenBias(KernelInChannels):
    name = "forgotten_bias"

    def backward(self, *known):
        *grads, grad_bias = super().backward(*known)
        return *grads, None if grad_bias is None else 1.5 * grad_bias


class ForgottenTotal(KernelInChannels):
    name = "forgotten_total"

    def backward(self, grad_out, grad_logsumexp, *known):
        return super().backward(grad_out, None, *known)


BROKEN = {
    Missing: "AttributeError: ",
    Raising: "RuntimeError: no kernel image is available",
    WrongValue: "output with ",
    WrongLogsumexp: "logsumexp with ",
    WrongGradient: "gradient of v with ",
    NotFinite: "gradient of k with ",
    ForgottenBias: "gradient of the bias with ",
    ForgottenTotal: "gradient of q from both results with ",
}


@pytest.fixture(autouse=True)
def fresh(monkeypatch):
    """The linear-memory path at any length, with nothing checked yet."""
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0})
    kernels.forget()
    yield
    kernels.forget()


def offer(monkeypatch, *found):
    monkeypatch.setattr(kernels, "candidate_kernels", lambda *case: list(found))


def gradients_of(attend, dtype=torch.float64):
    return reference.value_and_gradients(attend, reference.make_qkv(9, 7, width=8, dtype=dtype))


# ------------------------------------------------------------------------------------------------------- the fallback


@pytest.mark.long
@pytest.mark.numerical
@pytest.mark.parametrize(
    ("chunk", "dtype"), [(1, torch.float32), *((1000, dtype) for dtype in DTYPES), (2**19, torch.float32)], ids=str
)
def test_the_fallback_agrees_with_the_dense_formula(dtype, chunk, monkeypatch):
    monkeypatch.setattr(flash, "CHUNK", {"cpu": chunk})
    for causal in (False, True):
        assert self_check.disagreement(Blockwise(), CPU, dtype, 12, causal) is None


@pytest.mark.numerical
@pytest.mark.parametrize("name", ["softmax", "dnas", "hnas", "sinkhorn"])
def test_with_the_fallback_a_layer_computes_the_same(name, monkeypatch):
    module, keys = build_normalizer(name).double(), torch.arange(7).expand(reference.BATCH, 7) != 2
    mask = Mask(queries=torch.arange(9).expand(reference.BATCH, 9) != 3, keys=keys)
    wanted = gradients_of(lambda q, k, v: reference.dense_attend(module, q, k, v, mask))
    offer(monkeypatch)
    assert_close(gradients_of(lambda q, k, v: module.attend(q, k, v, mask)), wanted, **TIGHT)
    assert {outcome["kernel"] for outcome in kernels.self_checks().values()} == {"blockwise"}


def test_the_fallback_ignores_autocast(monkeypatch):
    q, k, v = reference.make_qkv(9, 7, width=8, dtype=torch.float32)
    bias = randn(1, 1, 1, 7).float()
    offer(monkeypatch)
    wanted = attention(q, k, v, bias, 0.3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(attention(q, k, v, bias, 0.3), wanted)


# ------------------------------------------------------------------------------------------------------ the self-check


@pytest.mark.long
@pytest.mark.numerical
@pytest.mark.parametrize("width", [4, 64])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_sound_kernel_passes_well_below_the_tolerance(dtype, width, monkeypatch):
    tolerance = self_check.tolerance
    monkeypatch.setattr(self_check, "tolerance", lambda *case: tolerance(*case) / 2)
    sound = [flash.FlashOnCPU(), Blockwise()]
    if dtype not in (torch.float64, torch.float32):  # beside 16 bits, a bias in channels is as exact as float32
        sound.append(KernelInChannels())
    for kernel, causal in product(sound, (False, True)):
        with case(kernel.name, causal):
            assert self_check.disagreement(kernel, CPU, dtype, width, causal) is None


def test_the_error_of_a_row_does_not_depend_on_how_much_is_masked():
    wanted, mistake = randn(2, 3, 1, 40), 1e-3 * randn(2, 3, 1, 40, seed=1)
    zeros = torch.zeros(2, 3, 1, 80)
    alone = self_check.relative_error(wanted + mistake, wanted)
    among = self_check.relative_error(torch.cat((wanted + mistake, zeros), -1), torch.cat((wanted, zeros), -1))
    assert among == pytest.approx(alone, rel=1e-12)


class SeesAll(KernelInChannels):
    """A kernel for which causal has no effect."""

    def plain_forward(self, q, k, v, scale, causal):
        return super().plain_forward(q, k, v, scale, False)

    def plain_backward(self, grad_out, call):
        return super().plain_backward(grad_out, call._replace(causal=False))


class SeesAllBackward(SeesAll):
    plain_forward = KernelInChannels.plain_forward


class SeesOneMore(Blockwise):
    """The diagonal is one key too far to the right, as if it were aligned otherwise."""

    def forward(self, q, k, v, bias, scale, causal):
        if causal:
            outside = torch.ones(q.shape[-2], k.shape[-2], dtype=torch.bool).triu(2)
            bias = (torch.zeros(()) if bias is None else bias).expand(*q.shape[:3], k.shape[-2])
            bias = bias.masked_fill(outside, -torch.inf)
        return super().forward(q, k, v, bias, scale, False)


class SkipsBlocks(KernelInChannels):
    """Leaves out the last block of keys of the queries in it, beside the diagonal."""

    def plain_forward(self, q, k, v, scale, causal):
        out, total = super().plain_forward(q, k, v, scale, causal)
        if causal:
            last = slice(128, None)
            out[..., last, :], total[..., last] = super().plain_forward(q[..., last, :], k, v, scale, False)
        return out, total


@pytest.mark.parametrize("broken", [SeesAll, SeesAllBackward, SeesOneMore, SkipsBlocks])
def test_a_kernel_that_fails_with_a_causal_mask_alone_is_replaced_there_alone(broken, monkeypatch):
    monkeypatch.setattr(broken, "name", "broken")
    offer(monkeypatch, broken())
    q, k, v = reference.make_qkv(9, 9, width=8, dtype=torch.float32)
    bias = randn(1, 1, 1, 9).float()
    attention(q, k, v, bias, 0.3)
    found = attention(q, k, v, bias, 0.3, causal=True)
    assert torch.equal(found, Blockwise().forward(q, k, v, bias.expand(*k.shape[:2], 1, 9), 0.3, True)[0])
    outcomes = kernels.self_checks()
    assert outcomes["cpu float32 8"]["kernel"] == "broken" and outcomes["cpu float32 8 causal"]["kernel"] == "blockwise"


@pytest.mark.long
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_kernel_is_replaced_and_reported_once(broken, dtype, monkeypatch, caplog):
    wanted = gradients_of(lambda q, k, v: build_normalizer("dnas").attend(q, k, v), dtype)
    kernels.forget()
    offer(monkeypatch, broken(), Blockwise())
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            found = gradients_of(lambda q, k, v: build_normalizer("dnas").attend(q, k, v), dtype)
    assert_close(found, wanted, rtol=0, atol=20 * torch.finfo(dtype).eps)
    (message,) = [record.getMessage() for record in caplog.records]
    assert broken.name in message and BROKEN[broken] in message and "blockwise" in message and "\n" not in message
    outcomes = kernels.self_checks()
    assert {outcome["kernel"] for outcome in outcomes.values()} == {"blockwise"}
    assert all(outcome["refused"][broken.name].startswith(BROKEN[broken]) for outcome in outcomes.values())


def test_the_next_candidate_takes_the_place_of_a_broken_one(monkeypatch):
    offer(monkeypatch, Missing(), Raising(), KernelInChannels(), Blockwise())
    gradients_of(lambda q, k, v: attention(q, k, v, None, 0.3), torch.float32)
    (outcome,) = kernels.self_checks().values()
    assert outcome["kernel"] == "emulated" and list(outcome["refused"]) == ["missing", "raising"]


def test_a_kernel_that_fails_at_every_width_is_reported_once(monkeypatch, caplog):
    offer(monkeypatch, Missing())
    for width in (4, 8, 16):
        attention(*reference.make_qkv(3, 3, width=width, dtype=torch.float32), None, 0.3)
    assert len(caplog.records) == 1 and len(kernels.self_checks()) == 3


def test_the_operator_of_the_cpu_may_disappear_from_torch(monkeypatch):
    class Without:
        def __getattr__(self, name):
            raise AttributeError(f"'_OpNamespace' 'aten' object has no attribute '{name}'")

    monkeypatch.setattr(flash, "aten", Without())
    out, *_ = gradients_of(lambda q, k, v: attention(q, k, v, None, 0.3), torch.float32)
    assert out.isfinite().all() and kernels.self_checks()["cpu float32 8"]["kernel"] == "blockwise"


def test_each_device_dtype_and_width_is_checked_once(monkeypatch):
    seen = []

    def count(kernel, *case):
        seen.append(case)

    monkeypatch.setattr(kernels, "disagreement", count)
    for _ in range(2):
        for dtype in (torch.float32, torch.bfloat16):
            for width in (4, 8):
                attention(*reference.make_qkv(3, 3, width=width, dtype=dtype), None, 0.3)
    assert len(seen) == len(set(seen)) == 4


def test_threads_that_begin_together_check_once(monkeypatch):
    seen, barrier = [], threading.Barrier(8)

    def count(kernel, *case):
        seen.append(case)

    def work():
        barrier.wait()
        attention(*reference.make_qkv(3, 3, width=4, dtype=torch.float32), None, 0.3)

    monkeypatch.setattr(kernels, "disagreement", count)
    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(seen) == 1


class Seen(TorchDispatchMode):
    """Counts the operations that it intercepts."""

    count = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.count += 1
        return function(*args, **(kwargs or {}))


def test_a_check_leaves_random_states_alone_and_is_not_seen_from_outside():
    q, k, v = reference.make_qkv(5, 5, width=8, dtype=torch.float32)
    states = torch.get_rng_state(), random.getstate()
    counts = []
    for _ in range(2):  # with the check and without it
        with Seen() as seen:
            attention(q, k, v, None, 0.3)
        counts.append(seen.count)
    assert counts[0] == counts[1] > 0
    assert torch.equal(torch.get_rng_state(), states[0]) and random.getstate() == states[1]


@pytest.mark.parametrize(
    "mode",
    [torch.inference_mode, torch.no_grad, lambda: torch.autocast("cpu", torch.bfloat16), torch.autograd.detect_anomaly],
    ids=["inference_mode", "no_grad", "autocast", "detect_anomaly"],
)
@pytest.mark.filterwarnings("ignore:Anomaly Detection")
def test_a_check_within_any_mode_has_the_same_outcome(mode):
    q, k, v = reference.make_qkv(5, 5, width=8, dtype=torch.float32)
    with mode():
        attention(q, k, v, None, 0.3)
        assert torch.is_inference_mode_enabled() == (mode is torch.inference_mode)
    assert kernels.self_checks() == {"cpu float32 8": {"kernel": "flash_attention_for_cpu", "refused": {}}}


def test_a_check_on_fake_tensors_does_not_spoil_the_outcome():
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        tiles.tiled_forward(*(torch.randn(1, 2, 5, 8) for _ in range(3)), None, 0.3, False)
    assert kernels.self_checks()["cpu float32 8"]["kernel"] == "flash_attention_for_cpu"


def test_during_the_capture_of_a_graph_nothing_is_checked(monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    monkeypatch.setattr(kernels, "disagreement", lambda *_: pytest.fail("a check waits for the GPU"))
    q = type("OnGpu", (), {"device": torch.device("cuda:0"), "dtype": torch.bfloat16, "shape": (1, 1, 5, 8)})()
    assert kernels.kernel_for(q, True) is kernels.FALLBACK and kernels.self_checks() == {}


def test_the_candidates_of_a_gpu():
    def names(dtype, width=64):
        return [kernel.name for kernel in kernels.candidate_kernels(torch.device("cuda:0"), dtype, width)]

    assert names(torch.bfloat16) == names(torch.float16) == ["flash_attention", "efficient_attention"]
    assert names(torch.float32) == ["efficient_attention"]
    assert names(torch.float64) == names(torch.float32, 254) == []


@pytest.mark.parametrize("kernel", [flash.FlashOnCUDA(), flash.EfficientOnCUDA()], ids=lambda kernel: kernel.name)
@pytest.mark.parametrize("with_bias, causal", [(False, False), (True, False), (False, True), (True, True)])
def test_the_operators_of_a_gpu_exist_and_accept_these_arguments(kernel, with_bias, causal, monkeypatch):
    """Shapes only, by the implementations for tensors without data. What they compute, only a GPU can tell."""
    monkeypatch.setattr(flash, "CHUNK", {"meta": 2**20})
    dtypes = (torch.bfloat16, torch.float16) + (torch.float32,) * (kernel.name == "efficient_attention")
    for dtype in dtypes:
        lengths = {"queries": self_check.KEYS} if causal else {}
        q, k, v, grad = (x.to("meta", dtype) for x in self_check.tensors(24, **lengths))
        bias = self_check.biases()["a bias"].to("meta", torch.float32) if with_bias else None
        out, total = kernel.forward(q, k, v, bias, 0.2, causal)
        assert out.shape == q.shape and out.dtype == dtype
        assert total.shape == q.shape[:-1] and total.dtype == torch.float32 and total.is_contiguous()
        call = flash.Call(q, k, v, bias, out, total, 0.2, causal)
        *grads, grad_bias = kernel.backward(grad, total, call, True)
        assert [x.shape for x in grads] == [x.shape for x in (q, k, v)]
        assert grad_bias.shape == (*k.shape[:2], 1, k.shape[2])


# ------------------------------------------------------------------------------------------------------ the operators


def operator_inputs(dtype, with_bias, bias_needs_grad, n_queries, n_keys, contiguous):
    def vectors(length, seed):
        x = randn(2, length, 3, 8, seed=seed, dtype=dtype).transpose(1, 2)
        return (x.contiguous() if contiguous else x).requires_grad_()

    wide = torch.promote_types(dtype, torch.float32)
    bias = randn(2, 3, 1, n_keys, seed=4, dtype=wide).requires_grad_(bias_needs_grad) if with_bias else None
    return vectors(n_queries, 1), vectors(n_keys, 2), vectors(n_keys, 3), bias


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "bias"),
    [
        *((torch.float32, bias) for bias in ("no bias", "bias", "bias with gradient")),
        *((dtype, "bias with gradient") for dtype in (torch.float64, torch.bfloat16)),
    ],
    ids=str,
)
def test_torch_finds_no_fault_with_the_operators(dtype, bias):
    shapes = [(5, 7, False, True)]
    if dtype == torch.float32:
        shapes += [(5, 7, False, False), (6, 4, True, False), (1, 4, False, False)]
    for n_queries, n_keys, contiguous, causal in shapes:
        needed = bias == "bias with gradient"
        q, k, v, b = operator_inputs(dtype, bias != "no bias", needed, n_queries, n_keys, contiguous)
        of_grad = randn(*q.shape, seed=5, dtype=dtype)
        out, total = operators.attention_operator(
            *(x if x is None else x.detach() for x in (q, k, v, b)), 0.3, causal, False
        )
        fixed = [x if x is None else x.detach() for x in (q, k, v, b, out, total)]
        mean, grad = torch.randn_like(fixed[0]), torch.randn_like(total)
        calls = {
            operators.attention_operator: (q, k, v, b, 0.3, causal, causal),
            operators.logsumexp_operator: (q, k, b, 0.3),
            operators.attention_backward: (of_grad, grad if causal else None, *fixed, 0.3, causal, needed),
            operators.logsumexp_backward: (grad, *fixed[:2], fixed[3], mean, total, 0.3, needed),
        }
        tolerance = {"rtol": 2e-2, "atol": 2e-2} if dtype == torch.bfloat16 else {}
        for operator, arguments in calls.items():
            with case(operator, n_queries, causal):
                torch.library.opcheck(operator, arguments, **tolerance)


@pytest.mark.long
@pytest.mark.parametrize("name", ["softmax", "causal softmax", "dnas", "hnas", "sinkhorn"])
def test_compiled_code_is_captured_whole_and_differentiates_the_same(name):
    """A graph without a break, with the operators in it; the bias and its gradient included."""
    module = build_normalizer(name.removeprefix("causal "))
    keys = torch.arange(30).expand(2, -1) < 27
    mask, log_prior = (
        Mask(queries=keys, keys=keys, causal=name.startswith("causal")),
        randn(1, 3, 1, 30, seed=4, dtype=torch.float32),
    )
    inputs = [*(randn(2, 3, 30, 8, seed=n, dtype=torch.float32) for n in range(3)), log_prior]
    captured = []

    def backend(graph, _):
        captured.extend(str(node.target) for node in graph.graph.nodes if node.op == "call_function")
        return graph

    def attend(q, k, v, log_prior):
        return module.attend(q, k, v, mask, log_prior=log_prior)

    compiled = torch.compile(attend, backend=backend, fullgraph=True)
    found, wanted = (reference.value_and_gradients(function, inputs) for function in (compiled, attend))
    assert_close(found, wanted, rtol=0, atol=0)
    assert "attnorm.attention.default" in captured
    assert ("attnorm.logsumexp.default" in captured) == ("softmax" not in name)

"""Everything that only a GPU can tell: `make test-gpu`. Most of it also runs on the CPU, as slow tests, so that the
tests themselves are known to be right before a GPU is at hand."""

import subprocess
import sys
from itertools import product
from pathlib import Path

import pytest
import reference
import runs
import torch
from reference import randn, value_and_gradients
from runs import logged, parameters, tiny_run
from tolerance import rounding

from attnorm.attention import Mask, build_normalizer, build_scorer
from attnorm.attention.linear import flash, kernels, self_check
from attnorm.attention.linear.blockwise import Blockwise
from attnorm.attention.multihead import MultiHeadAttention
from attnorm.attention.normalizers.shared import key_bias

ON_GPU = pytest.param("cuda", marks=pytest.mark.gpu)
DEVICES = [pytest.param("cpu", marks=pytest.mark.slow), ON_GPU]
SIXTEEN = (torch.bfloat16, torch.float16)
DTYPES = (torch.float32, *SIXTEEN)
MASKED = ("none", "keys", "both_sides", "segments")
MEMORY_LINEAR = [
    *product(("softmax", "dnas", "hnas", "sinkhorn"), MASKED),
    *(("softmax", f"causal_{masked}") for masked in MASKED),
]
NAMES = sorted({name for name, _ in MEMORY_LINEAR})
PREFIX = ("dnas_prefix", "hnas_prefix")
ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def fresh(request, monkeypatch):
    """The linear-memory path at any length, and no check made yet."""
    if "cuda" in request.node.name and not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    monkeypatch.setattr(key_bias, "DENSE_UP_TO", {"cpu": 0, "cuda": 0})
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # of the GRU of task=vqa
    kernels.forget()
    yield
    kernels.forget()


def allowed(dtype: torch.dtype, size: int) -> float:
    """The relative norm of an error that rounding may cause. With 16 bits, sums are still in float32."""
    return 8 * torch.finfo(dtype).eps if dtype in SIXTEEN else rounding(dtype, size=size)


def error(found, wanted):
    assert found.isfinite().all()
    return ((found.double().cpu() - wanted.cpu()).norm() / wanted.norm().cpu()).item()


def real_positions(length, device):
    return (torch.arange(length) < torch.tensor([[length], [length - length // 4]])).to(device)


# -------------------------------------------------------------------------------------------------------- the kernels


@pytest.mark.parametrize("device", DEVICES)
def test_which_kernels_pass_their_self_check(device, capsys):
    """Prints a table. On a GPU, float32 and 16 bits must each have a fused kernel."""
    target = torch.empty(0, device=device).device
    lines, passed = [], {}
    for dtype in DTYPES:
        for width in (8, 33, 64, 96, 128, 250):
            for kernel, causal in product(
                [*kernels.candidate_kernels(target, dtype, width), Blockwise()], (False, True)
            ):
                try:
                    reason = self_check.disagreement(kernel, target, dtype, width, causal)
                except Exception as error:
                    reason = f"{type(error).__name__}: {error}".splitlines()[0]
                which = " causal" * causal
                lines.append(f"{target} {dtype} {width:4} {kernel.name:24} {reason or 'passed'}{which}")
                passed.setdefault((dtype, width, causal), []).extend([kernel.name] * (reason is None))
    with capsys.disabled():
        name = torch.cuda.get_device_name() if device == "cuda" else "CPU"
        print("\n" + "\n".join([f"self-checks on {name}, torch {torch.__version__}", *lines]))
    assert all(len(names) >= 2 and "blockwise" in names for names in passed.values())


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name, masked", MEMORY_LINEAR)
@pytest.mark.parametrize(
    ("device", "width", "length"),
    [
        pytest.param("cpu", 24, 70, marks=pytest.mark.slow),
        *(pytest.param("cuda", *sizes, marks=pytest.mark.gpu) for sizes in product((24, 64, 128), (70, 513))),
    ],
)
def test_memory_linear_normalizers_agree_with_the_dense_form(device, name, dtype, width, masked, length):
    """Value and gradients of q, k, v and the prior (which is the bias), against float64."""
    real = real_positions(length, device)
    segments = (torch.arange(length) // 60).expand(2, length).to(device)
    causal = masked.startswith("causal")
    mask = {
        "none": Mask(causal=causal) if causal else None,
        "keys": Mask(keys=real, causal=causal),
        "both_sides": Mask(queries=real, keys=real, causal=causal),
        "segments": Mask(queries=real, keys=real, segments=segments, causal=causal),
    }[masked.removeprefix("causal_")]
    inputs = [x.to(device) for x in reference.make_qkv(length, length, width, dtype, batch=2)]
    inputs.append(randn(1, reference.HEADS, 1, length, seed=5, dtype=torch.float32).to(device))
    module = build_normalizer(name).to(device)
    exact = build_normalizer(name).double().to(device)

    def attend(q, k, v, log_prior):
        return module.attend(q, k, v, mask, log_prior=log_prior)

    found = value_and_gradients(attend, inputs)
    wanted = value_and_gradients(
        lambda q, k, v, log_prior: reference.dense_attend(exact, q, k, v, mask, log_prior),
        [x.double() for x in inputs],
    )
    for part, (a, b) in enumerate(zip(found, wanted, strict=True)):
        assert error(a, b) <= allowed(dtype, length), f"{('output', 'q', 'k', 'v', 'prior')[part]}"
    assert "blockwise" not in {outcome["kernel"] for outcome in kernels.self_checks().values()}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("name", PREFIX)
@pytest.mark.parametrize("device", DEVICES)
def test_prefix_normalizers_agree_with_float64(device, name, dtype):
    inputs = [x.to(device) for x in reference.make_qkv(130, 130, 64, dtype, batch=2)]
    mask = Mask(keys=real_positions(130, device), causal=True)
    module, exact = build_normalizer(name).to(device), build_normalizer(name).double().to(device)
    found = value_and_gradients(lambda *qkv: module.attend(*qkv, mask), inputs)
    wanted = value_and_gradients(lambda *qkv: exact.attend(*qkv, mask), [x.double() for x in inputs])
    for a, b in zip(found, wanted, strict=True):
        assert error(a, b) <= allowed(dtype, 130)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", DEVICES)
def test_the_fallback_agrees_with_the_fused_kernels(device, name, monkeypatch):
    inputs = [x.to(device) for x in reference.make_qkv(300, 260, 64, torch.float32, batch=2)]
    module = build_normalizer(name).to(device)
    fused = value_and_gradients(module.attend, inputs)
    kernels.forget()
    monkeypatch.setattr(kernels, "candidate_kernels", lambda *case: [])
    for a, b in zip(value_and_gradients(module.attend, inputs), fused, strict=True):
        assert error(a, b.double()) <= allowed(torch.float32, 300)


@pytest.mark.parametrize("dtype", SIXTEEN, ids=str)
@pytest.mark.parametrize("device", DEVICES)
def test_under_autocast_a_layer_is_as_exact_as_its_dtype(device, dtype):
    normalizer, scorer = build_normalizer("dnas"), build_scorer("scaled_dot")
    layer = MultiHeadAttention(64, 2, normalizer, scorer).to(device)
    x = randn(2, 200, 64, seed=1, dtype=torch.float32).to(device)
    wanted = layer(x, x)
    with torch.autocast(device, dtype):
        found = layer(x, x)
    assert found.dtype == dtype and error(found, wanted.double().detach()) <= allowed(dtype, 200)
    assert any(str(dtype).removeprefix("torch.") in label for label in kernels.self_checks())


@pytest.mark.parametrize("device", DEVICES)
def test_a_check_leaves_the_random_state_alone(device):
    state = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    with torch.inference_mode():
        build_normalizer("dnas").attend(*(x.to(device) for x in reference.make_qkv(9, 9, 16, torch.float32)))
    now = torch.cuda.get_rng_state() if device == "cuda" else torch.get_rng_state()
    assert torch.equal(state, now) and kernels.self_checks()


@pytest.mark.parametrize("checked_before", [True, False])
@pytest.mark.parametrize("device", [ON_GPU])
def test_attention_can_be_captured_in_a_graph(device, checked_before):
    """Without a check before the capture, the fallback is captured; a replay computes with new inputs either way."""
    module = build_normalizer("dnas").to(device)
    inputs = [x.to(device) for x in reference.make_qkv(64, 64, 64, torch.bfloat16)]
    torch.matmul(inputs[0].float(), inputs[1].float().mT)  # cuBLAS cannot start within a capture
    if checked_before:
        module.attend(*inputs)
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.no_grad(), torch.cuda.graph(graph):
        out = module.attend(*inputs)
    for x in inputs:
        x.mul_(0.5)
    graph.replay()
    torch.cuda.synchronize()
    wanted = reference.dense_attend(build_normalizer("dnas").double().to(device), *(x.double() for x in inputs))
    assert error(out, wanted) <= allowed(torch.bfloat16, 64)
    assert bool(kernels.self_checks()) == checked_before


@pytest.mark.parametrize("fallback", [False, True])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("device", [ON_GPU])
def test_peak_memory_is_linear_in_length(device, name, fallback, monkeypatch):
    if fallback:
        monkeypatch.setattr(kernels, "candidate_kernels", lambda *case: [])
        monkeypatch.setattr(flash, "CHUNK", {"cuda": 2**22})
    module = build_normalizer(name).to(device)

    def peak(length):
        inputs = [x.to(device).requires_grad_() for x in reference.make_qkv(length, length, 64, torch.bfloat16, 1, 2)]
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        out = module.attend(*inputs)
        out.backward(torch.ones_like(out))
        return torch.cuda.max_memory_allocated() - before

    peak(1024)  # the checks, and the workspaces of libraries
    short, long = peak(2**13), peak(2**15)
    assert long <= 4.5 * short and long < 2**29, f"{short / 1e6:.0f} MB, {long / 1e6:.0f} MB"


# ------------------------------------------------------------------------------------------------------- whole runs


def on(device: str, precision: str = "32-true") -> tuple[str, ...]:
    return f"trainer.accelerator={'gpu' if device == 'cuda' else 'cpu'}", f"trainer.precision={precision}"


def assert_near(found: Path, wanted: Path, dtype: torch.dtype = torch.float32) -> None:
    a, b = logged(found, "train/loss"), logged(wanted, "train/loss")
    assert list(a) == list(b) != []
    for step, loss in b.items():
        relative = rounding(dtype, depth=64, size=16) if dtype == torch.float32 else rounding(dtype, depth=8)
        assert abs(a[step] - loss) <= relative * abs(loss)


@pytest.mark.parametrize("precision", ["32-true", "bf16-mixed", "16-mixed"])
@pytest.mark.parametrize("task", ["gigaword", "mlm", "squad", "classify", "vqa"])
@pytest.mark.parametrize("device", [ON_GPU])
def test_a_run_on_the_gpu_has_the_losses_of_one_on_the_cpu(device, task, precision, tmp_path):
    same = ("attention=hnas", "model.dropout=0.0")
    tiny_run(tmp_path / "cpu", *same, *on("cpu"), task=task)
    kernels.forget()
    tiny_run(tmp_path / "gpu", *same, *on(device, precision), task=task)
    dtype = {"32-true": torch.float32, "bf16-mixed": torch.bfloat16, "16-mixed": torch.float16}[precision]
    assert_near(tmp_path / "gpu", tmp_path / "cpu", dtype)
    environment = runs.record_of(tmp_path / "gpu")
    assert environment["gpus"] and environment["attention_kernels"]
    assert all(label.startswith("cuda:0 ") for label in environment["attention_kernels"])


@pytest.mark.parametrize("task", ["gigaword", "mlm"])
@pytest.mark.parametrize("device", DEVICES)
def test_a_resumed_run_ends_like_an_uninterrupted_one(device, task, tmp_path):
    """Bit for bit on the CPU; up to rounding on a GPU, where some kernels add in an order that is not fixed."""
    same = ("attention=hnas", "model.dropout=0.1", "scheduler.decay=constant", "task.validations=1", *on(device))
    tiny_run(tmp_path / "whole", *same, "task.max_steps=4", task=task)
    tiny_run(tmp_path / "first", *same, "task.max_steps=2", task=task)
    checkpoint = tmp_path / "first" / "checkpoints" / "last.ckpt"
    tiny_run(tmp_path / "second", *same, "task.max_steps=4", f"ckpt_path={checkpoint}", task=task)
    assert_near(tmp_path / "second", tmp_path / "whole")
    found, wanted = parameters(tmp_path / "second"), parameters(tmp_path / "whole")
    for name, value in wanted.items():
        equal = torch.equal(found[name], value)
        close = torch.allclose(found[name], value, atol=rounding(torch.float32, depth=40, size=16))
        assert equal if device == "cpu" else close, name


@pytest.mark.parametrize("task", ["gigaword", "mlm"])
@pytest.mark.parametrize("device", [ON_GPU])
def test_a_compiled_run_on_the_gpu_has_the_same_losses(device, task, tmp_path):
    """Dropout included, and the linear-memory path: short sequences take it in these tests."""
    same = ("attention=hnas", "model.dropout=0.1", *on(device))
    tiny_run(tmp_path / "plain", *same, task=task)
    tiny_run(tmp_path / "compiled", *same, "run.compile=true", task=task)
    assert_near(tmp_path / "compiled", tmp_path / "plain")
    assert runs.record_of(tmp_path / "compiled")["compile"]["graphs"] >= 2


@pytest.mark.training
@pytest.mark.parametrize("device", DEVICES)
def test_the_speed_of_attention_can_be_measured(device):
    """benchmarks/attention_speed.py with small sizes; its output is printed for the record."""
    long = "512" if device == "cuda" else "96"
    sizes = ["--linear-lengths", "64", long, "--causal-lengths", long, "--memory-length", long, "--rounds", "3"]
    sizes += ["--parts", "linear", "causal", "memory"]
    command = [sys.executable, str(ROOT / "benchmarks" / "attention_speed.py"), "--device", device, *sizes]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    print(done.stdout)
    for title in ("linear: times SDPA softmax", "causal: 4 heads", "memory: MB"):
        assert title in done.stdout

"""The formula of docs/scaling.md for the time of an update, and its plan for 8 to 512 GPUs."""

import timing

# What `--plan` assumes of the GPUs and their network. H100 SXM: 989 TFLOP/s in bfloat16 (dense), NVLink with 450 GB/s
# per direction within a machine of 8 GPUs, one 400 Gbit/s adapter (50 GB/s) per GPU between machines. Not all of it is
# usable.
FLOPS, UTILISATION = 989e12, 0.4
WITHIN, BETWEEN, PER_MACHINE = 0.7 * 450e9, 0.7 * 50e9, 8
PASSES = {"ddp": 2, "fsdp": 3, "none": 0}  # over the parameters: all-reduce; two all-gathers and a reduce-scatter
BYTES = 16  # per parameter in training: float32 parameter and gradient, and the two moments of Adam


def sent(size: int, parameters: int, strategy: str) -> float:
    """Bytes that a process sends per update, with ring algorithms and 4 bytes per value.

    DDP: an all-reduce of the gradients. FSDP2: two all-gathers of the parameters and a reduce-scatter of the gradients.
    """
    return PASSES[strategy] * (size - 1) / size * 4 * parameters


def predicted(parameters: float, tokens: int, size: int, strategy: str) -> tuple[float, float, float, float]:
    """The plan for an update of `tokens` tokens per GPU: seconds of computation and of communication, and the
    efficiency if none of the communication is hidden, and if the backward pass (2/3 of the computation) hides it."""
    compute = 6 * parameters * tokens / (FLOPS * UTILISATION)
    bandwidth = WITHIN if size <= PER_MACHINE else BETWEEN
    communication = sent(size, int(parameters), strategy) / bandwidth
    hidden = min(communication, compute * 2 / 3)
    return compute, communication, compute / (compute + communication), compute / (compute + communication - hidden)


def plan(vocab_size: int) -> None:
    """Prints the formula's plan for 8 to 512 GPUs: efficiencies, which depend on the tokens, and sizes of models."""
    models = {
        name: timing.parameters(timing.build_ours(timing.configure(f"model={name}"), vocab_size))
        for name in ("small", "base")
    }
    models |= {"1.3 B": 1_300_000_000, "7 B": 7_000_000_000}
    rows = []
    for tokens in (4096, 16384, 65536):
        for size in (8, 64, 512):
            for strategy in ("ddp", "fsdp"):
                compute, communication, exposed, hidden = predicted(models["base"], tokens, size, strategy)
                times = [f"{seconds * 1e3:,.1f}" for seconds in (compute, communication)]
                rows.append([strategy, str(size), f"{tokens:,}", *times, f"{exposed:.2f}", f"{hidden:.2f}"])
    header = ["strategy", "GPUs", "tokens/GPU", "compute ms", "communication ms", "efficiency", "overlapped"]
    timing.print_table(f"Plan: model=base, {models['base']:,} parameters", header, rows)
    rows = []
    for name, parameters in models.items():
        states = [f"{BYTES * parameters / size / 1e9:,.2f}" for size in (1, 8, 64, 512)]
        data = [f"{sent(512, parameters, strategy) / 1e9:,.2f}" for strategy in ("ddp", "fsdp")]
        rows.append([name, f"{parameters:,}", *data, *states])
    header = ["model", "parameters", "GB sent, ddp", "GB sent, fsdp", "GB state, ddp", "fsdp on 8", "64", "512"]
    timing.print_table("Per GPU: bytes sent per update on 512 GPUs, and the state that it holds", header, rows)

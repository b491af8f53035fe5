"""Time and memory of every normalizer's attention, forward and backward, beside torch's SDPA softmax.

    python benchmarks/attention_speed.py --threads 2
    python benchmarks/attention_speed.py --device cuda --dtype bfloat16 --lengths 2048 4096 8192 16384

Five parts, each with a table:
  all      every normalizer and, where a package has the same, that peer: ms, MB, and the ratio of times to SDPA softmax
  linear   dnas, hnas and sinkhorn against SDPA softmax and against their own dense form at many lengths; on the CPU the
           goals are dnas 1.9x and hnas 3.0x of softmax at most, and never above the dense form by more than 15 %
  causal   causal softmax with a bias per key, padding and packed texts against SDPA's causal softmax, and against SDPA
           with the mask and the bias as a matrix, at the lengths of --causal-lengths
  memory   the peak at one long length; goal dnas at most 2x softmax's
  rows     fusedmax of 512 rows of 128 scores at once against the same row by row; goal 20x
Contestants take turns, round by round; a table shows medians, the median of the ratios within a round. MB is the most
that torch's allocator held at once for inputs, output and gradients. A cell predicted above --seconds or --gigabytes
from the length before it is a dash. Peers (`pip install -e ".[bench]"`) must give the same output before they are
timed.
"""

import argparse
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import timing

from attnorm.attention.speed import Attend, Inputs, make_inputs, peak, rates, ratio, sdpa, seconds_per_step, step

HEADS = 12
OPTIONS = {"fusedmax": {"lam": 0.1}, "fenchel": {"order": 2}, "constrained_softmax": {"upper": 0.1}}
OPTIONS["constrained_sparsemax"] = OPTIONS["constrained_softmax"]
EXTRA = {"fenchel exact": ("fenchel", {"order": "exact"})}  # rows of the table beside one for each name
PEERS = {"x-transformers inverted": "dnas", "entmax.sparsemax": "sparsemax", "entmax.entmax15": "entmax"}
LINEAR = ("dnas", "hnas", "sinkhorn")
GOALS = {"dnas": 1.9, "hnas": 3.0}
PARTS = ("all", "linear", "causal", "memory", "rows")
CAUSAL_HEADS, TEXTS = 4, 8  # the heads of the causal part, and the texts that are packed into one row


def normalizers(args: argparse.Namespace) -> dict[str, Attend]:
    """`attend` of each registered normalizer; with features of constant states, where it needs any."""
    from attnorm.attention.build import NORMALIZERS, build

    settings = {name: (name, OPTIONS.get(name, {})) for name in NORMALIZERS} | EXTRA
    facts = {"heads": HEADS, "width": args.width, "state_width": HEADS * args.width}
    modules = {
        row: build("normalizer", name, options, facts).to(args.device) for row, (name, options) in settings.items()
    }
    return {row: attend_of(m if m.differentiable else m.eval(), facts["state_width"]) for row, m in modules.items()}


def attend_of(module: Any, state_width: int) -> Attend:
    """`attend` of a normalizer, which computes the features of constant states each time, if it needs any."""
    if module.needs_states == "none":
        return module.attend

    def attend(q, k, v, *rest, **given):
        positions = (q if module.needs_states == "queries" else k).shape[-2]
        states = q.new_ones(()).expand(len(q), positions, state_width)
        return module.attend(q, k, v, *rest, features=module.features_of(states), **given)

    return attend


def peers() -> dict[str, Attend]:
    """The same attention as other packages do it."""
    import entmax
    from x_transformers.attend import Attend as XAttend

    def mapped(weights_of: Callable, q, k, v):
        return weights_of(q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5, dim=-1) @ v

    inverted = XAttend(heads=HEADS, inverted_attention=True)
    found = (lambda q, k, v: inverted(q, k, v)[0], partial(mapped, entmax.sparsemax), partial(mapped, entmax.entmax15))
    return dict(zip(PEERS, found, strict=True))


def dense(name: str, device: str) -> Attend:
    """The weights as a table, times the values."""
    from attnorm.attention import Normalizer, build_normalizer

    return partial(Normalizer.attend, build_normalizer(name).to(device))


def inputs_of(args: argparse.Namespace, length: int, heads: int = HEADS) -> Inputs:
    """q, k, v that require gradients, and the gradient of the output."""
    import torch

    return make_inputs((args.batch, heads, length, args.width), getattr(torch, args.dtype), args.device)


def peak_of(attend: Attend, args: argparse.Namespace, length: int, heads: int = HEADS) -> float:
    """MB that torch's allocator held at the worst moment of one step, inputs and gradients included."""
    return peak(lambda: step(attend, inputs_of(args, length, heads)), args.device)


def time_together(
    contestants: dict[str, Attend], args: argparse.Namespace, length: int, heads: int = HEADS
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round."""
    rounds = args.rounds or max(3, min(50, 12_000 // length))
    return seconds_per_step(contestants, inputs_of(args, length, heads), rounds)


def part_all(args: argparse.Namespace) -> None:
    """The table of all, and its picture."""
    import torch

    contestants = {"SDPA softmax": sdpa} | normalizers(args) | peers()
    check_peers(contestants, args)
    cells: dict[str, list[str]] = {name: [] for name in contestants}
    ratios: dict[str, dict[int, float]] = {name: {} for name in contestants}
    known: dict[str, tuple[int, float, float]] = {}  # the last length of each, its seconds and MB
    for length in args.lengths:

        def affordable(name: str, length: int = length) -> bool:
            if name not in known:
                return True
            before, seconds, megabytes = known[name]
            growth = (length / before) ** 2
            return seconds * growth < args.seconds and megabytes * growth < 1000 * args.gigabytes

        running = {}
        for name, attend in contestants.items():
            if len(cells[name]) == args.lengths.index(length) and affordable(name):
                try:
                    known[name] = (length, 0.0, peak_of(attend, args, length))
                    running[name] = attend
                except torch.OutOfMemoryError:
                    torch.cuda.empty_cache()
        found = time_together(running, args, length)
        for name in contestants:
            if name not in running:
                continue
            seconds, times = median(found[name]), ratio(found, name, "SDPA softmax")
            known[name] = (length, seconds, known[name][2])
            ratios[name][length] = times
            cells[name].append(f"{1000 * seconds:.1f} / {known[name][2]:.0f} / {times:.2f}x")
        print(f"  {length}: {len(running)} measured", flush=True)
    header = ["attention", "", *(f"N = {length}" for length in args.lengths)]
    rows = [[name, PEERS.get(name, ""), *row, *["-"] * (len(args.lengths) - len(row))] for name, row in cells.items()]
    timing.print_table("all: ms / MB / times SDPA softmax, forward + backward (argmax: forward)", header, rows)
    if args.plot:
        draw(ratios, args)


def check_peers(contestants: dict[str, Attend], args: argparse.Namespace) -> None:
    """What is compared computes the same."""
    import torch

    q, k, v, _ = inputs_of(args, 64)
    for peer, name in PEERS.items():
        ours, theirs = contestants[name](q, k, v).float(), contestants[peer](q, k, v).float()
        assert torch.allclose(ours, theirs, atol=1e-4 if args.dtype == "float32" else 3e-2), f"{peer} is not {name}"


def draw(ratios: dict[str, dict[int, float]], args: argparse.Namespace) -> None:
    """Times SDPA softmax against the length, a line a normalizer, each named at its end."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
    ends = []
    for name, points in ratios.items():
        if points and name != "SDPA softmax":
            style = {"linestyle": "--"} if name in PEERS else {"linewidth": 2.5} if name in LINEAR else {}
            (line,) = axes.plot(list(points), list(points.values()), marker="o", markersize=3, **style)
            ends.append((*list(points.items())[-1], name, line.get_color()))
    axes.set(xscale="log", yscale="log", xlabel="queries = keys", ylabel="time / time of SDPA softmax")
    axes.set_xticks(args.lengths, [str(length) for length in args.lengths])
    axes.minorticks_off()
    axes.axhline(1, color="grey", linewidth=1)
    top = 0.0
    for x, y, name, color in sorted(ends, key=lambda end: end[1]):
        top = max(y, 1.09 * top)  # labels that would cover each other move up
        axes.annotate(name, (x, top), xytext=(6, 0), textcoords="offset points", color=color, fontsize=8, va="center")
    axes.set_xlim(right=axes.get_xlim()[1] * 2.2)
    what = f"Attention forward + backward, {HEADS} heads of {args.width}, {args.dtype}, {args.machine}"
    axes.set_title(what, fontsize=10)
    figure.savefig(args.plot, dpi=120)
    print(f"plot: {args.plot}")


def part_linear(args: argparse.Namespace) -> None:
    """Ratios to softmax and to the dense form."""
    rows, worst, at_goal = [], 0.0, dict.fromkeys(GOALS, 0.0)
    for length in args.linear_lengths:
        contestants = {"SDPA softmax": sdpa} | {n: a for n, a in normalizers(args).items() if n in LINEAR}
        if length <= args.dense_up_to:
            contestants |= {f"dense {name}": dense(name, args.device) for name in LINEAR}
        found = time_together(contestants, args, length)
        row = [str(length), f"{1000 * median(found['SDPA softmax']):.1f}"]
        for name in LINEAR:
            to_softmax = ratio(found, name, "SDPA softmax")
            row.append(f"{to_softmax:.2f}x")
            if length in (2048, 4096) and name in GOALS and (name == "dnas" or length == 4096):
                at_goal[name] = max(at_goal[name], to_softmax)
            if f"dense {name}" in found:
                to_dense = ratio(found, name, f"dense {name}")
                worst = max(worst, to_dense) if name == "dnas" else worst
                row += [f"{ratio(found, f'dense {name}', 'SDPA softmax'):.2f}x", f"{to_dense:.2f}"]
            else:
                row += ["-", "-"]
        rows.append(row)
    header = ["N", "softmax ms", *(text for name in LINEAR for text in (name, "its dense form", "to dense"))]
    timing.print_table("linear: times SDPA softmax, forward + backward", header, rows)
    for name, goal in GOALS.items():
        if at_goal[name]:
            print(f"{name}: goal at most {goal}x, reached {at_goal[name]:.2f}x")
    print(f"dnas to its dense form: goal at most 1.15, worst {worst:.2f}")


def causal_problems(args: argparse.Namespace, length: int) -> dict[str, tuple]:
    """The mask and the log prior of each row of the causal part."""
    import torch

    from attnorm.attention import Mask

    generator = torch.Generator().manual_seed(length)
    steps = torch.rand(1, CAUSAL_HEADS, 1, length, generator=generator, dtype=torch.float64)
    bias, growing = (x.to(args.device).requires_grad_() for x in (steps.float(), steps.cumsum(-1)))
    places = torch.arange(length, device=args.device)[None]
    real = places < length - length // TEXTS
    return {
        "bias per key": (Mask(causal=True), bias),
        "bias that grows, float64": (Mask(causal=True), growing),
        "padding": (Mask(queries=real, keys=real, causal=True), None),
        f"{TEXTS} packed texts": (Mask(segments=places * TEXTS // length, causal=True), None),
    }


def with_matrix(mask, log_prior, q, k, v):
    """SDPA with the mask and the bias as a matrix."""
    import torch
    from torch.nn.functional import scaled_dot_product_attention

    table = mask.dense(q.shape[-2], k.shape[-2], q.device)
    if log_prior is not None:
        table = log_prior.to(q.dtype).masked_fill(~table, -torch.inf)
    return scaled_dot_product_attention(q, k, v, attn_mask=table)


def part_causal(args: argparse.Namespace) -> None:
    """Time and memory of causal softmax with what SDPA's causal mask cannot express."""
    from torch.nn.functional import scaled_dot_product_attention

    from attnorm.attention import build_normalizer

    softmax, rows = build_normalizer("softmax").to(args.device), []
    for length in args.causal_lengths:
        contestants: dict[str, Attend] = {"SDPA": partial(scaled_dot_product_attention, is_causal=True)}
        for name, (mask, log_prior) in causal_problems(args, length).items():
            contestants[name] = partial(softmax.attend, mask=mask, log_prior=log_prior)
            if length <= args.dense_up_to:
                contestants[f"{name}, matrix"] = partial(with_matrix, mask, log_prior)
        peaks = {name: peak_of(attend, args, length, CAUSAL_HEADS) for name, attend in contestants.items()}
        found = time_together(contestants, args, length, CAUSAL_HEADS)
        for name in contestants:
            if name.endswith(", matrix"):
                continue
            row = [str(length), name]
            for form in (name, f"{name}, matrix"):
                known = form in found
                row += [f"{peaks[form]:.0f}", f"{ratio(found, form, 'SDPA'):.2f}x"] if known else ["-", "-"]
            rows.append(row)
    header = ["N", "causal softmax with", "MB", "to SDPA", "MB with a matrix", "to SDPA"]
    title = f"causal: {CAUSAL_HEADS} heads, MB and times SDPA's causal softmax, forward + backward"
    timing.print_table(title, header, rows)


def part_memory(args: argparse.Namespace) -> None:
    """Peaks at one long length."""
    contestants = {"SDPA softmax": sdpa} | {n: a for n, a in normalizers(args).items() if n in LINEAR}
    peaks = {name: peak_of(attend, args, args.memory_length) for name, attend in contestants.items()}
    rows = [[name, f"{mb:.0f}", f"{mb / peaks['SDPA softmax']:.2f}x"] for name, mb in peaks.items()]
    timing.print_table(f"memory: MB at N = {args.memory_length}", ["attention", "MB", "to softmax"], rows)


def part_rows(args: argparse.Namespace) -> None:
    """fusedmax, whose rows have runs of different lengths: what it gains to map them together."""
    import torch

    from attnorm.attention import build_normalizer

    module = build_normalizer("fusedmax", lam=0.5).to(args.device)
    scores = torch.randn(512, 128, generator=torch.Generator().manual_seed(0)).to(args.device).requires_grad_()
    grad = torch.randn_like(scores)

    def together(_round: int) -> int:
        module(scores[None, None])[0, 0].backward(grad)
        return 1

    def row_by_row(_round: int) -> int:
        torch.cat([module(row[None, None])[0, 0] for row in scores.split(1)]).backward(grad)
        return 1

    found = rates({"together": together, "row by row": row_by_row}, args.rounds or 5, args.device, warmup=1)
    rows = [[name, f"{1000 / median(rates):.1f}"] for name, rates in found.items()]
    timing.print_table("rows: fusedmax of 512 rows of 128, forward + backward", ["", "ms"], rows)
    print(f"fusedmax: goal at least 20x, reached {timing.compare(found, 'row by row')['together'][0]:.0f}x")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", default=PARTS, choices=PARTS)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16", "float16"])
    parser.add_argument("--threads", type=int, default=2, help="CPU threads")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--width", type=int, default=64, help="of a head")
    parser.add_argument("--rounds", type=int, default=0, help="0: more of them at short lengths, at least 3")
    parser.add_argument("--lengths", type=int, nargs="+", default=[64, 128, 512, 2048, 4096])
    parser.add_argument("--linear-lengths", type=int, nargs="+", default=[32, 64, 128, 160, 192, 256, 512, 2048, 4096])
    parser.add_argument("--causal-lengths", type=int, nargs="+", default=[1024, 4096, 16384])
    parser.add_argument("--dense-up-to", type=int, default=4096, help="the longest dense form that is run")
    parser.add_argument("--memory-length", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=60.0, help="no cell above it")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="no cell above it")
    parser.add_argument("--plot", help="where to put the picture of the first part, .png or .svg")
    args = parser.parse_args()

    import torch

    torch.set_num_threads(args.threads)
    on_cpu = args.device == "cpu"
    args.machine = f"CPU, {args.threads} threads" if on_cpu else torch.cuda.get_device_name()
    print(f"{args.machine}, torch {torch.__version__}, {args.dtype}, {args.batch} x {HEADS} heads of {args.width}")
    print(flush=True)
    parts = {"all": part_all, "linear": part_linear, "causal": part_causal, "memory": part_memory, "rows": part_rows}
    for part in args.parts:
        parts[part](args)


if __name__ == "__main__":
    main()

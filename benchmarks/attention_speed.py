"""Time and memory of every normalizer's attention, forward and backward, beside torch's SDPA softmax.

    python benchmarks/attention_speed.py --threads 2
    python benchmarks/attention_speed.py --device cuda --dtype bfloat16 --lengths 2048 4096 8192 16384

There are six parts, and each prints a table:

  all      every normalizer, and other packages with the same attention: ms, MB, and the time relative to SDPA softmax
  linear   dnas, hnas and sinkhorn relative to SDPA softmax and to their own dense forms, at many lengths. Goals on a
           CPU: dnas at most 1.9 and hnas at most 3.0 times softmax, and dnas at most 1.15 times its dense form
  short    dnas, hnas and others with dense forms at the lengths of the built-in tasks: CPU time on one thread, without
           a mask, with padding, and for scores of spread 30. Goals: see GOALS_SHORT and, for spread 30, LARGE_SCORES;
           with padding, 0.15 more
  causal   causal softmax with a bias per key, padding or packed texts, relative to SDPA's causal softmax, and to SDPA
           with the mask and the bias as a matrix
  memory   the peak at one long length. Goal: dnas at most 2 times softmax
  rows     fusedmax of 512 rows of 128 scores, at once and row by row. Goal: 20 times faster at once

Contestants take turns in every round. The tables show medians over the rounds; ratios are taken within a round. MB is
the largest amount that torch's allocator held at once, with inputs, output and gradients. A dash means that the cell
would have taken more than --seconds or --gigabytes, as predicted from the length before it. Other packages
(`pip install -e ".[bench]"`) must give the same output before they are timed.
"""

import argparse
import time
from functools import partial
from statistics import median

import timing
import torch
from attention_contestants import HEADS, PEERS, check_peers, dense, normalizers, peak_of, peers, time_together
from speed import Attend, make_inputs, rates, ratio, sdpa, step
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from attnorm.attention import Mask, build_normalizer
from attnorm.attention.registry import build

LINEAR = ("dnas", "hnas", "sinkhorn")
GOALS = {"dnas": 1.9, "hnas": 3.0}
SHORT = ((64, 4, 32, 32), (32, 4, 64, 32), (16, 4, 128, 32), (8, 4, 192, 32), (16, 8, 64, 64))  # B, H, N, D
GOALS_SHORT = {"dnas": (1.25, 1.25, 1.6, 1.85, 1.1), "hnas": (1.4, 1.5, 1.6, 1.6, 1.15)}  # for each of these shapes
LARGE_SCORES = {"hnas": (1.4, 2.0, 2.3, 2.45, 1.2)}  # where hnas does not take exponentials of scores
PARTS = ("all", "linear", "short", "causal", "memory", "rows")
CAUSAL_HEADS, TEXTS = 4, 8  # the heads of the causal part, and the texts that are packed into one row


def part_all(args: argparse.Namespace) -> None:
    """Time and memory of all contestants, and a picture of the times."""
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


def draw(ratios: dict[str, dict[int, float]], args: argparse.Namespace) -> None:
    """Draws the time relative to SDPA softmax against the length: one line per contestant, named at its end."""
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
    """Times relative to softmax and to the dense form."""
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


def part_short(args: argparse.Namespace) -> None:
    """CPU time relative to softmax at short lengths: to SDPA without a mask, and to `softmax` with padding."""
    threads, rows, missed = torch.get_num_threads(), [], []
    torch.set_num_threads(1)
    for number, shape in enumerate(SHORT):
        batch, heads, length, _ = shape
        real = torch.arange(length) < torch.linspace(length / 2, length, batch).round()[:, None]
        softmax = build_normalizer("softmax")
        for problem, spread, mask in (
            ("", 1, None),
            ("scores of spread 30", 30, None),
            ("padding", 1, Mask(real, real)),
        ):
            *qkv, grad = make_inputs(shape, torch.float32, "cpu")
            q, k = (x.detach() * spread**0.5 for x in qkv[:2])
            inputs = (q.requires_grad_(), k.requires_grad_(), qkv[2], grad)
            names = (*LINEAR, "dnas_slack", "sink", "dnas_prefix", "hnas_prefix")
            attends = {name: build("normalizer", name, {}, {"heads": heads}).attend for name in names}
            attends = {"softmax": sdpa if mask is None else softmax.attend} | attends
            steps = {
                name: partial(step, attend if mask is None else partial(attend, mask=mask), inputs)
                for name, attend in attends.items()
            }
            found = rates(steps, args.rounds or 30, "cpu", clock=time.process_time)
            times = {
                name: 1 / median(a / b for a, b in zip(found[name], found["softmax"], strict=True)) for name in names
            }
            rows.append(["x".join(map(str, shape)), problem, *(f"{times[name]:.2f}" for name in names)])
            for name, goals in GOALS_SHORT.items():
                goals = LARGE_SCORES.get(name, goals) if spread > 1 else goals
                goal = goals[number] + 0.15 * (mask is not None)
                missed += [f"{name} {shape} {problem}: {times[name]:.2f} > {goal:.2f}"] if times[name] > goal else []
    torch.set_num_threads(threads)
    timing.print_table("short: CPU time / that of softmax, forward + backward", ["B x H x N x D", "", *names], rows)
    print(f"goals: {'met' if not missed else 'NOT met: ' + '; '.join(missed)}")


def causal_problems(args: argparse.Namespace, length: int) -> dict[str, tuple[Mask, Tensor | None]]:
    """The mask and the log prior of each row of the causal part."""
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


def with_matrix(mask: Mask, log_prior: Tensor | None, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """SDPA with the mask and the bias as a matrix."""
    table = mask.dense(q.shape[-2], k.shape[-2], q.device)
    if log_prior is not None:
        table = log_prior.to(q.dtype).masked_fill(~table, -torch.inf)
    return scaled_dot_product_attention(q, k, v, attn_mask=table)


def part_causal(args: argparse.Namespace) -> None:
    """Time and memory of causal softmax with what SDPA's causal mask cannot express."""
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
    """Peak memory at one long length."""
    contestants = {"SDPA softmax": sdpa} | {n: a for n, a in normalizers(args).items() if n in LINEAR}
    peaks = {name: peak_of(attend, args, args.memory_length) for name, attend in contestants.items()}
    rows = [[name, f"{mb:.0f}", f"{mb / peaks['SDPA softmax']:.2f}x"] for name, mb in peaks.items()]
    timing.print_table(f"memory: MB at N = {args.memory_length}", ["attention", "MB", "to softmax"], rows)


def part_rows(args: argparse.Namespace) -> None:
    """How much faster fusedmax is if all rows are mapped at once, although their runs differ in length."""
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
    parser.add_argument("--dense-up-to", type=int, default=4096, help="the largest length of dense forms")
    parser.add_argument("--memory-length", type=int, default=8192)
    parser.add_argument("--seconds", type=float, default=60.0, help="leave out cells that would take longer")
    parser.add_argument("--gigabytes", type=float, default=8.0, help="leave out cells that would take more")
    parser.add_argument("--plot", help="file for the picture of the part `all`, .png or .svg")
    args = parser.parse_args()

    torch.set_num_threads(args.threads)
    on_cpu = args.device == "cpu"
    args.machine = f"CPU, {args.threads} threads" if on_cpu else torch.cuda.get_device_name()
    print(f"{args.machine}, torch {torch.__version__}, {args.dtype}, {args.batch} x {HEADS} heads of {args.width}")
    print(flush=True)
    parts = {
        "all": part_all,
        "linear": part_linear,
        "short": part_short,
        "causal": part_causal,
        "memory": part_memory,
        "rows": part_rows,
    }
    for part in args.parts:
        parts[part](args)


if __name__ == "__main__":
    main()

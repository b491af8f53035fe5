"""Regularized maxima by the generic solvers against their closed forms: forward and backward time.

    python benchmarks/regularized.py --threads 1

Each contestant maps the same random scores to weights and takes the gradient of the scores. Contestants take turns,
round by round. The table shows the median time over the rounds, and the median (lowest-highest) of the ratios to the
closed form of the same map within a round. "steps" counts how often the function or the prox was called in the forward
pass, and "error" is the largest difference of a weight from the closed form.
"""

import argparse
from collections.abc import Callable
from statistics import median
from typing import Any

import timing
from speed import rates

HEADS = 4
OPTIONS: dict[str, dict[str, Any]] = {
    "fusedmax": {"lam": 0.1},
    "entmax": {"alpha": 1.5},
    "constrained_sparsemax": {"upper": 0.3},
}


def functions(keys: int) -> dict[str, tuple[str, dict[str, Callable]]]:
    """For each contestant, the registered map that it equals and the Omega that it is given."""
    import torch

    from attnorm.attention.normalizers.fusedmax import total_variation_prox

    lam, upper = OPTIONS["fusedmax"]["lam"], max(OPTIONS["constrained_sparsemax"]["upper"], 1 / keys)
    return {
        "half the squared norm": ("sparsemax", {"omega": lambda p: p.square().sum(-1) / 2}),
        "negative entropy": ("softmax", {"omega": lambda p: (p * p.log()).sum(-1)}),
        "Tsallis entropy": ("entmax", {"omega": lambda p: p.pow(1.5).sum(-1) / 0.75}),
        "total variation (prox)": ("fusedmax", {"prox": lambda x: total_variation_prox(x, lam)}),
        "box (prox)": ("constrained_sparsemax", {"prox": lambda x: torch.clamp(x, max=upper)}),
    }


def step(normalizer: Any, scores: Any, cotangent: Any) -> Callable[[int], int]:
    """number of a round -> 1: one forward and backward pass."""

    def work(_round: int) -> int:
        scores.grad = None
        normalizer(scores).backward(cotangent)
        return 1

    return work


def counted(function: Callable, calls: list[int]) -> Callable:
    """The same function, which counts its calls in calls[0]."""

    def call(p: Any) -> Any:
        calls[0] += 1
        return function(p)

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=16, help=f"examples, of {HEADS} heads each")
    parser.add_argument("--queries", type=int, default=32)
    parser.add_argument("--keys", type=int, default=32)
    parser.add_argument("--tolerances", type=float, nargs="+", default=[1e-6, 1e-12], help="of the solvers")
    parser.add_argument("--rounds", type=int, default=9, help="counted rounds, after two dropped ones")
    parser.add_argument("--threads", type=int, help="torch threads; otherwise as torch chooses")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()

    import torch

    from attnorm.attention import RegularizedMax, build_normalizer

    if args.threads:
        torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}, float32 scores, {args.rounds} rounds", flush=True)
    generator = torch.Generator(args.device).manual_seed(0)
    shape = (args.batch, HEADS, args.queries, args.keys)
    scores, cotangent = (torch.randn(shape, generator=generator, device=args.device) for _ in range(2))
    scores.requires_grad_()

    rows = []
    for name, (closed_name, given) in functions(args.keys).items():
        closed = build_normalizer(closed_name, **OPTIONS.get(closed_name, {}))
        contestants, details = {closed_name: step(closed, scores, cotangent)}, {}
        for tolerance in args.tolerances:
            calls = [0]
            with torch.no_grad():
                found = RegularizedMax(
                    **{kind: counted(call, calls) for kind, call in given.items()}, tolerance=tolerance
                )(scores.double())
                error = (found - closed(scores.double())).abs().max().item()
            details[f"{tolerance:g}"] = [str(calls[0]), f"{error:.0e}"]
            contestants[f"{tolerance:g}"] = step(RegularizedMax(**given, tolerance=tolerance), scores, cotangent)
        found = rates(contestants, args.rounds, args.device)
        ratios = timing.compare({key: [1 / rate for rate in values] for key, values in found.items()}, closed_name)
        base = f"{1e3 * median(1 / rate for rate in found[closed_name]):.1f}"
        for tolerance, detail in details.items():
            time = f"{1e3 * median(1 / rate for rate in found[tolerance]):.1f}"
            rows.append([name, closed_name, tolerance, *detail, base, time, timing.ratio_text(ratios[tolerance])])
    header = ["Omega", "closed form", "tolerance", "steps", "error", "closed, ms", "solver, ms", "ratio"]
    timing.print_table(f"Weights and gradients of {' x '.join(map(str, shape))} scores", header, rows)


if __name__ == "__main__":
    main()

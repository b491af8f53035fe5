"""Fusing the views of an image: speed and memory of training Pythia with each fusion and normalizer.

    python benchmarks/fusion_speed.py --threads 1

An update is forward, backward and AdamW of the size of conf/model/vqa_paper.yaml on questions of 14 tokens about images
with three views of 100 boxes x 2048, some of them absent. Contestants differ in the fusion only: the primary view
alone ("single"), the boxes of all views side by side ("concat"), or the primary's boxes attending to those of the other
views, normalized by softmax, dnas or hnas; all start from the same parameters and see the same batch. They take turns,
round by round. The table shows the median speed over the rounds, the median (lowest-highest) of the ratios to softmax
within a round, and the most that torch's allocator held at once while a model was made and updated twice: parameters,
gradients and the optimizer's state included. The last line says whether dnas needs at most 1.15x the time of softmax.
"""

import argparse
import math
from collections.abc import Callable
from statistics import median

import timing
from speed import peak, rates

GOAL = 1.15  # the time of an update with dnas over that with softmax, at most
CONTESTANTS = {  # name: fusion, its normalizer
    "single": ("single", "softmax"),
    "concat": ("concat", "softmax"),
    "softmax": ("attention", "softmax"),
    "dnas": ("attention", "dnas"),
    "hnas": ("attention", "hnas"),
}
VIEWS, QUESTION = 3, 14  # views of an image, the most tokens of a question


def build(name: str, args: argparse.Namespace):
    """The model of a contestant."""
    from attnorm.models.vqa.pythia import Pythia

    fusion, normalizer = CONTESTANTS[name]
    typed = ("task=vqa", "model=vqa_paper", f"model.fusion={fusion}", f"model.fusion_heads={args.heads}")
    cfg = timing.configure(*typed, f"attention={normalizer}")
    sizes = ([args.features] * VIEWS, [args.boxes] * VIEWS)
    model = Pythia(timing.shape_of(cfg), cfg.attention, args.vocabulary, timing.PAD, args.answers, *sizes)
    return model.to(args.device)


def make_batch(args: argparse.Namespace) -> tuple:
    """ids (B, T), the views, and soft targets (B, answers) with one to three right answers a question."""
    import torch

    generator = torch.Generator().manual_seed(0)
    lengths = torch.randint(4, QUESTION + 1, (args.batch, 1), generator=generator)
    ids = torch.randint(1, args.vocabulary, (args.batch, QUESTION), generator=generator)
    ids[torch.arange(QUESTION) >= lengths] = timing.PAD
    views = []
    for _ in range(VIEWS):
        counts = torch.randint(args.boxes // 2, args.boxes + 1, (args.batch, 1), generator=generator)
        present = torch.arange(args.boxes) < counts
        features = torch.rand(args.batch, args.boxes, args.features, generator=generator) * present[..., None]
        corners = torch.rand(args.batch, args.boxes, 4, generator=generator)
        geometry = torch.cat([corners[..., :2] / 2, (1 + corners[..., 2:]) / 2], -1) * present[..., None]
        views.append(tuple(x.to(args.device) for x in (features, present, geometry)))
    targets = torch.zeros(args.batch, args.answers)
    right = torch.randint(args.answers, (args.batch, 3), generator=generator)
    targets.scatter_(1, right, torch.tensor([1.0, 0.6, 0.3]).expand(args.batch, 3))
    return ids.to(args.device), views, targets.to(args.device)


def start(name: str, batch: tuple, args: argparse.Namespace) -> Callable[[int], int]:
    """Makes the model. number of a round -> questions: one update."""
    import torch
    import torch.nn.functional as F

    model = build(name, args).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids, views, targets = batch

    def update(number: int) -> int:
        torch.manual_seed(number)
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            scores = model(ids, views)
        loss = F.binary_cross_entropy_with_logits(scores.float(), targets, reduction="sum") / len(ids)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert math.isfinite(loss.item())
        return len(ids)

    return update


def memory(name: str, batch: tuple, args: argparse.Namespace) -> float:
    """MB at the worst moment of two updates; the second has the optimizer's state beside it."""

    def twice() -> None:
        update = start(name, batch, args)
        for number in range(2):
            update(number)

    return peak(twice, args.device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--batch", type=int, default=16, help="questions, each with an image of its own; 16 fit in 8 GB"
    )
    parser.add_argument("--boxes", type=int, default=100, help="the most of a view")
    parser.add_argument("--features", type=int, default=2048, help="width of a box's features")
    parser.add_argument("--heads", type=int, default=1, help="of the attention that fuses")
    parser.add_argument("--answers", type=int, default=3129, help="the size of the answer list")
    parser.add_argument("--vocabulary", type=int, default=15000, help="words of questions")
    parser.add_argument("--only", nargs="+", default=[*CONTESTANTS], choices=[*CONTESTANTS], help="besides softmax")
    parser.add_argument("--rounds", type=int, default=7, help="counted rounds of an update each, after one dropped")
    parser.add_argument("--threads", type=int, help="torch threads; otherwise as torch chooses")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="bfloat16 is by autocast")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()

    import torch

    if args.threads:
        torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, {where}, {args.dtype}, {args.rounds} rounds", flush=True)

    names = [name for name in CONTESTANTS if name in {*args.only, "softmax"}]
    batch = make_batch(args)
    peaks, sizes = {}, {}
    for name in names:
        peaks[name] = memory(name, batch, args)
        sizes[name] = timing.parameters(build(name, args))
    found = rates({name: start(name, batch, args) for name in names}, args.rounds, args.device, warmup=1)
    ratios = timing.compare(found, "softmax")
    rows = []
    for name in names:
        speed, share = f"{median(found[name]):,.2f}", f"{peaks[name] / peaks['softmax']:.2f}x"
        ratio = timing.ratio_text(ratios[name])
        rows.append(
            [name, CONTESTANTS[name][0], f"{sizes[name] / 1e6:.1f}", speed, ratio, f"{peaks[name]:,.0f}", share]
        )
    header = ["contestant", "fusion", "M parameters", "questions/s", "to softmax", "MB", "to softmax"]
    timing.print_table(f"Pythia, {args.batch} x {VIEWS} views x {args.boxes} boxes x {args.features}", header, rows)
    if "dnas" in names:
        time = 1 / ratios["dnas"][0]
        print(f"dnas: goal at most {GOAL}x the time of softmax {'met' if time <= GOAL else 'NOT met'} ({time:.3f}x)")


if __name__ == "__main__":
    main()

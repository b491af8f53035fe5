"""Speed of training and generation against `transformers`, and what batches of like lengths gain.

    python benchmarks/training_speed.py --threads 2 --rush /data/gigaword

Three parts, each with a table and a line that says whether its goal is met:
  training    forward, backward, gradient clipping and AdamW, on the same batches as an equally large BART; goal 1.0x
  generation  greedy and beam 4 with a key-value cache, on the same batches; goal 1.0x
  bucketing   batches of like lengths within a token budget against padding every pair to 128 + 64 tokens; goal 2.5x

Contestants take turns, round by round. A table shows the median speed over the rounds, and the median (lowest-highest)
of the ratios within a round. The peer's torch (sdpa) and plain (eager) attention both run; ratios are to the faster.
Before anything is timed both sides get the same parameters and must give the same loss and the same headlines.
attnorm computes no vocabulary scores at padded positions, BART does; a row shows what BART would reach without them.
Tokens are real ones, padding never counts. Batches are made before the clock starts.
"""

import argparse
import math
import os
import tempfile
from collections.abc import Callable
from statistics import median

import generation_speed
import timing
from speed import rates

PARTS = ("training", "generation", "bucketing")
FIXED_SOURCE, FIXED_TARGET = 128, 64  # the model's limits, to which fixed padding pads


def ours_logits(model, batch: dict) -> tuple:
    """Scores and labels of the real target tokens, as attnorm's training step computes them."""
    from attnorm.tasks.pairs import target_logits

    return target_logits(model, batch)


def peer_logits(peer, batch: dict) -> tuple:
    """The same as BART computes them: scores at padded positions too, which the loss then ignores."""
    labels = batch["target"][:, 1:]  # (B, T)
    logits = peer(
        input_ids=batch["source"],
        attention_mask=(batch["source"] != timing.PAD).long(),
        decoder_input_ids=batch["target"][:, :-1],
        use_cache=False,
    ).logits  # (B, T, V)
    return logits.flatten(0, 1), labels.flatten()


def peer_real_logits(peer, batch: dict) -> tuple:
    """BART with the saving that attnorm makes: no scores at padded positions. For information."""
    labels = batch["target"][:, 1:]  # (B, T)
    states = peer.model(
        input_ids=batch["source"],
        attention_mask=(batch["source"] != timing.PAD).long(),
        decoder_input_ids=batch["target"][:, :-1],
        use_cache=False,
    ).last_hidden_state  # (B, T, W)
    real = labels != timing.PAD
    return peer.lm_head(states[real]), labels[real]


def summed_loss(logits, labels, smoothing: float, pad_id: int):
    """The smoothed loss, summed over the real tokens."""
    import torch.nn.functional as F

    return F.cross_entropy(logits, labels, ignore_index=pad_id, label_smoothing=smoothing, reduction="sum")


def trainer(
    model, logits_of: Callable, cfg: timing.Settings, args: argparse.Namespace, pad_id: int = timing.PAD
) -> Callable:
    """[batches] -> tokens: one update of `model` on each batch."""
    import torch

    model.to(args.device).train()
    optimizer = timing.build_optimizer(cfg, model)
    smoothing, clip = cfg.task.label_smoothing, cfg.trainer.gradient_clip_val

    def train(batches: list[dict]) -> int:
        for batch in batches:
            with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
                loss = summed_loss(*logits_of(model, batch), smoothing, pad_id) / batch["divisor"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
            optimizer.zero_grad()
        assert math.isfinite(loss.item())
        return sum(batch["tokens"] for batch in batches)

    return train


def collate(pairs, parts: list, lengths, device: str) -> list[dict]:
    """The batches of these parts on the device, with the number of their real tokens under "tokens"."""
    found = []
    for part in parts:
        batch = {key: value.to(device) for key, value in pairs[part].items()}
        real = [int((ids != pairs.pad_id).sum()) for ids in (batch["source"], batch["target"][:, 1:])]
        assert sum(real) == int(lengths[part.rows].sum()), "the batch does not hold the tokens of its pairs"
        assert real[1] == part.divisor, "the loss does not count the target tokens of the pairs"
        found.append({**batch, "tokens": sum(real)})
    return found


def check_equal_work(cfg: timing.Settings, batches: list[dict], args: argparse.Namespace) -> None:
    """With the same parameters both have the same loss over the same number of target tokens."""
    smoothing = cfg.task.label_smoothing
    batch = {key: batches[0][key][:16].cpu() for key in ("source", "target")}  # a few pairs: float64 is slow
    tokens = int((batch["target"][:, 1:] != timing.PAD).sum())
    for implementation in args.implementations:
        ours, peer = timing.equal_models(cfg, args.vocab_size, implementation)
        sides = {"ours": (ours, ours_logits), "peer": (peer, peer_logits), "peer, real": (peer, peer_real_logits)}
        losses = {}
        for name, (model, logits_of) in sides.items():
            logits, labels = logits_of(model, batch)
            assert (labels != timing.PAD).sum() == tokens, f"{name}: another number of target tokens than {tokens}"
            losses[name] = summed_loss(logits, labels, smoothing, timing.PAD).item()
        assert all(math.isclose(loss, losses["ours"], rel_tol=1e-9) for loss in losses.values()), losses


def training_contestants(size: str, args: argparse.Namespace) -> dict[str, tuple]:
    """By name: the model, and the function that gives its scores and labels."""
    models = {}
    for attention in ("softmax", "dnas", "hnas"):
        model = timing.build_ours(timing.configure(f"model={size}", f"attention={attention}"), args.vocab_size)
        models[f"attnorm {attention}"] = model, ours_logits
    for logits_of, saving in ((peer_logits, ""), (peer_real_logits, ", no padded scores")):
        for name in args.implementations:
            peer = timing.build_peer(model.shape, args.vocab_size, name)
            models[f"{timing.PEER}{name}{saving}"] = peer, logits_of
    return models


def measure_training(args: argparse.Namespace) -> None:
    """Prints the training speed of both, and whether ours is at least the peer's."""
    import torch

    from attnorm.data.sampler import TokenBatches
    from attnorm.tasks.pairs import PairCollator

    rows, reached = [], {}
    for size in args.model:
        cfg = timing.configure(f"model={size}")
        table, lengths = timing.sequences(8192, args.vocab_size)
        sampler = TokenBatches(lengths, cfg.data.batch_tokens)
        pairs = PairCollator(table, timing.PAD, timing.BOS, timing.EOS)
        batches = collate(pairs, [*sampler][: args.updates], lengths, args.device)
        check_equal_work(cfg, batches, args)

        torch.manual_seed(0)
        models = training_contestants(size, args)
        trainers = {name: trainer(*contestant, cfg, args) for name, contestant in models.items()}
        contestants = {
            name: lambda number, train=train, batches=batches: train(batches) for name, train in trainers.items()
        }
        found = rates(contestants, args.rounds, args.device)
        ratios = timing.compare(found, timing.fastest_peer(found))
        reached[size] = ratios["attnorm softmax"][0]
        for name, values in found.items():
            count = timing.parameters(models[name][0])
            rows.append([size, name, f"{count:,}", f"{median(values):,.0f}", timing.ratio_text(ratios[name])])
    title = (
        f"Training: {args.updates} updates of at most {cfg.data.batch_tokens} tokens a round, "
        f"{args.vocab_size} subwords, {sampler.padding():.1%} padding"
    )
    timing.print_table(title, ["model", "contestant", "parameters", "tokens/s", "to transformers"], rows)
    print("  Parameters differ by BART's longer position tables and our output bias.")
    timing.verdict("training", 1.0, reached)


def measure_bucketing(args: argparse.Namespace) -> None:
    """Prints the training speed with batches of like lengths and with fixed padding, on the pairs of `args.rush`."""
    import numpy as np
    import torch

    from attnorm.data.preprocess import prepare
    from attnorm.data.sampler import MicroBatch, TokenBatches
    from attnorm.data.sources.gigaword import Gigaword
    from attnorm.tasks.pairs import PairCollator, PairFeaturizer

    cfg = timing.configure("model=tiny", "tokenizer.vocab_size=4000")
    with tempfile.TemporaryDirectory() as cache_dir:
        split = prepare(
            Gigaword(dir=args.rush),
            cfg.settings["tokenizer"],
            PairFeaturizer(FIXED_SOURCE, FIXED_TARGET),
            lowercase=cfg.cleaning.lowercase,
            digits=cfg.cleaning.digits,
            max_rows={"train": args.max_train},
            cache_dir=cache_dir,
            splits=["train"],
        )["train"]
        tokenizer, lengths = split.tokenizer, split.lengths
        sampler = TokenBatches(lengths, cfg.data.batch_tokens)
        size = round(len(lengths) / len(sampler))  # pairs of an update, on average
        order = np.random.default_rng(0).permutation(len(lengths))
        fixed = [
            MicroBatch(group.tolist(), int(lengths[group, 1].sum()))
            for group in np.split(order, range(size, len(order), size))
        ]
        wanted = args.updates * (args.rounds + 2)
        special = (tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
        pairs = PairCollator(split.rows, *special)
        bucketed = collate(pairs, [*sampler][:wanted], lengths, args.device)
        padded = collate(pairs, fixed[:wanted], lengths, args.device)
    for batch in padded:
        for side, width in (("source", FIXED_SOURCE), ("target", FIXED_TARGET + 1)):
            missing = width - batch[side].shape[1]
            batch[side] = torch.nn.functional.pad(batch[side], (0, missing), value=tokenizer.pad_id)

    contestants = {}
    for name, batches in (("like lengths", bucketed), (f"padded to {FIXED_SOURCE} + {FIXED_TARGET}", padded)):
        train = trainer(
            timing.build_ours(cfg, tokenizer.vocab_size, tokenizer.pad_id), ours_logits, cfg, args, tokenizer.pad_id
        )

        def run(number: int, train=train, batches=batches) -> int:
            first = number * args.updates
            return train([batches[(first + i) % len(batches)] for i in range(args.updates)])

        contestants[name] = run
    found = rates(contestants, args.rounds, args.device)
    best, base = found
    ratios = timing.compare(found, base)
    shares = [sampler.padding(), 1 - lengths.sum() / (len(lengths) * (FIXED_SOURCE + FIXED_TARGET))]
    rows = [
        ["tiny", name, f"{size}", f"{share:.1%}", f"{median(values):,.0f}", timing.ratio_text(ratios[name])]
        for (name, values), share in zip(found.items(), shares, strict=True)
    ]
    header = ["model", "batches", "pairs an update", "padding", "tokens/s", "to fixed padding"]
    timing.print_table(f"Bucketing: {len(lengths):,} pairs, {tokenizer.vocab_size} subwords", header, rows)
    timing.verdict("bucketing", 2.5, {"tiny": ratios[best][0]})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=["tiny", "small"], choices=("tiny", "small", "base"))
    parser.add_argument("--only", choices=PARTS, help="this part alone")
    parser.add_argument("--rounds", type=int, default=10, help="counted rounds, after two that are dropped")
    parser.add_argument("--updates", type=int, default=4, help="training updates a round")
    parser.add_argument("--articles", type=int, default=128, help="articles to generate headlines for, a round")
    parser.add_argument("--vocab-size", type=int, default=8000, help="of training and generation")
    parser.add_argument("--threads", type=int, help="torch threads; otherwise as torch chooses")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="bfloat16 is by autocast")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--implementations", nargs="+", default=["eager", "sdpa"], choices=("eager", "sdpa"))
    parser.add_argument(
        "--rush", metavar="DIR", help="folder of headline files (see conf/data/gigaword.yaml) for bucketing"
    )
    parser.add_argument("--max-train", type=int, default=100_000, help="pairs of that folder to use at most")
    args = parser.parse_args()

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import torch
    import transformers

    if args.threads:
        torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {where}, {args.dtype}, ", end="")
    print(f"{args.rounds} rounds")
    for part in [args.only] if args.only else PARTS:
        if part == "training":
            measure_training(args)
        elif part == "generation":
            generation_speed.measure(args)
        elif args.rush:
            measure_bucketing(args)
        else:
            print("\nbucketing: skipped, it needs a folder of headline files (--rush DIR)")


if __name__ == "__main__":
    main()

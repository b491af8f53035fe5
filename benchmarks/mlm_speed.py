"""Masked-LM pretraining: speed and memory beside `transformers`' BertForMaskedLM of equal size.

    python benchmarks/mlm_speed.py --threads 1
    python benchmarks/mlm_speed.py --threads 1 --sizes bert_small --text books/*.txt

An update is forward, backward and AdamW on one batch of `python train.py task=mlm`. Two parts, each a table and a line
that says whether the goal is met, 1.2x the peer's tokens/s with less memory:
  batches    on the very same padded batches, one document to a row, documents of like lengths together
  documents  the same documents: ours packed, several to a row; theirs one to a row, in random order, padded to the
             longest of the batch, as many documents an update as ours; and theirs with like lengths together
Ours computes scores of the vocabulary at the hidden places only, the peer everywhere, with the label -100 where nothing
is hidden, as its users do it; a row of the first part shows the peer without these scores, for information. Both have
dropout 0.1, none on attention weights, and torch's fused (sdpa) attention. Before anything is timed, our model gets
the parameters of the peer and must have its loss.

Contestants take turns, round by round. A table shows the median speed over the rounds and the median (lowest-highest)
of the ratios within a round. Tokens are real ones, padding never counts. Batches are made before the clock starts.
MB is the most that torch's allocator held at once while a model was made and updated twice on its largest batch:
parameters, gradients and the optimizer's state included.
"""

import argparse
import math
import os
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from statistics import median
from typing import NamedTuple

import timing
from speed import peak, rates

GOAL = 1.2
PART_NAMES = ("batches", "documents")
ATTENTIONS = ("softmax", "dnas", "hnas")
THEIRS = f"{timing.PEER}sdpa"
NOTHING_HIDDEN = -100  # the label that the peer's loss ignores


class Side(NamedTuple):
    """A contestant: what makes its model, its loss on a batch, and its batches."""

    build: Callable
    loss_of: Callable
    batches: list[dict]


def configure(size: str, attention: str, args: argparse.Namespace) -> timing.Settings:
    """The configuration of masked language modelling, with this vocabulary and these texts."""
    overrides = [f"model={size}", f"attention={attention}", f"tokenizer.vocab_size={args.vocabulary}"]
    overrides += [f"data={'text' if args.text else 'newswire_text'}"]
    overrides += [f"data.files=[{','.join(args.text)}]"] if args.text else []
    overrides += [f"data.batch_tokens={args.batch_tokens}"] if args.batch_tokens else []
    return timing.configure("task=mlm", *overrides)


def build_ours(size: str, attention: str, pad_id: int, args: argparse.Namespace):
    """Our model as configured."""
    from attnorm.models.heads import MaskedLM

    cfg = configure(size, attention, args)
    return MaskedLM(timing.shape_of(cfg), cfg.attention, args.vocabulary, pad_id)


def our_loss(model, batch: dict):
    """The loss as our training step has it: scores at the hidden places only."""
    import torch.nn.functional as F

    return F.cross_entropy(model(batch["ids"], batch["segments"], batch["masked_positions"]).float(), batch["labels"])


def their_loss(peer, batch: dict):
    """The loss as users of `transformers` have it."""
    return peer(input_ids=batch["ids"], attention_mask=batch["real"], labels=batch["their_labels"]).loss


def their_loss_at_places(peer, batch: dict):
    """The peer with the saving that ours makes: scores at the hidden places only."""
    import torch.nn.functional as F

    states = peer.bert(input_ids=batch["ids"], attention_mask=batch["real"]).last_hidden_state  # (B, N, W)
    return F.cross_entropy(peer.cls(states[batch["masked_positions"]]).float(), batch["labels"])


def equal_peer(ours, batch: dict) -> Callable:
    """What makes a peer of the same size, after ours had its loss with its parameters, dropout off, to 1e-4."""
    import torch
    from transformers import BertConfig, BertForMaskedLM
    from transformers.utils import logging

    from attnorm.models.bert_checkpoint import SETTINGS
    from attnorm.models.load_weights import load_into, read_weights

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    assert not batch["real"].all(), "a batch without padding, which would not show that both leave it out"
    ours = ours.to(batch["ids"].device).eval()
    config = BertConfig(
        **{key: getattr(ours.shape, name) for name, (key, _) in SETTINGS.items()},
        max_position_embeddings=ours.shape.max_source,
        vocab_size=ours.encoder.embeddings.tokens.num_embeddings,
        pad_token_id=ours.pad_id,
        attn_implementation="sdpa",
    )
    peer = BertForMaskedLM(config).eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        peer.save_pretrained(folder)
        load_into(ours, read_weights(folder))
        peer.to(batch["ids"].device)
        losses = [our_loss(ours, batch), their_loss(peer, batch), their_loss_at_places(peer, batch)]
    assert timing.parameters(peer) == timing.parameters(ours), "not of equal size"
    assert all(math.isclose(loss, losses[0], rel_tol=0, abs_tol=1e-4) for loss in losses), losses
    return partial(BertForMaskedLM, config)


def read(cfg: timing.Settings, packed: bool, args: argparse.Namespace) -> tuple:
    """The documents in rows, and what turns parts of them into batches."""
    from attnorm.data.preprocess import prepare
    from attnorm.tasks.masking import MaskedLMCollator
    from attnorm.tasks.mlm import PackedFeaturizer

    split = prepare(
        cfg.source.build(),
        cfg.settings["tokenizer"],
        PackedFeaturizer(cfg.model.max_source, packed, cfg.task.mask_prob),
        lowercase=cfg.cleaning.lowercase,
        digits=cfg.cleaning.digits,
        max_rows={"train": args.documents},
        cache_dir=args.cache,
        splits=["train"],
    )["train"]
    return split, MaskedLMCollator(split.rows, split.tokenizer, cfg.task, seed=0)


def collate(masked, parts: Iterable, args: argparse.Namespace) -> list[dict]:
    """The batches of these parts, one a round, with what both losses want and the number of real tokens."""
    import torch

    found = []
    for part in islice(parts, args.rounds + 1):
        batch = masked[part]
        real = batch["ids"] != masked.tokenizer.pad_id
        batch["real"] = real.long()
        batch["their_labels"] = torch.full_like(batch["ids"], NOTHING_HIDDEN)
        batch["their_labels"][batch["masked_positions"]] = batch["labels"]
        assert (batch["their_labels"] != NOTHING_HIDDEN).sum() == len(batch["labels"]) > 0
        found.append({name: tensor.to(args.device) for name, tensor in batch.items()} | {"tokens": int(real.sum())})
    return found


def contestants(part: str, size: str, args: argparse.Namespace) -> dict[str, Side]:
    """Who is compared in this part, on which batches."""
    import numpy as np

    from attnorm.data.sampler import MicroBatch, TokenBatches

    cfg = configure(size, "softmax", args)
    budget, (split, masked) = cfg.data.batch_tokens, read(cfg, False, args)
    alike = collate(masked, TokenBatches(split.lengths, budget, weights=split.weights), args)
    builds = {name: partial(build_ours, size, name, split.tokenizer.pad_id, args) for name in ATTENTIONS}
    theirs = equal_peer(builds["softmax"](), collate(masked, [MicroBatch(list(range(16)), 0)], args)[0])
    if part == "batches":
        sides = {f"attnorm {name}": Side(build, our_loss, alike) for name, build in builds.items()}
        sides[THEIRS] = Side(theirs, their_loss, alike)
        return sides | {f"{THEIRS}, scores at places": Side(theirs, their_loss_at_places, alike)}

    blocks, packed = read(cfg, True, args)
    assert blocks.lengths.sum() == split.lengths.sum(), "not the same documents"
    parts = TokenBatches(blocks.lengths, budget, weights=blocks.weights)
    together = collate(packed, parts, args)
    order = np.random.default_rng(0).permutation(len(split))
    groups = np.array_split(order, len(parts))  # as many documents an update as ours
    alone = collate(masked, (MicroBatch(group.tolist(), 0) for group in groups), args)
    sides = {f"attnorm {name}, packed": Side(build, our_loss, together) for name, build in builds.items()}
    sides[THEIRS] = Side(theirs, their_loss, alone)
    return sides | {f"{THEIRS}, like lengths": Side(theirs, their_loss, alike)}


def start(side: Side, cfg: timing.Settings, args: argparse.Namespace) -> Callable[[int], int]:
    """Makes the model. number of a round -> real tokens: one update on its batch."""
    import torch

    torch.manual_seed(0)
    model = side.build().to(args.device).train()
    optimizer = timing.build_optimizer(cfg, model)

    def update(number: int) -> int:
        batch = side.batches[number % len(side.batches)]
        with torch.autocast(args.device, torch.bfloat16, enabled=args.dtype == "bfloat16"):
            loss = side.loss_of(model, batch)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        assert math.isfinite(loss.item())
        return batch["tokens"]

    return update


def memory(side: Side, cfg: timing.Settings, args: argparse.Namespace) -> float:
    """MB at the worst moment of two updates on the largest batch; the second has the optimizer's state beside it."""
    largest = max(side.batches, key=lambda batch: batch["ids"].numel())

    def twice() -> None:
        update = start(side._replace(batches=[largest]), cfg, args)
        for number in range(2):
            update(number)

    return peak(twice, args.device)


def full(side: Side) -> str:
    """The share of real tokens in the batches."""
    return f"{sum(b['tokens'] for b in side.batches) / sum(b['ids'].numel() for b in side.batches):.1%}"


def measure(part: str, args: argparse.Namespace) -> None:
    """Prints the table of a part, and whether ours with softmax reaches the goal at every size."""
    rows, reached, smaller = [], {}, True
    for size in args.sizes:
        cfg = configure(size, "softmax", args)
        sides = contestants(part, size, args)
        peaks = {name: memory(side, cfg, args) for name, side in sides.items()}
        updates = {name: start(side, cfg, args) for name, side in sides.items()}
        found = rates(updates, args.rounds, args.device, warmup=1)
        ratios = timing.compare(found, THEIRS)
        ours = next(iter(sides))
        reached[size] = ratios[ours][0]
        smaller &= peaks[ours] < peaks[THEIRS]
        if part == "documents":
            alike = f"{THEIRS}, like lengths"
            reached[f"{size} to like lengths"] = timing.compare(found, alike)[ours][0]
            smaller &= peaks[ours] < peaks[alike]
        for name, side in sides.items():
            speed, share = f"{median(found[name]):,.0f}", f"{peaks[name] / peaks[THEIRS]:.2f}x"
            rows.append([size, name, full(side), speed, timing.ratio_text(ratios[name]), f"{peaks[name]:,.0f}", share])
    what = {
        "batches": "Batches: the same padded ones, one document to a row",
        "documents": "Documents: ours packed, theirs one to a row",
    }
    header = ["model", "contestant", "full", "tokens/s", "to transformers", "MB", "to transformers"]
    title = f"{what[part]}; at most {cfg.data.batch_tokens} tokens an update of ours, {args.vocabulary} pieces"
    timing.print_table(title, header, rows)
    timing.verdict(part, GOAL, reached)
    print(f"{part}: lower memory {'at every size' if smaller else 'NOT at every size'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["bert_tiny", "bert_small"], help="of conf/model/bert_*.yaml")
    parser.add_argument("--only", choices=PART_NAMES, help="this part alone")
    parser.add_argument("--vocabulary", type=int, default=30522, help="pieces that both models have")
    parser.add_argument("--text", nargs="+", metavar="FILE", help="text files, a document a line; else newswire_text")
    parser.add_argument("--documents", type=int, default=2000, help="documents to draw batches from, at most")
    parser.add_argument("--batch-tokens", type=int, help="of an update, padding included; otherwise as configured")
    parser.add_argument("--rounds", type=int, default=8, help="counted rounds of an update each, after one dropped")
    parser.add_argument("--threads", type=int, help="torch threads; otherwise as torch chooses")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"), help="bfloat16 is by autocast")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    args = parser.parse_args()

    os.environ.setdefault("HF_HUB_OFFLINE", "1")  # nothing is downloaded
    import torch
    import transformers

    if args.threads:
        torch.set_num_threads(args.threads)
    where = torch.cuda.get_device_name() if args.device == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    print(f"torch {torch.__version__}, transformers {transformers.__version__}, {where}, {args.dtype}, ", end="")
    print(f"{args.rounds} rounds", flush=True)
    with tempfile.TemporaryDirectory() as args.cache:
        for part in [args.only] if args.only else PART_NAMES:
            measure(part, args)


if __name__ == "__main__":
    main()

"""Language modelling on packed documents: speed and memory beside the GPT-2 of `transformers` of equal size.

    python benchmarks/lm_speed.py --threads 1
    python benchmarks/lm_speed.py --threads 1 --sizes gpt_tiny --data chronicles

An update is forward, backward and AdamW on one batch of `python train.py task=causal_lm`. All models have learned
positions and are equally large. The contestants:
  attnorm            packed rows, documents separated
  packed             GPT-2 on the same rows, with positions that restart, from which it separates the documents
  not separated      GPT-2 on the same rows as one text each, which is less work and another loss
  one document       GPT-2 with one piece of a document to a row, padded to the longest of a batch of like lengths
Before anything is timed, ours gets the parameters of the peer and must have its loss on packed rows and single pieces.
Ratios are to `packed`, the same rows with the same loss.

Contestants take turns, round by round. A table shows the median speed over the rounds and the median (lowest-highest)
of the ratios within a round. Tokens are real ones, padding never counts. Batches are made before the clock starts.
MB is the most that torch's allocator held at once while a model was made and updated twice on its largest batch:
parameters, gradients and the optimizer's state included.
"""

import argparse
import math
import os
import tempfile
from collections.abc import Callable
from functools import partial
from itertools import islice
from statistics import median

import timing
from mlm_speed import Side, full, memory, start
from speed import rates

ATTENTIONS = ("softmax", "dnas_prefix", "hnas_prefix")
PACKED = f"{timing.PEER}packed"
IGNORED = -100  # the label that the peer's loss ignores


def configure(size: str, attention: str, args: argparse.Namespace) -> timing.Settings:
    """The configuration of the task with learned positions, as GPT-2 has them."""
    overrides = [f"model={size}", "model.positions=learned", "model.dropout=0", f"attention={attention}"]
    overrides += [f"data={args.data}", f"model.max_target={args.length}", f"data.batch_tokens={args.batch_tokens}"]
    return timing.configure("task=causal_lm", *overrides, f"tokenizer.vocab_size={args.vocabulary}")


def our_loss(model, batch: dict):
    """The loss as our training step has it."""
    import torch.nn.functional as F

    return F.cross_entropy(model(batch["ids"], batch["segments"])[batch["segments"] > 0].float(), batch["labels"])


def their_loss(peer, batch: dict, separated: bool = True):
    """The loss of GPT-2. Without a mask, it separates texts where the positions restart."""
    import torch.nn.functional as F

    positions = batch["positions"] if separated else None
    logits = peer(input_ids=batch["ids"], position_ids=positions, use_cache=False).logits
    return F.cross_entropy(logits.flatten(0, 1).float(), batch["their_labels"].flatten(), ignore_index=IGNORED)


def equal_peer(ours, batches: list[dict]) -> Callable:
    """What makes a peer of the same size, after ours had its loss with its parameters on these batches, to 1e-4."""
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel
    from transformers.utils import logging

    from attnorm.models.gpt_checkpoint import SETTINGS
    from attnorm.models.load_weights import load_into, read_weights

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    ours = ours.eval()
    config = GPT2Config(
        **{key: getattr(ours.shape, name) for name, (key, _) in SETTINGS.items()},
        embd_pdrop=ours.shape.dropout,
        n_positions=ours.shape.max_target,
        vocab_size=ours.output.out_features,
        bos_token_id=None,
        eos_token_id=None,
        attn_implementation="sdpa",
    )
    peer = GPT2LMHeadModel(config).eval()
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        peer.save_pretrained(folder)
        load_into(ours, read_weights(folder))
        for batch in batches:
            few = {name: batch[name].cpu() for name in ("ids", "segments", "labels", "positions", "their_labels")}
            losses = [our_loss(ours, few).item(), their_loss(peer, few).item()]
            assert math.isclose(*losses, rel_tol=0, abs_tol=1e-4), losses
    assert timing.parameters(peer) == timing.parameters(ours), "not of equal size"
    return partial(GPT2LMHeadModel, config)


def collate(collator, parts, args: argparse.Namespace) -> list[dict]:
    """The batches of these parts, one a round, with what both losses want and the number of real tokens."""
    import torch

    from attnorm.attention.priors import positions_in

    found = []
    for part in islice(parts, args.rounds + 1):
        batch = collator[part]
        real = batch["segments"] > 0
        batch["positions"] = positions_in(batch["segments"], real)
        batch["their_labels"] = torch.full_like(batch["ids"], IGNORED).masked_scatter(real, batch["labels"])
        found.append({name: tensor.to(args.device) for name, tensor in batch.items()} | {"tokens": int(real.sum())})
    return found


def contestants(size: str, args: argparse.Namespace) -> dict[str, Side]:
    """Who is compared, on which batches."""
    from datasets import Dataset

    from attnorm.data.preprocess import prepare
    from attnorm.data.sampler import TokenBatches
    from attnorm.models.gpt import GPT
    from attnorm.tasks.causal_lm.features import PackedCollator, PackedDocuments, pieces_of

    cfg = configure(size, "softmax", args)
    split = prepare(
        cfg.source.build(),
        cfg.settings["tokenizer"],
        PackedDocuments(args.length),
        **vars(cfg.cleaning),
        max_rows={"train": args.documents},
        cache_dir=args.cache,
        splits=["train"],
    )["train"]
    tokenizer, budget = split.tokenizer, cfg.data.batch_tokens
    pieces = list(pieces_of(tokenizer.encode(list(split.texts["text"])), args.length, tokenizer))
    columns = {"ids": [it.ids for it in pieces], "labels": [it.labels for it in pieces]}
    alone = Dataset.from_dict(columns | {"pieces": [[len(it.ids)] for it in pieces]})
    assert sum(map(len, columns["ids"])) == split.weights.sum(), "not the same tokens"
    layout = PackedDocuments(args.length)
    packed = collate(PackedCollator(split.rows, tokenizer.pad_id), TokenBatches(split.lengths, budget), args)
    single = collate(PackedCollator(alone, tokenizer.pad_id), TokenBatches(layout.lengths(alone), budget), args)

    def ours(attention: str):
        shape = timing.shape_of(cfg)
        return GPT(shape, configure(size, attention, args).attention, tokenizer.vocab_size)

    theirs = equal_peer(ours("softmax"), [packed[0], single[0]])
    sides = {f"attnorm {name}": Side(partial(ours, name), our_loss, packed) for name in ATTENTIONS}
    sides[PACKED] = Side(theirs, their_loss, packed)
    sides[f"{timing.PEER}not separated"] = Side(theirs, partial(their_loss, separated=False), packed)
    sides[f"{timing.PEER}one document"] = Side(theirs, their_loss, single)
    return sides


def measure(args: argparse.Namespace) -> None:
    """Prints the table, and whether ours with softmax is as fast as the peer with less memory."""
    rows, reached, smaller = [], {}, True
    for size in args.sizes:
        cfg = configure(size, "softmax", args)
        sides = contestants(size, args)
        peaks = {name: memory(side, cfg, args) for name, side in sides.items()}
        updates = {name: start(side, cfg, args) for name, side in sides.items()}
        found = rates(updates, args.rounds, args.device, warmup=1)
        ratios = timing.compare(found, PACKED)
        reached[size] = ratios["attnorm softmax"][0]
        smaller &= peaks["attnorm softmax"] < peaks[PACKED]
        for name, side in sides.items():
            speed, share = f"{median(found[name]):,.0f}", f"{peaks[name] / peaks[PACKED]:.2f}x"
            rows.append([size, name, full(side), speed, timing.ratio_text(ratios[name]), f"{peaks[name]:,.0f}", share])
    header = ["model", "contestant", "full", "tokens/s", "to packed", "MB", "to packed"]
    title = f"Packed documents ({args.data}): rows of {args.length}, at most {cfg.data.batch_tokens} tokens an update"
    timing.print_table(f"{title}, {args.vocabulary} pieces", header, rows)
    timing.verdict("training", 1.0, reached)
    print(f"memory: lower {'at every size' if smaller else 'NOT at every size'}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", default=["gpt_tiny"], help="of conf/model/gpt_*.yaml")
    parser.add_argument("--data", default="newswire_text", choices=("newswire_text", "chronicles"))
    parser.add_argument("--documents", type=int, default=2000, help="documents to draw batches from, at most")
    parser.add_argument("--length", type=int, default=256, help="tokens of a row")
    parser.add_argument("--batch-tokens", type=int, default=2048, help="of an update, padding included")
    parser.add_argument("--vocabulary", type=int, default=4000, help="pieces that both models have")
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
        measure(args)


if __name__ == "__main__":
    main()

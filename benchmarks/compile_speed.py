"""Training speed with run.compile=true against without it: forward, backward, clipping and AdamW on the same batches.

    python benchmarks/compile_speed.py --model tiny --threads 1
    python benchmarks/compile_speed.py --model small --device cuda --dtype bfloat16

The compiled and the uncompiled model take turns, round by round, with the order reversed in every other round. The
table shows the median speed over the rounds, in real tokens per second, and the median (lowest-highest) of the ratios
within a round. Every round trains on the same batches, which have many different shapes. The warm-up rounds, in which
the model is compiled, are not counted; a line reports how long they took and how many graphs were made.
"""

import argparse
import time
from statistics import median

import timing
import training_speed
from speed import rates


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", help="a file of conf/model")
    parser.add_argument("--attention", nargs="+", default=["softmax", "hnas"])
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--threads", type=int, default=1, help="CPU threads")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--batches", type=int, default=8, help="updates per round")
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--vocab-size", type=int, default=8000)
    args = parser.parse_args()

    import torch

    from attnorm.data.sampler import TokenBatches
    from attnorm.tasks.pairs import PairCollator
    from attnorm.training.compiled import CompiledModel, counts

    torch.set_num_threads(args.threads)
    table, lengths = timing.sequences(8192, args.vocab_size)
    parts = [*TokenBatches(lengths, args.batch_tokens)][: args.batches]
    pairs = PairCollator(table, timing.PAD, timing.BOS, timing.EOS)
    batches = training_speed.collate(pairs, parts, lengths, args.device)
    rows = []
    for attention in args.attention:
        cfg, contestants = timing.configure(f"model={args.model}", f"attention={attention}"), {}
        for name in ("uncompiled", "compiled"):
            model = timing.build_ours(cfg, args.vocab_size)
            if name == "compiled":
                callback = CompiledModel()
                callback.start = counts()
                model.forward = callback.guarded(model)
            train = training_speed.trainer(model, training_speed.ours_logits, cfg, args)
            contestants[name] = lambda _round, train=train: train(batches)
        started = time.perf_counter()
        contestants["compiled"](0)
        first = time.perf_counter() - started
        found = rates(contestants, args.rounds, args.device, warmup=1)
        speeds = [f"{median(found[name]):,.0f}" for name in ("uncompiled", "compiled")]
        rows.append([attention, *speeds, timing.ratio_text(timing.compare(found, "uncompiled")["compiled"])])
        print(f"{attention}: {callback.graphs} graphs; the first round, with compiling, took {first:.0f} s", flush=True)
    header = ["attention", "uncompiled", "compiled", "compiled / uncompiled"]
    shapes = len({(batch["source"].shape, batch["target"].shape) for batch in batches})
    title = f"tokens per second: model={args.model}, {args.device}, {args.dtype}, {args.threads} threads, "
    timing.print_table(f"{title}{shapes} shapes of batches, torch {torch.__version__}", header, rows)


if __name__ == "__main__":
    main()

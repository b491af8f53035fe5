"""Translation of captions: normalizers in the encoder of a Transformer, and at the attention of an LSTM decoder.

    python experiments/multi30k/run.py --data <folder of Multi30k>
    python experiments/multi30k/run.py --data <folder of Multi30k> --parts lstm lstm_positional --seeds 1
    python experiments/multi30k/run.py -- data.train_size=10000 task.max_steps=400              # the built-in corpus

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, report, several, spread, sweep, table, values_of

LSTM = ["model=lstm_seq2seq", "model.d_model=192", "model.dropout=0.2", "optimizer.lr=4.0e-3"]
TRANSFORMER = ["model=transformer_tiny", "model.dropout=0.1"]
PARTS = {  # part: where its normalizers are, the normalizers, and its other settings
    "transformer": ("attention", ("softmax", "dnas", "hnas"), TRANSFORMER),
    "transformer_null": ("attention.encoder", ("uniform", "none"), ["attention=softmax", *TRANSFORMER]),
    "lstm": ("attention", ("softmax", "dnas_prefix", "hnas_prefix"), LSTM),
    "lstm_positional": ("attention", ("softmax",), [*LSTM, "attention.prior.cross=[positional]"]),
    "lstm_null": ("attention", ("uniform", "none"), LSTM),
}
MODELS = ("transformer", "lstm")  # the parts of a model, which begin with its name, have one report
UPDATES = 5000  # on Multi30k


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder of Multi30k; default: the built-in corpus")
    parser.add_argument("--parts", nargs="+", default=list(PARTS), choices=PARTS)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--folder", type=Path, help="of the sweeps; default logs/multi30k or logs/phrases")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()
    folder = args.folder or ROOT / "logs" / ("multi30k" if args.data else "phrases")
    shared = ["task=translation", f"seed={several(args.seeds)}"]
    if args.data:
        shared += ["data=multi30k", f"data.dir={args.data.resolve()}", "tokenizer.vocab_size=6000"]
        shared += [f"task.max_steps={UPDATES}"]

    metrics, rows = [], []
    for part in args.parts:
        site, normalizers, settings = PARTS[part]
        runs = sweep(folder / part, *shared, *settings, f"{site}={several(normalizers)}", *args.overrides)
        metrics = [name for name in runs[0].metrics if name != "loss"]
        for name in normalizers:
            rows.append([f"{part}, {name}", *map(spread, values_of(runs, metrics, **{site: name}))])
    print(f"\n{table(['', *metrics], rows)}")
    for model in MODELS:
        if parts := [folder / part for part in args.parts if part.startswith(model)]:
            report(*parts)


if __name__ == "__main__":
    main()

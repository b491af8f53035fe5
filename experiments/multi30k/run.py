"""Translation of captions: normalizers in the encoder of a Transformer, and at the attention of an LSTM decoder.

    python experiments/multi30k/run.py --data <folder of Multi30k>
    python experiments/multi30k/run.py --data <folder of Multi30k> --parts lstm positional --seeds 1
    python experiments/multi30k/run.py -- data.train_size=10000 task.max_steps=400              # the built-in corpus

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, report, several, spread, sweep, table, values_of

LSTM = ["model=lstm_seq2seq", "model.d_model=192", "model.dropout=0.2", "optimizer.lr=4.0e-3"]
PARTS = {  # part: its normalizers, and the settings of its model
    "transformer": (("softmax", "dnas", "hnas"), ["model=transformer_tiny", "model.dropout=0.1"]),
    "lstm": (("softmax", "dnas_prefix", "hnas_prefix"), LSTM),
    "positional": (("softmax",), [*LSTM, "attention.prior.cross=[positional]"]),  # against softmax in lstm
}
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
        attentions, settings = PARTS[part]
        arms = f"attention={several(attentions)}"
        runs = sweep(folder / part, *shared, *settings, arms, *args.overrides)
        metrics = [name for name in runs[0].metrics if name != "loss"]
        for name in attentions:
            rows.append([f"{part}, {name}", *map(spread, values_of(runs, metrics, attention=name))])
    print(f"\n{table(['', *metrics], rows)}")
    recurrent = [folder / part for part in args.parts if part != "transformer"]
    if "transformer" in args.parts:
        report(folder / "transformer")
    if recurrent:
        report(*recurrent)


if __name__ == "__main__":
    main()

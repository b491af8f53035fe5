"""Headlines by softmax and hnas, from random and from BERT weights: Table 2 of the paper, as sweeps.

    python experiments/gigaword_table2/run.py --data <Reuters, as files of Rush et al.>                    # CPU
    python experiments/gigaword_table2/run.py --data <Reuters> --bert <folder of a small BERT>             # CPU, hours
    python experiments/gigaword_table2/run.py --size full --data <Gigaword> --bert <folder of BERT base>   # GPU

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

from attnorm.models.bert_checkpoint import read_bert_shape

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, beside_paper, report, several, sweep, values_of

METRICS, COLUMNS = ["rouge1", "rouge2", "rougeL"], ["R-1", "R-2", "R-L"]
PAPER = {  # ROUGE F1 on Gigaword; "softmax" is LNAS
    "softmax, random": [38.15, 18.73, 35.23],
    "hnas, random": [38.47, 19.11, 35.71],
    "softmax, BERT": [38.90, 19.65, 36.24],
    "hnas, BERT": [39.06, 20.14, 36.51],
    "SEASS": [36.15, 17.54, 33.63],
    "Base+E2Tcnn+sd": [37.04, 16.66, 34.93],
    "Transformer, random (Goodman et al. 2019)": [38.05, 18.95, 35.26],
    "Transformer, BERT (Goodman et al. 2019)": [38.96, 19.55, 36.22],
}
SIZES = {
    "small": ["experiment=reuters"],
    "full": ["experiment=gigaword_paper"],
}
SMALL_BERT = [  # of "small", if --bert is given: both starts get the same budget
    *("data.batch_tokens=1024", "task.max_steps=1500", "task.validations=5", "optimizer.lr=2e-4", "model.dropout=0.1"),
    "callbacks.attention_stats.every_n_steps=0",
]
SHAPE = ("d_model", "n_heads", "ffn_dim", "encoder_layers", "activation", "norm_eps", "type_vocab_size")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with the files of Rush et al. (2015)")
    parser.add_argument(
        "--bert", type=Path, help="folder of a BERT model; without it, all runs start from random weights"
    )
    parser.add_argument("--size", default="small", choices=SIZES)
    parser.add_argument("--arms", nargs="+", default=["softmax", "hnas"], help="attention=<arm>")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--folder", type=Path, help="of the sweeps; default logs/gigaword_table2_<size>")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()
    if args.size == "full" and not args.bert:
        parser.error("--size full needs --bert, at least for its vocabulary")

    root = args.folder or ROOT / "logs" / f"gigaword_table2_{args.size}"
    shared = [*SIZES[args.size], f"data.dir={args.data.resolve()}"]
    shared += [f"attention={several(args.arms)}", f"seed={several(args.seeds)}"]
    starts: dict[str, list[str]] = {"random": []}
    if args.bert:
        bert = args.bert.resolve()
        shared += SMALL_BERT if args.size == "small" else []
        starts = {"random": like_bert(bert), "BERT": [f"model.init={bert}"]}
    else:
        print("no --bert: the rows that start from BERT are not run")
    runs = {start: sweep(root / start, *shared, *own, *args.overrides) for start, own in starts.items()}
    ours = {}
    for start, found in runs.items():
        for arm in args.arms:
            ours[f"{arm}, {start}"] = values_of(found, METRICS, attention=arm)
    ours["lead-8"] = [[runs["random"][0].baselines["lead-8"][name]] for name in METRICS]
    print(f"\n{beside_paper(COLUMNS, ours, PAPER, COLUMNS)}")
    report(*(root / start for start in starts))


def like_bert(bert: Path) -> list[str]:
    """The overrides that give a model with random weights the shape and the vocabulary of a BERT model."""
    shape = read_bert_shape(bert)
    settings = [f"++model.{name}={shape[name]}" for name in SHAPE]
    settings += [f"model.decoder_layers={shape['encoder_layers']}", "model.positions=learned", "model.norm_first=false"]
    return [*settings, "model.embedding_norm=true", "tokenizer=wordpiece", f"tokenizer.file={bert}"]


if __name__ == "__main__":
    main()

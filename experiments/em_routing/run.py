"""dnas with more updates of the centers, and with estimated priors and variances: Appendix A of the paper, as sweeps.

    python experiments/em_routing/run.py                          # the built-in scenes, CPU, 8 arms x 5 seeds
    python experiments/em_routing/run.py --data easy_vqa --seeds 1 2 3

Repeat the command to continue where it stopped. Overrides after `--` apply to all runs.
"""

import argparse
import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[1]))
from sweeps import ROOT, report, several, spread, sweep, table, values_of

KEY = "attention.options.em_routing"
ARMS = {  # the settings by which the runs of an arm are found
    "softmax": {"attention": "softmax"},
    "dnas": {"attention": "dnas"},
    "2 updates": {f"{KEY}.n_iters": "2", f"{KEY}.sigma": "fixed"},
    "3 updates": {f"{KEY}.n_iters": "3", f"{KEY}.sigma": "fixed"},
    "2 updates, sigma estimated": {f"{KEY}.sigma": "estimated", f"{KEY}.beta": "norm"},
    "2 updates, sigma and beta estimated": {f"{KEY}.sigma": "estimated", f"{KEY}.beta": "estimated"},
    "mean of all boxes": {"attention": "uniform"},
    "no attention": {"attention": "none"},
}
DATA = {
    "scenes": ["data=scenes"],
    "easy_vqa": ["data=base", "data._target_=attnorm.experiments.vqa_table1.shape_questions.EasyVqa"],
}
SWEEPS = (
    ["attention=softmax,dnas,uniform,none"],
    ["attention=em_routing", f"{KEY}.n_iters=2,3", f"{KEY}.sigma=fixed"],
    ["attention=em_routing", f"{KEY}.n_iters=2", f"{KEY}.sigma=estimated", f"{KEY}.beta=norm,estimated"],
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", default="scenes", choices=DATA)
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--folder", type=Path, help="of the sweeps; default logs/em_routing_<data>")
    parser.add_argument("overrides", nargs="*", help="behind --: for every run, and keys of the sweep such as jobs=2")
    args = parser.parse_args()

    folder = args.folder or ROOT / "logs" / f"em_routing_{args.data}"
    shared = [
        "task=vqa",
        "model=vqa_tiny",
        "model.fusion=attention",
        *DATA[args.data],
        f"seed={several(args.seeds)}",
    ]
    runs = [run for arms in SWEEPS for run in sweep(folder, *shared, *arms, *args.overrides)]
    metrics = [name for name in runs[0].metrics if name != "loss"]
    rows = [[arm, *map(spread, values_of(runs, metrics, **settings))] for arm, settings in ARMS.items()]
    print(f"\n{table(['', *metrics], rows)}")
    report(folder, baseline="dnas")


if __name__ == "__main__":
    main()

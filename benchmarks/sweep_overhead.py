"""python benchmarks/sweep_overhead.py --parallel 2

What a sweep costs beside the training itself: 12 short runs, one after the other and in parallel. The data are
tokenized beforehand.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import mean, median

from attnorm.sweeps.job_record import recorded

SOURCE = Path(__file__).resolve().parents[1] / "src"
SHORT = (
    *("data.train_size=1000", "data.valid_size=50", "data.test_size=20", "task.rouge_pairs=20", "task.validations=2"),
    *("decoding.beam_size=2", "trainer.accelerator=cpu", "callbacks.attention_stats.every_n_steps=0"),
)


def attnorm(folder: Path, *arguments: str) -> float:
    """Runs `python -m attnorm <arguments>` in a folder and returns the seconds that it took."""
    path = os.pathsep.join(filter(None, [str(SOURCE), os.environ.get("PYTHONPATH")]))
    started = time.perf_counter()
    ended = subprocess.run(
        [sys.executable, "-m", "attnorm", *arguments],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    if ended.returncode:
        raise SystemExit(f"attnorm {' '.join(arguments)}: exit code {ended.returncode}\n{ended.stdout}{ended.stderr}")
    return time.perf_counter() - started


def trained_seconds(folder: Path) -> list[float]:
    """The time of each run from its first look at the data to its last result, as summary.json has it."""
    return [json.loads(path.read_text())["wall_seconds"] for path in folder.rglob("summary.json")]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=12, help="number of runs")
    parser.add_argument("--parallel", type=int, default=2, help="runs at the same time")
    parser.add_argument("--steps", type=int, default=20, help="updates of a run")
    parser.add_argument("--threads", type=int, default=1, help="CPU threads of a run")
    asked = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = str(asked.threads)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        common = [*SHORT, f"task.max_steps={asked.steps}", f"paths.cache_dir={folder}/cache"]
        attnorm(folder, "train", *common, f"paths.log_dir={folder}/first")
        seeds = f"seed=range(1,{asked.jobs + 1})"
        took = {"serial": attnorm(folder, "sweep", seeds, *common, "out=serial", "jobs=1")}
        took["parallel"] = attnorm(folder, "sweep", seeds, *common, "out=parallel", f"jobs={asked.parallel}")
        again = attnorm(folder, "sweep", seeds, *common, "out=serial")
        runs = recorded(folder / "serial")["jobs"]
        seconds, trained = [run["seconds"] for run in runs], trained_seconds(folder / "serial")
    cores = len(os.sched_getaffinity(0))
    print(f"{asked.jobs} runs of {asked.steps} updates with {asked.threads} threads on {cores} cores\n")
    print(f"{'':<34}{'seconds':>9}{'per run':>9}{'relative':>10}")
    rows = {
        "attnorm sweep jobs=1": took["serial"],
        f"attnorm sweep jobs={asked.parallel}": took["parallel"],
        "attnorm sweep, all finished before": again,
    }
    for label, value in rows.items():
        print(f"{label:<34}{value:>9.1f}{value / asked.jobs:>9.2f}{value / took['serial']:>10.2f}")
    overhead = mean(seconds) - mean(trained)
    between = (took["serial"] - sum(seconds) - again) / asked.jobs
    print(f"\na run in a process of its own: {median(seconds):.2f} s, of which {mean(trained):.2f} s are training")
    print(f"start-up, imports and configuration: {overhead:.2f} s per run ({overhead / mean(seconds):.0%} of its time)")
    print(f"scheduling: {1000 * between:.0f} ms per run")
    print(f"jobs={asked.parallel} takes {took['parallel'] / took['serial']:.2f} of the time of jobs=1")


if __name__ == "__main__":
    main()

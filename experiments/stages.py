"""Stages of an experiment: a training run each, in a folder of its own; what is finished is not run again, what was
stopped goes on from its last checkpoint."""

import json
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).parents[1]


def stage(folder: Path, *overrides: str) -> dict:
    """`python train.py <overrides>` into `folder`; returns its summary.json, which another call finds.

    The run's screen goes to <folder>.log, its overrides to <folder>.json. Raises SystemExit when it fails, with the
    last lines of its screen, and when the folder holds a run with other overrides.
    """
    folder, summary = folder.resolve(), folder.resolve() / "summary.json"
    record = folder.with_suffix(".json")
    if folder.exists():
        before = json.loads(record.read_text()) if record.is_file() else []
        if changed := sorted({*before} ^ {*overrides}):
            sys.exit(f"{folder} holds another run, which differs in {', '.join(changed)}; choose another --folder")
    if summary.is_file() and json.loads(summary.read_text()).get("state") == "finished":
        return json.loads(summary.read_text())
    started_before, log = (folder / "config.yaml").is_file(), folder.with_suffix(".log")
    folder.mkdir(parents=True, exist_ok=True)
    record.write_text(json.dumps(overrides, indent=1) + "\n")
    new = [*overrides, f"hydra.run.dir={folder}", "callbacks.progress.bar=false"]
    command = [sys.executable, "train.py", *([f"resume={folder}"] if started_before else new)]
    print(f"{folder.name}: {' '.join(overrides)}", flush=True)
    started = time.perf_counter()
    with open(log, "a") as screen:
        done = subprocess.run(command, cwd=ROOT, stdout=screen, stderr=subprocess.STDOUT, check=False)
    if done.returncode:
        sys.exit("\n".join([*log.read_text().splitlines()[-12:], f"{folder.name} failed; all of it is in {log}"]))
    print(f"{folder.name}: done in {(time.perf_counter() - started) / 60:.1f} min", flush=True)
    return json.loads(summary.read_text())


def table(header: list[str], rows: list[list[str]]) -> str:
    """A Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def spread(values: list[float], digits: int = 2) -> str:
    """'31.20' of one value, '31.20 +- 0.41' of several: mean and standard deviation."""
    mean = sum(values) / len(values)
    if len(values) == 1:
        return f"{mean:.{digits}f}"
    deviation = (sum((value - mean) ** 2 for value in values) / (len(values) - 1)) ** 0.5
    return f"{mean:.{digits}f} +- {deviation:.{digits}f}"

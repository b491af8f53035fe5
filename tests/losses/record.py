"""Records the training losses of short runs, so that a change of the code can be shown to change no result.

    OMP_NUM_THREADS=1 python tests/losses/record.py             # writes tests/losses/<task>_<attention>.txt
    OMP_NUM_THREADS=1 python tests/losses/record.py --check     # compares bit for bit, on the same machine

Each file holds the loss of every update, one per line, as the shortest decimal that reads back as the same number.
Different processors round differently, so the files of one machine are compared with a tolerance on another:
tests/test_losses.py does that for some of them.
"""

import argparse
import sys
import tempfile
from pathlib import Path

FOLDER = Path(__file__).parent
sys.path.insert(0, str(FOLDER.parent))

import runs  # noqa: E402 - found in tests/

TASKS = ("gigaword", "mlm", "squad", "classify", "vqa")
ATTENTIONS = ("softmax", "dnas", "hnas")
UPDATES = 50


def file_of(task: str, attention: str) -> Path:
    """The file with the recorded losses."""
    return FOLDER / f"{task}_{attention}.txt"


def recorded(task: str, attention: str) -> list[float]:
    """The recorded losses, one per update."""
    return [float(line) for line in file_of(task, attention).read_text().split()]


def losses(task: str, attention: str, updates: int = UPDATES) -> list[float]:
    """The training losses of a tiny run, planned for UPDATES updates and stopped after `updates` of them."""
    with tempfile.TemporaryDirectory() as folder:
        limits = (
            f"task.max_steps={updates}",
            "task.validations=1",
            "callbacks.attention_stats.every_n_steps=0",
            "model.dropout=0.1",
        )
        constant = (
            "scheduler.decay=constant",
            "scheduler.warmup=0",
            "optimizer.lr=3.0e-3",
        )  # do not depend on the length
        data = (
            ("data.difficulty=easy",) if task == "gigaword" else ()
        )  # the corpus for which losses were recorded first
        runs.tiny_run(Path(folder), f"attention={attention}", *limits, *constant, *data, task=task)
        objective, loss = (runs.logged(Path(folder), f"train/{name}") for name in ("objective", "loss"))
        found = objective or loss  # what is minimized; with label smoothing, train/loss is the loss without it
    return [found[step] for step in range(1, updates + 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the recorded files instead of writing them")
    check = parser.parse_args().check
    different = 0
    for task in TASKS:
        for attention in ATTENTIONS:
            found = losses(task, attention)
            if not check:
                file_of(task, attention).write_text("".join(f"{loss!r}\n" for loss in found))
            elif found != recorded(task, attention):
                first = next(
                    i for i, pair in enumerate(zip(found, recorded(task, attention), strict=True)) if pair[0] != pair[1]
                )
                print(f"{task} {attention}: differs from update {first + 1} on", file=sys.stderr)
                different += 1
    print(
        f"{len(TASKS) * len(ATTENTIONS)} runs of {UPDATES} updates, {different} different" if check else "recorded",
        file=sys.stderr,
    )
    return min(different, 1)


if __name__ == "__main__":
    sys.exit(main())

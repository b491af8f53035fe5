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

ATTENTIONS = {  # of each task
    **dict.fromkeys(("gigaword", "mlm", "squad", "classify", "vqa", "translation"), ("softmax", "dnas", "hnas")),
    **dict.fromkeys(("image_classification", "document_classification"), ("softmax", "dnas", "hnas")),
    **dict.fromkeys(("translation_lstm", "captioning", "causal_lm"), ("softmax", "dnas_prefix", "hnas_prefix")),
}
CASES = [(task, attention) for task, attentions in ATTENTIONS.items() for attention in attentions]
UPDATES = 50
SETTINGS = {"gigaword": ("data.difficulty=easy",)}  # of the corpus with which losses were recorded first


def file_of(task: str, attention: str) -> Path:
    """The file with the recorded losses."""
    return FOLDER / f"{task}_{attention}.txt"


def recorded(task: str, attention: str) -> list[float]:
    """The recorded losses, one per update."""
    return [float(line) for line in file_of(task, attention).read_text().split()]


def losses(task: str, attention: str, updates: int = UPDATES) -> list[float]:
    """The training losses of a tiny run, planned for UPDATES updates and stopped after `updates` of them."""
    with tempfile.TemporaryDirectory() as folder:
        limits = (f"task.max_steps={updates}", "task.validations=1", "callbacks.attention_stats.every_n_steps=0")
        # A constant rate does not depend on the number of updates.
        rate = ("scheduler.decay=constant", "scheduler.warmup=0", "optimizer.lr=3.0e-3")
        settings = (*limits, *rate, "model.dropout=0.1", *SETTINGS.get(task, ()))
        runs.tiny_run(Path(folder), f"attention={attention}", *settings, task=task)
        objective, loss = (runs.logged(Path(folder), f"train/{name}") for name in ("objective", "loss"))
        found = objective or loss  # what is minimized; with label smoothing, train/loss is the loss without it
    return [found[step] for step in range(1, updates + 1)]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the recorded files instead of writing them")
    check = parser.parse_args().check
    different = 0
    for task, attention in CASES:
        found = losses(task, attention)
        if not check:
            file_of(task, attention).write_text("".join(f"{loss!r}\n" for loss in found))
        elif found != (expected := recorded(task, attention)):
            first = next(update for update in range(UPDATES) if found[update] != expected[update])
            print(f"{task} {attention}: differs from update {first + 1} on", file=sys.stderr)
            different += 1
    counted = f"{len(CASES)} runs of {UPDATES} updates"
    print(f"{counted}, {different} different" if check else f"{counted} recorded", file=sys.stderr)
    return min(different, 1)


if __name__ == "__main__":
    sys.exit(main())

"""CPU time of a whole training step with dnas and hnas, relative to softmax, on every task with built-in data.

    python benchmarks/step_speed.py
    python benchmarks/step_speed.py --tasks mlm image_classification --rounds 20

A step is forward, backward, gradient clipping and AdamW on one batch of the task's first epoch, with the task's default
sizes and one thread. Freed memory is kept, as by the command. The normalizers take turns; the table shows medians over
the rounds, and ratios within a round. At autoregressive sites, the prefix forms are used. Goals: dnas at most 1.15 and
hnas at most 1.30 times softmax.
"""

import argparse
import tempfile
import time
from collections.abc import Callable
from statistics import median

import timing
import torch
from speed import rates, ratio

from attnorm.cli.main import keep_freed_memory

GOALS = {"dnas": 1.15, "hnas": 1.30}
TASKS = ("gigaword", "translation", "mlm", "image_classification", "vqa")
AUTOREGRESSIVE = ("captioning", "causal_lm")  # tasks whose attention is all causal or cross-attention of a decoder
ROWS = ("data.train_size=2000", "data.valid_size=50", "data.test_size=50")


def training_step(task_name: str, attention: str, folder: str, backend: str | None = None) -> Callable[[int], int]:
    """One update of the task's model per call. backend: of `torch.compile`, as run.compile=true calls it; or None."""
    from attnorm.data.sampler import TokenBatches
    from attnorm.tasks.task import task_of

    sizes = ROWS if task_name in ("gigaword", "translation") else ()
    paths = [f"paths.{name}={folder}" for name in ("cache_dir", "log_dir")]
    config = timing.configure(f"task={task_name}", f"attention={attention}", "trainer=cpu", *sizes, *paths)
    task = task_of(config)
    splits = task.splits()
    train = splits["train"]
    torch.manual_seed(config.seed)
    model = task.model(train.tokenizer).train()
    if backend is not None:
        model.forward = torch.compile(model.forward, dynamic=True, backend=backend)  # type: ignore[method-assign]
    module = task.module(model, train.tokenizer, splits["validation"])
    part = next(iter(TokenBatches(train.lengths, config.data.batch_tokens, weights=train.weights, seed=config.seed)))
    batch = task.collator(train)[part]
    optimizer = timing.build_optimizer(config, model)
    clip = config.trainer.gradient_clip_val

    def step(_round: int) -> int:
        (module.loss(batch).objective / batch["divisor"]).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        return 1

    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=[*TASKS, *AUTOREGRESSIVE])
    parser.add_argument("--rounds", type=int, default=9)
    args = parser.parse_args()
    torch.set_num_threads(1)
    keep_freed_memory()
    print(f"CPU, 1 thread, torch {torch.__version__}")
    rows, missed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for task in args.tasks:
            suffix = "_prefix" if task in AUTOREGRESSIVE else ""
            names = {name: f"{name}{suffix}" for name in GOALS}
            steps = {name: training_step(task, name, folder) for name in ("softmax", *names.values())}
            found = rates(steps, args.rounds, "cpu", clock=time.process_time)
            times = {name: 1 / ratio(found, full, "softmax") for name, full in names.items()}
            milliseconds = f"{1000 / median(found['softmax']):.0f}"
            rows.append([task, suffix, milliseconds, *(f"{times[name]:.2f}x" for name in GOALS)])
            print(*rows[-1], flush=True)
            missed += [f"{name} on {task}: {times[name]:.2f}" for name, goal in GOALS.items() if times[name] > goal]
    timing.print_table("a training step", ["task", "form", "softmax ms", *GOALS], rows)
    print(f"goals: {'met' if not missed else 'NOT met: ' + '; '.join(missed)}")


if __name__ == "__main__":
    main()

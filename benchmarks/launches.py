"""Operators that a training step dispatches, and what `run.compile=true` makes of it, for each task.

    python benchmarks/launches.py
    python benchmarks/launches.py --tasks gigaword mlm --no-compile

On a GPU, an operator starts at least one kernel, and small models wait for these starts. The table counts the operators
of forward, backward, gradient clipping and AdamW (fused) on one batch of the task's first epoch, without views, which
start no kernel; then the graphs into which the compiler divides the forward pass of the model, and the graph breaks.
"""

import argparse
import tempfile
from collections import Counter

import step_speed
import timing
import torch
from torch.utils._python_dispatch import TorchDispatchMode

TASKS = ("gigaword", "mlm", "image_classification", "vqa", "translation")  # whose data come with attnorm


class Operators(TorchDispatchMode):
    """Counts the operators that compute something."""

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        if not func.is_view and func is not torch.ops.aten.detach.default:
            self.counts[str(func)] += 1
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=[*TASKS, *step_speed.AUTOREGRESSIVE])
    parser.add_argument("--no-compile", dest="compile", action="store_false", help="count the operators only")
    args = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        for task in args.tasks:
            suffix = "_prefix" if task in step_speed.AUTOREGRESSIVE else ""
            for attention in ("softmax", f"dnas{suffix}", f"hnas{suffix}"):
                step = step_speed.training_step(task, attention, folder)
                step(0)  # makes the state of the optimizer
                with Operators() as operators:
                    step(1)
                cells = [task, attention, str(operators.counts.total())]
                if args.compile:
                    torch.compiler.reset()
                    torch._dynamo.utils.counters.clear()
                    compiled = step_speed.training_step(task, attention, folder, backend="eager")
                    compiled(0)
                    found = torch._dynamo.utils.counters
                    cells += [str(found["stats"]["unique_graphs"]), str(sum(found["graph_break"].values()))]
                rows.append(cells)
                print(*cells, flush=True)
    header = ["task", "attention", "operators", *(["graphs", "graph breaks"] if args.compile else [])]
    timing.print_table(f"a training step, torch {torch.__version__}", header, rows)


if __name__ == "__main__":
    main()

"""The promises of a run, whatever its task: functions that raise Failure, with their meaning as docstring."""

import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from attnorm.analysis.scores import ExampleTable, corpus_metrics_of, read_table
from attnorm.attention.testing.report import Failure, Skip, expect
from attnorm.cli.evaluate import evaluate
from attnorm.data.sources.base import RowSchema, Source
from attnorm.errors import ConfigError
from attnorm.run.checkpoint import BEST, LAST, read_checkpoint
from attnorm.run.folder import PREDICTIONS
from attnorm.run.run import Run
from attnorm.tasks.results import LOWER_IS_BETTER
from attnorm.testing.records import (
    DIVISOR,
    curves_of,
    differing_names,
    file_names_in,
    gradients_of,
    predictions_of,
    same,
    scores_of,
    tensors_of,
    without,
)
from attnorm.testing.task_runs import UPDATES, VALIDATIONS, TaskRuns, loss_in_training

FILES = {  # of every run
    "config.yaml",
    "metrics.csv",
    "run.json",
    "run.log",
    "summary.json",
    "run.lock",
    "checkpoints/best.ckpt",
    "checkpoints/last.ckpt",
    "checkpoints/previous.ckpt",
}
FLOAT32 = {"rtol": 1e-6, "atol": 1e-6}  # of a loss that may be summed in float32
# Of gradients in float64. Tasks compute the loss in float32, whose kernels may round by the place in a batch.
ROUNDING = {"rtol": 1e-6, "atol": 1e-7}


def a_run_finishes(runs: TaskRuns) -> None:
    """A run makes its updates, and its summary has finite metrics, the one that selects the best checkpoint too."""
    summary = Run(runs.straight).summary
    state = {name: summary.get(name) for name in ("state", "steps")}
    if state != {"state": "finished", "steps": UPDATES}:
        raise Failure(f"summary.json: expected state=finished and steps={UPDATES}, got {state}")
    metrics, monitor = summary["validation"]["metrics"], summary["monitor"].removeprefix("val/")
    for name in filter(None, (monitor, summary["primary"], "loss")):
        if name not in metrics:
            raise Failure(f"summary.json: expected the metric {name}, got {', '.join(metrics)}")
    for name in runs.best.task.monitors():
        if not any(Run(runs.straight).validations(f"val/{name}")):
            raise Failure(f"metrics.csv: expected val/{name}, which task.monitor may name")
    expect(torch.tensor(list(metrics.values())).isfinite(), torch.ones(len(metrics)), "finite", f"{list(metrics)}")


def a_run_leaves_exactly_its_files(runs: TaskRuns) -> None:
    """A run folder holds the files of every run, what the task and the tokenizer save, and nothing unexpected."""
    file_names = file_names_in(runs.straight)
    with tempfile.TemporaryDirectory() as folder:
        runs.best.split.tokenizer.save(Path(folder))
        runs.best.task.save(Path(folder))
        saved = file_names_in(Path(folder))
    expected = FILES | saved | set(runs.files or ())
    if missing := sorted(expected - file_names):
        raise Failure(f"missing: {', '.join(missing)}")
    if runs.files is not None and (others := sorted(file_names - expected)):
        raise Failure(f"not promised: {', '.join(others)}")


def the_loss_is_that_of_the_rows_one_by_one(runs: TaskRuns) -> None:
    """The reported loss is the mean over the rows of the split, each read alone; that of an example is recorded."""
    losses, sizes = zip(
        *(runs.row_loss(runs.best.module, runs.best.batch([row])) for row in range(len(runs.best.split))), strict=True
    )
    table, metrics = predictions_of(runs.exact_run), Run(runs.exact_run).scores
    expected = torch.tensor([sum(losses) / sum(sizes)])
    expect(torch.tensor([metrics["loss"]]).double(), expected, "loss", "summary.json", **FLOAT32)
    if table is None:
        return
    recorded = torch.tensor(table["loss_sum"], dtype=torch.float64)
    of_tokens = recorded.sum() / sum(table["n_tokens"])
    expect(of_tokens[None], expected, "sum of loss_sum / sum of n_tokens", "predictions", **FLOAT32)
    if len(recorded) == len(losses):
        alone = torch.tensor(losses, dtype=torch.float64) * (sum(table["n_tokens"]) / sum(sizes))
        expect(recorded, alone, "loss_sum of row ", "predictions", **FLOAT32)


def the_table_of_examples_gives_the_metrics(runs: TaskRuns) -> None:
    """What comparisons of runs compute from the table of all examples are the metrics that the run reports."""
    run = Run(runs.straight)
    reported = run.scores
    rows = read_table(run)
    if rows is None:
        raise Skip("it records no examples, so its runs cannot be compared: `score` returns no Predictions")
    table = ExampleTable(rows, "validation", corpus_metrics_of(run))
    for name in [name for name in table.metrics() if name in reported]:
        from_rows, expected = torch.tensor([[table.overall(name, list(rows.index))], [reported[name]]])
        allowed = 1e-6 if name in LOWER_IS_BETTER else 0.0051  # official scores are in percent with two decimals
        expect(from_rows, expected, f"{name} of the table", "summary.json has another", atol=allowed)


def the_best_checkpoint_is_that_of_the_monitored_metric(runs: TaskRuns) -> None:
    """The checkpoint with the best value of the monitored metric is kept and scored, whatever other metrics say."""
    summary = Run(runs.straight).summary
    monitor, mode = summary["monitor"].removeprefix("val/"), runs.best.module.mode
    first, last = VALIDATIONS
    planned = {f"val/{monitor}": {first: 2.0, last: 1.0} if mode == "max" else {first: 1.0, last: 2.0}}
    for name in summary["validation"]["metrics"].keys() - {monitor}:
        planned[f"val/{name}"] = {first: 2.0, last: 1.0} if name in LOWER_IS_BETTER else {first: 1.0, last: 2.0}
    best_step = Run(runs.planned(planned)).summary["best_step"]
    if best_step != first:
        raise Failure(
            f"{monitor} was best ({mode}) after update {first}, but the best checkpoint is that of {best_step}"
        )


def evaluating_again_gives_the_same(runs: TaskRuns) -> None:
    """`attnorm eval` of the run folder, moved elsewhere, gives the same metrics, outputs and predictions."""
    moved = runs.folder / "moved"
    shutil.copytree(runs.straight, moved)
    with redirect_stdout(StringIO()):
        evaluate([f"run={moved}", "trust_code=true"])
    again = scores_of(Run(moved).record("eval_validation"))
    for name, value in scores_of(Run(runs.straight).summary["validation"]).items():
        if again[name] != value:
            raise Failure(f"{name}: expected {value}, got {again[name]}")
    for name in sorted(file_names_in(moved) - file_names_in(runs.straight) - {"eval_validation.json"}):
        first = moved / ("samples" if "/" not in name else "") / name.replace("eval_validation", "validation")
        if name.startswith(PREDICTIONS):
            tables = [without(predictions_of(moved, stem), "selecting") for stem in ("validation", "eval_validation")]
            if tables[0] != tables[1]:
                raise Failure(f"{name} differs from {first.name} in {differing_names(*tables)}")
        elif first.read_bytes() != (moved / name).read_bytes():
            raise Failure(f"{name} differs from samples/{first.name}")


def a_stopped_run_goes_on_bit_for_bit(runs: TaskRuns) -> None:
    """A run that a signal stopped and that went on ends bit-equal to one that was never stopped, with whole curves."""
    straight, resumed = runs.straight, runs.resumed(VALIDATIONS[0] + 1)
    for name in (LAST, BEST):
        first, second = (read_checkpoint(Run(run).checkpoint_file(name)) for run in (straight, resumed))
        same(first["state_dict"], second["state_dict"], f"{name}.ckpt: parameter")
        states = tensors_of(first["optimizer_states"]), tensors_of(second["optimizer_states"])
        same(*states, f"{name}.ckpt: state of the optimizer")
    for name in sorted(path.name for path in straight.glob("*.csv")):
        if curves_of(straight / name) != curves_of(resumed / name):
            raise Failure(f"{name}: the curves differ")
    scores = [scores_of(Run(run).summary["validation"]) for run in (straight, resumed)]
    if scores[0] != scores[1]:
        raise Failure(f"summary.json: expected {scores[0]}, got {scores[1]}")
    tables = predictions_of(straight), predictions_of(resumed)
    if tables[0] != tables[1]:
        raise Failure(f"predictions: the tables differ in {differing_names(*tables)}")


def accumulation_changes_nothing(runs: TaskRuns) -> None:
    """An update of several microbatches has the gradients of an update of one batch, to rounding."""
    compare_divided(runs.exact_run, runs.divided("accumulated", accumulate_grad_batches=2))


def two_processes_share_an_update(runs: TaskRuns) -> None:
    """Two processes, with half of each batch, have the gradients and the scores of one, to rounding."""
    if not runs.processes:
        raise Skip("not asked for: processes=True")
    together = runs.divided("together", strategy="ddp_fork", devices=2)
    compare_divided(runs.exact_run, together)
    scores = [Run(run).scores for run in (runs.exact_run, together)]
    for name, value in scores[0].items():
        expect(torch.tensor([scores[1][name]]), torch.tensor([value]), name, "summary.json", rtol=1e-6, atol=1e-6)


def the_company_of_an_example_does_not_change_its_loss(runs: TaskRuns) -> None:
    """Examples of different lengths in one batch, and so with padding, have the losses that they have alone."""
    lengths = torch.from_numpy(runs.best.split.lengths).sum(1)
    rows = sorted({int(lengths.argmin()), int(lengths.argmax()), 0, len(lengths) - 1})
    together, size = loss_in_training(runs.best.module, runs.best.batch(rows))
    alone = [loss_in_training(runs.best.module, runs.best.batch([row])) for row in rows]
    where = f"rows {rows} of the validation split, with {lengths[rows].tolist()} tokens"
    expect(torch.tensor([float(size)]), torch.tensor([float(sum(count for _, count in alone))]), "size", where)
    expected = torch.tensor([sum(loss for loss, _ in alone)], dtype=torch.float64)
    expect(torch.tensor([together], dtype=torch.float64), expected, "loss", where, **FLOAT32)


def every_parameter_is_trained(runs: TaskRuns) -> None:
    """Every parameter has a gradient in some update; with several processes, the others would wait for it."""
    updates = gradients_of(runs.exact_run, UPDATES)
    trained = {
        name for gradients in updates for name, gradient in gradients.items() if gradient is not None and gradient.any()
    }
    if left := sorted(updates[0].keys() - trained - {DIVISOR}):
        raise Failure(f"without a gradient in {UPDATES} updates: {', '.join(left)}")


def the_seed_decides_the_model(runs: TaskRuns) -> None:
    """The same seed gives the same initial parameters, and another seed gives others."""
    tokenizer = runs.best.split.tokenizer
    first, again = (runs.best.task.model(tokenizer).state_dict() for _ in range(2))
    same(first, again, "initial parameter")
    changed = type(runs.best.task)(runs.checked({"seed": 12345}))
    changed.load(runs.exact_run)
    if not differing_names(first, changed.model(tokenizer).state_dict()):
        raise Failure("seed=12345 gives the same initial parameters")


class ForeignModel(nn.Module):
    """A model whose interface no task trains."""

    interface: ClassVar[str] = "foreign"
    sites: ClassVar[dict[str, bool]] = {}


class ForeignRows(Source):
    """Rows that no task reads."""

    schema = RowSchema("foreign rows", "row", ("foreign",), ("foreign",), cleaned=(), words=())
    splits = ("train", "validation", "test")

    def fingerprint(self, split: str) -> str:
        return split

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        yield ("",)


FOREIGN = {"model": f"{__name__}.{ForeignModel.__name__}", "data": f"{__name__}.{ForeignRows.__name__}"}


def what_it_cannot_do_is_refused(runs: TaskRuns) -> None:
    """An unknown option, a model with another interface and data with another schema are named before training."""
    changes: dict[str, dict[str, Any]] = {"task.no_such_option": {"task.no_such_option": 1}}
    changes |= {group: {group: {**runs.settings[group], "_target_": path}} for group, path in FOREIGN.items()}
    for key, change in changes.items():
        try:
            runs.checked(change)
        except ConfigError as error:
            if any(problem.startswith((f"{key}:", f"{key}=", f"{key}._target_")) for problem in error.problems):
                continue
            raise Failure(f"{key}: the message does not name it: {error}") from error
        raise Failure(f"{key}: {FOREIGN.get(key, 'an unknown option')} is accepted")


_ALL: tuple[Callable[[TaskRuns], None], ...] = (
    a_run_finishes,
    a_run_leaves_exactly_its_files,
    the_loss_is_that_of_the_rows_one_by_one,
    the_table_of_examples_gives_the_metrics,
    the_best_checkpoint_is_that_of_the_monitored_metric,
    evaluating_again_gives_the_same,
    a_stopped_run_goes_on_bit_for_bit,
    accumulation_changes_nothing,
    two_processes_share_an_update,
    the_company_of_an_example_does_not_change_its_loss,
    every_parameter_is_trained,
    the_seed_decides_the_model,
    what_it_cannot_do_is_refused,
)
PROPERTIES = {check.__name__: check for check in _ALL}


def compare_divided(whole: Path, divided: Path) -> None:
    """Raises Failure unless both runs have the same gradients in every update, to rounding, and not bit for bit."""
    updates = list(zip(gradients_of(whole, UPDATES), gradients_of(divided, UPDATES), strict=True))
    for update, (first, second) in enumerate(updates, start=1):
        if first[DIVISOR] != second[DIVISOR]:
            raise Failure(f"update {update} has other examples; the batches need more rows: a larger data.batch_tokens")
        for name, gradient in first.items():
            other = second[name]
            if gradient is not None and other is not None:
                expect(other, gradient, f"gradient of {name}", f"update {update}", **ROUNDING)
            elif gradient is not other:
                raise Failure(f"update {update}: gradient of {name}: only one of both runs has it")
    if not any(differing_names(first, second) for first, second in updates):
        raise Failure("nothing was divided: the batches have too few rows, use a larger data.batch_tokens")

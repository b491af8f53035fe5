"""`check_task`: all promises of one task, a line each."""

import shutil
import tempfile
import traceback
from collections.abc import Iterable, Sequence
from pathlib import Path

from attnorm.attention.testing.report import Failure, Report, Result, Skip
from attnorm.choices import own_folder
from attnorm.imports import nearest
from attnorm.testing.promises import PROPERTIES, a_run_finishes
from attnorm.testing.task_runs import RowLoss, TaskRuns


def check_task(
    task: str,
    *overrides: str,
    config_dir: str | Path | None = None,
    files: Iterable[str] | None = None,
    row_loss: RowLoss | None = None,
    processes: bool = False,
    properties: Sequence[str] | None = None,
    print_report: bool = True,
) -> Report:
    """Holds a task to what every run promises.

    It trains small runs of 6 updates with 2 validations on the CPU, in a folder that is removed afterwards. Every
    property prints a line: "ok", "FAIL" with what was expected and found, or "skip" with the reason. If no run
    finishes, nothing else is tested.

    task:       the file of the group `task`, as in `attnorm train task=<file>`.
    overrides:  further arguments of `attnorm train`, such as "data.train_size=40". They should make the model and the
                data small, with batches of several rows.
    config_dir: a folder with YAML files of your own, as `--config-dir`; by default the folder conf/ in the working
                directory, if it has files for attnorm.
    files:      all files that a run leaves besides those of every run and what the task and the tokenizer
                save; then others are a failure. None: others are allowed.
    row_loss:   (module, batch of one row) -> the loss that validation reports, summed, and its size, by a formula of
                your own. None: the loss of training, `module.loss`.
    processes:  whether to train with two processes too.
    properties: names to try only some of PROPERTIES.

    Returns the report if nothing failed. Raises AssertionError otherwise: its message names the properties that failed
    if the report has been printed, and is the report if it has not. Raises ConfigError for settings that are refused,
    and ValueError for an unknown property.
    """
    chosen = list(PROPERTIES if properties is None else properties)
    for name in chosen:
        if name not in PROPERTIES:
            raise ValueError(f"properties={name!r}: allowed: {', '.join(PROPERTIES)}.{nearest(name, PROPERTIES)}")
    say = print if print_report else lambda *_, **__: None
    folder = Path(tempfile.mkdtemp(prefix="attnorm-check-"))
    try:
        arguments = [f"task={task}", *overrides]
        config_folder = Path(config_dir) if config_dir else own_folder()
        runs = TaskRuns(arguments, config_folder, folder, files, row_loss, processes)
        report = Report(f"task={task}: {len(chosen)} properties")
        say(report.title)
        for name in chosen:
            cause = next((failure.name for failure in report.failures if failure.name == a_run_finishes.__name__), None)
            meaning = (PROPERTIES[name].__doc__ or "").strip()
            result = _result_of(name, meaning, runs) if cause is None else Result(name, "not tested", meaning, cause)
            report.results.append(result)
            if cause is None:
                say(result, flush=True)
    finally:
        shutil.rmtree(folder)
    say(*report.not_tested, report.summary, sep="\n")
    if not report.passed:
        names = ", ".join(failure.name for failure in report.failures)
        short = f"{report.title}: {report.summary}; failed: {names} (see the report printed above)"
        raise AssertionError(short if print_report else str(report))
    return report


def _result_of(name: str, meaning: str, runs: TaskRuns) -> Result:
    """Tries one property; whatever the task raises is a failure of it, not of the suite."""
    try:
        PROPERTIES[name](runs)
    except Failure as failure:
        return Result(name, "failed", meaning, str(failure))
    except Skip as reason:
        return Result(name, "skipped", meaning, str(reason))
    except Exception as error:
        return Result(name, "failed", meaning, "".join(traceback.format_exception(error)))
    return Result(name, "ok", meaning)

"""The small runs of a task that its property suite looks at."""

import os
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from copy import deepcopy
from functools import cached_property
from io import StringIO
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from attnorm.choices import CONF
from attnorm.config.compose import composed, plain_settings
from attnorm.config.read import read_settings
from attnorm.data.preprocess import Split
from attnorm.data.sampler import MicroBatch
from attnorm.errors import Interrupted
from attnorm.run.checkpoint import BEST, LAST, read_checkpoint
from attnorm.run.integrity import parameters_of
from attnorm.run.run import Run
from attnorm.settings import Settings
from attnorm.tasks.module import TaskModule
from attnorm.tasks.task import Task, task_of
from attnorm.testing.records import DIVISOR, GRADIENTS
from attnorm.training.module import TrainingModule
from attnorm.training.train import train

UPDATES, VALIDATIONS = 6, (3, 6)  # of every run: its updates, and those after which it validates
LENGTH = {
    "task.max_steps": UPDATES,
    "task.validations": len(VALIDATIONS),
    "trainer.max_steps": None,
    "trainer.max_epochs": None,
    "trainer.val_check_interval": None,
    "trainer.accelerator": "cpu",
    "trainer.log_every_n_steps": 1,
}
DROPOUTS = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout)
RowLoss = Callable[[TaskModule, dict[str, Tensor]], tuple[float, float]]


class TaskRuns:
    """The runs of one task, each trained when it is first asked for, in a folder that is removed in the end.

    arguments:  of `attnorm train`; they choose the task and make the runs small.
    config_dir: a folder with YAML files of one's own.
    folder:     holds the run folders.
    files:      what a run leaves besides what every run does; None: not known.
    row_loss:   (module, batch of one row) -> its loss and its size, by a formula of one's own; None: `module.loss`.
    processes:  whether two processes may be started.
    """

    def __init__(
        self,
        arguments: Sequence[str],
        config_dir: Path | None,
        folder: Path,
        files: Iterable[str] | None,
        row_loss: RowLoss | None,
        processes: bool,
    ):
        self.folder, self.files, self.processes = folder, files, processes
        self.row_loss = row_loss or loss_in_training
        folders = [CONF, *([config_dir] if config_dir else [])]
        self.settings = plain_settings(composed(arguments, folders))
        self.exact: dict[str, object] = {"trainer.precision": "64-true"}
        if "dropout" in self.checked().settings["model"]:
            self.exact["model.dropout"] = 0.0

    def checked(self, changes: Mapping[str, object] | None = None) -> Settings:
        """The checked configuration with changed keys: {"trainer.devices": 2}. Raises ConfigError."""
        settings = deepcopy(self.settings)
        for path, value in {**LENGTH, **(changes or {})}.items():
            *groups, key = path.split(".")
            group: Any = settings
            for name in groups:
                group = group[name]
            group[key] = value
        return read_settings(settings)

    def run(self, name: str, changes: Mapping[str, object] | None = None) -> Path:
        """Trains into the folder `name`, quietly. An exception carries what the run printed as a note."""
        folder = self.folder / name
        printed = StringIO()
        try:
            with redirect_stdout(printed), redirect_stderr(printed):
                train(self.checked(changes), folder)
        except Exception as error:
            error.add_note(printed.getvalue()[-2000:])
            raise
        return folder

    @cached_property
    def straight(self) -> Path:
        """A run that nothing disturbs."""
        return self.run("straight")

    @cached_property
    def exact_run(self) -> Path:
        """A run in float64 without dropout, so that only rounding can differ. Its gradients are kept."""
        return self.divided("exact")

    def divided(self, name: str, **changes: object) -> Path:
        """`exact_run` with changes of `trainer` that divide the batch of an update. Its gradients are kept."""
        without_dropout = before(TrainingModule, "on_fit_start", lambda module: switch_off_dropout(module.model))
        with without_dropout, keeping_gradients(self.folder / name / GRADIENTS):
            return self.run(name, {**self.exact, **{f"trainer.{key}": value for key, value in changes.items()}})

    def resumed(self, update: int) -> Path:
        """A run that a SIGTERM stopped at the end of an update, and that went on in another folder."""

        def stop(module: TrainingModule, *_: object) -> None:
            if module.trainer.global_step == update:
                os.kill(os.getpid(), signal.SIGTERM)

        first = self.folder / f"stopped_{update}"
        with before(TrainingModule, "on_train_batch_end", stop):
            try:
                self.run(first.name)
            except Interrupted:
                pass
            else:
                raise AssertionError(f"SIGTERM at the end of update {update} did not stop the run")
        return self.run(f"resumed_{update}", {"ckpt_path": str(Run(first).checkpoint_file(LAST))})

    def planned(self, values: Mapping[str, Mapping[int, float]]) -> Path:
        """A run whose validations log these values, by metric and update, whatever was computed."""
        log = TrainingModule.log

        def planned(module: TrainingModule, name: str, value: Any, *arguments: Any, **options: Any) -> None:
            log(module, name, values.get(name, {}).get(module.trainer.global_step, value), *arguments, **options)

        with patch.object(TrainingModule, "log", planned):
            return self.run("planned")

    @cached_property
    def best(self) -> "Opened":
        """The best model of `exact_run`, in float64, with the validation split."""
        return Opened(self.checked(self.exact), self.exact_run)


class Opened:
    """The best model of a run, ready to be evaluated in float64.

    task, split, module: the task, its validation split, and the model with its loss.
    """

    def __init__(self, config: Settings, run: Path):
        self.task: Task = task_of(config, run)
        self.split: Split = self.task.splits()["validation"]
        model = self.task.model(self.split.tokenizer).double()
        model.load_state_dict(parameters_of(read_checkpoint(Run(run).checkpoint_file(BEST))))
        self.module = self.task.module(model.eval(), self.split.tokenizer, self.split)

    def batch(self, rows: Sequence[int]) -> dict[str, Tensor]:
        """The validation batch of these rows."""
        return self.task.collator(self.split)[MicroBatch(list(rows), 1)]


def loss_in_training(module: TaskModule, batch: dict[str, Tensor]) -> tuple[float, float]:
    """The loss that validation should report of a batch, and the number of units over which it is summed."""
    with torch.no_grad():
        objective, size, plain = module.loss(batch)
    return (objective if plain is None else plain).item(), size


def switch_off_dropout(model: nn.Module) -> None:
    """Sets the probability of every layer with dropout to 0."""
    for layer in model.modules():
        if isinstance(layer, DROPOUTS):
            layer.p = 0.0
        elif isinstance(layer, nn.RNNBase):
            layer.dropout = 0.0


@contextmanager
def before(owner: type, name: str, action: Callable[..., None]) -> Iterator[None]:
    """Within this context, `action(*arguments)` is called before each call of the method `owner.name`."""
    original = getattr(owner, name)

    def wrapper(*arguments: Any, **options: Any) -> Any:
        action(*arguments, **options)
        return original(*arguments, **options)

    with patch.object(owner, name, wrapper):
        yield


@contextmanager
def keeping_gradients(folder: Path) -> Iterator[None]:
    """Within this context, the first process of a run writes the gradients of its updates, each to <update>.pt, with
    the divisor of the loss."""

    def keep(module: TrainingModule, *_: object) -> None:
        if module.trainer.is_global_zero:
            folder.mkdir(parents=True, exist_ok=True)
            gradients = {
                name: parameter.grad for name, parameter in module.model.named_parameters() if parameter.requires_grad
            }
            gradients[DIVISOR] = torch.as_tensor(module.update[0].batch["divisor"])
            torch.save(gradients, folder / f"{module.trainer.global_step + 1}.pt")

    with before(TrainingModule, "on_before_optimizer_step", keep):
        yield

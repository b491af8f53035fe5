"""What every attention head does while a model trains: its entropy and column mass, or with many more measures."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnorm.attention.multihead import entropy, observe, smallest_column_mass
from attnorm.attention.transfer import on_cpu
from attnorm.models.recording import layer_label, record, stacks_of
from attnorm.run.writing import RunWriter
from attnorm.schema import Count, WholeNumber
from attnorm.tasks.ranks import gathered
from attnorm.training.module import TrainingModule


class EveryNSteps(pl.Callback):
    """Calls `on_step` before the first update, after every `every_n_steps`-th and after the last one; 0 means never.

    A step is an update, however many batches it accumulates. No step is recorded twice, also if a run is resumed. A
    subclass writes `on_step`.

    files:  the CSV files of the run folder, without their ending, whose `tables` a subclass continues.
    batch:  the first validation batch, on the device of the model, if `reads_batch`; on the first rank.
    """

    files: Sequence[str] = ()
    reads_batch = False

    def __init__(self, run_folder: Path, every_n_steps: int):
        self.run, self.every_n_steps = RunWriter(run_folder), every_n_steps
        self.last_step: int | None = None

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Records step 0 of a new run; continues after the last recorded step of a resumed one."""
        self.tables = {name: self.run.continued(name) for name in self.files}
        if self.reads_batch and self.every_n_steps and trainer.is_global_zero:
            batch = trainer.datamodule.probe_batch()  # type: ignore[attr-defined]  # set by Lightning
            self.batch: dict[str, Tensor] = module.transfer_batch_to_device(batch, module.device, 0)
        recorded = [int(row["step"]) for name in self.files for row in self.run.rows(name)]
        self.last_step = trainer.strategy.broadcast(max(recorded, default=None))
        if trainer.ckpt_path is None:
            self._record(trainer, module)

    def on_train_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.started_at = trainer.global_step  # the first batch of a resumed run may not complete an update

    def on_train_batch_end(self, trainer: pl.Trainer, module: pl.LightningModule, *_: Any) -> None:
        step = trainer.global_step
        if self.every_n_steps and step % self.every_n_steps == 0 and step != self.started_at:
            self._record(trainer, module)

    def _record(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        if self.every_n_steps and trainer.global_step != self.last_step:
            self.last_step = trainer.global_step
            with gathered(module.model):
                if trainer.is_global_zero:
                    self.on_step(trainer, module)

    on_train_end = _record  # type: ignore[assignment]

    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """Records the model at the current step; called on the first rank only, which has all parameters then."""
        raise NotImplementedError


class AttentionStats(EveryNSteps):
    """How each head of each layer attends on the first validation batch: its entropy, and the smallest column mass,
    which is near 0 if a key is explained away ([D] Lemma 1).

    ``attention.csv`` has one row per head, with ``entropy`` in nats, the mean over queries; ``column_mass``, the mean
    over examples of the smallest column mass; and ``column_mass_min``, the smallest of all examples. Examples without
    keys are left out. The means over heads, and the minimum, go to the loggers.

    Args:
        run_folder: folder of ``attention.csv``.
        every_n_steps: number of updates between two records, each of which costs a forward pass; 0 turns it off.
    """

    files, reads_batch = ("attention",), True

    def __init__(self, run_folder: Path, every_n_steps: WholeNumber = 50):
        super().__init__(run_folder, every_n_steps)

    @torch.no_grad()
    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        metrics: dict[str, float] = {}
        seen: list[Tensor] = []  # of each layer, the entropy (H,) and the smallest column mass (B, H)
        labels: list[str] = []

        def see(name: str, weights: Tensor, allowed: Tensor | None) -> None:
            labels.append(layer_label(name, stacks_of(module.model)))
            seen.extend((entropy(weights.float()), smallest_column_mass(weights.float(), allowed)))

        with in_evaluation(module.model), observe(module.model, see):
            module.task_module(self.batch)
        values = iter(on_cpu(*seen)) if seen else iter(())
        for label, spread, mass in zip(labels, values, values, strict=True):
            known = ~mass.isinf().any(-1)  # leaves out examples without keys
            mass = mass[known] if known.any() else mass
            for head, of_head in enumerate(zip(spread, mass.mean(0), mass.amin(0), strict=True)):
                row: dict[str, Any] = {"step": trainer.global_step, "layer": label, "head": head}
                named = zip(("entropy", "column_mass", "column_mass_min"), of_head, strict=True)
                self.tables["attention"].append(row | {name: f"{value:.8g}" for name, value in named})
            metrics[f"entropy/{label}"] = spread.mean().item()
            metrics[f"column_mass/{label}/mean"] = mass.mean().item()
            metrics[f"column_mass/{label}/min"] = mass.min().item()
        log_now(trainer, metrics)


class AttentionMeasures(EveryNSteps):
    """Records `LayerRecord.of_heads` and `LayerRecord.of_states` on the first examples of the first validation batch.

    ``head_measures.csv`` has one row per step, layer and head. ``state_measures.csv`` has one row per step, layer and
    place: the ``output`` of the attention, and the output of the ``residual`` connection around it. Each value is the
    mean over the examples in which the measure is defined, and empty if there are no such examples. The loggers get the
    means over heads as ``attention/<measure>/<layer>``, and the values of the states as
    ``states/<measure>/<layer>/<place>``.

    Args:
        run_folder: folder of the CSV files.
        every_n_steps: number of updates between two records. Each of them takes a forward pass, and singular values and
            a convex problem per query in float64.
        examples: number of examples that are measured.
    """

    files, reads_batch = ("head_measures", "state_measures"), True

    def __init__(self, run_folder: Path, every_n_steps: Count = 500, examples: Count = 8):
        super().__init__(run_folder, every_n_steps)
        self.examples = examples

    @torch.no_grad()
    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        heads, states = self.tables.values()
        metrics: dict[str, float] = {}
        with in_evaluation(module.model), record(module.model) as layers:
            module.task_module(self.batch)
        for name, layer in layers.items():
            label, few = layer_label(name, stacks_of(module.model)), layer.first(self.examples)
            row = {"step": trainer.global_step, "layer": label}
            of_heads = {measure: values.nanmean(0) for measure, values in few.of_heads().items()}  # (H,) each
            for head in range(layer.module.maps):
                heads.append(row | {"head": head} | _numbers({key: of_heads[key][head] for key in of_heads}))
            metrics |= {f"attention/{key}/{label}": value.nanmean().item() for key, value in of_heads.items()}
            for state, measures in few.of_states().items():
                means = {measure: values.nanmean() for measure, values in measures.items()}
                states.append(row | {"place": state} | _numbers(means))
                metrics |= {f"states/{key}/{label}/{state}": value.item() for key, value in means.items()}
        log_now(trainer, {name: value for name, value in metrics.items() if value == value})  # without NaN


def _numbers(values: dict[str, Tensor]) -> dict[str, str]:
    """Values as they are written to a table; those that are not defined are empty."""
    return {name: "" if value.isnan() else f"{value.item():.8g}" for name, value in values.items()}


@contextmanager
def in_evaluation(model: nn.Module) -> Iterator[None]:
    """Puts the model in evaluation mode inside this context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def log_now(trainer: pl.Trainer, metrics: dict[str, float]) -> None:
    """Sends metrics to every logger at the current step, outside Lightning's own logging interval."""
    for logger in trainer.loggers:
        logger.log_metrics(metrics, trainer.global_step)

"""Measures of attention and of the states around it while a model trains: `callbacks=measures`."""

from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor

from attnorm.models.recording import layer_label, record, stacks_of
from attnorm.run.writing import RunWriter
from attnorm.schema import Count
from attnorm.training.callbacks.attention_stats import (
    EveryNSteps,
    first_batch,
    in_evaluation,
    log_now,
)
from attnorm.training.module import TrainingModule


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

    def __init__(self, run_folder: Path, every_n_steps: Count = 500, examples: Count = 8):
        super().__init__(every_n_steps)
        self.run, self.examples = RunWriter(run_folder), examples
        self.batch: dict[str, Tensor] = {}  # on the first rank

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        self.heads, self.states = map(self.run.continued, ("head_measures", "state_measures"))
        if trainer.is_global_zero:
            self.batch = first_batch(trainer, module)
        self.start(trainer, module, [self.heads, self.states])

    @torch.no_grad()
    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        metrics: dict[str, float] = {}
        with in_evaluation(module.model), record(module.model) as layers:
            module.task_module(self.batch)
        for name, layer in layers.items():
            label, few = layer_label(name, stacks_of(module.model)), layer.first(self.examples)
            row = {"step": trainer.global_step, "layer": label}
            of_heads = {measure: values.nanmean(0) for measure, values in few.of_heads().items()}  # (H,) each
            for head in range(layer.module.maps):
                self.heads.append(row | {"head": head} | _numbers({key: of_heads[key][head] for key in of_heads}))
            metrics |= {f"attention/{key}/{label}": value.nanmean().item() for key, value in of_heads.items()}
            for place, measures in few.of_states().items():
                means = {measure: values.nanmean() for measure, values in measures.items()}
                self.states.append(row | {"place": place} | _numbers(means))
                metrics |= {f"states/{key}/{label}/{place}": value.item() for key, value in means.items()}
        log_now(trainer, {name: value for name, value in metrics.items() if value == value})  # without NaN


def _numbers(values: dict[str, Tensor]) -> dict[str, str]:
    """Values as they are written to a table; those that are not defined are empty."""
    return {name: "" if value.isnan() else f"{value.item():.8g}" for name, value in values.items()}

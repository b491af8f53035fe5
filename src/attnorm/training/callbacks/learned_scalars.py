"""The course of learned scalars, such as hybrid weights or temperatures, while a model trains."""

from collections import defaultdict
from pathlib import Path

import pytorch_lightning as pl
import torch
from torch import Tensor, nn

from attnorm.attention.multihead import attention_layers
from attnorm.attention.transfer import on_cpu
from attnorm.models.recording import layer_label, stacks_of
from attnorm.optim import with_hooks
from attnorm.run.csv_files import COLUMNS
from attnorm.schema import Count
from attnorm.training.callbacks.attention_stats import EveryNSteps, log_now
from attnorm.training.module import TrainingModule

RESERVED = ("attention", "head_measures", "metrics", "state_measures")  # CSV files that hold something else


class LearnedScalars(EveryNSteps):
    """Records every scalar that the model's normalizers and scorers declare (`TrainingHooks.learned_scalars`).

    Each scalar has its own file ``<name>.csv`` in the run folder, with the columns ``step``, ``layer``, ``head`` (empty
    if a layer has one value for all heads), ``value`` and ``lr_factor`` (`optimizer.hybrid_lr_factor` if the scalar
    depends on `TrainingHooks.fast_parameters`, otherwise empty). The mean over heads goes to the loggers as
    ``<name>/<layer>``, and wandb draws the curves of all layers in one chart.

    Args:
        run_folder: folder of the CSV files.
        every_n_steps: number of updates between two records.
    """

    def __init__(self, run_folder: Path, every_n_steps: Count = 10):
        super().__init__(run_folder, every_n_steps)

    def on_fit_start(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        self.files, factor = list(learned_scalars(module.model)), module.optimization.groups.hybrid_lr_factor
        self.factors = dict.fromkeys(fast_scalars(module.model), f"{factor:g}")
        super().on_fit_start(trainer, module)

    def on_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        assert isinstance(module, TrainingModule)
        metrics, scalars = {}, learned_scalars(module.model)
        if not scalars:
            return
        values_of = iter(on_cpu(*(scalar for layers in scalars.values() for scalar in layers.values())))
        for name, layers in scalars.items():
            for layer in layers:
                values = next(values_of).tolist()
                for head, value in enumerate(values):
                    at = (trainer.global_step, layer, head if len(values) > 1 else "")
                    row = (*at, f"{value:.8g}", self.factors.get(name, ""))
                    self.tables[name].append(dict(zip(COLUMNS, row, strict=True)))
                metrics[f"{name}/{layer}"] = sum(values) / len(values)
        log_now(trainer, metrics)


def fast_scalars(model: nn.Module) -> set[str]:
    """The names of the learned scalars that are computed from the `fast_parameters` of their normalizer or scorer."""
    parts = [part for layer in attention_layers(model).values() for part in (layer.normalizer, layer.scorer)]
    names = set[str]()
    for part in parts:
        fast = [weight for hooks in with_hooks(part) for weight in hooks.fast_parameters() if weight.requires_grad]
        with torch.enable_grad():
            for name, scalar in part.learned_scalars().items() if fast else ():
                if scalar.requires_grad:
                    slopes = torch.autograd.grad(scalar.sum(), fast, retain_graph=True, allow_unused=True)
                    names |= {name} if any(slope is not None for slope in slopes) else set()
    return names


def learned_scalars(model: nn.Module) -> dict[str, dict[str, Tensor]]:
    """The learned scalars of a model: for each name, a tensor of shape (1,) or (heads,) per layer label.

    Raises ValueError for a name that cannot be a file name or is already used, and for values of another shape.
    """
    scalars: dict[str, dict[str, Tensor]] = defaultdict(dict)
    for module_name, attention in attention_layers(model).items():
        layer = layer_label(module_name, stacks_of(model))
        for part in (attention.normalizer, attention.scorer):
            for name, scalar in part.learned_scalars().items():
                declared = f"{type(part).__name__}.learned_scalars: {name!r}"
                if not name.isidentifier() or name in RESERVED:
                    raise ValueError(f"{declared} must be a Python identifier other than {', '.join(RESERVED)}")
                if layer in scalars[name]:
                    raise ValueError(
                        f"{declared} is declared by the normalizer and by the scorer of {layer}; rename one"
                    )
                if scalar.numel() not in (1, attention.maps) or scalar.dim() > 1:
                    expected = f"expected (1,) or ({attention.maps},), the number of heads"
                    raise ValueError(f"{declared} has shape {tuple(scalar.shape)}; {expected}")
                scalars[name][layer] = scalar.detach().flatten()
    return dict(scalars)

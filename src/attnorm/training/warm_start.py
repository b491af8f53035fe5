"""Starting a model from weights that were trained before."""

import torch

from attnorm.config.checkpoint_files import read_checkpoint
from attnorm.config.integrity import listed, not_finite, parameters_of
from attnorm.config.warm_start import best_of, folder_of, is_run
from attnorm.errors import ConfigError, DataError
from attnorm.models.load_weights import LoadReport, load_into, read_weights


def load_pretrained(model: torch.nn.Module, init: str) -> LoadReport:
    """Puts the weights of `model.init` into a model; raises ConfigError where they do not fit."""
    try:
        folder = folder_of(init)
        tensors = parameters_of(read_checkpoint(best_of(folder))) if is_run(folder) else read_weights(folder)
        if broken := not_finite(tensors):
            raise DataError(f"the weights are not finite: {listed(broken)}")
        return load_into(model, tensors)
    except ValueError as error:
        raise ConfigError([f"model.init={init}: {error}"]) from error


def describe(filled: LoadReport, init: str) -> str:
    """What was loaded, what starts anew and what was left, a few lines for the screen."""

    def listed(names: list[str]) -> str:
        groups = dict.fromkeys(".".join(part for part in name.split(".") if not part.isdigit()) for name in names)
        shown = list(groups)
        return ", ".join(shown[:12]) + ", ..." * (len(shown) > 12)

    lines = [f"{len(filled.loaded):,} tensors from {init}"]
    if filled.missing:
        lines.append(f"  not there, start anew ({len(filled.missing)}): {listed(filled.missing)}")
    if filled.unused:
        lines.append(f"  there, not used ({len(filled.unused)}): {listed(filled.unused)}")
    return "\n".join(lines)

"""Keys and groups that had another name in earlier versions."""

import re
from collections.abc import Sequence

from attnorm.errors import Problem

RENAMED: dict[str, str] = {
    "optim": "optimizer=<file> and scheduler=<file>",
    **{f"optim.{key}": f"optimizer.{key}" for key in ("lr", "weight_decay", "betas", "eps", "hybrid_lr_factor")},
    "optim.name": "optimizer=<file> or optimizer._target_",
    "optim.schedule": "scheduler=<file> or scheduler.decay",
    "optim.warmup": "scheduler.warmup",
    "optim.floor": "scheduler.min_lr_ratio",
    **{f"{group}.name": f"{group}=<file> or {group}._target_" for group in ("model", "data", "tokenizer")},
    "logger.name": "logger=<file>",
    **{f"logger.{key}": f"logger.wandb.{key}" for key in ("project", "entity", "mode")},
    "callbacks.samples": "callbacks.progress.samples",
    "callbacks.hybrid_every": "callbacks.learned_scalars.every_n_steps",
    "callbacks.attention_every": "callbacks.attention_stats.every_n_steps",
    "callbacks.patience": "callbacks.early_stopping.patience",
    "model.vocab_size": "tokenizer.vocab_size",
    "model.width": "model.d_model",
    "model.heads": "model.n_heads",
    "model.inner": "model.ffn_dim",
    "model.types": "model.type_vocab_size",
    "model.tied": "model.tie_embeddings",
    "model.norm": "model.norm_first=true|false",
    "task.share": "task.mask_prob",
    "task.keep": "task.keep_prob",
    "task.random": "task.random_prob",
}
CHOICES = {
    **{f"callbacks.progress={value}": f"callbacks.progress.bar={value}" for value in ("true", "false")},
    "data=rush": "data=gigaword",
    "data=pairs": "data=pair_files",
    "data=hub": "data=hub_pairs",
}
_OVERRIDE = re.compile(r"\+{0,2}([\w.]+)=(.*)", re.DOTALL)


def renamed(arguments: Sequence[str]) -> list[Problem]:
    """A problem for each argument whose key or choice has a new name."""
    problems = []
    for argument in arguments:
        if found := _OVERRIDE.fullmatch(argument):
            key, value = found.groups()
            if key in RENAMED:
                problems.append(Problem(key, f"is now called {RENAMED[key]}"))
            elif (choice := f"{key}={value}") in CHOICES:
                problems.append(Problem.about(key, f"{choice}: is now called {CHOICES[choice]}"))
    return problems

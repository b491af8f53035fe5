"""Opening a run folder: its recorded configuration, its tokenizer and its model; the current defaults play no part."""

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnorm.errors import ConfigError, DataError, RunError
from attnorm.run.folder import RUN
from attnorm.run.run import Run
from attnorm.run.trust import check_names, own_cache

if TYPE_CHECKING:
    from attnorm.data.tokenizers.base import Tokenizer
    from attnorm.settings import Settings


def read_run(folder: Path, trust_code: bool = False, typed: Collection[str] = ()) -> dict[str, Any]:
    """The configuration that a run was trained with.

    Raises ConfigError for a folder that is not a run's, and for one that names code of a package that is not trusted
    (see `trust.check_names`), unless trust_code allows it. typed: keys that the user has typed for the run.
    """
    run = Run(folder)
    run.check("run")
    cfg = run.config
    check_names(cfg, trust_code)
    cfg["paths"] = own_cache(cfg.get("paths", {}), trust_code, typed)
    return cfg


def open_run(run: Path, cfg: "Settings", checkpoint: str) -> "tuple[Tokenizer, Any, int]":
    """The run's tokenizer, and its model with the parameters of `checkpoint` ("best" or "last"), on the GPU if there
    is one; and the update they are from. Raises ConfigError if one of them is missing or does not fit the others."""
    import torch

    from attnorm.run.checkpoint import BEST, LAST, read_checkpoint
    from attnorm.run.integrity import check_fit, not_much_larger, parameters_of
    from attnorm.tasks.task import task_of

    path = Run(run).checkpoint_file(checkpoint)
    if checkpoint not in (BEST, LAST):
        raise ConfigError([f"ckpt={checkpoint}: allowed: {BEST}, {LAST}"])
    if not path.is_file():
        others = sorted(file.name for file in path.parent.glob("*.ckpt")) or "none"
        raise RunError(f"run={run}: no checkpoint {path.name} there (there is: {others})")
    tokenizer, content = tokenizer_of_run(run, cfg), read_checkpoint(path)
    if tokenizer.fingerprint() != Run(run).recorded.get("fingerprints", {}).get("tokenizer", tokenizer.fingerprint()):
        raise RunError(f"{run / cfg.tokenizer.cls.FILE}: is not the tokenizer that the run was trained with")
    try:
        with not_much_larger(content, path):
            model = task_of(cfg, run).model(tokenizer)
    except (RuntimeError, MemoryError) as error:  # sizes that no machine has memory for
        raise RunError(f"{run / RUN}: the model cannot be built: {str(error).splitlines()[0]}") from error
    check_fit(model, content, path)
    model.load_state_dict(parameters_of(content))
    return tokenizer, model.to("cuda" if torch.cuda.is_available() else "cpu").eval(), content["global_step"]


def tokenizer_of_run(run: Path, cfg: "Settings") -> "Tokenizer":
    """The tokenizer that a run was trained with. Raises RunError if its file is missing or cannot be read."""
    try:
        tokenizer: Tokenizer = cfg.tokenizer.cls.load(run)
    except (DataError, OSError) as error:
        raise RunError(str(error).splitlines()[0]) from error
    return tokenizer

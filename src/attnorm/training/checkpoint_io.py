"""How Lightning writes and reads the checkpoints of a run."""

import os
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from lightning_fabric.plugins.io.torch_io import TorchCheckpointIO

from attnorm.errors import SaveError
from attnorm.run.checkpoint import (
    LAST,
    UNFINISHED,
    checked_content,
    intact,
    keep_previous,
    load_verified,
    naming_the_intact,
    sweep_unfinished,
    sync_folder,
)
from attnorm.run.integrity import companions, seal


class AtomicCheckpointIO(TorchCheckpointIO):
    """Writes beside the target, flushes to disk, then renames: the old checkpoint survives until the new is whole.

    The last.ckpt that is replaced becomes previous.ckpt, in case the new one is damaged later.
    """

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any | None = None) -> None:
        """Raises SaveError, naming the file and what survives, if the disk is full or the folder is not writable."""
        path = Path(path)
        unfinished = path.with_name(path.name + UNFINISHED)
        try:
            path.parent.mkdir(exist_ok=True)  # without its parents: the run folder may have been moved
            with open(unfinished, "w+b") as file:
                beside = {"companions": companions(path.parent.parent)} if "state_dict" in checkpoint else {}
                torch.save({**checkpoint, **beside}, file)
                seal(file)
                file.flush()
                os.fsync(file.fileno())
            if path.stem == LAST:
                keep_previous(path)
            os.replace(unfinished, path)
            sync_folder(path.parent)
        except (OSError, RuntimeError) as error:  # torch reports a failed write as a RuntimeError
            with suppress(OSError):
                sweep_unfinished(path.parent)
            kept = intact(path.parent)
            survives = f"still good in that folder: {', '.join(kept)}" if kept else "there was none before"
            raise SaveError(f"could not save the checkpoint {path}: {root_cause(error)} ({survives})") from error

    def load_checkpoint(
        self, path: Any, map_location: Any | None = None, weights_only: bool | None = None
    ) -> dict[str, Any]:
        """`read_checkpoint`, whatever else is asked for. Forked processes also hand over bare parameters this way."""
        path = Path(path)
        with naming_the_intact(path):
            content = load_verified(path)
            bare = isinstance(content, dict) and "state_dict" not in content
            return content if bare else checked_content(content, path)


def root_cause(error: BaseException) -> BaseException:
    """The OSError behind a failed write, such as a full disk, of which torch itself reports only file positions."""
    chain = [error]
    while (before := chain[-1].__cause__ or chain[-1].__context__) is not None:
        chain.append(before)
    return next((cause for cause in reversed(chain) if isinstance(cause, OSError)), error)

"""Whether a checkpoint is what was saved, and belongs to the model and to the files of its run folder.

A checkpoint is a zip archive, the format of torch.save. Every entry has a CRC-32, which torch.load does not compare,
and nothing covers the headers. So the comment at the end of the archive, which torch ignores, holds a SHA-256 of all
bytes before it.
"""

import hashlib
import os
import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

import torch
from torch import Tensor, nn

from attnorm.errors import CheckpointError

SEAL = re.compile(rb"sha256:([0-9a-f]{64})")
SEAL_LENGTH = len("sha256:") + 64
COMPANIONS = ("sentencepiece.model", "tokenizer.json", "answers.json")  # of a run folder: they give ids their meaning


def seal(file: BinaryIO) -> None:
    """Appends the checksum to a file that torch.save has just written and that is open for reading and writing."""
    file.seek(-2, os.SEEK_END)  # the last field of an archive without a comment is the length of the comment
    file.write(SEAL_LENGTH.to_bytes(2, "little"))
    file.write(f"sha256:{sha256_of_start(file, file.tell())}".encode())


def verify(file: BinaryIO) -> None:
    """Raises ValueError or zipfile.BadZipFile if a byte is not what was written; leaves the file at its start.

    A checkpoint without a seal was saved by plain torch.save: its entries are compared with their CRC-32.
    """
    size = file.seek(0, os.SEEK_END)
    file.seek(max(0, size - SEAL_LENGTH))
    recorded = SEAL.fullmatch(file.read())
    if recorded and sha256_of_start(file, size - SEAL_LENGTH) != recorded[1].decode():
        raise ValueError("its checksum does not match")
    with zipfile.ZipFile(file) as archive:
        if not recorded and archive.comment:
            raise ValueError("its checksum cannot be read")
        if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):  # it could grow without end
            raise ValueError("its entries are compressed")
        if not recorded and (name := archive.testzip()) is not None:
            raise ValueError(f"the checksum of {name} does not match")
    file.seek(0)


def recorded_digest(path: Path) -> str | None:
    """The SHA-256 that a checkpoint file states of itself, without reading the rest; None if it has none."""
    with open(path, "rb") as file:
        file.seek(max(0, file.seek(0, os.SEEK_END) - SEAL_LENGTH))
        recorded = SEAL.fullmatch(file.read())
    return recorded[1].decode() if recorded else None


def sha256_of_start(file: BinaryIO, length: int) -> str:
    """The SHA-256 of the first `length` bytes; leaves the file behind them."""
    file.flush()
    file.seek(0)
    hashed = hashlib.sha256()
    while length and (chunk := file.read(min(length, 1 << 20))):
        hashed.update(chunk)
        length -= len(chunk)
    return hashed.hexdigest()


def nonfinite_tensors(tensors: Mapping[str, Tensor]) -> list[str]:
    """The tensors with a value that is NaN or infinite, and how many of them."""
    broken = []
    for name, tensor in tensors.items():
        if tensor.untyped_storage().nbytes() < tensor.numel() * tensor.element_size():
            raise ValueError(f"{name} is larger than its data")
        # a finite sum is enough, and several times faster to find out
        if not torch.isfinite(tensor.sum()) and not torch.isfinite(tensor).all():
            count = int((~torch.isfinite(tensor)).sum())
            broken.append(f"{name} ({count:,} of {tensor.numel():,} values)")
    return broken


def parameters_of(content: dict[str, Any]) -> dict[str, Tensor]:
    """The parameters in a checkpoint by their names in the model; there they are those of the LightningModule."""
    return {name.removeprefix("model."): tensor for name, tensor in content["state_dict"].items()}


def check_fit(model: nn.Module, content: dict[str, Any], path: Path) -> None:
    """Raises CheckpointError if the parameters of a checkpoint, read from `path`, are not those of the model."""
    tensors, parameters = parameters_of(content), model.state_dict()
    problems = [f"{name} is missing" for name in parameters if name not in tensors]
    problems += [f"{name} is not part of the model" for name in tensors if name not in parameters]
    for name in parameters.keys() & tensors.keys():
        tensor, parameter = tensors[name], parameters[name]
        if tensor.shape != parameter.shape:
            problems.append(f"{name} has the shape {tuple(tensor.shape)}, the model's has {tuple(parameter.shape)}")
        elif tensor.is_floating_point() != parameter.is_floating_point():
            problems.append(f"{name} is of {tensor.dtype}, the model's is of {parameter.dtype}")
    if problems:
        raise CheckpointError(f"{path}: does not fit the model and the tokenizer: {first_problems(sorted(problems))}")


def first_problems(problems: list[str]) -> str:
    """The first problems in one line, and how many more there are."""
    return "; ".join(problems[:3]) + f"; and {len(problems) - 3} more" * (len(problems) > 3)


def companions(run: Path) -> dict[str, str]:
    """A hash of each file of a run folder without which its parameters mean nothing."""
    files = [run / name for name in COMPANIONS if (run / name).is_file()]
    return {file.name: hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest() for file in files}


def check_companions(run: Path, content: dict[str, Any], path: Path) -> None:
    """Raises CheckpointError if a run folder has other files than those that its checkpoint was trained with."""
    kept, now = content.get("companions"), companions(run)
    for name in COMPANIONS:
        if isinstance(kept, dict) and name in kept and now.get(name) != kept[name]:
            problem = "is another one" if name in now else "is missing"
            raise CheckpointError(f"{path}: the {name} that it was trained with {problem} in {run}")

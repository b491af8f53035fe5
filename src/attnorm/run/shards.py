"""Checkpoints whose large tensors are in shards, which all processes of a run write and read at the same time.

`last.ckpt` is then a small checkpoint file without these tensors. It names a folder beside it, which has the format of
`torch.distributed.checkpoint`, and holds the SHA-256 of each file in it. The folder is complete before the file names
it, and a new checkpoint gets a new folder. So the old checkpoint survives until the new one is whole.
"""

import hashlib
import os
import pickle
import re
import secrets
import shutil
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnorm.errors import CheckpointError

SHARDS = "shards"  # the key of a checkpoint file that names the folder
FOLDER = re.compile(r"shards-\d+-[0-9a-f]{8}")
METADATA = ".metadata"
PLAIN = {  # all that torch.distributed.checkpoint puts into its metadata; anything else could run code
    "torch.distributed.checkpoint.metadata": (
        *("Metadata", "MetadataIndex", "StorageMeta", "TensorStorageMetadata", "ChunkStorageMetadata"),
        *("TensorProperties", "_MEM_FORMAT_ENCODING"),
    ),
    "torch.distributed.checkpoint.filesystem": ("_StorageInfo",),
    "torch.serialization": ("_get_layout",),
    "torch": ("Size", "float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool"),
    "collections": ("OrderedDict",),
    "pathlib": ("PosixPath",),
    "pathlib._local": ("PosixPath",),
}
Place = list[str | int]  # the keys that lead to a value in nested dicts and lists
Template = Callable[[Place, torch.Size, torch.dtype], Tensor]


def save_shards(checkpoint: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Writes the sharded tensors (DTensor) of a checkpoint into a new folder in `folder`; all processes must call it.

    Returns the rest of the checkpoint, with the name of the new folder. Raises OSError if a process cannot write.
    """
    import torch.distributed.checkpoint as dcp
    from torch.distributed.tensor import DTensor

    sharded: dict[str, Tensor] = {}
    places: dict[str, Place] = {}

    def without(value: Any, keys: Place) -> Any:
        if isinstance(value, Mapping):
            inner = {key: without(item, [*keys, key]) for key, item in value.items()}
            return {key: item for key, item in inner.items() if not isinstance(item, DTensor)}
        if isinstance(value, list):
            return [without(item, [*keys, number]) for number, item in enumerate(value)]
        if isinstance(value, DTensor):
            key = str(len(sharded))
            sharded[key], places[key] = value, keys
        return value

    rest = without(checkpoint, [])
    name = [f"shards-{checkpoint['global_step']}-{secrets.token_hex(4)}"]
    torch.distributed.broadcast_object_list(name)
    path, rank = folder / name[0], torch.distributed.get_rank()
    try:
        dcp.save(sharded, storage_writer=dcp.FileSystemWriter(path))  # flushes each file to disk
    except dcp.CheckpointException as error:  # on every process, if one of them failed
        shutil.rmtree(path, ignore_errors=True)
        causes = [cause for _, (cause, _) in sorted(error.failures.items())]
        raise OSError(f"could not save the shards of a checkpoint in {path}: {causes[0]}") from error
    # this process has written the files __<rank>_<number>.distcp, and the first one also the metadata
    written = (f"__{rank}_", METADATA) if rank == 0 else (f"__{rank}_",)
    hashes_here = {file.name: digest_of(file) for file in path.iterdir() if file.name.startswith(written)}
    hashes: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(hashes, hashes_here)
    files = {file: value for of_rank in hashes for file, value in of_rank.items()}
    return rest | {SHARDS: {"folder": name[0], "files": files, "places": places}}


def with_shards(content: dict[str, Any], path: Path, template: Template | None = None) -> dict[str, Any]:
    """The content of the checkpoint file `path` with its tensors from the shards; as it is if it names no shards.

    template: returns the tensor into which a value is read, from its place, shape and type. With sharded tensors, all
              processes must call it, and each one reads its own shards. None reads whole tensors.

    Raises CheckpointError for missing, changed or unsafe files.
    """
    if SHARDS not in content:
        return content
    import torch.distributed.checkpoint as dcp

    folder, places = verified(content[SHARDS], path)

    class Reader(dcp.FileSystemReader):
        """Reads metadata without running code that is in it."""

        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return read_metadata(folder / METADATA)

    try:
        tensors: dict[str, Tensor] = {}
        for key, described in read_metadata(folder / METADATA).state_dict_metadata.items():
            make = template or (lambda keys, size, dtype: torch.empty(size, dtype=dtype))
            tensors[key] = make(places[key], described.size, described.properties.dtype)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # that a single process reads, and what torch says to its developers
            dcp.load(tensors, storage_reader=Reader(folder), no_dist=template is None)
    except Exception as error:  # a file of anyone's can fail in any way
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise CheckpointError(f"{path}: its shards in {folder} cannot be read: {reason}") from error
    content = {key: value for key, value in content.items() if key != SHARDS}
    for key, tensor in tensors.items():
        inner: Any = content
        *outer, last = places[key]
        for name in outer:
            inner = inner.setdefault(name, {}) if isinstance(inner, dict) else inner[name]
        inner[last] = tensor
    return content


def verified(shards: Any, path: Path) -> tuple[Path, dict[str, Place]]:
    """The folder of the shards, and the places of the tensors. Raises CheckpointError for a file that has changed."""
    if not FOLDER.fullmatch(str(shards.get("folder"))) or METADATA not in shards["files"]:
        raise CheckpointError(f"{path}: not a checkpoint of a run: {shards.get('folder')!r} is no folder of shards")
    folder = path.parent / shards["folder"]
    for name, expected in sorted(shards["files"].items()):
        file = folder / Path(name).name
        if not file.is_file():
            raise CheckpointError(f"{path}: its shard {file} is missing")
        if digest_of(file) != expected:
            raise CheckpointError(f"{path}: damaged: the checksum of its shard {file} does not match")
    return folder, shards["places"]


def read_metadata(path: Path) -> Any:
    """The metadata of a folder of shards. Raises UnpicklingError for anything that could run code."""

    class Plain(pickle.Unpickler):
        def find_class(self, module: str, name: str) -> Any:
            if name not in PLAIN.get(module, ()):
                raise pickle.UnpicklingError(f"{module}.{name} does not belong into the metadata of a checkpoint")
            return super().find_class(module, name)

    with open(path, "rb") as file:
        metadata = Plain(file).load()
    for stored in metadata.storage_data.values():
        if Path(stored.relative_path).name != stored.relative_path:
            raise pickle.UnpicklingError(f"{stored.relative_path} is not a file in the folder")
    return metadata


def digest_of(path: Path) -> str:
    """The SHA-256 of a file."""
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def shards_of(path: Path) -> str | None:
    """The name of the folder with the shards of a checkpoint file; None if it has none or cannot be read."""
    try:
        content = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
        return content[SHARDS]["folder"]
    except Exception:  # another kind of file, or a damaged one, which is reported when it is used
        return None


def copy_shards(source: Path, target: Path) -> None:
    """Copies the shards of the checkpoint file `source` to the folder of `target`, if they are not there."""
    name = shards_of(source)
    if name is not None and FOLDER.fullmatch(name) and not (target.parent / name).exists():
        unfinished = target.parent / f"{name}.unfinished"
        shutil.copytree(source.parent / name, unfinished, dirs_exist_ok=True)
        os.replace(unfinished, target.parent / name)


def remove_unused(folder: Path) -> None:
    """Removes the shards that no checkpoint file in the folder names, such as those of a killed save."""
    folders = [path for path in folder.glob("shards-*") if path.is_dir()]
    if folders:
        used = {shards_of(path) for path in folder.glob("*.ckpt")}
        for path in folders:
            if path.name not in used:
                shutil.rmtree(path, ignore_errors=True)

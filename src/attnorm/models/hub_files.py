"""Folders with a model in the format of Hugging Face: config.json, and weights as safetensors."""

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from attnorm.errors import DataError, reading
from attnorm.models.layers import ACTIVATIONS

CONFIG = "config.json"
KINDS = {"bert": "BERT", "gpt2": "GPT-2"}  # the values of model_type that can be read
EXPECTED = f"there is no such file; expected a folder with the {CONFIG} and model.safetensors of a BERT or GPT-2 model"


def kind_of(folder: str | Path) -> str:
    """The model_type in config.json, a key of `KINDS`. Raises ValueError, naming the file, for any other model."""
    return read_config(folder, *KINDS)["model_type"]


def read_config(folder: str | Path, *kinds: str) -> dict:
    """Reads config.json. Raises ValueError that names the file if its model_type is not in `kinds`."""
    path = Path(folder) / CONFIG
    if not path.is_file():
        raise DataError(f"{path}: {EXPECTED}")
    config = read_json_object(path)
    if config.get("model_type") not in kinds:
        adds = (f'if it is a {KINDS[kind]} model, add "model_type": "{kind}" to the file' for kind in kinds)
        hint = "" if "model_type" in config else "; " + "; ".join(adds)
        allowed = " and ".join(map(repr, kinds))
        raise DataError(f"{path}: model_type={config.get('model_type')!r}: only {allowed} can be read{hint}")
    return config


def read_hub_settings(
    folder: str | Path, kind: str, settings: Mapping[str, tuple[str, Any]], only: Mapping[str, Any]
) -> dict[str, Any]:
    """Reads the options of our model from config.json.

    settings: for each option, its key in config.json, and its value if the key is missing.
    only:     keys for which our models have only one value.

    Raises ValueError that lists every setting that our models do not support.
    """
    path, config = Path(folder) / CONFIG, read_config(folder, kind)
    values = {name: config.get(key, default) for name, (key, default) in settings.items()}
    keys = {name: key for name, (key, _) in settings.items()}
    problems = []
    with reading(path, f"not the settings of a {KINDS[kind]} model"):
        if values["activation"] not in ACTIVATIONS:
            problems.append(f"{keys['activation']}={values['activation']!r}: allowed: {', '.join(ACTIVATIONS)}")
        if values["d_model"] % values["n_heads"]:
            heads = f"{keys['n_heads']}={values['n_heads']}"
            problems.append(f"{keys['d_model']}={values['d_model']}: not a multiple of {heads}")
    for key, value in only.items():
        if config.get(key, value) != value:
            problems.append(f"{key}={config[key]!r}: allowed: {value!r}")
    if problems:
        raise DataError("\n  ".join([f"{path}: a {KINDS[kind]} model that our models do not support:", *problems]))
    return values


def read_json_object(path: Path) -> dict:
    """Returns the JSON object in a file. Raises ValueError, naming the file, if it does not contain one."""
    with reading(path, "cannot be read as JSON"):
        content = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(content, dict):
        raise DataError(f"{path}: expected settings by name, {{...}}")
    return content


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """Reads model.safetensors, or the files that model.safetensors.index.json lists, as float32 tensors by name.

    Raises ValueError, naming the file, if one is missing or damaged.
    """
    tensors: dict[str, Tensor] = {}
    for file in weight_files(Path(folder)):
        hint = "is the download complete, in a git clone with git lfs pull?"
        with reading(file, f"cannot be read as safetensors; {hint}"), safe_open(file, framework="pt") as opened:
            tensors |= {name: opened.get_tensor(name).float() for name in sorted(opened.keys())}
    return tensors


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files of a folder.

    Raises ValueError that names the missing files. If the folder has only a pickle file, the message shows how to
    convert it.
    """
    whole, pickled = folder / "model.safetensors", folder / "pytorch_model.bin"
    index = folder / "model.safetensors.index.json"
    if whole.is_file():
        return [whole]
    if index.is_file():
        parts = read_json_object(index).get("weight_map")
        if not isinstance(parts, dict) or not parts:
            raise DataError(f"{index}: expected a 'weight_map' with the file of each tensor")
        files = [folder / name for name in sorted(set(parts.values()))]
        if missing := [str(file) for file in files if not file.is_file()]:
            raise DataError(f"{index}: names files that do not exist: {', '.join(missing)}")
        return files
    if pickled.is_file():
        raise DataError(
            f"{pickled}: only safetensors can be read. Convert the file once:\n"
            "python -c 'import torch, safetensors.torch as s; "
            f't = torch.load("{pickled}", map_location="cpu", weights_only=True); '
            f's.save_file({{n: x.clone(memory_format=torch.contiguous_format) for n, x in t.items()}}, "{whole}")\''
        )
    raise DataError(f"{whole}: {EXPECTED}")


def other_name(module: str, names: Mapping[str, str]) -> str | None:
    """The other name of a module, with the index of its layer in place of {}. None if it has none."""
    number = re.search(r"\b(?:layers?|h)\.(\d+)", module)
    if number is None:
        return names.get(module)
    other = names.get(f"{module[: number.start(1)]}{{}}{module[number.end(1) :]}")
    return other and other.format(number[1])

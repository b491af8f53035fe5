"""Hashes of what a model is given, by which runs are only compared on the same inputs."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor


def hash_of(row: Mapping[str, Any]) -> str:
    """The first 16 digits of the SHA-256 of a row of texts or numbers."""
    return hashlib.sha256(json.dumps(row, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:16]


def hash_of_image(*arrays: Tensor) -> str:
    """The first 16 digits of the SHA-256 of the pixels or features of an image, with their shapes and dtypes."""
    hashed = hashlib.sha256()
    for array in arrays:
        hashed.update(repr((tuple(array.shape), str(array.dtype))).encode())
        hashed.update(array.contiguous().numpy().tobytes())
    return hashed.hexdigest()[:16]

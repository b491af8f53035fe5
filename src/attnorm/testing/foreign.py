"""Parts that no task can use: a model with an interface, and data with columns, that are nobody's."""

from collections.abc import Iterator
from typing import ClassVar

from torch import nn

from attnorm.data.sources.base import RowSchema, Source


class Model(nn.Module):
    """A model whose interface no task trains."""

    interface: ClassVar[str] = "foreign"
    sites: ClassVar[dict[str, bool]] = {}


class Rows(Source):
    """Rows that no task reads."""

    schema = RowSchema("foreign rows", "row", ("foreign",), ("foreign",), cleaned=(), words=())
    splits = ("train", "validation", "test")

    def fingerprint(self, split: str) -> str:
        return split

    def rows(self, split: str) -> Iterator[tuple[str, ...]]:
        yield ("",)

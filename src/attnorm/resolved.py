"""A checked configuration and what follows from it, computed once."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class ResolvedConfig(Mapping[str, Any]):
    """A configuration without a problem, as plain values: every default is filled in, and the attention tables name
    every site of the model.

    It reads like the dictionary of its values: `config["model"]["dropout"]`.

    settings: the groups and the keys at the top level.
    sites:    the attention sites of the model, each with whether it is autoregressive.
    label:    the name that the run is filed under: its normalizers.
    """

    settings: dict[str, Any]
    sites: dict[str, bool]
    label: str

    def __getitem__(self, key: str) -> Any:
        return self.settings[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self.settings)

    def __len__(self) -> int:
        return len(self.settings)


def leaves(cfg: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """('trainer.max_steps', value) for every value of a nested dict."""
    for key, value in cfg.items():
        if isinstance(value, Mapping) and value:
            yield from leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value

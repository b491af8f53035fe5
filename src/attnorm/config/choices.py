"""The files of conf/, by group: what can be chosen with `group=file`."""

from functools import cache
from pathlib import Path
from typing import Any

import yaml

CONF = Path(__file__).resolve().parents[1] / "conf"


@cache
def choices(group: str) -> dict[str, dict[str, Any]]:
    """The content of each file of a group, by its name, without the files that it builds on."""
    files = sorted((CONF / group).glob("*.yaml"))
    return {file.stem: yaml.safe_load(file.read_text()) or {} for file in files}

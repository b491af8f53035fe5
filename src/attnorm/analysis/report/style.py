"""The style of the report: its assets, and the colours of its light mode."""

import re
from functools import cache
from importlib.resources import files


@cache
def asset(name: str) -> str:
    """The content of a file in assets/."""
    return (files("attnorm.analysis.report") / "assets" / name).read_text(encoding="utf-8")


@cache
def light_colours() -> dict[str, str]:
    """The colours of the page in its light mode, by the name of their CSS variable."""
    return dict(re.findall(r"(--[\w-]+): (#\w+)", asset("style.css").partition("@media")[0]))

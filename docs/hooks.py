"""Hooks of `mkdocs build` (make docs), which complete the site with files from outside docs/."""

import csv
import re
from importlib.metadata import files as files_of_package
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

OUTSIDE = ("experiments", "benchmarks/results")  # folders at the top level that pages link to
SUFFIXES = (".md", ".png", ".txt", ".csv", ".py")
TOP = Path(__file__).parents[1]
SKELETON = TOP / "src/attnorm/skeleton"  # what `attnorm new` writes
MATHJAX = "tex-svg.js"  # MathJax in a single file; its SVG output needs no fonts


def outside_files(top: Path) -> list[Path]:
    """The files outside docs/ that become part of the site."""
    found = (path for folder in OUTSIDE for path in sorted((top / folder).rglob("*")))
    return [path for path in found if path.suffix in SUFFIXES]


def with_listings(markdown: str) -> str:
    """Replaces each line that is a link to a file of the skeleton by the file, because the site has no src/."""

    def listing(link: re.Match[str]) -> str:
        language = "python" if link[1].endswith(".py") else "yaml"
        return f"\n```{language}\n# {link[1]}\n{(SKELETON / link[1]).read_text()}```\n"

    return re.sub(r"^\[`(\S+)`\]\(\.\./src/attnorm/skeleton/\1\)$", listing, markdown, flags=re.M)


def with_options(markdown: str) -> str:
    """Replaces each line that is a link to a file of conf/attention/, conf/data/ or conf/task/ by a table of its keys,
    as far as they have comments."""

    def table(link: re.Match[str]) -> str:
        rows, path = ["", "| option | default | meaning |", "|---|---|---|"], [""]
        text = (TOP / link[1]).read_text().replace("|", "\\|")
        for indent, key, default, meaning in re.findall(r"^( *)(\w+):(?: +(\S.*?))??(?: +# (.*))?$", text, re.M):
            path[len(indent) // 2 :] = [key]
            if default and meaning:
                name = {"attention": ".".join(path[1:]), "data": f"data.{key}", "task": ".".join(path)}[link[2]]
                rows.append(f"| `{name}` | `{default}` | {meaning.replace('<', '&lt;')} |")
        return "\n".join([*rows, ""])

    return re.sub(r"^\[`(conf/(attention|data|task)/\w+\.yaml)`\]\(\.\./\1\)$", table, markdown, flags=re.M)


def with_verdicts(markdown: str) -> str:
    """Replaces links to files of verdicts by the score of the baseline and the verdicts on the primary metric, in the
    digits of `verdicts.py`."""

    def verdicts(link: re.Match[str]) -> str:
        rows = csv.DictReader((TOP / link[1]).read_text().splitlines())
        baseline, words = "", dict[str, list[str]]()
        for row in rows:
            digits = 3 if row["metric"].startswith("loss") else 2
            if row["primary"] == "true" and row["verdict"] == "baseline":
                baseline = f"{row['arm']} {float(row['mean']):.{digits}f}; "
            elif row["primary"] == "true" and row["verdict"] != "reference":
                difference, low, high = (f"{float(row[key]):+.{digits}f}" for key in ("difference", "low", "high"))
                words.setdefault(row["verdict"], []).append(f"{row['arm']} {difference} ({low} to {high})")
        return baseline + "; ".join(f"**{word}:** {', '.join(arms)}" for word, arms in words.items())

    return re.sub(r"\[`(experiments/\w+/verdicts\w*\.csv)`\]\(\.\./\1\)", verdicts, markdown)


def links_of_site(markdown: str, page: str) -> str:
    """Rewrites links that enter or leave docs/, because the site has the files of docs/ at its top.

    page: the path of the page in the site, such as "hnas.md" or "experiments/reuters/README.md".
    """
    if page.startswith(OUTSIDE):
        return re.sub(r"\]\(((?:\.\./)+)docs/", r"](\1", markdown)
    return with_verdicts(with_options(with_listings(markdown))).replace("](../", "](")


def on_files(files: "Files", config: "MkDocsConfig") -> "Files":
    """Adds the pages and results that the documentation links to, and MathJax, so that the site works offline."""
    from mkdocs.structure.files import File

    top = Path(config.config_file_path).parent
    for path in outside_files(top):
        files.append(File.generated(config, path.relative_to(top).as_posix(), abs_src_path=str(path)))
    [mathjax] = [path for path in files_of_package("sphinx-mathjax-offline") or () if path.name == MATHJAX]
    files.append(File.generated(config, f"javascripts/{MATHJAX}", abs_src_path=str(mathjax.locate())))
    return files


def on_page_markdown(markdown: str, page: "Page", config: "MkDocsConfig", files: "Files") -> str:
    """Rewrites the links of a page."""
    return links_of_site(markdown, page.file.src_uri)

"""Hooks of `mkdocs build` (make docs), which complete the site with files from outside docs/."""

from importlib.metadata import files as files_of_package
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

OUTSIDE = ("experiments", "benchmarks/results")  # folders at the top level that pages link to
SUFFIXES = (".md", ".png", ".txt")
MATHJAX = "tex-svg.js"  # MathJax in a single file; its SVG output needs no fonts


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the pages and results that the documentation links to, and MathJax, so that the site works offline."""
    top = Path(config.config_file_path).parent
    for path in (path for folder in OUTSIDE for path in sorted((top / folder).rglob("*"))):
        if path.suffix in SUFFIXES:
            files.append(File.generated(config, path.relative_to(top).as_posix(), abs_src_path=str(path)))
    [mathjax] = [path for path in files_of_package("sphinx-mathjax-offline") or () if path.name == MATHJAX]
    files.append(File.generated(config, f"javascripts/{MATHJAX}", abs_src_path=str(mathjax.locate())))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrites links that leave docs/, such as ../experiments/x.md: the site has these files next to its pages."""
    return markdown if page.file.src_uri.startswith(OUTSIDE) else markdown.replace("](../", "](")

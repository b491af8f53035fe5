"""Writes the report as one HTML file, which opens from disk and loads nothing from anywhere.

Jinja escapes every text. Data for scripts are JSON with "<", ">" and "&" escaped, in elements that are not run. The
page has a content security policy that allows only its own two scripts, by their hashes, and no request at all.
"""

import base64
import gzip
import hashlib
import json
from functools import cache
from pathlib import Path
from typing import Any

import vl_convert

from attnorm.analysis.html import templates_of
from attnorm.analysis.report.content import Report
from attnorm.analysis.report.pictures import pictures_of
from attnorm.analysis.report.style import asset
from attnorm.files import write_text


def write_report(report: Report, path: Path) -> int:
    """Writes the page, whole or not at all, and returns its size in bytes."""
    write_text(path, html_of(report))
    return path.stat().st_size


def html_of(report: Report) -> str:
    """The page as a text."""
    figures: dict[str, dict[str, Any]] = {}  # what the script needs for each chart
    for name, picture in pictures_of(report).items():
        chart = picture.chart
        data = {
            dataset: {"fields": list(rows[0]) if rows else [], "rows": [list(row.values()) for row in rows]}
            for dataset, rows in chart.data.items()
        }
        columns, fields = [words.strip() for words in chart.fields.values()], list(chart.fields)
        of_file = {"picture": picture.spec(), "file": name}  # the chart as a picture, and the name of its file
        figures[chart.name] = {"spec": chart.spec, **of_file, "columns": columns, "fields": fields, "data": data}
    scripts = [asset("page.js"), *([asset("charts.js")] if figures else [])]
    # these scripts only, and no requests; Vega compiles its expressions, hence eval
    hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts]
    allowed = " ".join(["'unsafe-eval'", *(f"'sha256-{digest}'" for digest in hashes)])
    page = templates_of("attnorm.analysis.report").get_template("page.html")
    return page.render(
        report=report,
        style=asset("style.css"),
        scripts=scripts,
        policy=f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {allowed}",
        figures=json_of(figures) if figures else "",
        library=library() if figures else "",
    )


@cache
def library() -> str:
    """JavaScript that defines `window.vegaEmbed`, with all of Vega: compressed with gzip, in base64."""
    script = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    return base64.b64encode(gzip.compress(script.encode(), 9, mtime=0)).decode()


def json_of(content: Any) -> str:
    """JSON that can stand inside a script element, whatever texts it contains."""
    text = json.dumps(content, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return text

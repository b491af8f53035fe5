"""A study as a file: JSON with all numbers, or the table of the report as CSV, LaTeX or Markdown."""

from dataclasses import asdict
from math import isfinite
from pathlib import Path
from typing import Any

from attnorm.analysis.cautions import withheld_lines
from attnorm.analysis.report.tables import scores_table
from attnorm.analysis.study import Study
from attnorm.files import write_json, write_text

ENDINGS = (".csv", ".json", ".tex", ".md")


def write_study(study: Study, path: Path) -> None:
    """Writes the comparison on the metric of the verdicts, whole or not at all. The ending chooses the form."""
    table = scores_table(study)
    assert table is not None  # there is a comparison
    if path.suffix.lower() != ".json":
        write_text(path, {".csv": table.csv, ".tex": table.latex, ".md": table.markdown}[path.suffix.lower()])
        return
    main = study.comparisons[0]
    verdicts: dict[str, dict[str, Any]] = {}
    for verdict in main.verdicts:
        said: dict[str, Any] = {"word": verdict.word, "sentence": verdict.sentence()}
        if not verdict.is_silent:  # otherwise no number is claimed
            said |= {"for_this_test_set": verdict.claim_for_this_test_set(), "difference": asdict(verdict.difference)}
            names = ("p_value", "family", "detectable", "by_seed", "speed", "left_out", "cautions")
            said |= {"interval": asdict(verdict.interval)} | {name: getattr(verdict, name) for name in names}
        verdicts[verdict.label] = said
    arms = [
        asdict(scores) | {"mean": scores.mean, "spread": scores.spread, "verdict": verdicts.get(scores.label)}
        for scores in main.scores
    ]
    of_all = ("task", "metric", "is_primary", "source", "examples", "baseline", "simple")
    content = {name: getattr(main, name) for name in of_all}
    content |= {"better": "lower" if main.direction < 0 else "higher", "setup": table.about, "arms": arms}
    content |= {"withheld": withheld_lines(main.withheld), "notes": study.notes}
    write_json(path, plain_values(content))


def plain_values(value: Any) -> Any:
    """Values of JSON: numbers with 15 significant digits, and None for those that are not defined."""
    if isinstance(value, dict):
        return {str(name): plain_values(each) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain_values(each) for each in value]
    return (float(f"{value:.15g}") if isfinite(value) else None) if isinstance(value, float) else value

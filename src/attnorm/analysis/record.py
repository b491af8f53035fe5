"""A study as a file: JSON with all numbers, or the table of the report as CSV, LaTeX or Markdown."""

import json
from math import isfinite
from pathlib import Path
from typing import Any

from attnorm.analysis.cautions import withheld_lines
from attnorm.analysis.report.tables import scores_table
from attnorm.analysis.study import Study
from attnorm.analysis.verdict import Verdict
from attnorm.files import write_text

ENDINGS = (".csv", ".json", ".tex", ".md")


def write_study(study: Study, path: Path) -> None:
    """Writes the comparison on the metric of the verdicts, whole or not at all. The ending chooses the form."""
    table, ending = scores_table(study), path.suffix.lower()
    assert table is not None  # there is a comparison
    if ending == ".json":
        content = study_record(study) | {"setup": table.full_caption}
        write_text(path, json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    else:
        write_text(path, {".csv": table.csv, ".tex": table.latex, ".md": table.markdown}[ending])


def study_record(study: Study) -> dict[str, Any]:
    """Everything that is said about the metric of the verdicts, with 15 significant digits, and None for what is not
    defined."""
    main = study.comparisons[0]
    verdicts = {verdict.label: _verdict(verdict) for verdict in main.verdicts}
    return _rounded(
        {
            "task": main.task,
            "metric": main.metric,
            "better": "lower" if main.direction < 0 else "higher",
            "is_primary": main.is_primary,
            "split": main.source,
            "examples": main.examples,
            "baseline": main.baseline,
            "withheld": withheld_lines(main.withheld),
            "notes": study.notes,
            "arms": [
                {
                    "arm": scores.label,
                    "mean": scores.mean,
                    "sd": scores.spread,
                    "by_seed": scores.values,
                    "costs": scores.costs,
                    "left_out": scores.left_out,
                    "verdict": verdicts.get(scores.label),
                }
                for scores in main.scores
            ],
            "simple": main.simple,
        }
    )


def _verdict(verdict: Verdict) -> dict[str, Any]:
    """A verdict; without numbers if no claim is made."""
    said = {
        "word": verdict.word,
        "sentence": verdict.sentence(),
        "for_these_examples": verdict.claim_for_this_test_set(),
    }
    if verdict.is_silent:
        return said
    difference = verdict.difference
    return said | {
        "difference": difference.estimate,
        "level": difference.level,
        "interval": [verdict.interval.low, verdict.interval.high],
        "adjusted_p": verdict.p_value,
        "p": difference.p_value,
        "comparisons": verdict.family,
        "detectable": verdict.detectable,
        "interval_for_these_examples": [difference.new_seeds.low, difference.new_seeds.high],
        "p_for_these_examples": difference.p_value_new_seeds,
        "by_seed": verdict.by_seed,
        "examples": difference.examples,
        "groups": difference.clusters,
        "left_out": verdict.left_out,
        "cautions": verdict.cautions,
    }


def _rounded(content: Any) -> Any:
    if isinstance(content, dict):
        return {str(name): _rounded(value) for name, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [_rounded(value) for value in content]
    if isinstance(content, float):
        return float(f"{content:.15g}") if isfinite(content) else None
    return content

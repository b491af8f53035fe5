"""The hypotheses of README.md as bounds on differences of AER, and what the results say about them."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from attnorm.analysis.statistics.crossed import paired_difference

BELOW = (-math.inf, 0.0)
BASELINE, DNAS, IBM = "softmax", "dnas_prefix", "IBM model 1"
AFTERWARDS = ("softmax, then dnas", "softmax, then sinkhorn")
OTHERS = (DNAS, "hnas_prefix", "dnas_slack_prefix", "ot", "fertility_softmax", *AFTERWARDS)
PREDICTS, READS = "predicts", "reads"  # a step of the decoder, see `word_attention`
Scored = tuple[str, str]  # an arm, and the step whose attention is scored


@dataclass(frozen=True)
class Claim:
    """A part of a hypothesis: the AER of `arm` minus that of `other` is within `bounds`, in points."""

    hypothesis: str
    arm: Scored
    other: Scored
    bounds: tuple[float, float]


def predicts(hypothesis: str, arm: str, other: str, bounds: tuple[float, float]) -> Claim:
    """A claim about the step that predicts a word, for both arms."""
    return Claim(hypothesis, (arm, PREDICTS), (other, PREDICTS), bounds)


CLAIMS = [
    predicts("H1", DNAS, BASELINE, BELOW),
    predicts("H1", DNAS, BASELINE, (-4, -1)),
    *(predicts("H2", arm, BASELINE, BELOW) for arm in ("hnas_prefix", "dnas_slack_prefix")),
    *(predicts("H2", arm, DNAS, (-1, 1)) for arm in ("hnas_prefix", "dnas_slack_prefix")),
    *(predicts("H3", arm, BASELINE, BELOW) for arm in AFTERWARDS),
    predicts("H3", AFTERWARDS[1], AFTERWARDS[0], BELOW),
    predicts("H4", "fertility_softmax", BASELINE, (-2, 0)),
    predicts("H5", "ot", BASELINE, (-2, 2)),
    *(predicts("H6", IBM, arm, BELOW) for arm in (BASELINE, *OTHERS)),
    *(Claim("H7", (arm, PREDICTS), (arm, READS), BELOW) for arm in OTHERS),
]


def decide(values: Mapping[Scored, np.ndarray], chapters: Sequence[str]) -> list[dict[str, str]]:
    """A row per claim: its bounds, the difference with its interval for new seeds and new chapters, and the verdict.

    values: pseudo-values of AER, (seeds, verses), or (1, verses) for IBM model 1. chapters: the chapter of each verse.
    A claim is shown if the interval is within its bounds, refuted if it is outside of them, and open otherwise.
    """
    rows = []
    for claim in CLAIMS:
        found = paired_difference(values[claim.arm] - values[claim.other], chapters)
        interval, (least, most) = found.new_seeds_and_examples, claim.bounds
        verdict = "open"
        if least <= interval.low and interval.high <= most:
            verdict = "shown"
        elif interval.high < least or interval.low > most:
            verdict = "refuted"
        names = {"hypothesis": claim.hypothesis, "arm": ", ".join(claim.arm), "minus": ", ".join(claim.other)}
        numbers = {"least": least, "most": most, "difference": found.estimate}
        numbers |= {"low": interval.low, "high": interval.high}
        rows.append({**names, **{key: f"{value:.5g}" for key, value in numbers.items()}, "verdict": verdict})
    return rows

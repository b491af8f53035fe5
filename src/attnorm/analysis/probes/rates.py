"""What the tuning seeds of a probe say about the learning rates of an arm."""

from math import nan

import numpy as np

from attnorm.analysis.statistics.crossed import paired_difference
from attnorm.analysis.statistics.tuned import candidates
from attnorm.probes.arm import NULLS
from attnorm.probes.experiment import CellOutcome


def other_rates(outcome: CellOutcome) -> dict[str, list[float]]:
    """The rates of each arm besides the chosen one that may be its best one, at the size at which rates are chosen."""
    arms = [arm for arm in outcome.tuning if arm not in NULLS]
    rates = sorted({rate for arm in arms for rate in outcome.tuning[arm]})
    seeds = max((len(scores) for arm in arms for scores in outcome.tuning[arm].values()), default=0)
    none = np.full(seeds, nan)
    if not arms:
        return {}
    kept = candidates([[outcome.tuning[arm].get(rate, none) for rate in rates] for arm in arms])
    return {
        arm: [rate for rate, keeps in zip(rates, of, strict=True) if keeps and rate != outcome.rate[arm]]
        for arm, of in zip(arms, kept, strict=True)
    }


def flipping_rates(outcome: CellOutcome, difference: float, arm: str, baseline: str) -> list[float]:
    """The rates at which the tuning seeds show a difference of the opposite sign, at 5 % for new seeds."""
    if not {arm, baseline} <= outcome.tuning.keys():
        return []
    flips = []
    for rate in sorted(outcome.tuning[arm].keys() & outcome.tuning[baseline].keys()):
        by_seed = outcome.tuning[arm][rate] - outcome.tuning[baseline][rate]
        if len(by_seed) < 3 or not np.isfinite(by_seed).all() or by_seed.std() == 0:
            continue
        interval = paired_difference(by_seed[:, None]).new_seeds
        if (interval.low > 0 and difference < 0) or (interval.high < 0 and difference > 0):
            flips.append(rate)
    return flips

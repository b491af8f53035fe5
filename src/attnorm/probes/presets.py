"""Which cells, rates and seeds a comparison uses, by name."""

from collections.abc import Sequence
from dataclasses import dataclass

from attnorm.probes import PROBES
from attnorm.probes.arm import NULLS
from attnorm.probes.experiment import SEEDS, TUNING_SEEDS
from attnorm.probes.jobs import Cell, cells_of


@dataclass(frozen=True)
class Preset:
    """rates: the grid. extensions: see `ProbePlan`. share: of the updates of a probe. nulls: the null arms."""

    cells: list[Cell]
    rates: Sequence[float]
    tuning_seeds: int
    seeds: int
    extensions: int
    share: float = 1.0
    nulls: Sequence[str] = NULLS


PRESETS = {
    "quick": Preset(
        cells=[
            Cell("hub", "0.9"),
            *(Cell("demand", queries) for queries in ("16", "12", "8", "4")),
            Cell("skew", "0.8"),
            Cell("coverage"),
        ],
        rates=(3e-3, 1e-2),
        tuning_seeds=2,
        seeds=5,
        extensions=0,
        share=1 / 3,
        nulls=("uniform",),
    ),
    "atlas": Preset(
        cells=[cell for name in PROBES for cell in cells_of(name)],
        rates=(1e-3, 3e-3, 1e-2, 3e-2),
        tuning_seeds=4,
        seeds=10,
        extensions=2,
    ),
    "mqar": Preset(cells_of("mqar"), rates=(1e-4, 4.642e-4, 2.154e-3, 1e-2), tuning_seeds=3, seeds=5, extensions=0),
}


def tuning_seeds(preset: Preset) -> tuple[int, ...]:
    """The seeds that choose a learning rate."""
    return tuple(range(TUNING_SEEDS, TUNING_SEEDS + preset.tuning_seeds))


def comparison_seeds(count: int) -> tuple[int, ...]:
    """The seeds of a comparison."""
    return tuple(range(SEEDS, SEEDS + count))

"""Small tasks that separate attention normalizers. `attnorm probe` runs them; a probe of your own extends `Probe`."""

from attnorm.probes.base import Batch, Probe

__all__ = ["BENCHMARKS", "PROBES", "Batch", "Probe"]

PROBES = {
    "match": "attnorm.probes.lookup.Match",
    "hub": "attnorm.probes.lookup.Hub",
    "demand": "attnorm.probes.demand.Demand",
    "share": "attnorm.probes.demand.Share",
    "skew": "attnorm.probes.demand.Skew",
    "needle": "attnorm.probes.lookup.Needle",
    "max": "attnorm.probes.lookup.Max",
    "sort": "attnorm.probes.lookup.Sort",
    "slots": "attnorm.probes.slots.Slots",
    "coverage": "attnorm.probes.coverage.Coverage",
    "trigger": "attnorm.probes.trigger.Trigger",
    "histogram": "attnorm.probes.histogram.Histogram",
    "recall": "attnorm.probes.recall.Recall",
    "rank": "attnorm.probes.rank.Rank",
}
BENCHMARKS = {"mqar": "attnorm.probes.recall.Mqar"}  # of published sizes, which `all` leaves out

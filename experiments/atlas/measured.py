"""What the hypotheses of the atlas measure beyond scores: the mass of converged sinkhorn, and the time of attention."""

import statistics
import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from attnorm.attention import build_normalizer
from attnorm.attention.normalizers.base import dot_scores
from attnorm.attention.normalizers.sinkhorn import marginal_error
from attnorm.probes.arm import Arm
from attnorm.probes.ensemble import batches, train
from attnorm.probes.experiment import CellOutcome
from attnorm.probes.jobs import MEASURED

ERROR = 0.001  # the largest marginal error of converged sinkhorn
ITERATIONS = (50, 500, 5_000, 50_000)  # of sinkhorn, until it has converged


def sinkhorn_scores(found: CellOutcome) -> Iterator[tuple[int, Tensor, Tensor]]:
    """For each size of a cell: the size, scores, and 1 for each key that some query wants and 0 for the others.

    The scores (B, 1, N, M) are those of sinkhorn, trained with the first seed of the comparison at its tuned rate, on
    some examples. The second tensor is (B, M).
    """
    probe = found.cell.probe()
    model = train(probe, Arm("sinkhorn"), [110], [found.rate["sinkhorn"]], probe.updates).model
    for size in probe.test_sizes:
        [batch] = batches(probe, "test", size, MEASURED, 1, pieces=1)
        is_wanted = torch.zeros(batch.keys.shape[1:-1]).scatter(-1, batch.wanted[0], 1.0)
        yield size, scores_of(model, batch), is_wanted


@torch.no_grad()
def scores_of(model: Any, batch: Any) -> Tensor:
    """The scores of an ensemble of one member, float64 (B, 1, N, M)."""
    (q, _), (k, _) = model.q(batch.queries), model.k(batch.keys)
    return dot_scores(q, k, q.shape[-1] ** -0.5).transpose(0, 1).double()


def converged_mass(scores: Tensor, is_wanted: Tensor) -> tuple[Tensor | None, float]:
    """The mass of converged sinkhorn on the wanted keys of every example (B,), and the largest marginal error.

    The mass is None if the error is not below ERROR after the last of ITERATIONS. Arguments: see `sinkhorn_scores`.
    """
    error = float("nan")
    for iterations in ITERATIONS:
        weights = build_normalizer("sinkhorn", n_iters=iterations)(scores)
        error = float(marginal_error(weights).max())
        if error < ERROR:
            return (weights[:, 0].mean(-2) * is_wanted).sum(-1), error
    return None, error


def cost(size: int = 512, rounds: int = 9) -> dict[str, float]:
    """Median seconds of forward and backward of attention, alternating between the arms."""
    q, k, v, u = (torch.randn(4, 4, size, 32, requires_grad=True) for _ in range(4))
    times: dict[str, list[float]] = {}
    arms = {"softmax": "softmax", "hnas": "hnas", "dnas_slack_u": "dnas_slack"}
    normalizers = {label: build_normalizer(name) for label, name in arms.items()}
    for _ in range(rounds):
        for label, normalizer in normalizers.items():
            begin = time.perf_counter()
            prior = u.mean(-1)[:, :, None, :] if label == "dnas_slack_u" else None  # a score per key
            normalizer.attend(q, k, v, log_prior=prior).sum().backward()
            times.setdefault(label, []).append(time.perf_counter() - begin)
    return {label: statistics.median(values) for label, values in times.items()}

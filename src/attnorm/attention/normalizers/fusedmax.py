"""Fusedmax: sparse weights that are equal over runs of neighbouring keys.

Source: Niculae and Blondel 2017; "Neural Attention Mechanisms".
"""

import torch
from entmax import sparsemax
from torch import Tensor

from attnorm.attention.normalizers.shared.row_map import RowMap
from attnorm.attention.option_checks import finite_number


class Fusedmax(RowMap):
    """w_i = argmin_{p in simplex} 1/2 |p - s_i|^2 + lam sum_j |p_j - p_{j-1}| = sparsemax(prox(s_i)),

    prox(x) = argmin_p 1/2 |p - x|^2 + lam sum_j |p_j - p_{j-1}|, with s = scores + log u.

    Both the value and the Jacobian are exact: the Jacobian averages over each run of equal p and is followed by the
    Jacobian of sparsemax. A forbidden key is removed, so its neighbours become adjacent.

    lam: the strength of the penalty on differences between neighbouring keys, >= 0. 0 is sparsemax, and a large value
         makes all weights equal.
    """

    key_equivariant = False

    def __init__(self, lam: float = 0.1):
        super().__init__()
        if not finite_number(lam) or lam < 0:
            raise ValueError(f"lam={lam!r}: allowed: finite numbers >= 0")
        self.lam = float(lam)

    def row_weights(self, scores: Tensor) -> Tensor:
        if self.lam == 0:
            return sparsemax(scores)
        # {p >= t} is the set E that minimizes sum_E (t - x_j) + lam (number of its ends). For t < max - 2 lam it is not
        # empty, and it contains no j with x_j < t - 2 lam. Sparsemax ignores p below max - 2 lam - 1, and all p above
        # that stay the same if x is clamped to at least max - 4 lam - 1. So magnitudes and rounding errors no longer
        # depend on the scores.
        x = scores.double()
        x = (x - x.detach().amax(-1, keepdim=True)).clamp(min=-4 * self.lam - 1)
        forbidden = scores == -torch.inf
        if scores.is_meta:  # it has a shape, but no values that a solver could compare
            return scores
        p = total_variation_prox(x, self.lam, ~forbidden if forbidden.any() else None)
        return sparsemax(p.to(scores.dtype).masked_fill(forbidden, -torch.inf))

    def regularizer(self, p: Tensor, allowed: Tensor) -> Tensor:
        """1/2 |p|^2 + lam sum_j |p_j - p_{j-1}|, where j - 1 stands for the last allowed key before j."""
        index = torch.arange(p.shape[-1], device=p.device)
        before = torch.where(allowed, index, -1).cummax(-1).values.roll(1, -1)  # of each key; -1 if there is none
        jump = (p - p.gather(-1, before.clamp(min=0))).abs()
        jump = jump.masked_fill(~allowed | (before < 0) | (index == 0), 0.0)
        return p.square().sum(-1) / 2 + self.lam * jump.sum(-1)


def total_variation_prox(x: Tensor, lam: float, allowed: Tensor | None = None) -> Tensor:
    """argmin_p 1/2 |p - x|^2 + lam sum_j |p_j - p_{j-1}| along the last axis of x (..., M), float64, with lam > 0.

    Entries that are not `allowed` (bool, the shape of x) are removed before the problem is solved. Their p is 0.
    """
    if allowed is None:
        lengths = torch.full((x[..., 0].numel(),), x.shape[-1], device=x.device)
        values, sums = x.flatten(), x.detach().cumsum(-1).flatten()
    else:  # (T,): the rows concatenated, each with its own length
        lengths = allowed.sum(-1).flatten()
        values, sums = x[allowed], x.detach().masked_fill(~allowed, 0.0).cumsum(-1)[allowed]
    with torch.no_grad():
        # X_0 = 0, ..., X_n of all rows, concatenated (T + rows,). An entry is the step from X_before to the next X.
        row = torch.arange(len(lengths), device=x.device).repeat_interleave(lengths)
        before = torch.arange(len(values), device=x.device) + row
        X = x.new_zeros(len(values) + len(lengths)).index_copy(0, before + 1, sums)
        ends = lengths.cumsum(0) + torch.arange(len(lengths), device=x.device)
        knot, z = taut_string(X, torch.cat([ends - lengths, ends]), lam)
        run = knot.cumsum(0).index_select(0, before) - 1  # the run of equal p that contains an entry, between two knots
        sides = knot.nonzero().squeeze(-1)
        pull, count = z[sides].diff(), sides.diff()
    p = (x.new_zeros(len(count)).index_add(0, run, values) + pull) / count
    p = p.index_select(0, run)
    return p.view(x.shape) if allowed is None else torch.zeros_like(x).masked_scatter(allowed, p)


def taut_string(X: Tensor, pins: Tensor, lam: float) -> tuple[Tensor, Tensor]:
    """The shortest string through the tube X +- lam that is tied to X at the pins. Its slopes are the p of the prox.

    X (K,) holds the cumulative sums of all rows. `pins` are the indices at which each row starts and ends. Returns the
    knots, bool (K,), at which the string touches the tube and may bend, and z (K,), the string minus X at the knots.

    The algorithm draws the chord between two neighbouring known knots. Relative to the chord, the maximum of the
    string, if positive, is at a bend that the lower wall causes, so the string touches the wall there. The string is
    nowhere below the lower wall, so this maximum is also the largest excess of the wall over the chord. Therefore the
    point with the largest excess is a knot. The same holds below the upper wall. Each round takes these points for all
    chords at once, and a chord without excess is finished. This usually takes about log M rounds, and at most M.

    The initial knots are the points where x jumps by more than 4 lam. There, one wall is beyond the chord between the
    opposite walls of the neighbours, and therefore beyond any chord.
    """
    z = torch.zeros_like(X)
    jump = X[2:] - 2 * X[1:-1] + X[:-2]
    z[1:-1] = lam * jump.sign() * (jump.abs() > 4 * lam)
    z[pins] = 0.0
    knot = z != 0
    knot[pins] = True
    knots = knot.nonzero().squeeze(-1)
    left, right = knots[:-1], knots[1:]
    slack = lam + 1e-14 * (lam + X.abs().max())  # rounding must not add knots to a string that runs along a wall
    while True:
        size = right - left - 1
        inside = size.nonzero().squeeze(-1)
        left, right, size = left[inside], right[inside], size[inside]
        if not len(left):
            return knot, z
        start, end = X[left] + z[left], X[right] + z[right]
        chord = torch.arange(len(left), device=X.device).repeat_interleave(size)
        step = torch.arange(1, len(chord) + 1, device=X.device) - (size.cumsum(0) - size).index_select(0, chord)
        index = left.index_select(0, chord) + step  # the points between the knots; `step` counts along the chord
        slope = ((end - start) / (right - left)).index_select(0, chord)
        excess = X.index_select(0, index) - start.index_select(0, chord) - slope * step
        highest = torch.segment_reduce(excess, "max", lengths=size)
        lowest = torch.segment_reduce(excess, "min", lengths=size)
        # no excess equals the bound of a chord that stays inside the tube
        highest = highest.where(highest > slack, torch.inf)
        lowest = lowest.where(lowest < -slack, -torch.inf)
        hit = (excess == highest.index_select(0, chord)) | (excess == lowest.index_select(0, chord))
        hit = hit.nonzero().squeeze(-1)
        new = index[hit]
        z[new] = -lam * excess[hit].sign()
        knot[new] = True
        cut = (highest.isfinite() | lowest.isfinite()).nonzero().squeeze(-1)
        left = torch.cat([left[cut], new]).sort().values
        right = torch.cat([right[cut], new]).sort().values

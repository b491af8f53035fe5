"""A regularizer of one's own: half the square of the q-norm, whose weights have no closed form.

For q = 2 it is sparsemax. As q decreases to 1, more keys get weight.
"""

from torch import Tensor

from attnorm.attention import RegularizedMax


class PNormMax(RegularizedMax):
    """w_i = argmax_{p in simplex} <p, s_i> - 1/2 |p|_q^2 with |p|_q = (sum_j p_j^q)^(1/q).

    q:         a number above 1.
    tolerance: that of the weights. Training needs fewer digits than a test.
    """

    def __init__(self, q: float = 1.5, tolerance: float = 1e-6):
        super().__init__(tolerance=tolerance)
        if not q > 1:
            raise ValueError(f"q={q!r}: allowed: numbers > 1 (2 is sparsemax)")
        self.q = q

    def omega(self, p: Tensor) -> Tensor:
        return p.pow(self.q).sum(-1).pow(2 / self.q) / 2

"""A regularizer of one's own: a price on the largest weight, which no built-in normalizer has."""

from torch import Tensor

from attnorm.attention import RegularizedMax, build_normalizer


class SoftCap(RegularizedMax):
    """w_i = argmax_{p in simplex} <p, s_i> - 1/2 |p|^2 - lam max_j p_j, with s = scores + log u.

    The conjugate function of the maximum is the indicator of the simplex, so by Moreau's identity its prox is
    x - lam sparsemax(x / lam).

    lam:       the price, above 0. Near 0, this is sparsemax; a high price levels out the largest weights.
    tolerance: that of the weights. Training needs fewer digits than a test.
    """

    def __init__(self, lam: float = 0.3, tolerance: float = 1e-6):
        super().__init__(tolerance=tolerance)
        if not lam > 0:
            raise ValueError(f"lam={lam!r}: allowed: numbers > 0")
        self.lam, self.sparsemax = lam, build_normalizer("sparsemax")

    def prox(self, x: Tensor, allowed: Tensor) -> Tensor:
        return x - self.lam * self.sparsemax(x / self.lam, allowed)

    def penalty(self, p: Tensor) -> Tensor:
        return self.lam * p.amax(-1)

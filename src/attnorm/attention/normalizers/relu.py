"""ReLU attention, "Replacing softmax with ReLU in Vision Transformers" (arXiv 2309.08586)."""

from torch import Tensor

from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior
from attnorm.attention.option_checks import above_zero
from attnorm.attention.visible import visible_keys


class ReLU(Normalizer):
    """w_ij = relu(s_ij + log u_j) / n_i^power: no sum over the keys.

    n_i is the number of keys that query i may see, counted from the mask. A query whose scores are all negative is
    dead: its weights are 0, and so are their gradients.

    power: the exponent of n, alpha in the paper, which finds about 1 to be the best.
    """

    total = (0.0, float("inf"))
    prior_scale_invariant = False

    def __init__(self, power: float = 1.0):
        super().__init__()
        self.power = above_zero("power", power)

    def weights(self, s: Tensor, given: Given) -> Tensor:
        return add_log_prior(s, given.log_prior).relu() / visible_keys(given.mask, s) ** self.power

"""Normalizers that are a softmax with a bias per key. Their `attend` never builds the (N, M) weights."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from attnorm.attention.linear.logsumexp import attention
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer
from attnorm.attention.normalizers.shared.shortcuts import level
from attnorm.attention.option_checks import one_of

DENSE_UP_TO = {"cpu": 256 * 256, "cuda": 512 * 512}  # N x M; on other devices, only the dense form is used
FORMS = ("dense", "linear")
_chosen_form: str | None = None  # set by `attention_form`


@contextmanager
def attention_form(form: str) -> Iterator[None]:
    """Chooses the form of attention at all lengths: "dense" stores the (N, M) weights, "linear" does not.

    Both give the same result. By default, the lengths decide, which a program exported for a length that varies cannot
    do. Where the linear form does not apply, for example with a dense mask, the dense form is used. Raises ValueError
    for another form.
    """
    global _chosen_form
    before, _chosen_form = _chosen_form, one_of("form", form, FORMS)
    try:
        yield
    finally:
        _chosen_form = before


def memory_linear(q: Tensor, k: Tensor, given: Given) -> bool:
    """Whether `attend` can and should avoid the (N, M) weights. If not, it computes the dense weights.

    It can if mask and prior are `separable`. It should if that is faster, which is the case above the sequence lengths
    that `benchmarks/attention_speed.py` reports, unless `attention_form` decides.
    """
    if _chosen_form == "dense" or q.device.type not in DENSE_UP_TO:
        return False
    is_long = _chosen_form == "linear" or q.shape[-2] * k.shape[-2] > DENSE_UP_TO[q.device.type]
    return is_long and separable(given)


def separable(given: Given) -> bool:
    """Whether there is no dense mask, and the prior is the same for every query of a segment."""
    log_prior = given.log_prior
    key_only = log_prior is None or log_prior.dim() < 2 or log_prior.shape[-2] == 1
    return key_only and (given.mask is None or isinstance(given.mask, Mask))


class KeyBiased(Normalizer):
    """w_ij = softmax over j of s_ij + b_j, where the bias b may depend on all queries and keys.

    A subclass implements `key_bias`, unless b is log u. One whose output also depends on the logsumexp overrides
    `average`.

    stores_weights: whether the (N, M) weights are computed at any length.
    """

    stores_weights = False

    def __init_subclass__(cls) -> None:
        if min(level(cls, "key_bias"), level(cls, "average")) < level(cls, "fast_attend"):
            cls.fast_attend = KeyBiased.fast_attend  # type: ignore[method-assign]  # that of softmax calls neither
        super().__init_subclass__()

    def key_bias(self, q: Tensor, k: Tensor, given: Given, queries: Tensor | None) -> Tensor | None:
        """Returns b, broadcastable to (B, H, 1, M), or None for a bias of 0.

        given:   its log_prior is broadcastable to (B, H, 1, M), and -inf at masked keys.
        queries: (B, 1, 1, N), 0 for the queries that take part and -inf for the others. It is the bias of the
                 transposed problem.
        """
        return given.log_prior

    def average(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, scale: float, causal: bool = False
    ) -> Tensor:
        """The output (B, H, N, D) for the bias b. See `attention` for the arguments."""
        return attention(q, k, v, bias, scale, causal)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        if self.stores_weights or not memory_linear(q, k, given):
            return None
        mask, log_prior, scale = given.mask, given.log_prior, given.scale
        assert scale is not None  # `attend` gives it
        if mask is None:
            return self.average(q, k, v, self.key_bias(q, k, given, None), scale)
        assert isinstance(mask, Mask)  # `memory_linear` refuses dense masks
        mask.check_shape(q.shape[0], q.shape[-2], k.shape[-2])
        if mask.segments is not None:
            return mask.each_segment(self.attend, q, k, v, log_prior, scale)
        queries = None if mask.queries is None else forbid(~mask.queries)
        if mask.keys is not None:
            given = given.with_prior(forbid(~mask.keys, log_prior))
        out = self.average(q, k, v, self.key_bias(q, k, given, queries), scale, mask.causal)
        return out if mask.queries is None else out.masked_fill(~mask.queries[:, None, :, None], 0.0)


def forbid(out: Tensor, log_prior: Tensor | None = None) -> Tensor:
    """Returns log_prior (or 0) with -inf where `out` is True. Shapes: out, bool (B, M) -> (B, 1 or H, 1, M)."""
    if log_prior is None:
        log_prior = torch.zeros(1, 1, 1, 1, device=out.device)
    return log_prior.masked_fill(out[:, None, None, :], -torch.inf)

"""Selective attention, "Selective Attention Improves Transformer" (arXiv 2410.02703), Sec. 3."""

import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, add_log_prior, masked_scores, softmax_over_keys
from attnorm.attention.normalizers.shared.per_position import sum_over_later_keys


class Selective(Normalizer):
    """w_ij = softmax over j of s_ij - F_ij + log u_j, with F_ij = sum_{i' < i} max(s^0_i'j, 0).

    s^0 are the scores of the first head. With them, each position decides for all heads which keys later positions
    should attend to less. It can mask neither its own position nor the first key of its text: these are the last and
    the first key that it may see. `step` computes one row from a running F, with the same result as the full pass.
    """

    couples_queries = "past"
    couples_heads = True
    needs_causal = True
    key_equivariant = False
    query_equivariant = False
    proportional_to_prior = True

    def weights(self, s: Tensor, given: Given) -> Tensor:
        masking = F.pad(selected(s), (0, 0, 1, -1)).cumsum(-2)  # moved by one row
        return softmax_over_keys(add_log_prior(s - masking, given.log_prior))

    def step(
        self,
        scores: Tensor,
        mask: Tensor | Mask | None = None,
        state: Tensor | None = None,
        *,
        log_prior: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Adds one query: scores (B, H, 1, M) -> weights (B, H, 1, M) and the new state (B, H, 1, M').

        `state` is F, the same in every head, for the previous keys, (B, H, 1, M' <= M). Pass the returned state to the
        next call. If the beams are reordered, reorder the rows of the state in the same way.
        """
        s = masked_scores(scores, self._mask_of(scores, mask))
        masking = torch.zeros_like(s)
        if state is not None:
            masking = torch.cat([state, masking[..., state.shape[-1] :]], -1)
        weights = softmax_over_keys(add_log_prior(s - masking, log_prior))
        return weights.to(scores.dtype), masking + selected(s)


def selected(s: Tensor) -> Tensor:
    """max(s^0_ij, 0), 0 at the first and at the last key that query i may see: (B, H, N, M) -> (B, 1, N, M)."""
    first_head = s[:, :1]
    seen = first_head != -torch.inf
    before, after = (seen.int().cumsum(-1) - 1) > 0, sum_over_later_keys(seen.int()) > 0
    return first_head.masked_fill(~(seen & before & after), 0.0).clamp(min=0.0)

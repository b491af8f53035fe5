"""Attention over a continuum: a Gaussian preference, for which the inference problem has a closed form.

Source: "Attention as Inference via Fenchel Duality", the motivating example (Sec. 5), and the remark on continuous
attention (Sec. 7).
"""

import torch
from torch import Tensor

from attnorm.attention.call_context import without_autocast
from attnorm.attention.masking import Mask
from attnorm.attention.normalizers.base import Given, Normalizer, upcast
from attnorm.attention.normalizers.shared.covariance import covariance_solve
from attnorm.attention.normalizers.shared.templates import (
    center_on_first,
    log_preference,
    positive_scale,
    templates,
    without_padding,
)


def gaussian_estimate(z: Tensor, mu: Tensor, alpha: float, covariance: Tensor | None = None) -> Tensor:
    """The estimate h for the evidence z under the preference u = N(mu, S) over all of R^D, the same shape as z.

    lambda* = alpha (I + alpha S)^-1 z,   h = mu + S lambda*.

    Reweighting N(mu, S) by exp<a, lambda> moves its mean by S lambda, so this is exact. For S = I, h is
    (mu + alpha b) / (1 + alpha) with the observation b = mu + z.

    z, mu: (..., D). alpha: above 0. covariance: S, (D, D); None: the identity.
    """
    if covariance is None:
        b = mu + z
        return (mu + alpha * b) / (1 + alpha)
    identity = torch.eye(z.shape[-1], dtype=covariance.dtype, device=covariance.device)
    solved = torch.linalg.solve(identity + alpha * covariance, z.unsqueeze(-1)).squeeze(-1)
    return mu + alpha * (covariance @ solved.unsqueeze(-1)).squeeze(-1)


class Continuous(Normalizer):
    """Replaces the preference u over the templates by the Gaussian N(mu, S) with the same mean and covariance.

    The templates t_j are the keys, the evidence z is the query, and alpha is the scale of the scores s = alpha T z.
    With mu = T'u and S = Cov_u(T), the solution is lambda* = alpha (I + alpha S)^-1 z (`gaussian_estimate`). Values
    that are linear in the template are averaged with the weights

    w_j = u_j (1 + (t_j - mu)'lambda*),

    so sum_j w_j t_j = mu + S lambda*. The weights of a row sum to 1, but they can be negative: the Gaussian extends
    beyond the templates. They are those of `fenchel` with order 2, to first order in their logits.

    `keys` and `scale` > 0 are required. If all queries share one preference, `attend` is linear in the number of
    queries and keys.
    """

    needs_keys = True
    needs_fixed_alpha = True
    total = None

    def weights(self, s: Tensor, given: Given) -> Tensor:
        T, alpha = center_on_first(templates("continuous", s, given)), positive_scale("continuous", given.scale)
        s = s.to(T.dtype)
        live = (s > -torch.inf).any(-1, keepdim=True)
        u = log_preference(s, given.mask, given.log_prior).exp()  # broadcastable to (B, H, N, M)
        s = s.masked_fill(s == -torch.inf, 0.0)
        s = s - (u * s).sum(-1, keepdim=True)  # alpha (t_j - mu)'z
        # (t_j - mu)'lambda* = s_j - alpha (t_j - mu)'(I + alpha S)^-1 S z, and sum_j u_j s_j t_j = alpha S z
        correction = covariance_solve(T, u, alpha, (u * s) @ T)
        moved = s - alpha * ((correction @ T.mT) - (correction * (u @ T)).sum(-1, keepdim=True))
        return (u * (1 + moved)).masked_fill(~live, 0.0)

    def fast_attend(self, q: Tensor, k: Tensor, v: Tensor, given: Given) -> Tensor | None:
        """The mean of the values, plus lambda* times the covariance of templates and values."""
        mask, alpha = given.mask, positive_scale("continuous", given.scale)
        with without_autocast(q):
            few = upcast(q).new_empty(()).expand(1, 1, q.shape[-2], k.shape[-2])  # only its shape and dtype are used
            u = log_preference(few, mask, given.log_prior).exp()
            if u.shape[-2] != 1 or isinstance(alpha, Tensor):
                return None
            T, V = center_on_first(without_padding(upcast(k), few, mask)), upcast(v)
            of_values = ((T - u @ T) * u.mT).mT @ V  # sum_j u_j (t_j - mu) v_j', (B, H, D, D')
            out = u @ V + alpha * covariance_solve(T, u, alpha, upcast(q)) @ of_values
            if isinstance(mask, Mask) and mask.queries is not None:
                out = out.masked_fill(~mask.queries[:, None, :, None], 0.0)
            return out.to(v.dtype)

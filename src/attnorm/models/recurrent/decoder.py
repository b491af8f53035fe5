"""An LSTM decoder with one attention layer: evidence, preference, and a classifier.

This is the model of the running examples in "Attention as Inference via Fenchel Duality", Fig. 2a and 2b. For the k-th
output token, with templates t_i:

    z^(k) = f_evd(Y^(i < k))                the evidence, from the state of an LSTM over the earlier tokens
    u^(k) = f_pref(T)                       the preference distribution over the templates
    p_i^(k) ~ u_i^(k) exp(alpha <t_i, z^(k)>),   h^(k) = sum_i p_i^(k) t_i        (Eq. 17)
    Y^(k) ~ f_out(h^(k))                    the classifier, which also sees the state of the LSTM

p and h are computed by the attention layer at the site `cross`. Its normalizer stands for the function g of the paper:
softmax gives Eq. 17, and `fenchel` its exact solution. f_pref is the prior of the site (`attention.prior.cross`):
none or `uniform`, `positional`, `content`, or any other. alpha is the scale of the scorer (`attention.scorer.cross`):
1 for `dot`, and the head width ** -0.5 for `scaled_dot`.
"""

import math
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.masking import Mask
from attnorm.attention.multihead import Cache
from attnorm.attention.site import Site
from attnorm.models.config import LSTMDecoderConfig
from attnorm.models.decoder import TokenDecoder

SITE = "cross"


def embed(tokens: nn.Embedding, ids: Tensor) -> Tensor:
    """The embeddings of tokens, (B, T) -> (B, T, W), scaled by sqrt(W).

    Their initial standard deviation is W ** -0.5, which suits the output matrix. An LSTM learns much faster from inputs
    with a standard deviation of 1.
    """
    return tokens(ids) * math.sqrt(tokens.embedding_dim)


class LSTMCache:
    """The state of incremental decoding.

    hidden: the states h and c of the LSTM, (layers, B, W) each; None before the first token.
    cross:  the projected templates, and the running column step of a prefix normalizer.
    length: the number of decoded positions.
    """

    def __init__(self) -> None:
        self.hidden: tuple[Tensor, Tensor] | None = None
        self.cross = Cache(grows=False)
        self.length = 0

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows, int (B',), in this order."""
        if self.hidden is not None:
            h, c = self.hidden
            self.hidden = h.index_select(1, rows), c.index_select(1, rows)
        self.cross.select(rows)


class LSTMDecoder(TokenDecoder):
    """Predicts the next token from the earlier ones and from templates, wherever these come from.

    sites:     the only attention site. It is autoregressive, because its queries are the positions of the target.
    attention: resolved tables (`attnorm.attention.table_form`).
    tokens:    the token embedding, which other modules may share. pad_id: the id of padding.
    templates: the largest number of templates, for priors with one parameter per template.

    The LSTM starts from tanh of a linear map of the mean template ("Show, Attend and Tell", Xu et al. 2015, Sec.
    3.1.2).
    """

    sites = {SITE: True}  # noqa: RUF012

    def __init__(self, shape: LSTMDecoderConfig, attention: dict, tokens: nn.Embedding, templates: int, pad_id: int):
        super().__init__()
        self.pad_id = pad_id
        width, heads, layers = shape.d_model, shape.n_heads, shape.decoder_layers
        self.tokens = tokens
        self.start = nn.Linear(width, 2 * layers * width)
        between = shape.dropout if layers > 1 else 0.0
        self.lstm = nn.LSTM(width, width, layers, batch_first=True, dropout=between)
        self.evidence = nn.Sequential(nn.Linear(width, width), nn.Tanh())  # f_evd, up to the attention's projection
        self.cross = Site(attention, SITE).layer(width, heads, dropout=shape.attention_dropout)
        self.preference = Site(attention, SITE).prior(  # f_pref
            heads=heads, bidirectional=True, positions=templates, width=width
        )
        self.combine = nn.Sequential(nn.Linear(2 * width, width), nn.Tanh())
        self.dropout = nn.Dropout(shape.dropout)
        self.output = nn.Linear(width, tokens.num_embeddings)

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site, also of a model with such a decoder."""
        return {SITE: 1}

    def decode(
        self, target: Tensor, templates: Tensor, template_mask: Tensor | None = None, cache: LSTMCache | None = None
    ) -> Tensor:
        """target, int (B, T), the tokens so far; templates (B, M, W) -> states (B, T, W), from which `logits` predicts.

        template_mask: bool (B, M), True for real templates. None: all of them.

        Padding at the end of `target` does not affect the states before it; the states at padding are meaningless. With
        a cache, `target` holds only the newest token, (B, 1), and the cache advances by one position.
        """
        cache_of_cross, hidden, done = None, None, 0
        if cache is not None:
            cache_of_cross, hidden, done = cache.cross, cache.hidden, cache.length
        if hidden is None:
            hidden = self.initial(templates, template_mask)
        states, hidden = self.lstm(self.dropout(embed(self.tokens, target)), hidden)  # (B, T, W)
        mask = Mask(queries=None if cache is not None else target != self.pad_id, keys=template_mask)
        sizes, prior = (target.shape[1], templates.shape[1]), self.preference
        log_u = None if prior is None else prior(*sizes, done, templates, mask)
        z = self.evidence(states)
        h = self.cross(z, templates, mask, log_prior=log_u, cache=cache_of_cross)  # (B, T, W)
        if cache is not None:
            cache.hidden, cache.length = hidden, done + target.shape[1]
        return self.dropout(self.combine(torch.cat([h, states], dim=-1)))

    def new_cache(self) -> LSTMCache:
        """An empty state of incremental decoding."""
        return LSTMCache()

    def initial(self, templates: Tensor, template_mask: Tensor | None) -> tuple[Tensor, Tensor]:
        """The first states h and c of the LSTM, (layers, B, W) each."""
        if template_mask is None:
            mean = templates.mean(1)
        else:
            real = template_mask[..., None].to(templates.dtype)
            mean = (templates * real).sum(1) / real.sum(1).clamp(min=1)  # (B, W)
        start = self.start(mean).tanh().unflatten(-1, (2, self.lstm.num_layers, -1))  # (B, 2, layers, W)
        h, c = start.permute(1, 2, 0, 3).contiguous()
        return h, c

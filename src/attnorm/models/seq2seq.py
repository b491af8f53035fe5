"""The encoder-decoder Transformer."""

from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.build import build_site_prior
from attnorm.attention.masking import Mask
from attnorm.attention.multihead import Cache
from attnorm.models.config import TransformerConfig
from attnorm.models.embeddings import Embeddings
from attnorm.models.encoder import Encoder, site_log_prior
from attnorm.models.initialize import initialize
from attnorm.models.layers import DecoderLayer


class DecoderCache:
    """The state of incremental decoding: keys and values of every layer, and the number of decoded positions.

    states: (B, T, W), the embeddings of these positions. They are kept only if the decoder has a prior, which may use
            them.
    """

    def __init__(self, layers: int):
        self.layers = [(Cache(grows=True), Cache(grows=False)) for _ in range(layers)]
        self.length = 0
        self.states: Tensor | None = None

    def extend(self, states: Tensor) -> Tensor:
        """Adds the embeddings of new positions and returns those of all positions so far, (B, T, W)."""
        self.states = states if self.states is None else torch.cat([self.states, states], dim=1)
        return self.states

    def select(self, rows: Tensor) -> None:
        """Keeps the given rows, int (B',), in this order."""
        if self.states is not None:
            self.states = self.states.index_select(0, rows)
        for pair in self.layers:
            for cache in pair:
                cache.select(rows)


class Seq2Seq(nn.Module):
    """An encoder and a causal decoder with cross-attention and a shared vocabulary. It maps articles to headlines.

    sites:     the attention sites, each with whether it is autoregressive. Under teacher forcing, cross-attention is.
    attention: resolved tables (`attnorm.attention.tables`).
    seed:      seed of the initial parameters, see `initialize`.
    """

    interface = "seq2seq"
    Config = TransformerConfig
    sites = {"encoder": False, "decoder": True, "cross": True}  # noqa: RUF012
    stacks = {"layers": "decoder"}  # noqa: RUF012 - the name of the decoder's layers in curves and figures

    def __init__(self, shape: TransformerConfig, attention: dict, vocab_size: int, pad_id: int, seed: int = 0):
        super().__init__()
        if not (shape.decoder_layers and shape.max_target):
            raise ValueError(
                f"model.decoder_layers={shape.decoder_layers}, model.max_target={shape.max_target}: "
                "a decoder requires both; allowed: whole numbers from 1"
            )
        self.shape, self.pad_id = shape, pad_id
        self.tokens = nn.Embedding(vocab_size, shape.d_model)
        self.encoder = Encoder(shape, attention, self.tokens)
        self.embeddings = Embeddings(self.tokens, shape.max_target, shape)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, attention, "decoder", "cross", layer) for layer in range(shape.decoder_layers)
        )
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps) if shape.norm_first else nn.Identity()
        size = {"heads": shape.n_heads, "width": shape.d_model}
        self.prior = build_site_prior(attention, "decoder", bidirectional=False, positions=shape.max_target, **size)
        self.cross_prior = build_site_prior(attention, "cross", bidirectional=True, positions=shape.max_source, **size)
        self.output = nn.Linear(shape.d_model, vocab_size)
        initialize(self, seed)
        if shape.tie_embeddings:
            self.output.weight = self.tokens.weight

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site, from the keys of `TransformerConfig`."""
        decoder = settings.get("decoder_layers")
        return {"encoder": settings.get("encoder_layers"), "decoder": decoder, "cross": decoder}

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        """Returns the decoder's states (B, T, W). source: int (B, N), padded; target: int (B, T), the tokens so far."""
        return self.decode(target, self.encode(source), source != self.pad_id)

    def encode(self, source: Tensor) -> Tensor:
        """source, int (B, N) -> memory (B, N, W)."""
        return self.encoder(source, source != self.pad_id)

    def decode(self, target: Tensor, memory: Tensor, source_real: Tensor, cache: DecoderCache | None = None) -> Tensor:
        """target, int (B, T); memory (B, N, W); source_real, bool (B, N) -> states (B, T, W).

        With a cache, `target` holds only the newest token, (B, 1), and the cache advances by one position.
        """
        done = 0 if cache is None else cache.length
        n_new = target.shape[1]
        real = None if cache is not None else target != self.pad_id
        mask = Mask(queries=real, keys=real, causal=cache is None)
        cross_mask = Mask(queries=real, keys=source_real)
        x = self.embeddings(target, offset=done)
        so_far = x if cache is None or self.prior is None else cache.extend(x)
        log_prior = site_log_prior(self.prior, n_new, done, so_far, mask)
        cross_log_prior = site_log_prior(self.cross_prior, n_new, done, memory, cross_mask)
        for index, layer in enumerate(self.layers):
            caches = None if cache is None else cache.layers[index]
            x = layer(x, memory, mask, cross_mask, log_prior, cross_log_prior, caches)
        if cache is not None:
            cache.length = done + n_new
        return self.norm(x)

    def new_cache(self) -> DecoderCache:
        """An empty state of incremental decoding."""
        return DecoderCache(len(self.layers))

    def logits(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""
        return self.output(states)

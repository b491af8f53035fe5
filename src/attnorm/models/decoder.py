"""The decoder of a Transformer, which attends to states wherever these come from."""

import torch
from torch import Tensor, nn

from attnorm.attention.banks import share_vocabulary
from attnorm.attention.masking import Mask
from attnorm.attention.multihead import Cache
from attnorm.attention.site import Site
from attnorm.models.config import TransformerConfig
from attnorm.models.embeddings import Embeddings
from attnorm.models.layers import DecoderLayer


class DecoderCache:
    """The state of incremental decoding: keys and values of every layer, and the number of decoded positions.

    grows:  for each attention of a layer, whether it is self-attention, as in `Cache`.
    states: (B, T, W), the embeddings of these positions. They are kept only if the decoder has a prior, which may use
            them.
    """

    def __init__(self, layers: int, grows: tuple[bool, ...] = (True, False)):
        self.layers = [tuple(Cache(each) for each in grows) for _ in range(layers)]
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
        for caches in self.layers:
            for cache in caches:
                cache.select(rows)


class TokenDecoder(nn.Module):
    """A decoder that predicts the next token. tokens: the token embedding. output: the map of states to scores."""

    tokens: nn.Embedding
    output: nn.Linear

    def tie(self) -> None:
        """Makes the token embedding the output matrix. To be called after the parameters have been initialized."""
        self.output.weight = self.tokens.weight

    def logits(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""
        return self.output(states)


class TransformerDecoder(TokenDecoder):
    """A causal decoder with cross-attention to a memory: the states of an encoder, or the templates of an image.

    A model with parameters of its own can extend this class: it creates its other modules, and calls `build_decoder`.

    sites:     the attention sites. Under teacher forcing, both are autoregressive. self_sites: that of self-attention.
    attention: resolved tables (`attnorm.attention.table_form`).
    tokens:    the token embedding, which other modules may share. pad_id: the id of padding.
    templates: the largest number of states in the memory, for priors with one parameter per key.
    """

    sites = {"decoder": True, "cross": True}  # noqa: RUF012
    self_sites: tuple[str, ...] = ("decoder",)

    def __init__(self, shape: TransformerConfig, attention: dict, tokens: nn.Embedding, templates: int, pad_id: int):
        super().__init__()
        self.tokens, self.pad_id = tokens, pad_id
        self.build_decoder(shape, attention, templates)

    def build_decoder(self, shape: TransformerConfig, attention: dict, templates: int) -> None:
        """Creates the modules of the decoder, for the token embedding `tokens` of the model."""
        self.embeddings = Embeddings(self.tokens, "max_target", shape)
        self.layers = nn.ModuleList(
            DecoderLayer(shape, attention, "decoder", "cross", layer) for layer in range(shape.decoder_layers)
        )
        share_vocabulary(self.layers, self.tokens)
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps) if shape.norm_first else nn.Identity()
        size = {"heads": shape.n_heads, "width": shape.d_model}
        self.prior = Site(attention, "decoder").prior(bidirectional=False, positions=shape.max_target, **size)
        self.cross_prior = Site(attention, "cross").prior(bidirectional=True, positions=templates, **size)
        self.output = nn.Linear(shape.d_model, self.tokens.num_embeddings)

    def decode(self, target: Tensor, memory: Tensor, source_real: Tensor, cache: DecoderCache | None = None) -> Tensor:
        """target, int (B, T); memory (B, N, W); source_real, bool (B, N), its real states -> states (B, T, W).

        With a cache, `target` holds only the newest token, (B, 1), and the cache advances by one position.
        """
        done = 0 if cache is None else cache.length
        n_new = target.shape[1]
        real = None if cache is not None else target != self.pad_id
        mask = Mask(queries=real, keys=real, causal=cache is None)
        cross_mask = Mask(queries=real, keys=source_real)
        x = self.embeddings(target, offset=done)
        log_prior = cross_log_prior = None
        if self.prior is not None:
            so_far = x if cache is None else cache.extend(x)
            log_prior = self.prior(n_new, so_far.shape[1], done, so_far, mask)
        if self.cross_prior is not None:
            cross_log_prior = self.cross_prior(n_new, memory.shape[1], done, memory, cross_mask)
        for index, layer in enumerate(self.layers):
            caches = None if cache is None else cache.layers[index]
            x = layer(x, memory, mask, cross_mask, log_prior, cross_log_prior, caches)
        if cache is not None:
            cache.length = done + n_new
        return self.norm(x)

    def new_cache(self) -> DecoderCache:
        """An empty state of incremental decoding."""
        return DecoderCache(len(self.layers))

"""Decoder-only language models ("Language Models are Unsupervised Multitask Learners", Radford et al., 2019)."""

import math
import re
from typing import Any

import torch
from torch import Tensor, nn

from attnorm.attention.banks import share_vocabulary
from attnorm.attention.masking import Mask
from attnorm.attention.multihead import attention_layers
from attnorm.attention.priors import Alibi, positions_in
from attnorm.attention.rotary import Rotary
from attnorm.attention.site import Site
from attnorm.attention.transfer import on_both
from attnorm.models.config import GPTConfig
from attnorm.models.decoder import DecoderCache
from attnorm.models.embeddings import Embeddings
from attnorm.models.initialize import initialize, named_seed
from attnorm.models.layers import EncoderLayer

STD = 0.02  # of the initial matrices and embeddings of GPT-2
OWN = re.compile(r"embeddings\.\w+|output|layers\.\d+\.(attention\.(query|key_value|output)|feed_forward\.\d+)")
INTO_RESIDUAL = (".attention.output", ".feed_forward.2")


class GPT(nn.Module):
    """Embeddings, `decoder_layers` causal layers, a final norm if they are pre-norm, and a score for each next token.

    Texts may be packed into a row. Positions then restart in each text, and attention stays within it.

    With `shape.positions="alibi"`, the site has the prior `alibi` in addition to its own. A normalizer treats it like
    any prior; for softmax this is the bias -m_h |i - j| of "Train Short, Test Long" (Press et al., 2022).

    sites:       the only attention site. token_sites: those with a vocabulary for banks. self_sites: those of
                 self-attention.
    attention:   resolved tables (`attnorm.attention.table_form`).
    seed:        seed of the initial parameters, see `start`.
    longest:     the largest number of positions of a text, or None if there is no limit.
    """

    interface = "causal_lm"
    Config = GPTConfig
    sites = {"decoder": True}  # noqa: RUF012
    token_sites = self_sites = ("decoder",)
    stacks = {"layers": "decoder"}  # noqa: RUF012 - the name of the layers in curves and figures

    def __init__(self, shape: GPTConfig, attention: dict, vocab_size: int, seed: int = 0):
        super().__init__()
        self.shape = shape
        self.longest = shape.max_target if shape.positions == "learned" else None
        if shape.positions == "alibi":
            priors = {"alibi": None, **dict.fromkeys(attention["prior"].get("decoder", []))}
            attention = {**attention, "prior": {"decoder": list(priors)}}
        self.embeddings = Embeddings(nn.Embedding(vocab_size, shape.d_model), "max_target", shape)
        head_width = shape.d_model // shape.n_heads
        self.rotary = Rotary(head_width, shape.rotary_base) if shape.positions == "rotary" else None
        layers = range(shape.decoder_layers)
        self.layers = nn.ModuleList(EncoderLayer(shape, attention, "decoder", layer) for layer in layers)
        share_vocabulary(self.layers, self.embeddings.tokens)
        self.norm = nn.LayerNorm(shape.d_model, shape.norm_eps) if shape.norm_first else nn.Identity()
        size = {"heads": shape.n_heads, "width": shape.d_model}
        self.prior = Site(attention, "decoder").prior(bidirectional=False, positions=shape.max_target, **size)
        of_keys = all(layer.normalizer.prior_scale_invariant for layer in attention_layers(self).values())
        for module in self.modules():
            if isinstance(module, Alibi):
                module.of_keys = of_keys
        self.output = nn.Linear(shape.d_model, vocab_size, bias=False)
        self.start(seed)

    @classmethod
    def site_layers(cls, settings: dict[str, Any]) -> dict[str, Any]:
        """The number of layers at each site, from the keys of `GPTConfig`."""
        return {"decoder": settings.get("decoder_layers")}

    @torch.no_grad()
    def start(self, seed: int) -> None:
        """Initializes the parameters as GPT-2 (Sec. 2.3), and ties the output to the embedding if it shall be tied.

        Matrices and embeddings are normal with std 0.02. The two matrices of each layer whose results are added to the
        states have a std that is smaller by sqrt(2 layers). Biases are 0. The parameters of normalizers, scorers and
        priors are initialized as in every model, see `initialize`.
        """
        initialize(self, seed)
        for name, module in self.named_modules():
            if OWN.fullmatch(name) and isinstance(module, (nn.Linear, nn.Embedding)):
                std = STD / math.sqrt(2 * len(self.layers)) if name.endswith(INTO_RESIDUAL) else STD
                generator = torch.Generator().manual_seed(named_seed(seed, name))
                nn.init.normal_(module.weight, std=std, generator=generator)
        if self.shape.tie_embeddings:
            self.output.weight = self.embeddings.tokens.weight

    def forward(self, ids: Tensor, segments: Tensor | None = None) -> Tensor:
        """ids, int (B, T) -> scores of the token after each position (B, T, V). segments: as in `decode`."""
        return self.logits(self.decode(ids, segments))

    def decode(self, ids: Tensor, segments: Tensor | None = None, cache: DecoderCache | None = None) -> Tensor:
        """ids, int (B, T) -> states (B, T, W). A state depends on the tokens of its text up to its own position.

        segments: int (B, T), 0 at padding, and 1, 2, ... in the texts that are packed into a row. None: each row is
                  one text without padding.
        cache:    `ids` then holds only the tokens that follow those of the earlier calls; without segments.

        Raises DataError for a text that is longer than the table of learned positions.
        """
        assert cache is None or segments is None, "cached decoding of packed texts"
        done, n_new = 0 if cache is None else cache.length, ids.shape[1]
        real = None if segments is None else on_both(lambda segments: segments > 0, segments)
        mask = Mask(queries=real, keys=real, causal=True, segments=segments)
        positions = None if segments is None else positions_in(segments, real)
        x = self.embeddings(ids, offset=done, positions=positions)
        rotation = None
        if self.rotary is not None:
            in_order = torch.arange(done, done + n_new, device=ids.device)
            rotation = self.rotary(in_order if positions is None else positions)
        log_prior = None
        if self.prior is not None:
            so_far = x if cache is None else cache.extend(x)
            log_prior = self.prior(n_new, so_far.shape[1], done, so_far, mask)
        for index, layer in enumerate(self.layers):
            kept = None if cache is None else cache.layers[index][0]
            x = layer(x, mask, log_prior, kept, rotation)
        if cache is not None:
            cache.length = done + n_new
        return self.norm(x)

    def logits(self, states: Tensor) -> Tensor:
        """states (..., W) -> scores of the next token (..., V)."""
        return self.output(states)

    def new_cache(self) -> DecoderCache:
        """An empty state of incremental decoding."""
        return DecoderCache(len(self.layers), grows=(True,))

    def next_logits(self, ids: Tensor, cache: DecoderCache) -> Tensor:
        """ids, int (B, t), all tokens so far -> scores of the next token (B, V).

        Only the tokens that the cache does not have yet are computed: one at a time if a normalizer sums over earlier
        queries, and else all together.
        """
        new = ids[:, cache.length :]
        coupled = any(layer.normalizer.couples_queries == "past" for layer in attention_layers(self).values())
        for part in new.split(1 if coupled else new.shape[1], dim=1):
            states = self.decode(part, cache=cache)
        return self.logits(states[:, -1])

"""`torch.nn.MultiheadAttention` with any normalizer."""

import warnings
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnorm.attention.call_context import in_layer
from attnorm.attention.registry import name_of
from attnorm.nn.choice import Choice, normalizer_of
from attnorm.nn.functional import attend
from attnorm.nn.masks import forbidden, opposite, read_masks


class MultiheadAttention(nn.MultiheadAttention):
    """`torch.nn.MultiheadAttention` with the weights of any normalizer.

    The arguments, the parameters and their names, and the results for softmax are those of PyTorch; see its
    documentation for what is not listed here. A learned parameter of the normalizer is in the submodule `normalizer`.

    normalizer:    a name such as "dnas"; a dotted path "package.module.Class"; a mapping with a name and its options,
                   such as {"name": "sinkhorn", "n_iters": 5}; a class; or an instance.
    ordered:       whether the positions have an order; see `attnorm.nn.functional.attention`.
    add_bias_kv, add_zero_attn: refused. See `sink` and `off_by_one` for the same ideas without additional keys.

    It also takes part where the modules of PyTorch would compute softmax attention without calling it: in the fused
    path of `torch.nn.TransformerEncoderLayer`, and with the nested tensors of `torch.nn.TransformerEncoder`.

    Raises ValueError for an unknown normalizer or option.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        add_bias_kv: bool = False,
        add_zero_attn: bool = False,
        kdim: int | None = None,
        vdim: int | None = None,
        batch_first: bool = False,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        normalizer: Choice = "softmax",
        ordered: bool = True,
    ):
        if add_bias_kv:
            raise ValueError(
                "add_bias_kv=True: a learned key is no position of the input, so that it has neither a state nor a "
                "mask; use normalizer='sink', whose learned key has no value"
            )
        if add_zero_attn:
            raise ValueError(
                "add_zero_attn=True: a key of zeros is no position of the input; use normalizer='off_by_one', which is "
                "softmax with such a key"
            )
        super().__init__(
            embed_dim, num_heads, dropout, bias, False, False, kdim, vdim, batch_first, device=device, dtype=dtype
        )
        facts = {"heads": num_heads, "width": self.head_dim, "state_width": embed_dim}
        made = normalizer_of(normalizer, **facts)
        if made.needs_states == "keys" and self.kdim != embed_dim:
            made = normalizer_of(normalizer, **{**facts, "state_width": self.kdim})
        self.normalizer = in_layer(made.to(device=device, dtype=dtype))
        self.ordered = ordered
        self.in_decoder_layer = False  # of PyTorch, where the queries of cross-attention are never those of a cache
        self.padded_queries: Tensor | None = None  # those that a converted layer knows, while it computes

    def _reset_parameters(self) -> None:
        """Called by PyTorch. Afterwards, `_qkv_same_embed_dim` is False, which is all that PyTorch's containers look at
        before they compute softmax attention from the parameters of this module, without calling it."""
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        self._qkv_same_embed_dim = False

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
        query_padding_mask: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Returns the output and the weights, or None if they are not needed. The arguments are those of PyTorch.

        query, key, value: (L, N, E), (S, N, kdim), (S, N, vdim); or (N, L, E) and so on with `batch_first`; or without
                          the axis of the batch. Also one nested tensor for all three, without masks.
        key_padding_mask: (N, S) or (S,). Bool: True at padding. Float: added to the scores of each key.
        need_weights:     whether to return the weights, (N, L, S), or (N, num_heads, L, S) without
                          `average_attn_weights`. False saves memory.
        attn_mask:        (L, S) or (N * num_heads, L, S). Bool: True where attention is forbidden. Float: added to the
                          scores, before they are normalized. Values of -1e4 or less forbid attention like -inf.
        is_causal:        a hint that `attn_mask`, which is required, is the causal mask. As in PyTorch, the numbers
                          that a float mask adds are then used only with a `key_padding_mask` or `need_weights`.
        query_padding_mask: bool, (N, L) or (L,), True at padding. This argument is not one of PyTorch.

        If the normalizer couples queries, padded queries would change the weights of the others. In self-attention,
        when `query` and `key` are the same tensor or views of it, they are therefore those of `key_padding_mask`,
        unless `query_padding_mask` is given. Otherwise, as in cross-attention or if one of the two is a copy or a cast,
        all queries are real, unless it is given; with a `key_padding_mask`, a warning says so once. The attention of a
        padded query is 0, and so is that of a query without an allowed key.

        Raises ValueError for a key or value that does not have the batch of the query or the length of the key, and for
        masks with which the normalizer is not defined. One that couples all queries is refused with a mask that hides
        the future: in self-attention, one in which some real position sees another one that does not see it;
        otherwise, a causal one. A decoder passes no such mask to its cross-attention, where the future would leak in
        the same way. One that depends on earlier queries is refused for a single query beside several keys.
        """
        if query.is_nested or key.is_nested or value.is_nested:
            masks = (key_padding_mask, attn_mask, query_padding_mask)
            if not (query is key is value and self.batch_first) or any(mask is not None for mask in masks):
                raise ValueError("nested tensors: expected one as query, key and value, with batch_first and no masks")
            return self.of_nested(query, need_weights, average_attn_weights)
        if is_causal and attn_mask is None:
            raise ValueError("is_causal=True: is a hint about attn_mask, which must be given")
        of_self, batched = is_same(query, key), query.dim() == 3
        if not batched:
            query, key, value = (x.unsqueeze(0) for x in (query, key, value))
            key_padding_mask, query_padding_mask = (
                None if x is None else x.unsqueeze(0) for x in (key_padding_mask, query_padding_mask)
            )
        elif not self.batch_first:
            query, key, value = (x.transpose(0, 1) for x in (query, key, value))
        shape = (query.shape[0], query.shape[1], key.shape[1])
        if key.shape[0] != query.shape[0]:
            raise ValueError(f"key: expected a batch of {query.shape[0]}, as that of the query, got {key.shape[0]}")
        if value.shape[:2] != key.shape[:2]:
            sizes = "a batch of {} and a length of {}"
            expected, got = sizes.format(*key.shape), sizes.format(*value.shape)
            raise ValueError(f"value: expected {expected}, as those of the key, got {got}")
        if self.normalizer.couples_queries != "none" and query_padding_mask is None:
            if self.padded_queries is not None:
                query_padding_mask = forbidden(self.padded_queries)
            elif key_padding_mask is not None and of_self:
                query_padding_mask = forbidden(key_padding_mask)
            elif key_padding_mask is not None and not torch.compiler.is_compiling():
                warn_of_padded_queries(name_of(self.normalizer))
        user_mask = None if attn_mask is None else opposite(attn_mask)
        pairs = None if user_mask is None else self.pairs(user_mask, shape)
        is_causal = is_causal and pairs is not None and pairs.dim() == 2 and shape[1] == shape[2]
        if is_causal and key_padding_mask is None and not need_weights:
            pairs = None  # here PyTorch ignores the numbers of the mask
        mask, bias = read_masks(
            *(self.normalizer, shape, pairs, key_padding_mask, query_padding_mask, is_causal),
            user_mask=user_mask,
            ordered=self.ordered,
            is_self=of_self,
            knows_past=self.in_decoder_layer,
        )
        needs = self.normalizer.needs_states
        features = None if needs == "none" else self.normalizer.features_of(query if needs == "queries" else key)
        dropout = self.dropout if self.training else 0.0
        q, k, v = self.project(query, key, value)
        context, weights = attend(
            self.normalizer, q, k, v, mask, bias, features=features, dropout=dropout, need_weights=need_weights
        )
        output = self.out_proj(context.transpose(1, 2).flatten(2))
        if self.normalizer.total == 0:  # without attention, not even a bias is added
            output = 0 * output
        if weights is not None:
            weights = (weights.mean(1) if average_attn_weights else weights).to(query.dtype)
        if not batched:
            return output.squeeze(0), None if weights is None else weights.squeeze(0)
        return output if self.batch_first else output.transpose(0, 1), weights

    def project(self, query: Tensor, key: Tensor, value: Tensor) -> list[Tensor]:
        """The queries, keys and values of every head, (N, H, L or S, D) each."""
        if self.in_proj_weight is None:
            maps = (self.q_proj_weight, self.k_proj_weight, self.v_proj_weight)
        else:
            maps = self.in_proj_weight.chunk(3)
        biases = (None,) * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = map(F.linear, (query, key, value), maps, biases)
        return [x.unflatten(-1, (self.num_heads, -1)).transpose(1, 2) for x in projected]

    def pairs(self, attn_mask: Tensor, shape: tuple[int, int, int]) -> Tensor:
        """The mask broadcastable to (N, H, L, S)."""
        batch, n_queries, n_keys = shape
        flat, each = (n_queries, n_keys), (batch * self.num_heads, n_queries, n_keys)
        if attn_mask.shape not in (flat, each):
            raise ValueError(f"attn_mask: expected the shape {flat} or {each}, got {tuple(attn_mask.shape)}")
        return attn_mask if attn_mask.dim() == 2 else attn_mask.unflatten(0, (batch, self.num_heads))

    def of_nested(self, x: Tensor, need_weights: bool, average: bool) -> tuple[Tensor, Tensor | None]:
        """Self-attention of a nested tensor. The output is nested, and the weights are padded."""
        lengths = [len(row) for row in x.unbind()]
        padded = torch.nested.to_padded_tensor(x, 0.0)
        padding = torch.arange(padded.shape[1]) >= torch.tensor(lengths)[:, None]
        output, weights = self(padded, padded, padded, padding.to(x.device), need_weights, None, average)
        rows = [row[:length] for row, length in zip(output, lengths, strict=True)]
        return torch.nested.as_nested_tensor(rows, layout=x.layout), weights


@cache
def warn_of_padded_queries(name: str) -> None:
    """Warns once that queries may be padded without the module's knowledge."""
    warnings.warn(
        f"{name} couples queries, and attention got a key_padding_mask, a query that is not the key, and no "
        "query_padding_mask. If queries are padded, they change the weights of the others: pass query_padding_mask, "
        "True at padding, or zeros if every query is real",
        stacklevel=3,
    )


def is_same(x: Tensor, y: Tensor) -> bool:
    """Whether two tensors are one, or the same view of it. While compiling, views are not recognized."""
    if x is y or torch.compiler.is_compiling():
        return x is y
    try:
        return x.is_set_to(y)
    except RuntimeError:  # tensors without memory, such as those of `torch.vmap`
        return False

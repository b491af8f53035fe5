"""Generates texts from texts. Training, `eval.py` and `generate.py` share this code."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from torch import Tensor

from attnorm.attention.transfer import index_by_mask, on_both
from attnorm.data.featurizer import pad
from attnorm.data.sampler import cut_by_tokens
from attnorm.models.generation import Decoding, SpecialTokens, generate
from attnorm.tasks.ranks import Ranks


def special_tokens(tokenizer: Any) -> SpecialTokens:
    """The special ids of a tokenizer, in the form that decoding expects."""
    return SpecialTokens(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def target_logits(model: Any, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores (tokens, V) of a batch's real target tokens, and these tokens. No scores are computed for padding."""
    labels, real = batch["target"][:, 1:], real_targets(model, batch)  # (B, T)
    states = model(batch["source"], batch["target"][:, :-1])  # (B, T, W)
    return model.logits(index_by_mask(states, real)), index_by_mask(labels, real)


def real_targets(model: Any, batch: dict[str, Tensor]) -> Tensor:
    """bool (B, T): True at the target tokens to be predicted, False at padding."""
    return on_both(lambda target: target[:, 1:] != model.pad_id, batch["target"])


def write_texts(
    model: Any,
    tokenizer: Any,
    sources: Sequence[list[int]],
    decoding: Decoding,
    batch_tokens: int,
    progress: Callable[[list], Iterable] = iter,
) -> list[str]:
    """Generates one text for each source, in the order of the sources.

    sources: token ids without special tokens. Sources of similar length are decoded in batches of about `batch_tokens`
    tokens over all beams. The results do not depend on the batches. `progress` wraps the list of batches. If several
    processes train together, each of them generates its share of the batches, and all have the texts.
    """
    if not sources:
        return []
    special, device = special_tokens(tokenizer), model.tokens.weight.device
    lengths = np.array([(len(ids) + 1, decoding.max_length) for ids in sources])
    order = np.argsort(lengths[:, 0], kind="stable")
    cuts = cut_by_tokens(lengths[order], batch_tokens // decoding.beam_size)
    texts, ranks = {}, Ranks.present()
    batches = [order[start:stop].tolist() for start, stop in pairwise(cuts)]
    for rows in progress([rows for _, rows in ranks.share(batches)]):
        batch = {"source": pad([[*sources[row], special.eos] for row in rows], special.pad).to(device)}
        for row, ids in zip(rows, generate(model, batch["source"], special, decoding), strict=True):
            texts[row] = tokenizer.decode(ids)
    return ranks.gather_items(texts)

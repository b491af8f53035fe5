"""Pairs of texts as rows of token ids and as batches, their target tokens, and the texts that a model writes."""

from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor

from attnorm.attention.transfer import index_by_mask, noted, remember
from attnorm.data.featurizer import Encoded, Featurizer, Table, cut, list_lengths, pad
from attnorm.data.sampler import MicroBatch, cut_by_tokens
from attnorm.data.sources.base import RowSchema
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.generation import Decoding, SpecialTokens, generate
from attnorm.models.interfaces import Seq2SeqModel
from attnorm.tasks.module import Collator
from attnorm.tasks.ranks import Ranks


class PairCollator(Collator):
    """Rows of `PairFeaturizer` -> tensors, padded to the longest sequence of the batch."""

    def __init__(self, rows: Table, pad_id: int, bos_id: int, eos_id: int):
        super().__init__(rows, pad_id)
        self.bos_id, self.eos_id = bos_id, eos_id

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns int64 tensors:

        source: (B, N), with the end token.
        target: (B, T + 1), with the begin and end tokens.
        """
        return {
            "source": pad(table["source"], self.pad_id, end=self.eos_id),
            "target": pad(table["target"], self.pad_id, self.bos_id, self.eos_id),
        }


class PairFeaturizer(Featurizer):
    """One row per pair: source and target without special tokens, truncated so that one special token still fits.

    schema: of the source's rows, with two columns.
    names:  what the two texts of a pair are called, in the plural.
    max_source, max_target: maximum lengths in tokens, including special tokens.
    """

    def __init__(self, max_source: int, max_target: int, schema: RowSchema, names: tuple[str, str]):
        self.schema, self.names = schema, names
        self.limits = {"source": max_source - 1, "target": max_target - 1}

    def settings(self) -> list:
        return ["pairs", *self.limits.values()]

    def columns(self) -> dict:
        import pyarrow as pa

        return dict.fromkeys(self.limits, pa.list_(pa.int32()))

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
        ids, counts = {}, {}
        for column, (side, limit) in zip(texts.values(), self.limits.items(), strict=True):
            ids[side], counts[f"truncated_{side}"] = cut(tokenizer.encode(column), limit)
        return ids, counts

    def lengths(self, ids: Table) -> np.ndarray:
        return np.stack([list_lengths(ids, side) + 1 for side in self.limits], axis=1).astype(np.int32)

    def weights(self, ids: Table) -> np.ndarray:
        return list_lengths(ids, "target") + 1

    def describe(self, counts: dict[str, int]) -> str:
        sources, targets = self.names
        cut_off = f"{counts['truncated_source']:,} {sources} and {counts['truncated_target']:,} {targets} truncated"
        return f"{counts['kept']:,} pairs ({counts['empty']:,} empty skipped, {cut_off})"


def special_tokens(tokenizer: Tokenizer) -> SpecialTokens:
    """The special ids of a tokenizer, in the form that decoding expects."""
    return SpecialTokens(tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)


def target_logits(model: Seq2SeqModel, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Scores (tokens, V) of a batch's real target tokens, and these tokens. No scores are computed for padding."""
    labels, real = batch["target"][:, 1:], real_targets(batch["target"], model.pad_id)  # (B, T)
    states = model(batch["source"], batch["target"][:, :-1])  # (B, T, W)
    return model.logits(index_by_mask(states, real)), index_by_mask(labels, real)


def real_targets(target: Tensor, pad_id: int) -> Tensor:
    """bool (B, T): True at the target tokens (B, T + 1) to be predicted, False at padding."""
    real, on_the_host = target[:, 1:] != pad_id, noted(target)
    return real if on_the_host is None else remember(real, on_the_host[:, 1:] != pad_id)


def write_texts(
    model: Seq2SeqModel,
    tokenizer: Tokenizer,
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
        batch = {"source": pad([sources[row] for row in rows], special.pad, end=special.eos).to(device)}
        for row, ids in zip(rows, generate(model, batch["source"], special, decoding), strict=True):
            texts[row] = tokenizer.decode(ids)
    return ranks.gather_items(texts)

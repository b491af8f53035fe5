"""The loss of a language model, the sums of a validation, and the metrics that are computed from these sums."""

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import index_by_mask, on_both, on_cpu
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.interfaces import CausalLM
from attnorm.tasks.module import TaskModule, sums_per_row
from attnorm.tasks.results import CorpusMetric


class BitsPerByte(CorpusMetric):
    """The loss of all tokens in bits, divided by the number of UTF-8 bytes of the text.

    It does not depend on the tokenizer, so models with different tokenizers can be compared.
    """

    columns = ("loss_sum", "bytes")

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1] / np.log(2)


class BandLoss(CorpusMetric):
    """The mean loss of the tokens in a band of positions."""

    @staticmethod
    def of(totals: np.ndarray) -> np.ndarray:
        return totals[..., 0] / totals[..., 1]


class FirstBand(BandLoss):
    """Positions [0, L), where L is the length in training."""

    columns = ("loss_sum_1x", "n_tokens_1x")


class SecondBand(BandLoss):
    """Positions [L, 2L)."""

    columns = ("loss_sum_2x", "n_tokens_2x")


class ThirdBand(BandLoss):
    """Positions [2L, 4L)."""

    columns = ("loss_sum_4x", "n_tokens_4x")


class FourthBand(BandLoss):
    """Positions [4L, 8L)."""

    columns = ("loss_sum_8x", "n_tokens_8x")


# the band that ends at this multiple of L -> its metric
BANDS: dict[int, type[BandLoss]] = {1: FirstBand, 2: SecondBand, 4: ThirdBand, 8: FourthBand}


SHOWN_ROWS, SHOWN_TOKENS = 5, 24  # samples show the first tokens of the first documents


class LanguageModule(TaskModule[CausalLM]):
    """Cross-entropy of the next token. Validation reports loss, perplexity and bits per byte.

    The final evaluation also reports the loss by position, in one pass over windows of `WINDOW` training lengths.

    length: the number of tokens of the longest piece in training.
    """

    counters = ("loss", "tokens", "bytes", *(f"{name}_{end}x" for end in BANDS for name in ("loss", "tokens")))
    line = "perplexity {perplexity:,.1f}  bits per byte {bits_per_byte:.3f}"

    def __init__(self, model: CausalLM, tokenizer: Tokenizer, length: int):
        super().__init__(model, tokenizer)
        self.length = length

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """Scores of the next token at the real positions only, (K, V)."""
        real = on_both(lambda segments: segments > 0, batch["segments"])
        return index_by_mask(self.model(batch["ids"], batch["segments"]), real)

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        return (batch["segments"] > 0).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        scores, labels, real = self(batch).float(), batch["labels"], batch["segments"] > 0
        losses, guesses = F.cross_entropy(scores, labels, reduction="none"), scores.argmax(-1)
        windows, n_bytes, rows, losses, guesses, labels, real = on_cpu(
            batch["window"], batch["bytes"], batch["rows"], losses, guesses, labels, real
        )
        zeros = torch.zeros(len(n_bytes), dtype=torch.float64)
        loss_sum = zeros.index_add(0, windows, sums_per_row(losses, real))
        n_tokens = zeros.index_add(0, windows, real.sum(1).double()).long()
        self.add(loss=loss_sum.sum().item(), tokens=len(labels), bytes=n_bytes.sum().item())
        sizes = n_tokens.tolist()
        firsts = [(true[:SHOWN_TOKENS].tolist(), guess[:SHOWN_TOKENS].tolist()) for true, guess in
                  zip(labels.split(sizes), guesses.split(sizes), strict=True)]  # fmt: skip
        for row, (text, predicted) in zip(rows.tolist(), firsts, strict=True):
            if row < SHOWN_ROWS:
                decoded = map(self.tokenizer.decode, (text, predicted))
                self.samples.append(dict(zip(("text", "predicted"), decoded, strict=True)))
        if self.keep_examples:
            reference, output = zip(*firsts, strict=True)
            columns: dict[str, Any] = {
                "loss_sum": loss_sum,
                "n_tokens": n_tokens,
                "reference": reference,
                "output": output,
            }
            self.record(rows, **columns, **self._bands(batch))

    def _bands(self, batch: dict[str, Tensor]) -> dict[str, list[float]]:
        """The sum of the losses in each band of positions, by column; NaN for windows that are not whole.

        A model without positions beyond the training length only has the first band.
        """
        ends = [end for end in BANDS if self.model.longest is None or end * self.length <= self.model.longest]
        sums = torch.full((len(ends), len(batch["bytes"])), torch.nan, dtype=torch.float64)
        if len(batch["whole"]):
            last = ends[-1] * self.length
            scores = self.model(batch["whole_ids"][:, :last]).float()
            losses = F.cross_entropy(scores.transpose(1, 2), batch["whole_labels"][:, :last], reduction="none").double()
            for number, end in enumerate(ends):
                start = ends[number - 1] * self.length if number else 0
                sums[number, batch["whole"].cpu()] = losses[:, start : end * self.length].sum(1).cpu()
                size = (end * self.length - start) * len(losses)
                self.add(**{f"loss_{end}x": sums[number].nansum().item(), f"tokens_{end}x": size})
        return {f"loss_sum_{end}x": of_band.tolist() for end, of_band in zip(ends, sums, strict=True)}

    def metrics(self) -> dict[str, float]:
        """loss (nats per token), perplexity, bits per byte, and loss_1x, ..., the loss by position, if measured."""
        loss = self.sums["loss"] / self.sums["tokens"]
        metrics = {
            "loss": loss,
            "perplexity": math.exp(min(loss, 700.0)),
            "bits_per_byte": self.sums["loss"] / self.sums["bytes"] / math.log(2),
        }
        bands = {f"loss_{end}x": (self.sums[f"loss_{end}x"], self.sums[f"tokens_{end}x"]) for end in BANDS}
        return metrics | {name: total / tokens for name, (total, tokens) in bands.items() if tokens}

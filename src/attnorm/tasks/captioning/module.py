"""Image captioning: images with their captions as rows and batches, and the loss of the words, with teacher forcing."""

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.attention.transfer import index_by_mask, on_cpu
from attnorm.data.caption_rows import CAPTIONS
from attnorm.data.featurizer import Encoded, Featurizer, Table, cut, pad
from attnorm.data.images import Images
from attnorm.data.sampler import MicroBatch
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.models.generation import Decoding, search
from attnorm.models.interfaces import CaptioningModel
from attnorm.tasks.module import Collator, Loss, sums_per_row
from attnorm.tasks.pairs import real_targets, special_tokens
from attnorm.tasks.seq2seq import WritingModule, smoothed_cross_entropy


def references(texts: Table) -> list[list[str]]:
    """The captions of each image of a split, from its texts."""
    return [cell.split("\n") for cell in texts["captions"]]


class CaptioningModule(WritingModule[CaptioningModel]):
    """Loss, validation loss, and scores of greedy captions of the first `scored_pairs` validation images.

    validation: a table with the columns id and captions. scorer: `CaptionMetric`.
    """

    line, sampled_line = "perplexity {perplexity:,.2f}", "  CIDEr-D {CIDEr-D:.1f}  BLEU-4 {BLEU-4:.1f} (greedy)"
    shown = ("image", "reference", "caption")

    def forward(self, batch: dict[str, Tensor]) -> Tensor:
        """The decoder's states (C, T, W) for the captions of a batch."""
        return self.model(batch["image"], batch.get("present"), batch["target"][:, :-1], batch["owner"])

    def target_logits(self, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
        """Scores (tokens, V) of the real target tokens, and these tokens."""
        real = real_targets(batch["target"], self.special.pad)
        labels = index_by_mask(batch["target"][:, 1:], real)
        return self.model.logits(index_by_mask(self(batch), real)).float(), labels

    def loss(self, batch: dict[str, Tensor]) -> Loss:
        logits, labels = self.target_logits(batch)
        plain, smoothed = smoothed_cross_entropy(logits, labels, self.label_smoothing)
        return Loss(smoothed, len(labels), plain if self.label_smoothing else None)

    def tokens(self, batch: dict[str, Tensor]) -> Tensor:
        """Number of predicted target tokens."""
        return (batch["target"][:, 1:] != self.special.pad).sum()

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        logits, labels = self.target_logits(batch)
        losses = F.cross_entropy(logits, labels, reduction="none")
        rows, loss = on_cpu(batch["rows"], losses.sum())
        self.add(loss=loss.item(), tokens=len(labels))
        if self.keep_examples:
            of_image = torch.zeros(len(batch["rows"]), dtype=torch.float64)
            real, owner = real_targets(batch["target"], self.special.pad), batch["owner"].cpu()
            self.record(
                rows,
                loss_sum=of_image.index_add(0, owner, sums_per_row(losses, real)),
                n_tokens=of_image.long().index_add(0, owner, real.sum(1).cpu()),
            )
        [scored] = (rows < self.scored_rows).nonzero(as_tuple=True)
        if len(scored):
            at = scored.to(logits.device, non_blocking=True)
            present = batch["present"][at] if "present" in batch else None
            written = write(self.model, self.tokenizer, batch["image"][at], present, self.greedy)
            captions = map(self.tokenizer.decode, written)
            self.outputs += zip(rows[scored].tolist(), captions, strict=True)

    def sample(self, source: str, target: Sequence[str], text: str) -> dict[str, str]:
        """An image, one of its captions and the generated one, for display."""
        return super().sample(source, target[0], text)

    def metrics(self) -> dict[str, float]:
        """loss (nats per target token), perplexity, and the scores of greedy captions if there are any."""
        metrics = super().metrics()
        if self.outputs:
            rows, captions = zip(*sorted(self.outputs), strict=True)
            table = self.validation[list(rows)]
            gold = references(table)
            self.samples = list(map(self.sample, table["id"], gold, captions))
            metrics |= self.scorer(gold)(captions)
        return metrics


@torch.no_grad()
def write(
    model: CaptioningModel, tokenizer: Tokenizer, image: Tensor, present: Tensor | None, decoding: Decoding
) -> list[list[int]]:
    """The tokens of one caption for each image of a batch, without special tokens. The arguments are those of
    `encode` of the model, and the model is put into evaluation mode."""
    model.eval()
    memory, real = model.encode(image, present)
    return search(model, memory, real, special_tokens(tokenizer), decoding)


class CaptionFeaturizer(Featurizer):
    """One row per image: its captions one after the other, without special tokens, and where each of them begins.

    Captions are truncated to `max_target` tokens, including one special token.
    """

    schema = CAPTIONS

    def __init__(self, max_target: int):
        self.limit = max_target - 1

    def settings(self) -> list:
        return ["captions", 1, self.limit]

    def columns(self) -> dict:
        """ids of all captions of an image, and sizes, the number of them in each caption."""
        import pyarrow as pa

        return {"ids": pa.list_(pa.int32()), "sizes": pa.list_(pa.int32())}

    def encode(self, texts: dict[str, list[str]], first: int, tokenizer: Tokenizer) -> Encoded:
        captions = [cell.split("\n") for cell in texts["captions"]]
        encoded, truncated = cut(tokenizer.encode([text for of_image in captions for text in of_image]), self.limit)
        ids, sizes, rest = [], [], iter(encoded)
        for of_image in captions:
            tokens = [next(rest) for _ in of_image]
            ids.append([token for caption in tokens for token in caption])
            sizes.append([len(caption) for caption in tokens])
        return {"ids": ids, "sizes": sizes}, {"captions": len(encoded), "truncated": truncated}

    def lengths(self, ids: Table) -> np.ndarray:
        """The number of captions of an image times the length of the longest one: the tokens that they take padded."""
        sizes = ids["sizes"]
        return np.array([[len(of_image) * (max(of_image) + 1)] for of_image in sizes], np.int32)

    def weights(self, ids: Table) -> np.ndarray:
        return np.array([sum(of_image) + len(of_image) for of_image in ids["sizes"]], np.int64)

    def describe(self, counts: dict[str, int]) -> str:
        return (
            f"{counts['kept']:,} images ({counts['empty']:,} without captions skipped) with {counts['captions']:,} "
            f"captions ({counts['truncated']:,} truncated)"
        )


class CaptionCollator(Collator):
    """Rows of `CaptionFeaturizer` -> tensors, with the captions padded to the longest one of the batch.

    texts:  the texts of the split, row by row, with the ids of the images.
    images: the images. Raises ValueError that names those that are missing.
    """

    def __init__(self, rows: Table, texts: Table, images: Images, pad_id: int, bos_id: int, eos_id: int):
        super().__init__(rows, pad_id)
        self.images = images
        self.names = texts.select_columns(["id"])
        self.bos_id, self.eos_id = bos_id, eos_id
        images.check(self.names["id"])

    def tensors(self, table: dict[str, list], part: MicroBatch) -> dict[str, Tensor]:
        """Returns the tensors of a batch of B images with C captions:

        image:   uint8 (B, 3, side, side), or float32 (B, M, width) features.
        present: bool (B, M), for features only.
        target:  int64 (C, T + 1), with the begin and end tokens.
        owner:   int64 (C,), the row of the image of each caption.
        """
        captions, owner = [], []
        for row, (ids, sizes) in enumerate(zip(table["ids"], table["sizes"], strict=True)):
            start = 0
            for size in sizes:
                captions.append([self.bos_id, *ids[start : start + size], self.eos_id])
                owner.append(row)
                start += size
        return {
            **self.images.read(self.names[part.rows]["id"]),
            "target": pad(captions, self.pad_id),
            "owner": torch.tensor(owner),
        }

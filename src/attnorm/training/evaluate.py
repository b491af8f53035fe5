"""Scoring a model on a split: the same function at the end of training and in `eval.py`, so that the two agree."""

import time
from dataclasses import dataclass

import torch

from attnorm.data.batching import PairBatches, TokenBatches
from attnorm.data.corpus import Split
from attnorm.models.decoding import Decoding
from attnorm.models.seq2seq import Seq2Seq
from attnorm.tasks.headlines import summed_loss, write_headlines
from attnorm.tasks.rouge import Rouge, lead
from attnorm.training.console import tracked


@dataclass(frozen=True)
class Scores:
    """What was measured on a split. ROUGE is F1 in percent; loss is nats per target token."""

    split: str
    pairs: int
    loss: float
    rouge: dict[str, float]
    lead8: dict[str, float]
    rouge_note: str
    decoding: dict
    seconds: float
    headlines: list[str]

    def record(self) -> dict:
        """Plain values for a JSON file, without the headlines."""
        kept = {name: value for name, value in vars(self).items() if name != "headlines"}
        return {**kept, "headlines_per_second": round(self.pairs / self.seconds, 1), "seconds": round(self.seconds, 1)}


@torch.no_grad()
def score(model: Seq2Seq, split: Split, decoding: Decoding, stemmer: bool, batch_tokens: int) -> Scores:
    """Loss and ROUGE of a model on a whole split, in the precision of its parameters, beside the lead-8 baseline."""
    model.eval()
    tokenizer, rouge, device = split.tokenizer, Rouge(stemmer), model.tokens.weight.device
    batches = PairBatches(split.rows, tokenizer.pad_id, tokenizer.bos_id, tokenizer.eos_id)
    summed, tokens = 0.0, 0
    for part in tracked(list(TokenBatches(split.lengths, batch_tokens, shuffle=False)), f"{split.name} loss"):
        batch = {name: tensor.to(device) for name, tensor in batches[part].items()}
        loss, count = summed_loss(model, batch)
        summed, tokens = summed + loss, tokens + count

    started = time.perf_counter()
    progress = lambda items: tracked(items, f"{split.name} headlines")  # noqa: E731
    headlines = write_headlines(model, tokenizer, split.rows["source"], decoding, batch_tokens, progress)
    seconds = time.perf_counter() - started
    articles, titles = list(split.rows["article"]), list(split.rows["title"])
    return Scores(
        split=split.name,
        pairs=len(split),
        loss=summed / tokens,
        rouge=rouge(headlines, titles),
        lead8=rouge([lead(article) for article in articles], titles),
        rouge_note=rouge.describe(),
        decoding=vars(decoding),
        seconds=seconds,
        headlines=headlines,
    )

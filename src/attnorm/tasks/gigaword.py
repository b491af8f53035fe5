"""Headline generation: article in, headline out, trained by teacher forcing, judged by ROUGE."""

from dataclasses import dataclass

import pytorch_lightning as pl
import torch
import torch.nn.functional as F
from torch import Tensor

from attnorm.models.decoding import Decoding, generate
from attnorm.models.seq2seq import Seq2Seq
from attnorm.tasks.headlines import special_tokens, summed_loss, target_logits
from attnorm.tasks.optim import Optim
from attnorm.tasks.rouge import METRICS, Rouge

REMEDY = "stopped before the update. Try a smaller optim.lr, or trainer.detect_anomaly=true to find the cause."


class NonFiniteLoss(RuntimeError):
    """The loss is not a number or infinite; the update did not happen."""


@dataclass(frozen=True)
class Sample:
    """A validation article, its title, and what the model writes."""

    article: str
    title: str
    headline: str


class HeadlineTask(pl.LightningModule):
    """Loss, validation loss, and ROUGE of greedy headlines on the first `rouge_pairs` validation pairs.

    validation: table with columns article and title, row i being row i of the validation batches.
    """

    yields = "pairs"  # what a data source has to give for this task

    def __init__(
        self,
        model: Seq2Seq,
        tokenizer,
        optim: Optim,
        validation,
        *,
        label_smoothing: float,
        rouge_pairs: int,
        stemmer: bool,
        max_length: int,
    ):
        super().__init__()
        self.model, self.tokenizer, self.optim, self.validation = model, tokenizer, optim, validation
        self.label_smoothing, self.rouge_pairs = label_smoothing, rouge_pairs
        self.special = special_tokens(tokenizer)
        self.greedy = Decoding(max_length=max_length)
        self.rouge = Rouge(stemmer)
        self.samples: list[Sample] = []
        self.totals: dict[str, Tensor] = {}

    def training_step(self, batch: dict[str, Tensor], batch_index: int) -> Tensor:
        """Sum over this part's target tokens / target tokens of the whole update, over ranks and accumulation."""
        logits, labels = target_logits(self.model, batch)
        summed = F.cross_entropy(logits, labels, reduction="sum", label_smoothing=self.label_smoothing)
        if not torch.isfinite(summed):
            rows = batch["rows"].tolist()
            raise NonFiniteLoss(
                f"the loss is {summed.item()} at step {self.trainer.global_step}, batch {batch_index} of epoch "
                f"{self.current_epoch} (training rows {', '.join(map(str, rows[:8]))}{', ...' * (len(rows) > 8)}); "
                + REMEDY
            )
        self.log("train/loss", summed.detach() / len(labels), prog_bar=True)
        self.log("step", self.trainer.global_step + 1.0)  # loggers then count updates, as checkpoints do
        # Lightning divides by the accumulation steps and DDP by the ranks; the update's own divisor is its tokens
        return summed / batch["update_tokens"] * self.trainer.accumulate_grad_batches * self.trainer.world_size

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """A finite loss can have infinite gradients: clipping would turn them into NaN parameters."""
        if self.trainer.precision == "16-mixed":
            return  # its scaler skips such an update
        gradients = [parameter.grad for parameter in self.model.parameters() if parameter.grad is not None]
        if not torch.isfinite(torch.nn.utils.get_total_norm(gradients)):
            raise NonFiniteLoss(f"a gradient is not finite at step {self.trainer.global_step}; {REMEDY}")

    def on_validation_epoch_start(self) -> None:
        self.samples = []
        self.totals = {name: torch.zeros((), dtype=torch.float64) for name in ("loss", "tokens", "pairs", *METRICS)}

    def validation_step(self, batch: dict[str, Tensor], batch_index: int) -> None:
        loss, tokens = summed_loss(self.model, batch)
        self.totals["loss"] += loss
        self.totals["tokens"] += tokens
        judged = batch["rows"] < self.rouge_pairs
        if judged.any():
            self._judge(batch["source"][judged], batch["rows"][judged].tolist())

    def _judge(self, source: Tensor, rows: list[int]) -> None:
        table = self.validation[rows]
        headlines = [self.tokenizer.decode(ids) for ids in generate(self.model, source, self.special, self.greedy)]
        for metric, value in self.rouge.sums(headlines, table["title"]).items():
            self.totals[metric] += value
        self.totals["pairs"] += len(rows)
        self.samples += map(Sample, table["article"], table["title"], headlines)

    def on_validation_epoch_end(self) -> None:
        reduced = {
            name: self.trainer.strategy.reduce(total.to(self.device), reduce_op="sum").item()
            for name, total in self.totals.items()
        }
        loss = reduced["loss"] / reduced["tokens"]
        self.log("val/loss", loss, prog_bar=True)
        self.log("step", float(self.trainer.global_step))
        self.log("val/perplexity", torch.tensor(loss).exp())
        if reduced["pairs"]:
            for metric in METRICS:
                self.log(f"val/{metric}", reduced[metric] / reduced["pairs"])

    def configure_optimizers(self) -> dict:
        steps = self.trainer.estimated_stepping_batches
        fused = "mixed" not in str(self.trainer.precision)  # Lightning cannot clip for a fused optimizer under AMP
        optimizer, schedule = self.optim.build(self.model, int(steps), fused)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

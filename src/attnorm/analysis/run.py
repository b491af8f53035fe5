"""Opens a run folder in Python: its configuration, its metrics, and its model."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from attnorm.attention.multihead import observe
from attnorm.config.checkpoint_files import BEST
from attnorm.config.overrides import open_run, read_run
from attnorm.data.arrow import cleaned
from attnorm.data.readers.text import read_json
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import RunError
from attnorm.tasks.task import Task, Tokens, task_of
from attnorm.training.callbacks.attention_stats import layer_label, stacks_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class LayerAttention:
    """The attention of one layer over one text.

    weights: float32 (heads, queries, keys) on the CPU. The rows of live queries sum to what the normalizer guarantees.
    queries, keys: the tokens of the rows and of the columns.
    """

    weights: Tensor
    queries: list[str]
    keys: list[str]


class Run:
    """A finished or interrupted run, opened from its folder by `load_run`.

    folder: the run folder. config: the configuration with which it was trained, as plain values. checkpoint: "best" or
    "last". Files are read, and the model is built, on first use.
    """

    def __init__(self, folder: Path, config: dict[str, Any], checkpoint: str):
        self.folder, self.config, self.checkpoint = folder, config, checkpoint

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The content of summary.json: final scores, number of updates, whether the run finished."""
        return read_json(self.folder / "summary.json")

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """metrics.csv, with one row per point in time and the column `step`."""
        return self.table("metrics.csv")

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """The scores and predictions of the final evaluation, one row per example of the validation split."""
        import pandas as pd

        path = self.folder / "predictions" / "validation.parquet"
        if not path.is_file():
            raise RunError(f"{path}: missing; it is written when training ends")
        return pd.read_parquet(path)

    def table(self, name: str) -> "pd.DataFrame":
        """A CSV file of the run folder, such as "hybrid_weights.csv" or "attention.csv"."""
        import pandas as pd

        if not (self.folder / name).is_file():
            raise RunError(f"{self.folder / name}: missing")
        return pd.read_csv(self.folder / name)

    @cached_property
    def task(self) -> Task:
        """The task, which builds data and models from the configuration."""
        return task_of(self.config, self.folder)

    @property
    def model(self) -> nn.Module:
        """The model with the parameters of the checkpoint, in evaluation mode, on the GPU if there is one."""
        return self._opened[1]

    @property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer with which the run was trained."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> tuple[Tokenizer, nn.Module, int]:
        return open_run(self.folder, self.config, self.checkpoint)

    def generate(self, texts: Sequence[str]) -> list[str]:
        """Generates an output, such as a headline, for each text.

        Raises UserError for a task that does not generate text.
        """
        return self.task.generate(self.model, self.tokenizer, [self._clean(text) for text in texts])

    def attended(self, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """What the model reads when it is given a text: its inputs, of one example, and the tokens of each layer's
        queries and keys.

        Raises UserError for a task whose input is not a single text.
        """
        return self.task.attended(self.model, self.tokenizer, self._clean(text))

    @torch.no_grad()
    def attention(self, text: str) -> dict[str, LayerAttention]:
        """The attention weights of every layer while the model reads a text (and generates an output, if it does so).

        The keys name layers as in attention.csv, such as "encoder/0", "decoder/1" or "decoder/1/cross".
        Raises UserError for a task whose input is not a single text.
        """
        batch, tokens = self.attended(text)
        device = next(self.model.parameters()).device
        found: dict[str, LayerAttention] = {}

        def keep(name: str, weights: Tensor, _: Tensor | None) -> None:
            label = layer_label(name, stacks_of(self.model))
            queries, keys = tokens(label)
            shape = slice(len(queries)), slice(len(keys))
            found[label] = LayerAttention(weights[0].float().cpu()[:, *shape], queries, keys)

        with observe(self.model, keep):
            self.model(*(tensor.to(device) for tensor in batch))
        return found

    def _clean(self, text: str) -> str:
        data = self.config["data"]
        settings = {name: data.get(name, False) for name in ("lowercase", "digits")}
        return cleaned(text, self.task.schema.words[0], self.task.source(), **settings)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def load_run(folder: str | Path, *, checkpoint: str = BEST, trust_code: bool = False) -> Run:
    """Opens a run folder.

    checkpoint: "best" or "last". trust_code: import classes that the folder's config.yaml names from any package; by
    default only from attnorm, and from packages listed in the environment variable ATTNORM_TRUST.

    Raises RunError for a folder that is not a run's, and ConfigError for one that names code that is not trusted.
    """
    folder = Path(folder)
    return Run(folder, read_run(folder, trust_code).plain(), checkpoint)

"""Opens a run folder in Python: its configuration, its metrics, and its model."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from torch import Tensor, nn

from attnorm.analysis.attention.heatmaps import draw_reading
from attnorm.analysis.attention.reading import LayerAttention, Reading, read
from attnorm.analysis.figures import figures_of
from attnorm.data.preprocess import Split
from attnorm.data.readers.text import read_json
from attnorm.data.tokenizers.base import Tokenizer
from attnorm.errors import ConfigError, Problem, RunError
from attnorm.run.checkpoint import BEST
from attnorm.run.opening import open_run, read_run
from attnorm.run.state import RunState, state_of
from attnorm.spec.read import resolve_recorded
from attnorm.spec.settings import ResolvedConfig
from attnorm.tasks.results import Results, read_parquet
from attnorm.tasks.task import Task, Tokens, task_of

if TYPE_CHECKING:
    import pandas as pd

    from attnorm.analysis.notebook import FigureSet


class Measures(NamedTuple):
    """The measures of one reading, as in `Reading`: of heads, of states, and the sink rate of every key."""

    heads: "pd.DataFrame"
    states: "pd.DataFrame"
    sinks: "pd.DataFrame"


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

    @property
    def scores(self) -> dict[str, float]:
        """The metrics of the best model on the validation split, in the final evaluation."""
        return self.summary["validation"]["metrics"]

    @property
    def best_value(self) -> float | None:
        """The best value of the monitored metric, `summary["monitor"]`, during training."""
        return self.summary["best_value"]

    @cached_property
    def metrics(self) -> "pd.DataFrame":
        """metrics.csv, with one row per point in time and the column `step`."""
        return self.table("metrics.csv")

    @cached_property
    def predictions(self) -> "pd.DataFrame":
        """The scores and predictions of the final evaluation, one row per example of the validation split."""
        path = self.folder / "predictions" / "validation.parquet"
        if not path.is_file():
            if state_of(self.folder) is RunState.FINISHED:
                raise RunError(f"{path}: missing; the task records no examples, or the file has been deleted")
            raise RunError(f"{path}: missing; it is written when training ends")
        return read_parquet(path)

    def table(self, name: str) -> "pd.DataFrame":
        """A CSV file of the run folder, such as "hybrid_weights.csv" or "attention.csv"."""
        import pandas as pd

        if not (self.folder / name).is_file():
            raise RunError(f"{self.folder / name}: missing")
        return pd.read_csv(self.folder / name)

    @cached_property
    def resolved(self) -> ResolvedConfig:
        """The configuration with its classes and typed groups."""
        return resolve_recorded(self.config)

    @cached_property
    def task(self) -> Task:
        """The task, which builds data and models from the configuration."""
        return task_of(self.resolved, self.folder)

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
        return open_run(self.folder, self.resolved, self.checkpoint)

    def evaluate(self, split: str = "validation") -> Results:
        """Scores the model on a split, "validation" or "test". Nothing is written.

        Raises ConfigError for a split that the data source of the run does not provide.
        """
        if split not in ("validation", "test"):
            raise ConfigError([Problem("split", "allowed: validation, test", split)])
        resolve_recorded(self.config, (split,))
        data = self.task.splits(self.tokenizer, (split,))[split]
        return self.task.score(self.task.module(self.model, self.tokenizer, data), data)

    def generate(self, texts: Sequence[str]) -> list[str]:
        """Generates an output, such as a headline, for each text.

        Raises UserError for a task that does not generate text.
        """
        return self.task.generate(self.model, self.tokenizer, [self._clean(text) for text in texts])

    def attention(self, text: str | None = None, *, example: str | None = None) -> dict[str, LayerAttention]:
        """The attention weights of every layer while the model reads an input (and generates an output, if it does so).

        text:    a text, for models that read a single text. example: the id of an example of the validation split, as
                 in `predictions`, for models that need more (task=vqa).

        The keys name layers as in attention.csv, such as "encoder/0", "decoder/1" or "decoder/1/cross".
        Raises UserError if the model cannot read such an input, and ConfigError for an unknown example.
        """
        return self.reading(text, example=example).layers

    def measures(self, text: str | None = None, *, example: str | None = None) -> "Measures":
        """The measures of the weights and states of every layer while the model reads an input, see `attention`."""
        reading = self.reading(text, example=example)
        return Measures(reading.heads, reading.states, reading.sinks)

    def draw_attention(
        self,
        text: str | None = None,
        *,
        example: str | None = None,
        layers: Collection[str] | None = None,
        heads: Collection[int] | None = None,
    ) -> "FigureSet":
        """Draws the attention weights of some layers and heads, or of all, as heat maps: an "overview", and one figure
        per layer, such as "encoder_0".

        The arguments are those of `attention` and `Reading.select`. A notebook shows the figures; `save(folder)` writes
        them.
        """
        return draw_reading([self.reading(text, example=example).select(layers, heads)])

    def draw_curves(self) -> "FigureSet":
        """The figures of the run folder: the course of every learned scalar, such as the "hybrid_weights", and that of
        entropy and smallest column mass, "attention"."""
        return figures_of(self.folder)

    def attended(self, text: str) -> tuple[tuple[Tensor, ...], Tokens]:
        """What the model reads when it is given a text: its inputs, of one example, and the tokens of each layer's
        queries and keys.

        Raises UserError for a task whose input is not a single text, and ConfigError for a text without words.
        """
        shown = self._clean(text)
        if not shown:
            raise ConfigError([Problem("text", "must not be empty", text)])
        return self.task.attended(self.model, self.tokenizer, shown)

    def reading(self, text: str | None = None, *, example: str | None = None) -> Reading:
        """Everything that the attention layers compute while the model reads an input, see `attention`."""
        if (text is None) == (example is None):
            raise ConfigError([Problem("text", "give either a text or the id of an example")])
        if text is not None:
            shown, (inputs, tokens) = self._clean(text), self.attended(text)
        else:
            row = self.row_of(str(example))
            inputs, tokens = self.task.attended_example(self.model, self.validation, row)
            words = self.task.schema.words  # none if the example is not a text
            shown = self.validation.texts[row][words[0]] if words else str(example)
        with self.task.while_decoding(self.model):
            return read(self.name, shown, self.model, inputs, tokens)

    @property
    def name(self) -> str:
        """The attention and the seed of the run, for titles."""
        return f"{self.resolved.label} seed {self.resolved.seed}"

    @cached_property
    def validation(self) -> Split:
        """The tokenized validation split."""
        return self.task.splits(self.tokenizer, ("validation",))["validation"]

    def row_of(self, example: str) -> int:
        """The row of an example of the validation split by its id. Raises ConfigError for an unknown id."""
        ids = self.task.example_ids(self.validation, range(len(self.validation)))
        if example not in ids:
            some = f"{', '.join(ids[:3])}, ... (column id of predictions/validation.parquet)"
            raise ConfigError([Problem("example", f"no such id in the validation split; there are {some}", example)])
        return ids.index(example)

    def _clean(self, text: str) -> str:
        return self.task.clean(text, self.task.source())

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def load_run(folder: str | Path, *, checkpoint: str = BEST, trust_code: bool = False) -> Run:
    """Opens a run folder.

    checkpoint: "best" or "last". trust_code: import classes that the folder's config.yaml names from any package; by
    default only from attnorm, and from packages listed in the environment variable ATTNORM_TRUST.

    Raises RunError for a folder that is not a run's, and ConfigError for one that names code that is not trusted.
    """
    folder = Path(folder)
    return Run(folder, read_run(folder, trust_code), checkpoint)

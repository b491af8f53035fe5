"""Opens a run folder in Python: its configuration, its metrics, and its model."""

from collections.abc import Collection, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from attnorm.errors import ConfigError, Problem, refuse_one_text
from attnorm.run.folder import find_folder
from attnorm.run.opening import open_run, read_run
from attnorm.run.run import Run

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

    from attnorm.analysis.attention.reading import LayerAttention, Reading
    from attnorm.analysis.paper import FigureSet
    from attnorm.data.preprocess import Split
    from attnorm.data.tokenizers.base import Tokenizer
    from attnorm.settings import Settings
    from attnorm.tasks.results import Results
    from attnorm.tasks.task import Task, Tokens


class Measures(NamedTuple):
    """The measures of one reading, as in `Reading`: of heads, of states, and the sink rate of every key."""

    heads: "pd.DataFrame"
    states: "pd.DataFrame"
    sinks: "pd.DataFrame"


class LoadedRun(Run):
    """A finished or interrupted run whose code is trusted, opened from its folder by `load_run` as `attnorm.Run`.

    folder: the run folder. config: the configuration with which it was trained, as plain values. checkpoint: "best" or
    "last". Files are read, and the model is built, on first use.
    """

    def __init__(self, folder: Path, config: dict[str, Any], checkpoint: str):
        super().__init__(folder)
        self.config, self.checkpoint = config, checkpoint

    @cached_property
    def resolved(self) -> "Settings":
        """The configuration with its classes and typed groups."""
        from attnorm.config.read import read_recorded

        return read_recorded(self.config)

    @cached_property
    def task(self) -> "Task":
        """The task, which builds data and models from the configuration."""
        from attnorm.tasks.task import task_of

        return task_of(self.resolved, self.folder)

    @property
    def model(self) -> "nn.Module":
        """The model with the parameters of the checkpoint, in evaluation mode, on the GPU if there is one."""
        return self._opened[1]

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer with which the run was trained."""
        return self._opened[0]

    @cached_property
    def _opened(self) -> "tuple[Tokenizer, nn.Module, int]":
        return open_run(self.folder, self.resolved, self.checkpoint)

    def evaluate(self, split: str = "validation") -> "Results":
        """Scores the model on a split, "validation" or "test". Nothing is written.

        Raises ConfigError for a split that the data source of the run does not provide.
        """
        from attnorm.config.read import read_recorded

        if split not in ("validation", "test"):
            raise ConfigError([Problem("split", "allowed: validation, test", split)])
        read_recorded(self.config, (split,))
        data = self.task.splits(self.tokenizer, (split,))[split]
        return self.task.score(self.task.module(self.model, self.tokenizer, data), data)

    def generate(self, texts: Sequence[str]) -> list[str]:
        """Generates an output, such as a headline, for each text.

        Raises UserError for a task that does not generate text, and TypeError for a single text instead of a list.
        """
        refuse_one_text("generate", texts)
        return self.task.generate(self.model, self.tokenizer, [self._clean(text) for text in texts])

    def attention(self, text: str | None = None, *, example: str | None = None) -> "dict[str, LayerAttention]":
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
        from attnorm.analysis.attention.heatmaps import draw_reading

        return draw_reading([self.reading(text, example=example).select(layers, heads)])

    def draw_curves(self) -> "FigureSet":
        """The figures of the run folder: the course of every learned scalar, such as the "hybrid_weights", and that of
        entropy and smallest column mass, "attention"."""
        from attnorm.analysis.run_figures import figures_of

        return figures_of(self.folder)

    def attended(self, text: str) -> "tuple[tuple[Tensor, ...], Tokens]":
        """What the model reads when it is given a text: its inputs, of one example, and the tokens of each layer's
        queries and keys.

        Raises UserError for a task whose input is not a single text, and ConfigError for a text without words.
        """
        shown = self._clean(text)
        if not shown:
            raise ConfigError([Problem("text", "must not be empty", text)])
        return self.task.attended(self.model, self.tokenizer, shown)

    def reading(self, text: str | None = None, *, example: str | None = None) -> "Reading":
        """Everything that the attention layers compute while the model reads an input, see `attention`."""
        from attnorm.analysis.attention.reading import read

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
    def validation(self) -> "Split":
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


def load_run(folder: str | Path, *, checkpoint: str = "best", trust_code: bool = False) -> LoadedRun:
    """Opens a run folder.

    folder: its path, "last" for the newest run below logs/, or the beginning of its name, if no other begins so.
    checkpoint: "best" or "last". trust_code: import classes that the folder's run.json names from any package; by
    default only from attnorm, and from packages listed in the environment variable ATTNORM_TRUST.

    Raises RunError for a folder that is not a run's, and ConfigError for one that names code that is not trusted.
    """
    folder = find_folder(folder, "run")
    return LoadedRun(folder, read_run(folder, trust_code), checkpoint)

"""The figures by name. Importing this module imports neither torch nor matplotlib, so that help is quick."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attnorm.imports import locate

if TYPE_CHECKING:
    from attnorm.experiments.papers.drawing import Drawing

DNAS = "Doubly-Normalized Attention"
FENCHEL = "Attention as Inference via Fenchel Duality"
ALL = "all"  # the name that stands for every figure


@dataclass(frozen=True)
class Settings:
    """What a figure is drawn from; `PaperFigure.reads` says which of these a figure uses.

    Args:
        runs: run folders.
        model: folders of BERT or T5 models in the format of Hugging Face.
        text: a text file, one text per line; None stands for a built-in text.
        lines, tokens: how many texts are read, and how many tokens of each.
        draws: the number of random draws that a mean is taken over.
        seed: the seed of the draw that is shown, and of models that are initialized randomly.
        trust_code: whether a run folder may name code of packages that are not trusted.
    """

    runs: tuple[Path, ...] = ()
    model: tuple[Path, ...] = ()
    text: Path | None = None
    lines: int = 2
    tokens: int = 128
    draws: int = 20
    seed: int = 0
    trust_code: bool = False


@dataclass(frozen=True)
class PaperFigure:
    """A figure of a paper.

    Args:
        shows: one line for the list of figures.
        paper, place: the title of the paper, and what it calls the figure.
        function: dotted path of the function `(Settings, **options) -> Drawing`.
        reads: names of the settings that it uses.
        models: the types of the models that it shows if `model` is set.
        trained: names of the short runs (`attnorm.experiments.papers.short_runs`) that it shows if no runs are given.
        options: further arguments of the function, by which figures of one kind differ.
    """

    shows: str
    paper: str
    place: str
    function: str
    reads: tuple[str, ...] = ()
    models: tuple[str, ...] = ()
    trained: tuple[str, ...] = ()
    options: Mapping[str, Any] = field(default_factory=dict)

    def draw(self, settings: Settings) -> "Drawing":
        """Computes the figure and draws it in the style that all figures share."""
        from matplotlib import rc_context

        from attnorm.experiments.papers.drawing import STYLE

        function: Callable[..., Drawing] = locate(f"attnorm.experiments.papers.{self.function}")
        with rc_context(STYLE):
            return function(settings, **self.options)


RUN_KEYS = ("runs", "trust_code")
MODEL_KEYS = ("model", "text", "lines", "tokens", "seed")
MIXTURE_KEYS = ("draws", "seed")
FIGURES = {
    "dnas_fig1": PaperFigure(
        "smallest attention mass of a key during training, with the bound 1/M",
        DNAS,
        "Figure 1",
        "dnas_training:draw_masses",
        RUN_KEYS,
        trained=("vqa_softmax", "vqa_dnas", "vqa_hnas"),
    ),
    "dnas_fig2": PaperFigure(
        "distance of two cluster centers after one update, by the ratio of their masses",
        DNAS,
        "Figure 2",
        "dnas_centers:draw",
    ),
    "dnas_fig3": PaperFigure(
        "hybrid weight of the fusion of views (visual question answering) during training",
        DNAS,
        "Figure 3",
        "dnas_training:draw_fusion",
        RUN_KEYS,
        trained=("vqa_hnas",),
    ),
    "dnas_fig4": PaperFigure(
        "hybrid weight of each encoder layer (masked language modelling) during training",
        DNAS,
        "Figure 4",
        "dnas_training:draw_layers",
        RUN_KEYS,
        trained=("mlm_hnas",),
    ),
    "dnas_fig5": PaperFigure(
        "two balanced clusters over four updates",
        DNAS,
        "Figure 5",
        "dnas_mixtures:draw",
        MIXTURE_KEYS,
        options={"larger": 50},
    ),
    "dnas_fig6": PaperFigure(
        "two unbalanced clusters over four updates",
        DNAS,
        "Figure 6",
        "dnas_mixtures:draw",
        MIXTURE_KEYS,
        options={"larger": 95},
    ),
    "dnas_sinkhorn": PaperFigure(
        "the same clusters by the number of Sinkhorn iterations (not in the paper)",
        DNAS,
        "after Figures 5 and 6",
        "dnas_mixtures:draw_iterations",
        MIXTURE_KEYS,
    ),
    "fenchel_fig3": PaperFigure(
        "exact and approximate estimates in two dimensions, for several alpha",
        FENCHEL,
        "Figure 3",
        "fenchel_estimates:draw",
    ),
    "fenchel_fig4": PaperFigure(
        "deviation of alpha z from the exact solution, by layer of BERT and T5, or of runs",
        FENCHEL,
        "Figure 4",
        "fenchel_deviation:draw_layers",
        (*RUN_KEYS, *MODEL_KEYS),
        ("bert", "t5"),
    ),
    "fenchel_fig5": PaperFigure(
        "the same head by head: BERT, or a run",
        FENCHEL,
        "Figure 5",
        "fenchel_deviation:draw_heads",
        (*RUN_KEYS, *MODEL_KEYS),
        ("bert",),
    ),
    "fenchel_fig6": PaperFigure(
        "the same head by head: self-attention of T5's encoder",
        FENCHEL,
        "Figure 6",
        "fenchel_deviation:draw_heads",
        MODEL_KEYS,
        ("t5",),
        options={"stack": "encoder"},
    ),
    "fenchel_fig7": PaperFigure(
        "the same head by head: self-attention of T5's decoder",
        FENCHEL,
        "Figure 7",
        "fenchel_deviation:draw_heads",
        MODEL_KEYS,
        ("t5",),
        options={"stack": "decoder"},
    ),
    "fenchel_fig8": PaperFigure(
        "the same head by head: cross-attention of T5's decoder",
        FENCHEL,
        "Figure 8",
        "fenchel_deviation:draw_heads",
        MODEL_KEYS,
        ("t5",),
        options={"stack": "decoder cross"},
    ),
    "fenchel_ot": PaperFigure(
        "attention by optimal transport: groups of templates, and synonyms",
        FENCHEL,
        "Section 9",
        "ot_examples:draw",
    ),
}


def listing() -> str:
    """The names of the figures and what they show."""
    lines = [f"  {name:<15}{figure.shows}" for name, figure in FIGURES.items()]
    return "\n".join(["figures:", *lines, f"  {ALL:<15}all of them"])

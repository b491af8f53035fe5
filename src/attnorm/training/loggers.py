"""Where metrics go: always to metrics.csv in the run folder, and to wandb or TensorBoard on request.

An entry of the group `logger` is any Lightning logger. The methods of `RunLogger` are optional.
"""

import logging
import netrc
import os
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import yaml
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from attnorm.run.writing import RunWriter
from attnorm.schema import Text
from attnorm.settings import leaves

if TYPE_CHECKING:
    import pandas as pd

log = logging.getLogger(__name__)
Samples = list[dict[str, str]]  # texts by label
Curves = Mapping[str, Mapping[int, float]]  # label of a layer -> update -> value
SHOWN = 100  # rows of a table that TensorBoard shows
LARGEST = 10_000  # rows of a table that wandb takes


class MetricsFile(Logger):
    """Lightning's metrics as rows (step, epoch, name, ...) of metrics.csv; a file that is there is continued.

    last_step: the update of the latest row of this process, or 0.
    """

    name, version = "metrics", ""

    def __init__(self, run_folder: Path):
        super().__init__()
        self.table = RunWriter(run_folder).continued(self.name)
        self.last_step = 0

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: run.json records them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """One row for these metrics."""
        self.last_step = step or self.last_step
        self.table.append({"step": step, **{name: value for name, value in metrics.items() if name != "step"}})


class RunLogger(Protocol):
    """What a logger may offer beyond the methods of Lightning's `Logger`.

    Each method is optional and is called only if the logger has it, so that any Lightning logger can be used unchanged.
    """

    def log_samples(self, name: str, samples: Samples, step: int) -> None:
        """Examples with the model's output. name: "validation" during training, "final" for the best model."""

    def log_figure(self, path: Path, step: int) -> None:
        """A PNG file that was drawn when the run ended."""

    def log_charts(self, charts: Sequence[str]) -> None:
        """Names of charts, before the first update. The metrics "<name>/..." are the curves of one chart."""

    def log_curves(self, name: str, curves: Curves, step: int) -> None:
        """The curves of a chart when the run ended: the value at each update, by the label of the layer."""

    def log_predictions(self, name: str, table: "pd.DataFrame", step: int) -> None:
        """The first rows of the table of predictions of the best model (`Predictions.table`). name: of the split."""

    def log_final(self, scores: Mapping[str, float], step: int) -> None:
        """The scores of the best model, named "final/<metric>". A logger without it gets them as metrics."""


def samples_text(samples: Samples) -> str:
    """Samples as text, one line per label and an empty line between two samples."""
    return "\n\n".join("\n".join(f"{label:<10}{line}" for label, line in sample.items()) for sample in samples)


class TensorBoard(TensorBoardLogger):
    """Event files in <run folder>/<entry>, where `entry` is the name of this entry in the group `logger`.

    A run that continues adds a file to those that are there. What they recorded from `first_step` on, after the
    checkpoint, is hidden.
    """

    def __init__(self, run_folder: Path, entry: str = "tensorboard", first_step: int = 0):
        super().__init__(run_folder, name=entry, version="", default_hp_metric=False, purge_step=first_step or None)
        self.first_step = first_step

    @rank_zero_only
    def log_hyperparams(self, params: Any, *args: Any, **kwargs: Any) -> None:
        """The configuration, as text and as hyperparameters named like the keys on the command line."""
        self.hparams: dict[str, Any] = dict(leaves(params))
        text = yaml.safe_dump(params, sort_keys=False, allow_unicode=True)
        self.experiment.add_text("config", code_block(text), self.first_step)
        _, start, _ = self._hparams_summaries()
        self.experiment._get_file_writer().add_summary(start)
        (Path(self.log_dir) / self.NAME_HPARAMS_FILE).unlink(missing_ok=True)  # of a run that was resumed
        self.save()

    @rank_zero_only
    def log_final(self, scores: Mapping[str, float], step: int) -> None:
        """The final scores, also as the metrics that belong to the hyperparameters."""
        self.log_metrics(scores, step)
        experiment, _, end = self._hparams_summaries(scores)
        for summary in (experiment, end):
            self.experiment._get_file_writer().add_summary(summary)

    def _hparams_summaries(self, metrics: Mapping[str, float] | None = None) -> tuple[Any, Any, Any]:
        """The records of the HPARAMS tab: which hyperparameters and metrics there are, start and end of the run.

        TensorBoard reads only the first record of each kind in a folder. The metrics are known at the end, so that the
        record that names them must not be written before.
        """
        from torch.utils.tensorboard.summary import hparams

        return hparams(self._sanitize_params(self.hparams), dict(metrics or {}))

    @rank_zero_only
    def log_samples(self, name: str, samples: Samples, step: int) -> None:
        """Samples as text."""
        self.experiment.add_text(f"samples/{name}", code_block(samples_text(samples)), step)

    @rank_zero_only
    def log_figure(self, path: Path, step: int) -> None:
        """A PNG file as an image."""
        import matplotlib.image

        self.experiment.add_image(f"figures/{path.stem}", matplotlib.image.imread(path), step, dataformats="HWC")

    @rank_zero_only
    def log_charts(self, charts: Sequence[str]) -> None:
        """Charts of the tab CUSTOM SCALARS, each with all metrics whose tag begins with its name."""
        layout = {name.replace("_", " "): {"all layers": ["Multiline", [f"{re.escape(name)}/.*"]]} for name in charts}
        self.experiment.add_custom_scalars(layout)

    @rank_zero_only
    def log_predictions(self, name: str, table: "pd.DataFrame", step: int) -> None:
        """A Markdown table of the first rows, as text."""
        self.experiment.add_text(f"predictions/{name}", markdown_table(table.head(SHOWN)), step)


def markdown_table(table: "pd.DataFrame") -> str:
    """A table in Markdown; numbers have at most four digits."""

    def row(cells: Iterable[object]) -> str:
        texts = (f"{cell:.4g}" if isinstance(cell, float) else str(cell) for cell in cells)
        # a cell ends at `|` and at the end of the line
        escaped = (" ".join(text.split()).replace("\\", "\\\\").replace("|", "\\|") for text in texts)
        return f"| {' | '.join(escaped)} |"

    return "\n".join([row(table.columns), row(["---"] * len(table.columns)), *map(row, table.to_numpy().tolist())])


def code_block(text: str) -> str:
    """Text that TensorBoard's Markdown shows as it is."""
    return "\n".join(f"    {line}" for line in text.splitlines())


class Wandb(WandbLogger):
    """Weights & Biases: one run per run folder, which a resumed run continues.

    entry:          name of this entry in the group `logger`; the id of the run is in <run folder>/<entry>_id.txt.
    project, entity: of wandb. mode: "online" or "offline"; None: online if there is an API key.
    group:          the sweep that the run belongs to.
    """

    def __init__(
        self,
        run_folder: Path,
        run_name: str,
        tags: list[str],
        entry: str = "wandb",
        project: Text = "attnorm",
        entity: Text | None = None,
        mode: Literal["online", "offline"] | None = None,
        group: str | None = None,
    ):
        super().__init__(
            project=project,
            entity=entity,
            id=wandb_id(run_folder / f"{entry}_id.txt"),
            name=run_name,
            tags=tags,
            save_dir=run_folder,
            mode="offline" if mode is None and not has_wandb_key() else mode,
            group=group,
            reinit="create_new",  # otherwise a second entry would log to the run of the first one
        )
        self._wandb_init.pop("anonymous", None)  # wandb warns of it at every run

    @rank_zero_only
    def log_samples(self, name: str, samples: Samples, step: int) -> None:
        """Samples as a table with one column per label."""
        columns = list(dict.fromkeys(label for sample in samples for label in sample))
        rows = [[sample.get(label) for label in columns] for sample in samples]
        self.log_table(f"samples/{name}", columns, rows, step=step)

    @rank_zero_only
    def log_figure(self, path: Path, step: int) -> None:
        """A PNG file as an image."""
        self.log_image(f"figures/{path.stem}", [str(path)], step=step)

    @rank_zero_only
    def log_curves(self, name: str, curves: Curves, step: int) -> None:
        """One chart with a line per layer, drawn when the run ends: wandb draws each metric of a run by itself."""
        import wandb

        points = max(1, LARGEST // len(curves))
        thinned = [thin(sorted(curve.items()), points) for curve in curves.values()]
        chart = wandb.plot.line_series(
            xs=[[update for update, _ in curve] for curve in thinned],
            ys=[[value for _, value in curve] for curve in thinned],
            keys=list(curves),
            title=name.replace("_", " "),
            xname="update",
        )
        self.experiment.log({f"charts/{name}": chart, "trainer/global_step": step})

    @rank_zero_only
    def log_predictions(self, name: str, table: "pd.DataFrame", step: int) -> None:
        """A table of the first rows."""
        self.log_table(f"predictions/{name}", dataframe=table.head(LARGEST), step=step)

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Closes the run; otherwise it would stay open during the next run of a sweep."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=int(status != "success"))


def thin(points: Sequence[tuple[int, float]], most: int) -> Sequence[tuple[int, float]]:
    """At most `most` of the points, evenly spaced, with the first and the last one."""
    if len(points) <= most:
        return points
    return [points[round(index * (len(points) - 1) / max(1, most - 1))] for index in range(most)]


def wandb_id(file: Path) -> str:
    """The id in a file, otherwise a new one, which is written at once, before wandb starts, so that a run that is
    killed can be resumed."""
    if not file.exists():
        file.write_text(f"{secrets.token_hex(4)}\n")
    return file.read_text().strip()


def has_wandb_key() -> bool:
    """Whether wandb can log in without asking. Online and without a key, it would wait forever."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False

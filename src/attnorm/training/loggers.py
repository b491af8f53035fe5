"""metrics.csv, which every run writes, and the logger for Weights & Biases. Any other is one of Lightning's."""

import netrc
import os
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from attnorm.run.writing import RunWriter
from attnorm.schema import Text

Samples = list[dict[str, str]]  # texts by label
Curves = Mapping[str, Mapping[int, float]]  # label of a layer -> update -> value
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


def samples_text(samples: Samples) -> str:
    """Samples as text, one line per label and an empty line between two samples."""
    return "\n\n".join("\n".join(f"{label:<10}{line}" for label, line in sample.items()) for sample in samples)


def log_samples(logger: Any, name: str, samples: Samples, step: int) -> None:
    """Samples as a table with one column per label, if the logger has tables, as Lightning's `WandbLogger`.

    name: "validation" during training, "final" for the best model.
    """
    if samples and hasattr(logger, "log_table"):
        columns = list(dict.fromkeys(label for sample in samples for label in sample))
        rows = [[sample.get(label) for label in columns] for sample in samples]
        logger.log_table(f"samples/{name}", columns, rows, step=step)


class Wandb(WandbLogger):
    """Lightning's logger for Weights & Biases: one run per run folder, which a resumed run continues.

    entry:           name of this entry in the group `logger`; the id of the run is in <run folder>/<entry>_id.txt.
    project, entity: of wandb. mode: "online" or "offline"; None: online if there is an API key.
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
    ):
        file = run_folder / f"{entry}_id.txt"
        if not file.exists():  # before wandb starts, so that a run that is killed can be resumed
            file.write_text(f"{secrets.token_hex(4)}\n")
        super().__init__(
            project=project,
            entity=entity,
            id=file.read_text().strip(),
            name=run_name,
            tags=tags,
            save_dir=run_folder,
            mode="offline" if mode is None and not has_wandb_key() else mode,
            reinit="create_new",  # otherwise a second entry would log to the run of the first one
        )
        self._wandb_init.pop("anonymous", None)  # wandb warns of it at every run

    @rank_zero_only
    def log_curves(self, name: str, curves: Curves, step: int) -> None:
        """One chart with a line per layer, when the run ends: wandb draws each metric of a run by itself."""
        import wandb

        thinned = [sorted(curve.items())[:: -(-len(curve) * len(curves) // LARGEST)] for curve in curves.values()]
        xs, ys = ([[point[axis] for point in curve] for curve in thinned] for axis in (0, 1))
        title = name.replace("_", " ")
        chart = wandb.plot.line_series(xs=xs, ys=ys, keys=list(curves), title=title, xname="update")
        self.experiment.log({f"charts/{name}": chart, "trainer/global_step": step})

    @rank_zero_only
    def finalize(self, status: str) -> None:
        """Closes the run; otherwise it would stay open during the next run of a sweep."""
        super().finalize(status)
        if self._experiment is not None:
            self._experiment.finish(exit_code=int(status != "success"))


def has_wandb_key() -> bool:
    """Whether wandb can log in without asking. Online and without a key, it would wait forever."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False

"""Where metrics go: always to metrics.csv in the run folder, and to wandb or TensorBoard on request."""

import csv
import netrc
import os
import secrets
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Literal

from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from attnorm.config.components import build_components
from attnorm.config.resolve import leaves
from attnorm.schema import Text
from attnorm.training.environment import is_first_rank


class CsvTable:
    """A CSV file that is only ever appended to, except when a new column appears."""

    def __init__(self, path: Path):
        self.path = path
        self.columns: list[str] = []

    def append(self, row: dict) -> None:
        """Adds a row; a key not seen before becomes a column, empty in the rows above."""
        if not self.columns and self.path.exists():
            with open(self.path, newline="") as file:
                self.columns = next(csv.reader(file), [])
        new = [key for key in row if key not in self.columns]
        if new:
            rows = read_csv(self.path) if self.path.exists() else []
            self.columns += new
            self._write(rows)
        with open(self.path, "a", newline="") as file:
            csv.DictWriter(file, self.columns).writerow(row)

    def _write(self, rows: list[dict]) -> None:
        unfinished = self.path.with_suffix(".unfinished")
        with open(unfinished, "w", newline="") as file:
            writer = csv.DictWriter(file, self.columns)
            writer.writeheader()
            writer.writerows(rows)
        os.replace(unfinished, self.path)


def read_csv(path: Path) -> list[dict[str, str]]:
    """The rows of a CSV file with a header, every value as text."""
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def continue_history(old_run: Path, run: Path, step: int, names: tuple[str, ...]) -> None:
    """Starts the CSV files of a resumed run with what the old run recorded up to `step`, so that curves are whole."""
    for name in names:
        if (old_run / name).exists():
            rows = [row for row in read_csv(old_run / name) if int(row["step"]) <= step]
            (run / name).unlink(missing_ok=True)  # the same folder: drop what lies behind the checkpoint
            table = CsvTable(run / name)
            for row in rows:
                table.append(row)


class MetricsFile(Logger):
    """Lightning's metrics as rows (step, epoch, name, ...) of metrics.csv; a file that is there is continued."""

    def __init__(self, path: Path):
        super().__init__()
        self.table = CsvTable(path)

    @property
    def name(self) -> str:
        return "metrics"

    @property
    def version(self) -> str:
        return ""

    @rank_zero_only
    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        """Nothing: config.yaml records them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """One row for these metrics."""
        self.table.append({"step": step, **{name: value for name, value in metrics.items() if name != "step"}})


class TensorBoard(TensorBoardLogger):
    """Event files in <run folder>/tensorboard, with the configuration as text and as hyperparameters."""

    def __init__(self, run_folder: Path):
        super().__init__(run_folder, name="tensorboard", version="", default_hp_metric=False)

    def log_figure(self, path: Path, step: int) -> None:
        """A PNG file as an image."""
        import matplotlib.image

        self.experiment.add_image(f"figures/{path.stem}", matplotlib.image.imread(path), step, dataformats="HWC")


class Wandb(WandbLogger):
    """Weights & Biases: one run per run folder, also after it was resumed.

    project, entity: of wandb. mode: "online" or "offline"; None: online if there is an API key.
    group: the sweep that the run belongs to.
    """

    def __init__(
        self,
        run_folder: Path,
        run_name: str,
        tags: list[str],
        config: dict[str, Any],
        project: Text = "attnorm",
        entity: Text | None = None,
        mode: Literal["online", "offline"] | None = None,
        group: str | None = None,
    ):
        id_file = run_folder / "wandb_id.txt"  # written before anything starts, so that a resumed run finds it
        if not id_file.exists():
            id_file.write_text(secrets.token_hex(4) + "\n")
        super().__init__(
            project=project,
            entity=entity,
            id=id_file.read_text().strip(),
            name=run_name,
            tags=tags,
            config=config,
            save_dir=run_folder,
            offline=mode == "offline" or (mode is None and not has_wandb_key()),
            group=group,
        )

    def log_figure(self, path: Path, step: int) -> None:
        """A PNG file as an image."""
        self.log_image(f"figures/{path.stem}", [str(path)], step=None)

    def finalize(self, status: str) -> None:
        """Closes the run; otherwise it would go on into the next run of a sweep."""
        import wandb

        super().finalize(status)
        wandb.finish(exit_code=int(status != "success"))


def has_wandb_key() -> bool:
    """Whether wandb could log in without asking: online without a key it would wait for ever."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


class RunLoggers:
    """metrics.csv and the loggers of the group `logger`, closed when this context ends.

    Before that the figures of the run are drawn and sent, whether the run ended well or not.
    """

    def __init__(
        self,
        cfg: dict[str, Any],
        run_folder: Path,
        label: str,
        group: str | None = None,
        draw: Callable[[Path], list[Path]] | None = None,
    ):
        self.cfg, self.run_folder, self.label, self.group, self.draw = cfg, run_folder, label, group, draw
        self.all: list[Logger] = []
        self.step = 0

    def open(self) -> list[Logger]:
        """Starts the loggers, on the first rank; the other ranks have none."""
        if is_first_rank():
            facts = {
                "run_folder": self.run_folder,
                "save_dir": self.run_folder,
                "run_name": f"{self.cfg['task']['name']} {self.label} seed {self.cfg['seed']}",
                "tags": self.cfg["tags"],
                "config": self.cfg,
                "group": self.group,
            }
            self.all = [MetricsFile(self.run_folder / "metrics.csv"), *build_components(self.cfg, "logger", **facts)]
            for logger in self.all:
                logger.log_hyperparams(dict(leaves(self.cfg)))
        return self.all

    def __enter__(self) -> "RunLoggers":
        return self

    def __exit__(self, kind: type | None, *_: object) -> None:
        if not is_first_rank():
            return
        figures = self.draw(self.run_folder) if self.draw else []
        for logger in self.all:
            for path in figures:
                if hasattr(logger, "log_figure"):
                    logger.log_figure(path, self.step)
            logger.finalize("success" if kind is None else "failed")

    def log_final(self, summary: Mapping[str, Any]) -> None:
        """The final scores and samples, to every logger but metrics.csv."""
        self.step = summary["steps"]
        metrics = {f"final/{name}": value for name, value in summary["validation"]["metrics"].items()}
        for logger in self.all[1:]:
            logger.log_metrics(metrics, self.step)

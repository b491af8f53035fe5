"""Where metrics go: always to metrics.csv in the run folder, and to wandb or TensorBoard on request."""

import csv
import netrc
import os
import secrets
from pathlib import Path

from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only


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
    def log_hyperparams(self, *args, **kwargs) -> None:
        """Nothing: config.yaml records them."""

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        """One row for these metrics."""
        self.table.append({"step": step, **{name: value for name, value in metrics.items() if name != "step"}})


def build_loggers(cfg: dict, run: Path, label: str) -> list[Logger]:
    """metrics.csv, then the logger that `logger=` names."""
    loggers: list[Logger] = [MetricsFile(run / "metrics.csv")]
    settings = cfg["logger"]
    if settings["name"] == "tensorboard":
        from pytorch_lightning.loggers import TensorBoardLogger

        loggers.append(TensorBoardLogger(run, name="tensorboard", version=""))
    elif settings["name"] == "wandb":
        loggers.append(_wandb(cfg, run, label))
    return loggers


def _wandb(cfg: dict, run: Path, label: str) -> Logger:
    from pytorch_lightning.loggers import WandbLogger

    settings = cfg["logger"]
    id_file = run / "wandb_id.txt"  # chosen by us and written before anything starts: a resumed run finds it
    if not id_file.exists():
        id_file.write_text(secrets.token_hex(4) + "\n")
    offline = settings["mode"] == "offline" or (settings["mode"] is None and not has_wandb_key())
    return WandbLogger(
        project=settings["project"],
        entity=settings["entity"],
        id=id_file.read_text().strip(),
        name=f"{cfg['task']['name']} {label} seed {cfg['seed']}",
        tags=cfg["tags"],
        config=cfg,
        save_dir=run,
        offline=offline,
    )


def has_wandb_key() -> bool:
    """Whether wandb could log in without asking: online without a key it would wait for ever."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    try:
        return netrc.netrc().authenticators("api.wandb.ai") is not None
    except (OSError, netrc.NetrcParseError):
        return False


def finish_loggers(loggers: list[Logger], failed: bool) -> None:
    """Closes them; wandb would otherwise go on into the next run of a sweep."""
    for logger in loggers:
        logger.finalize("failed" if failed else "success")
        if type(logger).__name__ == "WandbLogger":
            import wandb

            wandb.finish(exit_code=int(failed))

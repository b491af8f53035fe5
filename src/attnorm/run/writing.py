"""What is written into a run folder."""

import logging
import shutil
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from attnorm.errors import RunError
from attnorm.files import write_bytes, write_json
from attnorm.run.checkpoint import (
    LAST,
    LOGGED,
    best_checkpoints,
    naming_the_reason,
    read_checkpoint,
    replace_by_copy,
    restore_best,
    sweep_unfinished,
)
from attnorm.run.csv_files import CsvTable, cut_history
from attnorm.run.folder import CONFIG, CURVES, EVENTS, LOCK, LOG, check_links
from attnorm.run.record import FORMAT, changes, modules_in, run_key
from attnorm.run.run import Run
from attnorm.source_code import edited_modules, own_modules

if TYPE_CHECKING:
    from attnorm.settings import Settings
    from attnorm.tasks.results import Results

log = logging.getLogger(__name__)
MEANINGS = ("sentencepiece.model", "tokenizer.json", "answers.json")  # they give ids their meaning
COPIED = (*MEANINGS, "*.csv", "*_id.txt", "*/events.out.tfevents.*")  # the last are those of wandb and TensorBoard


class RunWriter(Run):
    """A run folder into which this process writes. Files are replaced as a whole, and CSV files continued.

    Raises RunError for a folder with links, see `check_links`.
    """

    def __init__(self, folder: str | Path):
        super().__init__(folder)
        check_links(self.folder)

    @property
    def log_file(self) -> Path:
        """Where the messages of its process go."""
        return self.folder / LOG

    def claim(self) -> bool:
        """Creates config.yaml in the folder, which may have something in it; False if another run has done so, or if it
        is the folder of a sweep. Raises RunError for the folder of a run that has lost this file."""
        if (self.folder / EVENTS).exists():
            return False
        of_run = (self.record_file, self.checkpoint_file(LAST), *(self.folder / name for name in CURVES))
        if not self.config_file.exists() and any(path.exists() for path in of_run):
            raise RunError(f"{self.folder}: has files of a run, but no {CONFIG}; type another hydra.run.dir")
        self.folder.mkdir(parents=True, exist_ok=True)
        try:
            self.config_file.touch(exist_ok=False)
        except FileExistsError:
            return False
        return True

    def release(self) -> None:
        """Takes `claim` back, for a run that has written nothing. Its folder stays if others have put something in."""
        for path in (self.config_file, self.folder / LOCK):
            path.unlink(missing_ok=True)
        with suppress(OSError):
            self.folder.rmdir()

    def start(self, cfg: "Settings", **entries: Any) -> None:
        """Writes run.json and config.yaml. entries: further ones of run.json.

        A new run that starts from `ckpt_path` gets its copies before that, so that a run with recorded settings has
        them all. What changes in a run that continues the training of a checkpoint is added to the list `resumed`.
        """
        self.claim()
        self.before, self.started = dict[str, Any](), dict[str, Any]()
        if cfg.checkpoint is not None:
            source = self if cfg.continues else Run.of_checkpoint(cfg.checkpoint)
            self.before = source.recorded if source.exists else {}
        if cfg.continues and cfg.checkpoint is None:  # it starts again, without what it wrote before
            for path in self.folder.glob("*.csv"):
                path.unlink()
        elif cfg.checkpoint is not None and not cfg.continues:
            self._copy(cfg.checkpoint)
        if on_disk := edited_modules():
            changed = f"{', '.join(on_disk)} changed on disk since it was imported"
            log.warning("%s: the run uses what was imported; start Python again to use the file", changed)
        modules, before = own_modules(), modules_in(self.before)
        edited = [name for name, digest in modules.items() if before.get(name, [digest]) != [digest]]
        if edited and cfg.checkpoint and not read_checkpoint(cfg.checkpoint)["global_step"]:  # nothing has been trained
            self.before, edited = {}, []
        for name in edited:
            versions = " and ".join(dict.fromkeys([*before[name], modules[name]]))
            log.warning("%s was edited since training started: the run mixes %s", name, versions)
        settings = {**cfg.settings, "resume": None}
        self.add(format=FORMAT, settings=settings, key=run_key(settings), **entries, modules=modules)
        in_yaml = yaml.safe_dump(settings, sort_keys=False, allow_unicode=True)
        write_bytes(self.config_file, in_yaml.encode(errors="backslashreplace"))
        sweep_unfinished(self.checkpoints)

    def add(self, **entries: Any) -> None:
        """Adds entries to run.json, or replaces them."""
        self.started |= entries
        if self.before:
            changed = [changes(self.before, self.started)]
            self.started["resumed"] = [*self.before.get("resumed", []), *changed]
        write_json(self.record_file, self.started)

    def _copy(self, checkpoint: Path) -> None:
        """Copies what continuing from a checkpoint needs: from its run folder, the tokenizer and what callbacks and
        loggers continue (COPIED); the best checkpoints beside it; and at last itself, as last.ckpt."""
        other = Run.of_checkpoint(checkpoint)
        patterns = COPIED if other.config_file.is_file() or other.exists else ()  # not those of any other folder
        for path in (path for pattern in patterns for path in other.folder.glob(pattern)):
            copy = self.folder / path.relative_to(other.folder)
            copy.parent.mkdir(exist_ok=True)
            shutil.copyfile(path, copy)
        self.checkpoints.mkdir(exist_ok=True)
        for path in best_checkpoints(checkpoint.parent):
            replace_by_copy(path, self.checkpoints / path.name)
        replace_by_copy(checkpoint, self.checkpoint_file(LAST))

    def rewind(self, checkpoint: Path) -> None:
        """Takes the folder back to the update of one of its checkpoints: its curves, last.ckpt, and the best ones.

        The run then has the right last.ckpt before it saves one, and also if it has no update left to make.
        """
        content, last = read_checkpoint(checkpoint), self.checkpoint_file(LAST)
        scalars = [f"{name}.csv" for name in self.learned_scalars]
        cut_history([self.folder / name for name in (*CURVES, *scalars)], content["global_step"])
        if row := content.get(LOGGED):
            with naming_the_reason(checkpoint):
                named = [name for name in row if name != "step"]
                logged = (other for other in self.rows() if int(other["step"]) == row["step"])
                if named and not any(other.get(named[0]) for other in logged):
                    self.continued("metrics").append(row)  # it was killed before it could log this update
        if checkpoint != last:
            replace_by_copy(checkpoint, last)
        with naming_the_reason(checkpoint):
            restore_best(self.checkpoints, content)

    def write(self, stem: str, content: dict[str, Any]) -> None:
        """Writes <stem>.json.

        Raises RunError if the folder has been moved or removed while its run was going: to write would make a second
        folder, which has no settings and cannot be resumed.
        """
        if not self.folder.is_dir():
            raise RunError(
                f"{self.folder}: was moved or removed while its run was going, so the run has ended; to continue it "
                "where it was saved last: attnorm train resume=<the moved folder>"
            )
        write_json(self.folder / f"{stem}.json", content)

    def continued(self, stem: str) -> CsvTable:
        """The CSV file <stem>.csv, to which rows are appended."""
        return CsvTable(self.folder / f"{stem}.csv")

    def write_results(self, results: "Results", stem: str, inner: str = "") -> list[str]:
        """Writes the outputs of a model into the folder, or an inner one, and the table of its examples. Returns the
        names of the files."""
        written = results.write(self.folder / inner, stem)
        if results.predictions is not None:
            path = self.predictions_file(stem)
            results.predictions.write(path)
            written.append(str(path.relative_to(self.folder)))
        return written

    def free_name(self, stem: str) -> str:
        """`stem`, or `stem_2`, `stem_3`, ...: an earlier evaluation is not overwritten."""
        names = (f"{stem}_{number}" if number > 1 else stem for number in count(1))
        return next(name for name in names if not (self.folder / f"{name}.json").exists())

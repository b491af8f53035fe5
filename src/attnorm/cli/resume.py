"""`resume=<run folder>` and `resume=auto`: continuing a run in its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnorm.config.run_state import RunState, is_running, read_json, state_of
from attnorm.errors import RunError
from attnorm.resolved import ResolvedConfig


def resume_in(folder: Path, conf: Path, arguments: list[str]) -> int:
    """Continues the run in a folder with its recorded configuration. Returns the exit code.

    A finished run is left alone, unless settings are changed, for example to make it longer.

    arguments: of the command, as `arguments.readable` returns them. They may change some settings.
    """
    from attnorm.cli.train import check_settings, start
    from attnorm.config.resume_run import newest_good, recorded_settings
    from attnorm.training.console import quiet_libraries

    quiet_libraries()
    settings, changes = recorded_settings(folder, arguments, conf)
    if is_running(folder):
        raise RunError(f"resume={folder}: this run is still going")
    if state_of(folder) == RunState.FINISHED and not changes:
        print(f"resume={folder}: this run is finished")
        return 0
    settings["ckpt_path"] = text(newest_good(folder)) or settings["ckpt_path"]
    overrides = [*(read_json(folder / "environment.json").get("overrides") or []), *changes]
    start(check_settings(settings, overrides=changes), folder, overrides)
    return 0


def continued(cfg: ResolvedConfig) -> Mapping[str, Any]:
    """The settings `resume` and `ckpt_path` with which `resume=auto` continues; none of them for a new run."""
    from attnorm.config.resume_run import newest_good, newest_unfinished

    if (folder := newest_unfinished(cfg, cfg.label)) is None:
        print("resume=auto: there is no unfinished run with these settings, so a new one starts", flush=True)
        return {}
    print(f"resume=auto: continuing {folder}", flush=True)
    return {"resume": str(folder), "ckpt_path": text(newest_good(folder)) or cfg["ckpt_path"]}


def text(path: Path | None) -> str | None:
    """A path as the configuration has it."""
    return None if path is None else str(path)

"""`resume=<run folder>` and `resume=auto`: continuing a run in its folder."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attnorm.cli.errors import to_the_end
from attnorm.errors import RunError
from attnorm.resolved import ResolvedConfig
from attnorm.run.state import RunState, is_running, read_json, state_of

FINISHED = "finished"


@to_the_end()
def resume_in(folder: Path, conf: Path, arguments: list[str]) -> int:
    """Continues the run in a folder with its recorded configuration. Returns the exit code.

    A finished run is left alone, unless settings are changed, for example to make it longer.

    arguments: of the command, as `arguments.readable` returns them. They may change some settings.
    """
    from attnorm.cli.train import check_settings, start
    from attnorm.config.resume import recorded_settings
    from attnorm.progress import quiet_libraries
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    quiet_libraries()
    settings, changes = recorded_settings(folder, arguments, conf)
    checkpoint = decided_by_first("checkpoint", lambda: checkpoint_of(folder, settings, bool(changes)))
    if checkpoint == FINISHED:
        if is_first_rank():
            print(f"resume={folder}: this run is finished")
        return 0
    settings["ckpt_path"] = checkpoint or None
    overrides = [*(read_json(folder / "environment.json").get("overrides") or []), *changes]
    start(check_settings(settings, changes), folder, overrides)
    return 0


def checkpoint_of(folder: Path, settings: Mapping[str, Any], is_changed: bool) -> str:
    """The checkpoint from which a run continues, "" to start from the beginning, or FINISHED.

    Raises RunError if the run is still going.
    """
    from attnorm.run.resume import newest_good

    if is_running(folder):
        raise RunError(f"resume={folder}: this run is still going")
    if state_of(folder) == RunState.FINISHED and not is_changed:
        return FINISHED
    return str(newest_good(folder) or settings["ckpt_path"] or "")


def continued(config: ResolvedConfig) -> Mapping[str, Any]:
    """The settings `resume` and `ckpt_path` with which `resume=auto` continues; none of them for a new run."""
    from attnorm.run.resume import newest_unfinished
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    folder = decided_by_first("resumed_run", lambda: str(newest_unfinished(config) or ""))
    if is_first_rank():
        none = "there is no unfinished run with these settings, so a new one starts"
        print(f"resume=auto: {f'continuing {folder}' if folder else none}", flush=True)
    if not folder:
        return {}
    checkpoint = decided_by_first("checkpoint", lambda: checkpoint_of(Path(folder), config.settings, is_changed=False))
    return {"resume": folder, "ckpt_path": checkpoint or None}

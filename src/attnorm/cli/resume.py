"""`resume=<run folder>`: continuing a run in its folder."""

from pathlib import Path

from attnorm.cli.errors import to_the_end
from attnorm.cli.start import check_settings, checkpoint_of, start
from attnorm.run.folder import RunState
from attnorm.run.run import Run


@to_the_end()
def resume_in(folder: Path, arguments: list[str]) -> int:
    """Continues the run in a folder with its recorded configuration. Returns the exit code.

    A finished run is left alone, unless settings are changed, for example to make it longer.

    arguments: of the command, as `arguments.readable` returns them. They may change some settings.
    """
    from attnorm.progress import quiet_libraries
    from attnorm.spec.resume import recorded_settings
    from attnorm.training.environment import is_first_rank
    from attnorm.training.rendezvous import decided_by_first

    quiet_libraries()
    run = Run(folder)
    settings, changes = recorded_settings(folder, arguments, is_first=is_first_rank())
    if decided_by_first("state", lambda: run.state) == RunState.FINISHED and not changes:
        if is_first_rank():
            print(f"resume={folder}: this run is finished")
        return 0
    checkpoint = checkpoint_of(folder)
    overrides = [*(run.environment.get("overrides") or []), *changes]
    start(check_settings(settings, changes, checkpoint), folder, overrides)
    return 0

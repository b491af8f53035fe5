"""The process of one job: its command, and the lock that it holds while it lives.

The lock is taken before the process starts. The process inherits the open file and thereby holds the lock from its
first to its last moment, also while it imports its libraries, and also after the sweep that started it was killed.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from attnorm.config.compose import quoted
from attnorm.errors import RunError
from attnorm.run.folder import FURTHER, TUNE, FolderLock, RunState, typed_follow_links
from attnorm.run.trust import in_need_of_trust
from attnorm.sweeps.forkserver import Forked, ForkServer
from attnorm.sweeps.jobs import Job

LOOK = 0.1  # seconds between two looks at a process
# Hidden from the jobs of a sweep in SLURM: otherwise a job would requeue the sweep, and Lightning would join processes.
HIDDEN_FROM_JOBS: dict[str, str | None] = {
    **dict.fromkeys(("SLURM_JOB_ID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID")),
    "SLURM_JOB_NAME": "bash",
}
TRAIN = (sys.executable, "-P", "-m", "attnorm", "train")  # -P: the working directory is not searched


def command_of(job: Job, program: Sequence[str] = TRAIN) -> list[str]:
    """The command that runs a job: from the start, or from where it was stopped if the run has been started before."""
    is_plain = all(character.isalnum() or character in "/._-+" for character in str(job.folder))
    folder = str(job.folder) if is_plain else quoted(str(job.folder))
    arguments = [*job.overrides, f"hydra.run.dir={folder}"]
    if job.run.state.is_unfinished:
        arguments = [f"resume={folder}"]
        with suppress(RunError):  # the run says what is wrong with its folder, which may come from anyone
            if in_need_of_trust(job.run.config) <= {*job.named}:  # it names only what the sweep was given
                arguments.append("trust_code=true")
    return [*program, *arguments, *typed_follow_links()]


def environment_of(job: Job, changes: Mapping[str, str | None]) -> dict[str, str]:
    """The environment variables of a job. changes: to those of the sweep; None removes one."""
    sweep = job.folder.resolve().parents[1 if job.purpose in (TUNE, FURTHER) else 0]
    group = {"WANDB_RUN_GROUP": sweep.name}  # read by wandb: the runs of a sweep are one group
    hidden = HIDDEN_FROM_JOBS if "SLURM_JOB_ID" in os.environ else {}
    variables = {**os.environ, **group, **hidden, **changes}
    return {name: value for name, value in variables.items() if value is not None}


def start_process(
    job: Job,
    command: Sequence[str],
    lock: FolderLock,
    env: Mapping[str, str | None],
    cores: Collection[int] = (),
    server: ForkServer | None = None,
) -> subprocess.Popen | Forked:
    """Starts the process of a job, whose lock is held; the lock is then held by the process alone.

    Its output is appended to console.log in the run folder. It is the leader of a session of its own, so that Ctrl-C
    in a terminal reaches the sweep alone. env: changes to the environment variables of the sweep. cores: those that it
    uses. server: that of this environment, which forks the process if it can.
    """
    assert lock.descriptor is not None
    run = job.run
    if not run.exists:
        run.config_file.unlink(missing_ok=True)  # of a run that was killed before it recorded its settings
    process: subprocess.Popen | Forked | None = None
    with open(run.console, "ab") as console:
        if server is not None:
            process = server.start(command[len(TRAIN) :], cores, lock.descriptor, console.fileno())
        if process is None:
            process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=console,
                stderr=subprocess.STDOUT,
                env=environment_of(job, env),
                start_new_session=True,
                pass_fds=[lock.descriptor],
            )
            with suppress(OSError):
                os.sched_setaffinity(process.pid, cores)
    lock.release()
    return process


def shell_code(returncode: int) -> int:
    """The exit code as a shell has it: 128 plus the number of the signal that ended the process."""
    return returncode if returncode >= 0 else 128 - returncode


@dataclass
class Remote:
    """Runs a job on whatever machine it is called; what SLURM and Ray execute.

    A job that was submitted twice still runs once: the second call waits for the lock of the first, and then finds
    that there is nothing left to do.

    cwd: the folder that relative paths refer to. process: that of the run, once it has started.
    """

    job: Job
    program: Sequence[str]
    cwd: str
    env: Mapping[str, str | None]
    process: subprocess.Popen | None = field(default=None, init=False)

    def __call__(self) -> int:
        """Runs the job to its end and returns its exit code. A KeyboardInterrupt stops the run, which saves first."""
        os.chdir(self.cwd)
        lock = self.job.run.job_lock
        while not lock.acquire(patience=60.0):
            pass
        if self.job.run.state is RunState.FINISHED:
            lock.release()
            return 0
        process = start_process(self.job, command_of(self.job, self.program), lock, self.env)
        assert isinstance(process, subprocess.Popen)  # without a server
        self.process = process
        try:
            while process.poll() is None:
                time.sleep(LOOK)  # Ray raises KeyboardInterrupt between two statements; it does not end process.wait()
            return shell_code(process.returncode)
        except KeyboardInterrupt:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            return shell_code(process.wait())

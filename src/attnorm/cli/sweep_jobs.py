"""The jobs of a sweep: which are checked beforehand, what is wrong with them, and their folders."""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from attnorm.cli.check_jobs import Checked
from attnorm.cli.read_sweep import SweepCommand
from attnorm.errors import ConfigError, Problem, RunError, UserError
from attnorm.progress import console
from attnorm.run.folder import RunState
from attnorm.run.key import NOT_PART
from attnorm.source_code import recorded
from attnorm.sweeps.jobs import Job, expand, job_folder, label_of, name_of, override_key
from attnorm.sweeps.record import SweepRecord
from attnorm.sweeps.state import Journal
from attnorm.wording import counted

NAMED_JOBS = 3  # jobs that the message on a problem names
Overrides = tuple[str, ...]


def sample_jobs(command: SweepCommand) -> list[Overrides]:
    """The jobs that are checked before the first one starts: all of a grid. Of a search, one for each choice and for
    both ends of each interval, with the first value of the other keys. Of a sweep that tunes, all that tune, and the
    comparison at the first value."""
    if command.tuning is not None:
        tuning, arms = command.tuning, command.arms()
        pairs = [(value, seed) for value in tuning.values for seed in tuning.seeds]
        pairs += [(tuning.values[0], seed) for seed in tuning.compare]
        return [tuned(arm, tuning.key, *pair) for arm in arms for pair in pairs]
    if not command.settings.is_search:
        return expand(command.overrides)
    space = dimensions(command)
    first = {it.key: it.extremes()[0] for it in space}
    varied = [first] + [{**first, it.key: value} for it in space for value in it.extremes()[1:]]
    return [with_values(command, values) for values in varied]


def tuned(arm: Overrides, key: str, value: str, seed: str) -> Overrides:
    """The overrides of a job of an arm, with a value of what is tuned."""
    return (*arm, f"++{key}={value}", f"++seed={seed}")


def with_updates(overrides: Overrides, updates: int | None) -> Overrides:
    """The overrides of a job with its number of updates, or as they are."""
    others = tuple(it for it in overrides if override_key(it) != "trainer.max_steps")
    return overrides if updates is None else (*others, f"++trainer.max_steps={updates}")


def refuse_other_budget(folder: Path, journal: Journal, jobs: Iterable[Overrides]) -> None:
    """Makes sure that no arm is compared at two budgets: the sweep has no run that is one of these jobs with another
    number of updates. Such jobs that have not started are set aside.

    Raises ConfigError for one that has started.
    """

    def split(overrides: Overrides) -> tuple[frozenset[str], str]:
        updates = [it.lstrip("+") for it in overrides if override_key(it) == "trainer.max_steps"]
        others = [it for it in overrides if override_key(it).partition(".")[0] not in NOT_PART]
        return frozenset(it for it in others if override_key(it) != "trainer.max_steps"), "".join(updates)

    planned = dict(map(split, jobs))
    for job in journal.jobs():
        plain, updates = split(job.overrides)
        if job.purpose or planned.get(plain, updates) == updates:
            continue
        if job.folder.exists():
            now = f"{planned[plain]} now, and {job.name} has {updates or 'another number of updates'}"
            raise ConfigError([Problem("dir", f"cost pays for {now}; choose another dir, or remove the runs", folder)])
        journal.add("aside", job.name)


def refuse_other_code(journal: Journal, facts: Iterable[Checked]) -> None:
    """Raises RunError if a run of the sweep was trained with another version of an own module than jobs import now."""
    now = {name: digest for checked in facts for name, digest in checked.modules.items()}
    for job in journal.jobs():
        run = job.run
        if run.state is not RunState.FINISHED and not run.progress.get("step"):
            continue
        for name, digests in recorded(run.environment.get("modules")).items():
            for digest in digests:
                if name in now and digest != now[name]:
                    raise RunError(
                        f"{name} was edited, and results of different versions are not mixed: {job.folder} was trained "
                        f"with the version {digest}, and the file is {now[name]} now (SHA-256). To continue, put the "
                        "earlier version back; to train all runs with the new one, type dir=<another folder>"
                    )


def arm_of(command: SweepCommand, overrides: Overrides) -> Overrides:
    """The overrides of the arm of a job: without its seed, what is tuned, and the updates that its budget pays for."""
    tuned_key = [command.tuning.key] if command.tuning else []
    varied = ["seed", *tuned_key, *(["trainer.max_steps"] if command.settings.cost != "updates" else [])]
    return tuple(override for override in overrides if override_key(override) not in varied)


def dimensions(command: SweepCommand) -> list:
    """The keys that a search varies. Raises ConfigError if Optuna is missing."""
    try:
        from attnorm.sweeps.search import Dimension
    except ImportError as error:
        if error.name != "optuna":
            raise
        message = "needs the package optuna; install it with: pip install optuna"
        raise ConfigError([Problem("search", message, command.settings.search)]) from error
    return [Dimension(override) for override in command.space]


def with_values(command: SweepCommand, values: Mapping[str, str]) -> Overrides:
    """The overrides of a job, given those of the searched keys."""
    keys = [override.get_key_element() for override in command.overrides]
    return tuple(values.get(key, it.input_line or "") for key, it in zip(keys, command.overrides, strict=True))


def problems_of(command: SweepCommand, jobs: Sequence[Overrides], facts: Sequence[Checked]) -> list[Problem]:
    """The problems of all jobs: each once, with the jobs that have it."""
    found: dict[tuple[str, str], list[str]] = {}
    local, cost = command.settings.launcher == "local", command.settings.cost
    for job, checked in zip(jobs, facts, strict=True):
        there = checked.problems if checked.problems else device_problems(checked, local)
        for key, text in there or without_updates(checked, cost):
            found.setdefault((key, text), []).append(label_of(job, command.space))
    problems = []
    for (key, text), labels in found.items():
        more = f" and {len(labels) - NAMED_JOBS} more" if len(labels) > NAMED_JOBS else ""
        where = "" if len(labels) == len(jobs) else f" (in {'; '.join(labels[:NAMED_JOBS])}{more})"
        problems.append(Problem.about(key, f"{text}{where}"))
    return problems


def without_updates(checked: Checked, cost: str) -> list[tuple[str, str]]:
    """Why the updates of a job cannot be set so that they spend a budget."""
    if cost == "updates" or checked.max_steps is not None:
        return []
    message = "needs a number of updates, task.max_steps or trainer.max_steps, without max_epochs and fast_dev_run"
    return [("cost", f"cost={cost}: {message}")]


def values_to_try(folder: Path, record: SweepRecord) -> list[tuple[int, str]]:
    """The numbers of arms and their further values to train, for verdicts that would be shown at the best values."""
    from attnorm.analysis.further import further_values

    record.write(record.results())  # which runs compare
    try:
        choices = further_values(folder)
    except UserError as error:  # as long as arms cannot be compared, no verdict depends on further values
        console.print(f"no further values: {' '.join(str(error).splitlines())}", markup=False)
        return []
    if choices:
        console.print(f"verdicts depend on {counted(len(choices), 'further value')}, which are trained now")
    return choices


def device_problems(checked: Checked, local: bool) -> list[tuple[str, str]]:
    """What keeps a sweep from giving a job the devices that it asks for."""
    key, devices, there = "trainer.devices", checked.devices, len(checked.gpus)
    if checked.nodes != 1:
        return [("trainer.num_nodes", f"trainer.num_nodes={checked.nodes}: each job of a sweep runs on one machine")]
    if isinstance(devices, list) or (isinstance(devices, str) and "," in devices):
        return [(key, f"{key}={devices}: a sweep chooses the devices; give their number")]
    if local and checked.uses_gpu and count_devices(checked) > there:
        return [(key, f"{key}={devices}: this machine has {there} GPUs")]
    return []


def count_devices(checked: Checked) -> int:
    """The number of processes of a job."""
    if checked.devices in (-1, "-1"):
        return max(1, len(checked.gpus))
    return 1 if checked.devices in (None, "auto") else int(checked.devices)


def grid_jobs(
    command: SweepCommand,
    folder: Path,
    journal: Journal,
    combinations: Sequence[Overrides],
    facts: Sequence[Checked],
    purpose: str = "",
) -> list[Job]:
    """A job for each combination. Jobs that the folder has already keep their names.

    Raises ConfigError if a run that tunes is asked to compare, or the other way round.
    """
    names, jobs = journal.names(), []
    for overrides, checked in zip(combinations, facts, strict=True):
        label, key = label_of(overrides, command.space), checked.key
        name = names.setdefault(key, name_of(label, key))
        job = job_of(command, folder, name, key, overrides, checked, purpose)
        known = journal.of(name, "job")
        if known and (known[-1].get("purpose") == "tune") != (purpose == "tune"):
            message = f"the run {label} is there already, to {'compare' if purpose == 'tune' else 'tune'}; "
            raise ConfigError([Problem("dir", f"{message}choose other seeds, or another folder", folder)])
        if not journal.has(name) or known[-1].get("purpose", "") != purpose:
            more = {"purpose": purpose} if purpose else {}
            journal.add("job", name, key=key, label=label, overrides=overrides, **more)
        jobs.append(job)
    return jobs


def job_of(
    command: SweepCommand,
    folder: Path,
    name: str,
    key: str,
    overrides: Overrides,
    checked: Checked,
    purpose: str = "",
) -> Job:
    """A job of the sweep in `folder`."""
    return Job(
        name,
        key,
        label_of(overrides, command.space),
        (*command.options, *overrides),
        job_folder(folder, name, purpose),
        count_devices(checked),
        checked.uses_gpu,
        purpose,
        label_of(arm_of(command, overrides), command.space),
        tuple(checked.named),
    )


def metric_of(checked: Checked) -> tuple[str, str]:
    """The metric that selects the best model of a job, and whether "min" or "max" of it is best."""
    if checked.monitor is None or checked.mode is None:
        message = "a search, or tuning, needs to know the metric: annotate the return type of its method `module`"
        raise ConfigError([Problem("task._target_", message)])
    return checked.monitor, checked.mode

"""Which jobs a command line stands for, and what they are called."""

import re
from functools import cache

import pytest
from hydra import compose
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import OmegaConf
from runs import CONF

from attnorm.cli.sweep import run_sweep
from attnorm.config.compose import compose_files, composed, hydra_started
from attnorm.errors import ConfigError
from attnorm.sweeps.command import read_sweep
from attnorm.sweeps.jobs import as_typed, expand, folder_name, readable, sweep_name

COMMANDS = (
    ("attention=softmax,dnas,hnas", "seed=1,2,3", "task=gigaword"),
    ("attention=glob(dnas*)", "seed=range(1,4)"),
    ("attention=glob([*nas,softmax],exclude=h*)",),
    ("optimizer.lr=choice(1e-3,1e-2)", "model.dropout=range(0,0.3,step=0.1)"),
    ("attention=[dnas,softmax],hnas", "tags=[a,b],[c]"),
    ("attention=my_module:Mine,softmax", "attention.encoder=dnas"),
    ("seed=1,2", "seed=3,4", "model.dropout=0.1,0.2"),
    ("data.train='a,b.json','c d.json'", "~callbacks.progress"),
    ("seed=sort(3,1,2,reverse=true)", "+data.extra=1,2"),
    ("seed=7",),
)


def jobs_of_hydra(arguments):
    """The jobs for which Hydra's own sweeper calls its launcher."""
    loader, launched = read_sweep(arguments).overrides[0].config_loader, []

    class Launcher:
        def launch(self, batch, initial_job_idx):
            launched.extend(tuple(job) for job in batch)
            return []

    class Context:
        config_loader = loader

    from hydra._internal.core_plugins.basic_sweeper import BasicSweeper  # Hydra imports it again when it starts

    sweeper = BasicSweeper(max_batch_size=None)
    sweeper.launcher, sweeper.hydra_context = Launcher(), Context()
    sweeper.validate_batch_is_legal = lambda batch: None
    return sweeper, launched


@pytest.mark.parametrize("arguments", COMMANDS, ids=" ".join)
def test_the_jobs_are_those_of_hydra(tmp_path, arguments):
    found = [tuple(as_typed(job)) for job in expand(read_sweep(arguments).overrides)]
    sweeper, launched = jobs_of_hydra(arguments)
    sweeper.config = OmegaConf.create({"hydra": {"sweep": {"dir": str(tmp_path)}}})
    sweeper.sweep(readable(arguments, is_sweep=True))

    def values(job):
        parsed = OverridesParser.create().parse_overrides(list(job))
        return [(it.type, it.key_or_group, None if it.is_delete() else it.value()) for it in parsed]

    theirs = [values(job) for job in launched]
    assert [values(job) for job in expand(read_sweep(arguments).overrides)] == theirs
    assert len(set(found)) == len(theirs) >= 1


def test_the_arms_of_a_seed_are_trained_one_after_the_other():
    command = read_sweep(["attention=softmax,dnas", "seed=2,1", "optimizer.lr=1e-3,2e-3"])
    jobs = [dict(override.lstrip("+").split("=") for override in job) for job in command.samples()]
    assert [job["seed"] for job in jobs] == ["2"] * 4 + ["1"] * 4
    assert [job["attention"] for job in jobs] == ["softmax", "softmax", "dnas", "dnas"] * 2


def test_names_are_readable_and_plain():
    command = read_sweep(["attention=my_module:Mine,softmax", "optimizer.lr=1e-3,2e-3", "task=mlm"])
    labels = [command.label_of(job) for job in expand(command.overrides)]
    assert labels[0] == "attention=my_module:Mine optimizer.lr=0.001"
    names = [folder_name(label, f"{number:064x}"[::-1]) for number, label in enumerate(labels)]
    assert names[0] == "attention-my_module-Mine_lr-0.001_00000000"
    assert all(re.fullmatch(r"[\w.+-]+", name) for name in names) and len(set(names)) == 4
    assert folder_name(read_sweep(["seed=7"]).label_of(("++seed=7",)), "0123456789") == "01234567"
    assert len(folder_name("x=" + "y" * 500, "0" * 64)) < 100


def test_the_default_folder_depends_on_the_set_of_overrides_only():
    first = sweep_name(["mlm"], ["seed=1,2", "task=mlm"])
    assert first == sweep_name(["mlm", "mlm"], ["task=mlm", "seed=1,2"]) and first.startswith("mlm_")
    assert first != sweep_name(["mlm"], ["seed=1,3", "task=mlm"])


WRONG = {
    "jobs=0": "jobs=0: allowed",
    "job=2 seed=1,2": "job=2: attnorm sweep has no such key. Did you mean 'jobs'?",
    "seed=1,2 -m": "-m: attnorm sweep always starts several runs",
    "seed=1 resume=auto": "resume=auto: a sweep resumes its runs by itself",
    "hydra.run.dir=x": "hydra.run.dir=x: the run folders are in the sweep folder",
    "hydra/sweeper=optuna seed=1,2": "hydra/sweeper=optuna: attnorm sweep trains all combinations",
    "optimizer.lr=interval(1e-4,1e-2)": "a sweep needs single values, not an interval",
    "submitit.timeout_min=3": "submitit: has no effect with launcher=local",
    "attention=softmax, seed=1": "attention=softmax,: cannot be read; check its commas, brackets and quotes",
    "jobs=1,2": "jobs=1,2: expected a single value",
    "submitit=3": "submitit=3: expected submitit.<name>=<value>",
    "tune=optimizer.lr=1e-3,2e-3 seed=1,2": "tune_seeds: must be given with tune, as in tune_seeds=100,101",
    "tune=optimizer.lr=1e-3,2e-3 tune_seeds=[100,101] seed=1": "tune_seeds=[100,101]: expected a single value, without",
    "tune_seeds=100 seed=1": "tune_seeds=100: has no effect without tune=<key>=<values>",
    "tune=optimizer.lr=1e-3,2e-3 tune_seeds=1,5 seed=1,2": "tune_seeds=1,5: must differ from the seeds that compare; "
    "seed has 1 as well",
    "tune=optimizer.lr=1e-3,2e-3 tune_seeds=range(1,4) seed=2": "tune_seeds=range(1,4): must differ",
    "tune=optimizer.lr=1e-3,2e-3 tune_seeds=a,b seed=1": "tune_seeds=a,b: allowed: whole numbers from 0",
    "tune=optimizer.lr tune_seeds=100 seed=1": "tune=optimizer.lr: expected <key>=<value>,<value>,...",
    "tune=optimizer.lr=1e-3 tune_seeds=100 seed=1": "tune=optimizer.lr=1e-3: expected <key>=<value>,<value>,...",
    "tune=optimizer.lr=1e-3,0.001 tune_seeds=100 seed=1": "the values are different numbers above 0",
    "tune=optimizer.lr=0,1e-3 tune_seeds=100 seed=1": "the values are different numbers above 0",
    "tune=attention=softmax,dnas tune_seeds=100 seed=1": "the values are different numbers above 0",
    "tune=seed=3,4 tune_seeds=100 seed=1": "seeds are not tuned",
    "tune=optimizer.lr=1e-3,2e-3 tune_seeds=100 seed=1 optimizer.lr=1e-2": "optimizer.lr: is set by tune=optimizer.lr=",
}


@pytest.mark.parametrize("typed", WRONG)
def test_wrong_arguments_are_refused_with_their_key(capsys, typed):
    assert run_sweep(typed.split()) == 2
    assert any(it.startswith("error: ") and WRONG[typed] in it for it in capsys.readouterr().err.splitlines())


@pytest.mark.parametrize(
    ("typed", "keys"),
    [
        ("jobs=0 retries=-1 ckpt_path=x -m", "jobs retries ckpt_path -m"),
        ("tune=optimizer.lr=1e-3 tune_seeds=1.5", "tune tune_seeds seed"),
    ],
)
def test_all_problems_of_the_command_are_reported_together(typed, keys):
    with pytest.raises(ConfigError) as error:
        read_sweep(typed.split())
    assert {str(it).partition(":")[0].partition("=")[0] for it in error.value.problems} == set(keys.split())


def test_dir_is_taken_as_it_is_typed():
    assert read_sweep(["out=2024", "seed=1,2"]).settings.out == "2024"
    assert read_sweep(["out=my (sweep)", "seed=1,2"]).settings.out == "my (sweep)"


def test_jobs_are_checked_with_the_groups_of_other_configuration_folders(tmp_path):
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "mine.yaml").write_text("defaults: [newswire, _self_]\ntrain_size: 7\n")
    assert composed(["data=mine"], [CONF, tmp_path])["data"]["train_size"] == 7


@pytest.mark.slow
@pytest.mark.parametrize(
    "job",
    [
        ["task=mlm", "attention=hnas", "++seed=3", "++optimizer.lr=1e-3"],
        ["++seed=3", "seed=4", "model=base", "++model.dropout=0.5", "~callbacks.progress"],
        ["++attention.options={hnas: {start: 0.5}}", "++tags=[a,b]", "optimizer=adamax", "+trainer.benchmark=true"],
        ["++data.train=${paths.log_dir}/x", "++trainer.strategy={_target_: a.B}", "data=pair_files"],
        ["seed=2", "++seed=5"],
    ],
)
def test_a_job_is_composed_as_hydra_composes_it(job):
    with hydra_started([CONF]):
        expected = compose("train", job)
    of_files = cache(compose_files)
    for _ in range(2):  # the second time, what its files give is known already
        cfg = composed(job, of_files=of_files)
        assert {**cfg, "hydra": None} == {**expected, "hydra": None}

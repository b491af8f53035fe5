"""Every callback and every logger that Lightning has works in a run, also in one that is resumed, or is refused."""

import inspect
import sys

import pytest
import pytorch_lightning as pl
import runs

from attnorm.analysis.loaded_run import load_run
from attnorm.cli.train import resume_in
from attnorm.errors import ConfigError

BASES = {"Callback", "Logger", "LitLogger"}  # the last one is a class of Lightning Fabric
OPTIONS = {
    "GradientAccumulationScheduler": "scheduling: {one: 2}",
    "LambdaCallback": "on_fit_start: print",
    "ModelPruning": "pruning_fn: l1_unstructured, amount: 0.5",
    "WandbLogger": "offline: true",
}
REFUSED = {
    "BackboneFinetuning": "the model of a task has no attribute `backbone`",
    "BaseFinetuning": "it does nothing by itself",
    "BatchSizeFinder": "data.batch_tokens sets the size of an update",
    "CometLogger": "needs the package comet_ml, which is not installed",
    "GradientAccumulationScheduler": "never changes its size",
    "LambdaCallback": "a YAML file cannot hold a function",
    "LearningRateFinder": "the schedule sets the rate of every update",
    "MLFlowLogger": "needs the package mlflow, which is not installed",
    "ProgressBar": "a run has a progress bar of its own",
    "RichProgressBar": "a run has a progress bar of its own",
    "SpikeDetection": "a run with it cannot be resumed",
    "StochasticWeightAveraging": "the best checkpoint, which is kept and scored, would not",
    "ThroughputMonitor": "a YAML file cannot hold its batch_size_fn",
    "TQDMProgressBar": "a run has a progress bar of its own",
}
NAMES = {
    f"{group}.{name}": cls
    for group, module, base in (
        ("callbacks", pl.callbacks, pl.Callback),
        ("logger", pl.loggers, pl.loggers.Logger),
    )
    for name, cls in inspect.getmembers(module, inspect.isclass)
    if issubclass(cls, base) and name not in BASES
}


@pytest.mark.slow
@pytest.mark.parametrize("where", NAMES)
def test_a_part_of_lightning_works_or_is_refused_at_the_start(monkeypatch, tmp_path, where):
    group, _, name = where.partition(".")
    package = {"callbacks": "callbacks", "logger": "loggers"}[group]
    target = f"_target_: pytorch_lightning.{package}.{name}"
    typed = (f"++{group}.it={{{target}, {OPTIONS.get(name, '')}}}".replace(", }", "}"), "task.rouge_pairs=0")
    if name in REFUSED:
        with pytest.raises(ConfigError, match=REFUSED[name]):
            runs.tiny(*typed)
        return
    if name == "WandbLogger" and "wandb" in sys.modules:  # it keeps the environment of the test that loaded it
        sys.modules["wandb"].finish()
        sys.modules["wandb"].teardown()
    folder = tmp_path / "run"
    runs.stopped(monkeypatch, folder, 3, *typed)
    assert resume_in(folder, [f"resume={folder}"]) == 0
    run = load_run(folder)
    assert (run.summary["state"], run.summary["steps"]) == ("finished", 4)
    if name == "ModelCheckpoint":
        assert [file.name for file in (folder / "callbacks/it").iterdir()]

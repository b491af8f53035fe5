"""Callbacks and loggers of Lightning that cannot be parts of a run, and why."""

from importlib.util import find_spec

NOT_CALLBACKS = {  # classes of Lightning that cannot be callbacks of a run, with the reason
    "ProgressBar": "a run has a progress bar of its own; use callbacks.progress.bar",
    "StochasticWeightAveraging": (
        "it averages the weights when training has ended, so the best checkpoint, which is kept and scored, would not "
        "have averaged weights; use pytorch_lightning.callbacks.EMAWeightAveraging"
    ),
    "LearningRateFinder": "the schedule sets the rate of every update; use tune=optimizer.lr=... of attnorm sweep",
    "BatchSizeFinder": "data.batch_tokens sets the size of an update",
    "GradientAccumulationScheduler": (
        "trainer.accumulate_grad_batches divides an update into parts, and never changes its size"
    ),
    "LambdaCallback": "a YAML file cannot hold a function; write a callback of your own",
    "SpikeDetection": "a run with it cannot be resumed, since it loses its state",
    "ThroughputMonitor": "a YAML file cannot hold its batch_size_fn, and a run measures its tokens per second anyway",
    "BackboneFinetuning": "the model of a task has no attribute `backbone`; write a BaseFinetuning of your own",
}
PACKAGES_OF_LOGGERS = {"CometLogger": "comet_ml", "MLFlowLogger": "mlflow", "WandbLogger": "wandb"}


def misfits(cls: type) -> list[str]:
    """The reasons why a class cannot be a callback or a logger of a run. Imports Lightning, which takes seconds."""
    import pytorch_lightning as pl

    why = [reason for name, reason in NOT_CALLBACKS.items() if issubclass(cls, getattr(pl.callbacks, name))]
    if cls is pl.callbacks.BaseFinetuning:
        why.append("it does nothing by itself; write a subclass of it")
    for name, package in PACKAGES_OF_LOGGERS.items():
        if issubclass(cls, getattr(pl.loggers, name)) and find_spec(package) is None:
            why.append(f"needs the package {package}, which is not installed")
    return why

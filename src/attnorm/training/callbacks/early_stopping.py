"""Stopping a run that no longer improves."""

import sys

import pytorch_lightning as pl

from attnorm.schema import Count


class EarlyStopping(pl.callbacks.EarlyStopping):
    """Lightning's early stopping on the metric that the task monitors.

    patience: validations without an improvement; None never stops.
    """

    def __init__(self, monitor: str, mode: str, patience: Count | None = None):
        super().__init__(monitor, mode=mode, patience=sys.maxsize if patience is None else patience)

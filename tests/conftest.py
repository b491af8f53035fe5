"""Settings that have to be made before torch is imported, and the marker `training`.

Tests that train a model or start another process carry the marker `training`: `make test-fast` leaves them out. It is
set here, on every test of the folders that are about whole runs, and on every test that uses one of the helpers below.
A test that trains without it (through a function or a fixture of its own) fails and says so.
"""

import gc
import os
import signal
import sys
from collections.abc import Generator

import pytest
from numerics import RUNS, VARIABLES

# `ATEN_CPU_CAPABILITY=avx2 pytest` restricts torch alone; oneDNN with instructions that torch must not use fails.
capability = os.environ.get("ATEN_CPU_CAPABILITY")
if capability in RUNS:
    _, values = RUNS[capability]
    for variable, value in zip(VARIABLES, values, strict=True):
        os.environ.setdefault(variable, value)

# Triton decides at its import whether to interpret kernels. Without a GPU of NVIDIA or AMD, it cannot do anything else.
if not (os.path.exists("/dev/nvidiactl") or os.path.exists("/dev/kfd")):
    os.environ.setdefault("TRITON_INTERPRET", "1")

# If `nohup` started the tests, they would ignore a hang-up, and so would the runs that they start.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

WHOLE_RUNS = {"cli", "config", "faults", "losses", "run", "training"}  # folders in tests/
STARTERS = {  # of tests/runs.py, or Python
    *("tiny_run", "uninterrupted", "finished_run", "copied_run", "stopped", "command", "subprocess")
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        uses = {*item.function.__code__.co_names, *item.fixturenames} if isinstance(item, pytest.Function) else set()
        if WHOLE_RUNS & {*item.path.relative_to(item.config.rootpath).parts} or STARTERS & uses:
            item.add_marker(pytest.mark.training)


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Takes all that is imported out of garbage collections, each of which would take a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(autouse=True)
def training_is_marked(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Makes a test fail that trains without the marker."""
    lightning = sys.modules.get("pytorch_lightning")
    if lightning is None or request.node.get_closest_marker("training"):
        return

    def refuse(*_: object, **__: object) -> None:
        pytest.fail("this test trains a model: mark it with @pytest.mark.training")

    monkeypatch.setattr(lightning.Trainer, "fit", refuse)

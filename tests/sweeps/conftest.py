"""The helpers of this folder can be imported by its tests."""

import sys
from pathlib import Path

import pytest
from hydra.core.global_hydra import GlobalHydra

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def no_hydra_is_left():
    """Checking the jobs of a sweep starts Hydra in this process; other tests start it themselves."""
    yield
    GlobalHydra.instance().clear()


@pytest.fixture
def way(request, monkeypatch):
    """How the stand-ins of a sweep start: "fresh", or "forked" from a server."""
    if request.param == "forked":
        monkeypatch.setenv("FORKED", "1")
    return request.param

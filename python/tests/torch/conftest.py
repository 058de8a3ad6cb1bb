"""Runs the tests with the package of this checkout, once its extension module is built."""

import os
import sys
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import pytest
import torch

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)


@pytest.fixture
def fast_host(monkeypatch):
    """Has each op that may run on the host take a microsecond there, however busy the machine is."""
    from spillway.torch import step

    measured = step.host_times
    fast = lambda captured: [ns and 1000 for ns in measured(captured)]
    monkeypatch.setattr(step, "host_times", fast)

"""Runs the tests with `spillway._core`, or, where that has not been built, with a stand-in."""

import importlib.util
import os
import sys
from pathlib import Path

os.environ.setdefault("KINETO_LOG_LEVEL", "6")

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2]))
if importlib.util.find_spec("spillway._core") is None:
    import in_core

    sys.modules["spillway"] = in_core.package(Path(__file__).parents[2] / "spillway")


@pytest.fixture(autouse=True)
def one_thread():
    torch.set_num_threads(1)

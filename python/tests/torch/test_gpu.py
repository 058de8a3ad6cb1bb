"""Training on a GPU, in a process without the emulated driver."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

TESTS = Path(__file__).parent


@pytest.mark.skipif(not torch.cuda.is_available(), reason="PyTorch finds no CUDA device")
def test_models_train_bit_identically_on_a_gpu():
    paths = [str(TESTS.parents[1]), str(TESTS)]
    environment = dict(
        os.environ, PYTHONPATH=os.pathsep.join(paths), CUBLAS_WORKSPACE_CONFIG=":4096:8"
    )
    command = [sys.executable, str(TESTS / "on_gpu.py")]
    subprocess.run(command, check=True, env=environment)

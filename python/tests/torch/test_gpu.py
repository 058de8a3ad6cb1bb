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
    environment = {name: value for name, value in os.environ.items() if name != "SPILLWAY_CUDA_DRIVER"}
    subprocess.run([sys.executable, str(TESTS / "on_gpu.py")], check=True, env=environment)

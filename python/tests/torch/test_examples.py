"""The examples, in a short form."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

PYTHON = Path(__file__).parents[2]


def test_train_gpt2(tmp_path):
    pytest.importorskip("transformers")
    text = tmp_path / "text"
    text.write_text("abcdefgh" * 200)
    report = tmp_path / "report.html"
    options = "--layers 2 --width 64 --length 32 --steps 12 --budget 50% --report".split()
    program = [sys.executable, PYTHON / "examples" / "train_gpt2.py", text, *options, report]
    environment = os.environ | {"PYTHONPATH": str(PYTHON), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(program, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    losses = [float(l.split("loss ")[1]) for l in done.stdout.splitlines() if l.startswith("step")]
    assert len(losses) == 12 and losses[-1] < losses[0]
    assert "<html" in report.read_text()
    assert (tmp_path / "gpt2.pt").exists()

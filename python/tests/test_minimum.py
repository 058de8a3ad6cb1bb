"""The package runs on the oldest Python that it allows, and refuses older ones, and older versions of PyTorch."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent
PROJECT = (FOLDER / "pyproject.toml").read_text()
MINIMUM = re.search(r'requires-python = ">=3[.](\d+)"', PROJECT)[1]
PYTORCH = re.search(r'"torch>=([\d.]+)"', PROJECT)[1]


def needed_beyond(minor):
    """What the sources need of a Python later than that, a line each."""
    vermin = [Path(sys.executable).with_name("vermin"), "--no-tips", "--quiet", "--violations"]
    # Annotations are evaluated: modules are imported without `from __future__ import annotations`.
    vermin += ["--eval-annotations", "--feature", "union-types", f"--target=3.{minor}-"]
    sources = [str(FOLDER / folder) for folder in ("spillway", "examples")]
    return subprocess.run(vermin + sources, stdout=subprocess.PIPE, text=True)


def test_the_sources_need_no_later_python():
    ran = needed_beyond(MINIMUM)
    assert ran.returncode == 0, ran.stdout


def test_what_needs_a_later_python_is_found():
    ran = needed_beyond(int(MINIMUM) - 1)
    assert ran.returncode == 1 and "union types" in ran.stdout, ran.stdout


def test_the_module_is_built_for_the_same_python():
    assert f'"abi3-py3{MINIMUM}"' in (FOLDER / "Cargo.toml").read_text()


def refusal(before, module):
    """Returns the last line of what Python prints if a module is imported after some code."""
    command = [sys.executable, "-c", f"import sys\n{before}\nimport {module}"]
    ran = subprocess.run(command, stderr=subprocess.PIPE, text=True)
    assert ran.returncode == 1
    return ran.stderr.splitlines()[-1]


def test_older_pythons_are_refused():
    before = "sys.version_info, sys.version = (3, 9, 18), '3.9.18 (main)'"
    needed = f"spillway needs Python 3.{MINIMUM} or later"
    assert refusal(before, "spillway") == f"ImportError: {needed}, and this is Python 3.9.18"


def test_older_versions_of_pytorch_are_refused():
    needed = f"ImportError: spillway.torch needs PyTorch {PYTORCH} or later"
    way = f"pip install 'torch>={PYTORCH}'"
    none = "sys.modules['torch'] = None"
    assert refusal(none, "spillway.torch") == f"{needed}, and there is none: {way}"
    older = (
        "from importlib.machinery import ModuleSpec; from types import ModuleType\n"
        "torch = sys.modules['torch'] = ModuleType('torch')\n"
        "torch.__spec__, torch.__version__ = ModuleSpec('torch', None), '2.4.1+cpu'"
    )
    assert refusal(older, "spillway.torch") == f"{needed}, and this is PyTorch 2.4.1+cpu: {way}"

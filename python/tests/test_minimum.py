"""The package runs on the oldest Python that it allows."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent
MINIMUM = re.search(r'requires-python = ">=3[.](\d+)"', (FOLDER / "pyproject.toml").read_text())[1]


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

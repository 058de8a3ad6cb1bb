"""What the tests of types have in common."""

import re
import subprocess
import sys
from pathlib import Path

FOLDER = Path(__file__).parent.parent


def errors_of(program, *arguments):
    """Returns what mypy, or a program of it, finds, and an empty text for none."""
    ran = subprocess.run(
        [sys.executable, "-m", program, *arguments], cwd=FOLDER, capture_output=True, text=True
    )
    return ran.stdout + ran.stderr if ran.returncode else ""


def are_used(names, client):
    """Returns whether a program uses all names as attributes."""
    return set(names) <= set(re.findall(r"[.](\w+)", (FOLDER / client).read_text()))

"""Why a step cannot be captured or run, with the line of the user's code."""

import linecache
import os
import sys

import torch

from spillway import Error

_TORCH = os.path.dirname(torch.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep


class CaptureError(Error):
    """The step cannot be captured; the message names the line that prevents it."""


class AllocationError(Error):
    """An op allocated more memory than its planned workspace; the message names the op."""


class ChangedError(Error, ValueError):
    """What a captured step relies on has changed; the message says what, and what works."""


class BatchError(Error, ValueError):
    """A batch is not like the one that was captured; the message says in what."""


class LostError(Error):
    """An iteration failed after it had written states whose last values nobody has."""


def user_line():
    """Returns "file:line" of the innermost frame outside PyTorch and this package."""
    frame = sys._getframe(1)
    while frame is not None:
        file = frame.f_code.co_filename
        if not file.startswith((_TORCH, _HERE, "<")):
            return f"{file}:{frame.f_lineno}"
        frame = frame.f_back
    return "an unknown line"


def quoted_line():
    """Returns `user_line`, and the text of that line."""
    return quoted(user_line())


def quoted(line):
    """Returns "file:line" and the text of that line, if it can be read."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
    return f"{line}: `{text}`" if text else line

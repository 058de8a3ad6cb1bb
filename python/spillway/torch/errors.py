"""Why a step cannot be captured or run, with the line of the user's code."""

import linecache
import os
import sys

import torch

from spillway import Error

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
UNKNOWN_LINE = "an unknown line"
# By the file of the function within which code asks for a value.
_ADVICE = {
    os.path.join(_TORCH, "distributions", ""): "give the distribution `validate_args=False`",
    _HERE + "stepping.py": "use torch.compile(model, backend='spillway'), which leaves the optimizer outside",
    _HERE + "updating.py": "leave the optimizer outside of the plan, without spillway.torch.optimizer",
}


class CaptureError(Error):
    """The step cannot be captured; the message names the line that prevents it."""


class FirstStepError(CaptureError, NotImplementedError):
    """An optimizer makes states in its first step as no other step does."""


class AllocationError(Error):
    """An op allocated more memory than its planned workspace; the message names the op."""


class ChangedError(Error, ValueError):
    """What a captured step relies on has changed; the message says what, and what works."""


class BatchError(Error, ValueError):
    """A batch is not like the one that was captured; the message says in what."""


class ProcessError(Error):
    """The processes of a sharded step do different things, or one cannot run the plan. The message names
    it."""


class LostError(Error):
    """An iteration failed after it had written states whose last values nobody has."""


def user_line():
    """Returns "file:line" of the innermost frame outside PyTorch and this package."""
    frame = sys._getframe(1)
    while frame is not None:
        if is_of_user(frame.f_code.co_filename):
            return f"{frame.f_code.co_filename}:{frame.f_lineno}"
        frame = frame.f_back
    return UNKNOWN_LINE


def advice():
    """Returns advice if a distribution of PyTorch or an optimizer asks for the value of a tensor, and else an empty
    text."""
    frame = sys._getframe(1)
    while frame is not None:
        for start, text in _ADVICE.items():
            if frame.f_code.co_filename.startswith(start):
                return f": {text}"
        frame = frame.f_back
    return ""


def is_of_user(file):
    """Returns whether code of a file is outside of PyTorch, Python's library and this package."""
    is_of_python = file.startswith(_PYTHON) and "-packages" not in file
    return not file.startswith((_TORCH, _HERE, "<")) and not is_of_python


def is_asked_by_package():
    """Returns whether PyTorch's function that has called the caller was called by this package."""
    frame = sys._getframe(2)
    while frame is not None and frame.f_code.co_filename.startswith(_TORCH):
        frame = frame.f_back
    return frame is not None and frame.f_code.co_filename.startswith(_HERE)


def quoted_line():
    """Returns `user_line`, and the text of that line."""
    return quoted(user_line())


def quoted(line):
    """Returns "file:line" and the text of that line, if it can be read."""
    file, _, number = line.rpartition(":")
    text = linecache.getline(file, int(number)).strip() if number.isdecimal() else ""
    return f"{line}: `{text}`" if text else line

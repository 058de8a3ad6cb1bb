"""Why a step cannot be captured or run, with the line of the user's code."""

import linecache
import os
import re
import sys
import traceback
import weakref

import torch

from spillway import Error

_TORCH = os.path.dirname(torch.__file__) + os.sep
_PYTHON = os.path.dirname(os.__file__) + os.sep
_HERE = os.path.dirname(__file__) + os.sep
UNKNOWN_LINE = "an unknown line"
_LINES: dict[int, dict[int, str]] = {}  # of the user, by the identity of a graph's code and by its line
_IN_TRACE = re.compile(r'^ *File "(.*)", line (\d+)', re.MULTILINE)
# By the file of the function within which code asks for a value.
_ADVICE = {
    os.path.join(_TORCH, "distributions", ""): "give the distribution `validate_args=False`",
    _HERE + "stepping.py": "use torch.compile(model, backend='spillway'), which leaves the optimizer outside",
    _HERE + "updating.py": "leave the optimizer outside of the plan, without spillway.torch.optimizer",
}


class CaptureError(Error):
    """The step cannot be captured; the message names the line that prevents it."""


class WrittenBatchError(CaptureError):
    """The step writes into tensors of its batch, whose `numbers` it has."""

    def __init__(self, message, numbers):
        super().__init__(message)
        self.numbers = numbers


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


def name_lines_of(graph):
    """Has `user_line` name the lines from which TorchDynamo has made a graph and the graphs in it."""
    for module in graph.modules():
        if isinstance(module, torch.fx.GraphModule) and module.code:  # which may be generated only now
            code = id(type(module).forward.__code__)
            nodes, first = list(module.graph.nodes), getattr(module, "_prologue_start", 0)
            positions = getattr(module, "_lineno_map", None) or {}  # of nodes, by lines below the first
            lines = {first + line: _line_of(nodes[k]) for line, k in positions.items() if k is not None}
            _LINES[code] = {line: its for line, its in lines.items() if its}
            weakref.finalize(module, _LINES.pop, code, None).atexit = False


def _line_of(node):
    """Returns "file:line" from which TorchDynamo has made a node, or None."""
    lines = (f"{file}:{line}" for file, line in reversed(_IN_TRACE.findall(node.stack_trace or "")) if is_of_user(file))
    return next(lines, None)


def user_line():
    """Returns "file:line" of the innermost frame outside PyTorch and this package."""
    frame = sys._getframe(1)
    while frame is not None:
        line = _line_of_user(frame.f_code, frame.f_lineno)
        if line:
            return line
        frame = frame.f_back
    return UNKNOWN_LINE


def line_that_raised(error):
    """Returns "file:line" of the innermost frame of an error outside PyTorch and this package, or None."""
    lines = [_line_of_user(frame.f_code, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    return next((line for line in reversed(lines) if line), None)


def _line_of_user(code, line):
    """Returns "file:line" of the user's code for a line that runs, or None."""
    own = f"{code.co_filename}:{line}" if is_of_user(code.co_filename) else None
    return _LINES.get(id(code), {}).get(line, own)


def advice():
    """Returns advice if a distribution of PyTorch, an optimizer or a graph of `torch.compile` needs the value of a
    tensor, and else an empty text."""
    frame = sys._getframe(1)
    while frame is not None:
        if id(frame.f_code) in _LINES:
            return (
                ": if it is a number of Python that has changed, such as `dropout.p`, set"
                " torch._dynamo.config.specialize_float = True; otherwise, have torch.compile leave out the function"
                " that needs it (`torch.compiler.disable`)"
            )
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

"""Optimizers that keep numbers in Python, such as a step count, or replace their tensors."""

import inspect

import torch

from .carrying import Replaced
from .errors import CaptureError, quoted
from .storing import is_same

ADVICE = (
    "a captured step would compute with the same number in all iterations. Use an optimizer that"
    " has it as a tensor, as those of torch.optim do, or torch.compile(model, backend='spillway'),"
    " which leaves the optimizer outside"
)


class Numbers:
    """What a swapped optimizer keeps in its groups and states before its steps."""

    def __init__(self, optimizer):
        self._optimizer = optimizer
        self._before = _read(optimizer)

    def add(self):
        """Adds the entries that are new, before another step."""
        self._before = _read(self._optimizer) | self._before

    def replaced(self):
        """Returns the tensors that the step has replaced."""
        after = _read(self._optimizer)
        return [
            Replaced(f"{name} of the optimizer", value, after[place][1])
            for place, (name, value) in self._before.items()
            if isinstance(value, torch.Tensor)
            and isinstance(after.get(place, (0, None))[1], torch.Tensor)
            and after[place][1] is not value
        ]

    def change(self):
        """Returns the place of the first number that has changed, and a sentence; or None."""
        after = _read(self._optimizer)
        for place, (name, now) in after.items():
            if place not in self._before:
                before = "not there"
            else:
                before = self._before[place][1]
                both_tensors = isinstance(before, torch.Tensor) and isinstance(now, torch.Tensor)
                if both_tensors or is_same(before, now) or before == now:
                    continue
            return place, f"{name} is {_told(before)} before the step and {_told(now)} after it"
        return None


def refuse_closures(optimizer):
    """Refuses an optimizer that computes the loss several times in a step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise CaptureError(
            f"{type(optimizer).__name__} calls a closure as often as the loss has it do: use"
            " torch.compile(model, backend='spillway'), which leaves the optimizer outside"
        )


def read_at(optimizer, place):
    """Returns what an optimizer keeps at a place."""
    name, value = _read(optimizer).get(place, ("", None))
    return None if isinstance(value, torch.Tensor) else value


def refuse(optimizer, sentence, line):
    """Refuses an optimizer for a number that it keeps."""
    where = f"{quoted(line)}: " if line else ""
    raise CaptureError(f"{where}{type(optimizer).__name__} counts in Python: {sentence}: {ADVICE}")


def _told(value):
    return "a tensor" if isinstance(value, torch.Tensor) else value


def _read(optimizer):
    """Returns the names and values of what an optimizer keeps, by their places."""
    found = {}
    for k, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                found["group", k, key] = f"{key!r} of group {k}", value
    for k, values in enumerate(optimizer.state.values()):
        for key, value in values.items() if isinstance(values, dict) else ():
            found["state", k, key] = f"{key!r} of a state", value
    return found

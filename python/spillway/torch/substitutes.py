"""What stands for numbers read from tensors in code that would need their values: functions of `math`, step counts that
are tensors, and plain numbers on the way to an op."""

import inspect
import math
from contextlib import contextmanager
from functools import wraps
from types import SimpleNamespace

import torch

from .errors import CaptureError, advice, user_line
from .scalars import Scalar


@contextmanager
def functions_of_numbers(optimizer):
    """Within it, `min`, `max` and the functions of `math` take numbers read from tensors, in the modules of an
    optimizer's classes. Python's own functions would need the values."""
    classes = [c for c in type(optimizer).__mro__ if issubclass(c, torch.optim.Optimizer)]
    methods = [inspect.unwrap(m) for c in classes for m in vars(c).values() if inspect.isfunction(m)]
    modules = {id(m.__globals__): m.__globals__ for m in methods}.values()
    replaced = []
    for module in modules:
        called = {"min": min, "max": max, **module}.items()
        known = {name: value for name, value in called if isinstance(value, _KINDS) and value in _OF_NUMBERS}
        replaced += [(module, name, module.get(name)) for name in known]
        module.update({name: _OF_NUMBERS[value] for name, value in known.items()})
    try:
        yield
    finally:
        for module, name, value in replaced:
            if value is None:
                del module[name]
            else:
                module[name] = value


def has_numbers(values):
    """Returns whether values are numbers, and at least one of them is read from a tensor."""
    are_numbers = all(isinstance(value, (int, float, torch.SymFloat)) for value in values)
    return are_numbers and any(isinstance(value, torch.SymFloat) for value in values)


def node_of(value):
    """Returns the expression of a number that is read from a tensor, and any other value as it is."""
    if isinstance(value, NumberTensor):
        value = value.number
    return value.node if isinstance(value, torch.SymFloat) else value


def _of_numbers(function):
    """Returns a function that also takes numbers read from tensors."""

    @wraps(function)
    def of_numbers(*args, **kwargs):
        values = args
        if function in (min, max) and len(args) == 1:
            values = tuple(args[0])
            args = (values,)
        if kwargs or not has_numbers(values):
            return function(*args, **kwargs)
        if function in (min, max) and len(values) == 1:
            return values[0]
        return torch.SymFloat(Scalar(function, [*map(node_of, values)]))

    return of_numbers


# By what an optimizer's module calls: Python's function, or the module `math`.
_OF_NUMBERS = {f: _of_numbers(f) for f in (min, max, *vars(math).values()) if callable(f)}
_OF_NUMBERS[math] = SimpleNamespace(**{n: _OF_NUMBERS[v] if callable(v) else v for n, v in vars(math).items()})
_KINDS = type(min), type(math)


class NumberTensor(torch.Tensor):
    """A tensor of one element that stands for a step count on the processor: its value is a number that is known before
    an iteration."""

    @staticmethod
    def of(tensor, number):
        """Returns a tensor like another one."""
        made = torch.Tensor._make_subclass(NumberTensor, torch.zeros_like(tensor, requires_grad=False))
        made.number = number
        return made

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        name = getattr(function, "__name__", "")
        if name == "item":
            return args[0].number
        if name in ("add_", "__iadd__", "_foreach_add_"):
            counts = args[0] if isinstance(args[0], (list, tuple)) else [args[0]]
            _add(counts, *args[1:], **kwargs)
            return None if name == "_foreach_add_" else args[0]
        if name not in ("__get__", "dim", "is_complex", "is_floating_point"):
            raise CaptureError(f"{user_line()}: `{name}` of a step count that is a tensor{advice()}")
        with torch._C.DisableTorchFunctionSubclass():
            return function(*args, **kwargs)


def _add(counts, other, alpha=1):
    other = other.item() if isinstance(other, torch.Tensor) else other
    if isinstance(other, torch.SymFloat) or other * alpha != 1:
        raise CaptureError(f"{user_line()}: adds another number to a step count than 1{advice()}")
    for count in counts:
        count.number = count.number + 1


# No setting of an optimizer is a small multiple of it. Multiples by less than 2**29 are exact.
_UNUSUAL = 0x1234567 * 2.0**-600


class StandIns:
    """Plain numbers that stand in for numbers read from tensors, on the way through PyTorch to an op that takes only
    plain ones."""

    def __init__(self):
        self._numbers = []

    def of(self, arg):
        """Returns the plain number that stands in for an argument, or an argument that needs none."""
        if not isinstance(arg, torch.SymFloat):
            return arg
        self._numbers.append(arg)
        return len(self._numbers) * _UNUSUAL

    def number(self, arg):
        """Returns the argument that a plain number stands in for, or another argument as it is."""
        place = arg / _UNUSUAL if isinstance(arg, float) else 0
        is_stand_in = 1 <= place <= len(self._numbers) and place.is_integer()
        return self._numbers[int(place) - 1] if is_stand_in else arg

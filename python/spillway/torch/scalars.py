"""Numbers that a step reads from tensors, such as an optimizer's step count, as expressions.

`Tensor.item()` returns such a number while a step is captured. Python's arithmetic on it is
recorded and done again, in the same order and in double precision, before each op that uses it.
"""

import inspect
import operator
from contextlib import contextmanager
from functools import partialmethod

import torch

from .errors import CaptureError, advice, user_line


class Scalar:
    """The node of a `torch.SymFloat`: a tensor's value, or a function of other numbers.

    PyTorch calls the methods; their names are those of its own nodes.
    """

    def __init__(self, function, operands):
        self.function = function
        self.operands = operands

    def value(self, read):
        """Returns the number, given `read`, which returns the value of a leaf's tensor."""
        if self.function is read_tensor:
            return read(*self.operands)
        values = [o.value(read) if isinstance(o, Scalar) else o for o in self.operands]
        return self.function(*values)

    def leaves(self):
        """Returns the operands of each `read_tensor` that the number is computed from."""
        if self.function is read_tensor:
            return [self.operands]
        return [leaf for o in self.operands if isinstance(o, Scalar) for leaf in o.leaves()]

    def add(self, other):
        return Scalar(operator.add, (self, other))

    def sub(self, other):
        return Scalar(operator.sub, (self, other))

    def mul(self, other):
        return Scalar(operator.mul, (self, other))

    def float_truediv(self, other):
        return Scalar(operator.truediv, (self, other))

    def float_pow(self, other):
        return Scalar(operator.pow, (self, other))

    def neg(self):
        return Scalar(operator.neg, (self,))

    def sym_max(self, other):
        return Scalar(max, (self, other))

    def sym_min(self, other):
        return Scalar(min, (self, other))

    def sym_sqrt(self):
        return Scalar(lambda x: x**0.5, (self,))

    def wrap_float(self, number):
        return Scalar(operator.pos, (number,))

    wrap_int = wrap_float

    def ge(self, other):
        return Comparison()

    gt = le = lt = eq = ne = ge

    def is_float(self):
        return True

    def is_int(self):
        return False

    def is_bool(self):
        return False

    def is_constant(self):
        return False

    def is_symbolic(self):
        return True

    def is_nested_int(self):
        return False

    def guard_float(self, file="", line=0):
        raise CaptureError(
            f"{user_line()}: Python needs the value of a tensor, which differs between iterations"
            f"{advice()}"
        )

    guard_int = guard_bool = bool_ = int_ = _graph_repr = str = guard_float


class Comparison(Scalar):
    """A comparison of numbers: PyTorch may check it, but no code may branch on it."""

    def __init__(self):
        super().__init__(operator.ge, ())

    def is_float(self):
        return False

    def is_bool(self):
        return True

    def expect_true(self, file, line):
        return True


class Compared(Scalar):
    """A number that code may compare with 0. It has the sign of `example` in all iterations."""

    def __init__(self, number, example):
        super().__init__(operator.pos, (number,))
        self._example = example

    def _compared(self, other, compare):
        return Known(compare(self._example, 0)) if other.operands == (0,) else Comparison()

    ge = partialmethod(_compared, compare=operator.ge)
    gt = partialmethod(_compared, compare=operator.gt)
    le = partialmethod(_compared, compare=operator.le)
    lt = partialmethod(_compared, compare=operator.lt)
    eq = partialmethod(_compared, compare=operator.eq)
    ne = partialmethod(_compared, compare=operator.ne)

    def bool_(self):
        return self._example != 0


class Known(Comparison):
    """A comparison with the same result in all iterations."""

    def __init__(self, result):
        super().__init__()
        self._result = result

    def guard_bool(self, file="", line=0):
        return self._result

    bool_ = guard_bool


@contextmanager
def min_and_max_of(optimizer):
    """Within it, `min` and `max` in the modules of an optimizer's classes take numbers read from tensors, which
    Python's own functions would compare."""
    classes = [c for c in type(optimizer).__mro__ if issubclass(c, torch.optim.Optimizer)]
    methods = [inspect.unwrap(m) for c in classes for m in vars(c).values() if inspect.isfunction(m)]
    modules = {id(m.__globals__): m.__globals__ for m in methods}.values()
    given = [(module, f) for module in modules for f in (min, max) if f.__name__ not in module]
    for module, function in given:
        module[function.__name__] = _of_numbers(function)
    try:
        yield
    finally:
        for module, function in given:
            del module[function.__name__]


def _of_numbers(function):
    """Returns a `min` or `max` that also takes numbers read from tensors."""

    def of_numbers(*args, **kwargs):
        values = tuple(args[0]) if len(args) == 1 else args
        is_number = all(isinstance(v, (int, float, torch.SymFloat)) for v in values)
        if kwargs or not is_number or not any(isinstance(v, torch.SymFloat) for v in values):
            return function(values, **kwargs)
        operands = [v.node if isinstance(v, torch.SymFloat) else v for v in values]
        return torch.SymFloat(Scalar(function, operands))

    return of_numbers


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


def read_tensor():
    """Marks a leaf; `Scalar.value` calls `read` instead."""
    raise AssertionError("a leaf has no function")

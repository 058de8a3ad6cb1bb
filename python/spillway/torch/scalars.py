"""Numbers that a step reads from tensors, such as an optimizer's step count, as expressions.

`Tensor.item()` returns such a number while a step is captured. Python's arithmetic on it is
recorded and done again, in the same order and in double precision, before each op that uses it.
"""

import inspect
import math
import operator
from contextlib import contextmanager
from functools import cache, cached_property, partialmethod, wraps
from types import SimpleNamespace

import torch

from .errors import CaptureError, advice, user_line


class Scalar:
    """The node of a `torch.SymFloat`: a tensor's value, or a function of other numbers.

    PyTorch calls the methods; their names are those of its own nodes.
    """

    def __init__(self, function, operands):
        numbers = [o for o in operands if isinstance(o, Scalar)]
        self.function, self.operands = function, operands
        # Whether the number is known before an iteration, and one of the numbers that it is computed from.
        self.is_known = function is not read_tensor and all(o.is_known for o in numbers)
        self.kept = next((o.kept for o in numbers if o.kept is not None), None)
        self._example = self._computed() if self.is_known else None
        # PyTorch makes floats of whole numbers that Python computes with.
        self.may_be_whole = function in _WHOLE_OF_WHOLE and all(map(_may_be_whole, operands))

    def _computed(self):
        """Returns the number where it was captured, or the error that Python raises there."""
        values = [o._example if isinstance(o, Scalar) else o for o in self.operands]
        errors = (value for value in values if isinstance(value, Exception))
        try:
            return next(errors, None) or self.function(*values)
        except (ArithmeticError, TypeError, ValueError) as error:
            return error

    def example(self):
        """Returns the number where it was captured, if it is known before an iteration."""
        if isinstance(self._example, Exception):
            raise CaptureError(f"{user_line()}: raises {self._example} for the present value of {self.kept.name}")
        return self._example

    def leaves(self):
        """Returns the operands of each `read_tensor` that the number is computed from."""
        return self.compiled[1]

    @cached_property
    def compiled(self):
        """The function that computes the number from the values of its leaves, and the leaves. It is the same one for
        equal expressions."""
        names, leaves, lines = {}, {}, []
        for number in _in_order(self):
            if number.function is read_tensor:
                names[id(number)] = leaves.setdefault(number.operands, f"x{len(leaves)}")
                continue
            parts = [names[id(o)] if isinstance(o, Scalar) else _constant(o) for o in number.operands]
            names[id(number)] = f"y{len(lines)}"
            lines.append(f"{names[id(number)]} = {_call(number.function, parts)}")
        return _function(tuple(lines), names[id(self)], len(leaves)), [*leaves]

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
        return Scalar(_root, (self,))

    def mod(self, other):
        return Scalar(operator.mod, (self, other))

    def pos(self):
        return Scalar(operator.pos, (self,))

    def abs(self):
        return Scalar(abs, (self,))

    def floor(self):
        return Scalar(math.floor, (self,))

    def ceil(self):
        return Scalar(math.ceil, (self,))

    def wrap_float(self, number):
        return Scalar(operator.pos, (number,))

    wrap_int = wrap_float

    def _compared(self, other, function):
        return Comparison(function, (self, other))

    ge = partialmethod(_compared, function=operator.ge)
    gt = partialmethod(_compared, function=operator.gt)
    le = partialmethod(_compared, function=operator.le)
    lt = partialmethod(_compared, function=operator.lt)
    eq = partialmethod(_compared, function=operator.eq)
    ne = partialmethod(_compared, function=operator.ne)

    def bool_(self):
        return Comparison(operator.ne, (self, 0)).bool_()

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
        name = self.kept.name if self.is_known else "a tensor"
        raise CaptureError(
            f"{user_line()}: Python needs the value of {name}, which differs between iterations{advice()}"
        )

    guard_int = guard_bool = int_ = trunc = round = _graph_repr = str = guard_float


class Comparison(Scalar):
    """A comparison of numbers. Code may branch on it if all of them are known before an iteration."""

    def is_float(self):
        return False

    def is_bool(self):
        return True

    def expect_true(self, file, line):
        return True

    def guard_bool(self, file="", line=0):
        """Returns the result, which the step is captured for."""
        if not self.is_known:
            self.guard_float()
        result = self.example()
        self.kept.decisions.append((self, result))
        return result

    bool_ = guard_bool


class Kept(Scalar):
    """A number that is known before an iteration, as an optimizer keeps it in Python, under a name. It comes from a
    tensor in double precision; where it `is_whole`, Python has an `int`. Code that compares it sees `example`, and adds
    the comparison and its result to `decisions`."""

    def __init__(self, name, tensor_number, example, decisions, is_whole=False):
        super().__init__(operator.pos, (tensor_number,))
        self.name, self.decisions, self.may_be_whole = name, decisions, is_whole
        self.is_known, self.kept, self._example = True, self, example


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


_SYMBOLS = {
    operator.add: " + ",
    operator.sub: " - ",
    operator.mul: " * ",
    operator.truediv: " / ",
    operator.pow: " ** ",
    operator.mod: " % ",
    operator.neg: "-",
    operator.pos: "+",
    operator.ge: " >= ",
    operator.gt: " > ",
    operator.le: " <= ",
    operator.lt: " < ",
    operator.eq: " == ",
    operator.ne: " != ",
}
_WHOLE_OF_WHOLE = {
    operator.add,
    operator.sub,
    operator.mul,
    operator.mod,
    operator.pow,
    operator.neg,
    operator.pos,
    abs,
    min,
    max,
    math.floor,
    math.ceil,
}
_NAMED = {}  # what expressions call, by name


def _name(function):
    name = f"{function.__name__}_{id(function)}"
    _NAMED[name] = function
    return name


def _constant(number):
    """Returns an expression for a number. That of a finite one has all its digits."""
    return f"({number!r})" if math.isfinite(number) else f"float('{number}')"


def _may_be_whole(operand):
    return operand.may_be_whole if isinstance(operand, Scalar) else float(operand).is_integer()


def _call(function, parts):
    """Returns the expression of Python that calls a function with some expressions."""
    symbol = _SYMBOLS.get(function)
    if symbol is None:
        return f"{_name(function)}({', '.join(parts)})"
    return symbol.join(parts) if len(parts) == 2 else f"{symbol}{parts[0]}"


def _in_order(number):
    """Returns the numbers that a number is computed from, and itself, each after its operands."""
    order, seen, waiting = [], set(), [(number, False)]
    while waiting:
        one, is_ready = waiting.pop()
        if is_ready:
            order.append(one)
        elif id(one) not in seen:
            seen.add(id(one))
            waiting.append((one, True))
            waiting += [(o, False) for o in reversed(one.operands) if isinstance(o, Scalar)]
    return order


@cache
def _function(lines, result, count):
    """Returns the function of `count` values that runs some lines and returns a result."""
    parameters = ", ".join(f"x{k}" for k in range(count))
    body = "\n    ".join([*lines, f"return {result}"])
    names = dict(_NAMED)
    exec(f"def compute({parameters}):\n    {body}", names)  # noqa: S102
    return names["compute"]


def form_of(number):
    """Returns a value that is equal for equal expressions."""
    if not isinstance(number, Scalar):
        return type(number), number
    return number.compiled[0], *number.leaves()


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


def _of_numbers(function):
    """Returns a function that also takes numbers read from tensors."""

    @wraps(function)
    def of_numbers(*args, **kwargs):
        values = args
        if function in (min, max) and len(args) == 1:
            values = tuple(args[0])
            args = (values,)
        are_numbers = all(isinstance(v, (int, float, torch.SymFloat)) for v in values)
        if kwargs or not are_numbers or not any(isinstance(v, torch.SymFloat) for v in values):
            return function(*args, **kwargs)
        if function in (min, max) and len(values) == 1:
            return values[0]
        operands = [v.node if isinstance(v, torch.SymFloat) else v for v in values]
        return torch.SymFloat(Scalar(function, operands))

    return of_numbers


# By what an optimizer's module calls: Python's function, or the module `math`.
_OF_NUMBERS = {f: _of_numbers(f) for f in (min, max, *vars(math).values()) if callable(f)}
_OF_NUMBERS[math] = SimpleNamespace(**{n: _OF_NUMBERS[v] if callable(v) else v for n, v in vars(math).items()})
_KINDS = type(min), type(math)


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


def _root(number):
    return number**0.5


def read_tensor():
    """Marks a leaf, whose value is that of a tensor."""
    raise AssertionError("a leaf has no function")

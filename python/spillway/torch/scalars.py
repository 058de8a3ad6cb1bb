"""Numbers that a step reads from tensors, such as an optimizer's step count, as expressions.

`Tensor.item()` returns such a number while a step is captured. Python's arithmetic on it is
recorded and done again, in the same order and in double precision, before each op that uses it.
"""

import math
import operator
from functools import cache, cached_property, partialmethod

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


def _root(number):
    return number**0.5


def read_tensor():
    """Marks a leaf, whose value is that of a tensor."""
    raise AssertionError("a leaf has no function")

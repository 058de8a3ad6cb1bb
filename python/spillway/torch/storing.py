"""What the Python code of a step may store: attributes of modules and objects, entries of lists and
dicts, variables, and the states of generators.

All of it is remembered before a step runs on fake tensors, and put back afterwards.
"""

import os
import random
import sys
import sysconfig
import types
from collections import deque
from dataclasses import dataclass
from functools import partial

import torch
from torch.utils._pytree import tree_flatten

_PLAIN = (type(None), bool, int, float, complex, str, bytes)
_MOST_ITEMS = 10_000  # a list with more is data, which no step writes
_MOST_ARRAY_BYTES = 1 << 20
_DICTS_OF_MODULES = [name for name, v in vars(torch.nn.Module()).items() if isinstance(v, dict)]
_PATHS = sysconfig.get_paths()
_OTHERS = tuple(
    os.path.realpath(path) + os.sep
    for path in (
        *(_PATHS[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")),
        os.path.dirname(os.path.dirname(torch.__file__)),
        os.path.dirname(__file__),
    )
)


@dataclass(frozen=True)
class Change:
    """What a step has stored in one place. `before` or `after` is `MISSING` where it has added or
    deleted an entry."""

    place: object
    key: object
    before: object
    after: object

    @property
    def name(self):
        return self.place.name_of(self.key)

    def now(self):
        """Returns what there is now."""
        return self.place.read().get(self.key, MISSING)


MISSING = type("Missing", (), {"__repr__": lambda self: "missing"})()


class Stored:
    """The places that are reached from some roots, given by name, with what they hold now."""

    def __init__(self, **roots):
        self._places, self._seen = [], {}
        waiting = [(value, name) for name, value in roots.items()]
        while waiting:
            waiting += self._visit(*waiting.pop())
        self._before = [place.read() for place in self._places]

    def changes(self):
        """Returns what differs from before, as `Change`s."""
        found = []
        for place, before in zip(self._places, self._before):
            after = place.read()
            for key in [*before, *(key for key in after if key not in before)]:
                values = before.get(key, MISSING), after.get(key, MISSING)
                if not is_same(*values):
                    found.append(Change(place, key, *values))
        return found

    def put_back(self):
        """Has all places hold what they held before."""
        for place, before in zip(self._places, self._before):
            if not _is_alike(place.read(), before):
                place.write(before)

    def _visit(self, value, name):
        """Adds the places of a value, and returns what they hold, with names."""
        if isinstance(value, (*_PLAIN, torch.Tensor)) or id(value) in self._seen:
            return []
        self._seen[id(value)] = value
        if isinstance(value, torch.nn.Module):
            return self._module(value, name)
        if isinstance(value, torch.optim.Optimizer):
            return self._optimizer(value, name)
        if isinstance(value, dict):
            return self._add(_Dict(value, name))
        if isinstance(value, (list, deque)):
            return self._add(_List(value, name))
        if isinstance(value, tuple):
            return [(item, f"{name}[{k}]") for k, item in enumerate(value)]
        if isinstance(value, set):
            return self._add(_Set(value, name))
        if isinstance(value, partial):
            return [(v, name) for v in (value.func, value.args, value.keywords)]
        if isinstance(value, types.MethodType):
            return [(value.__self__, name), (value.__func__, name)]
        if isinstance(value, types.FunctionType):
            return self._function(value)
        if isinstance(value, (staticmethod, classmethod)):
            return [(value.__func__, name)]
        if isinstance(value, property):
            return [(f, name) for f in (value.fget, value.fset) if f]
        if type(value).__name__ == "_lru_cache_wrapper":
            self._add(_Cache(value, name))
            return [(value.__wrapped__, name)]
        return self._object(value, name)

    def _add(self, place):
        held = place.read()
        if len(held) > _MOST_ITEMS:
            return []
        self._places.append(place)
        return [(value, place.name_of(key)) for key, value in held.items()]

    def _module(self, module, name):
        own = vars(module)
        held = self._add(_Attributes(own, name, without=_DICTS_OF_MODULES))
        for kind in _DICTS_OF_MODULES:
            if kind in own:
                held += self._add(_Attributes(own[kind], name, is_of_buffers=kind == "_buffers"))
        return held + self._classes(type(module))

    def _optimizer(self, optimizer, name):
        apart = ("param_groups", "state", "defaults", "joining", "step", "_opt_called", "_step_count")
        held = self._add(_Attributes(vars(optimizer), name, without=apart))
        for values in vars(optimizer).get("state", {}).values():
            if isinstance(values, dict):
                held += [(value, f"{key!r} of a state") for key, value in values.items()]
        objects = [(value, its) for value, its in held if _is_plain_object(value) and id(value) not in self._seen]
        for value, its in objects:
            held += self._add(_Attributes(vars(value), its))
        return held

    def _function(self, function):
        held = []
        if is_of_others(function.__code__.co_filename):
            return held
        cells = zip(function.__code__.co_freevars, function.__closure__ or ())
        for name, cell in cells:
            if id(cell) not in self._seen:
                self._seen[id(cell)] = cell
                held += self._add(_Cell(cell, name))
        known = function.__globals__
        names = _names(function.__code__)
        kinds = [known[n] for n in names if isinstance(known.get(n), type)]
        held += [(kind, kind.__name__) for kind in kinds]
        names = [n for n in names if not isinstance(known.get(n), (types.ModuleType, type))]
        held += self._add(_Attributes(known, "", names))
        held += [(v, function.__name__) for v in function.__defaults__ or ()]
        return held + [(v, function.__name__) for v in (function.__kwdefaults__ or {}).values()]

    def _object(self, value, name):
        numpy = sys.modules.get("numpy")
        if isinstance(value, random.Random):
            return self._add(_Generator(value.getstate, value.setstate, name))
        if numpy and isinstance(value, numpy.random.Generator):
            bits = value.bit_generator
            write = lambda state: setattr(bits, "state", state)
            return self._add(_Generator(lambda: _frozen(bits.state), write, name))
        if numpy and isinstance(value, numpy.random.RandomState):
            return self._add(_Generator(lambda: _frozen(value.get_state()), value.set_state, name))
        if numpy and isinstance(value, numpy.ndarray) and value.nbytes <= _MOST_ARRAY_BYTES:
            return self._add(_Array(value, name)) if value.dtype != object else []
        if isinstance(value, type):
            return self._class(value)
        kind, namespaces = type(value), ("SimpleNamespace", "Namespace")
        if not hasattr(value, "__dict__"):
            return []
        if kind.__name__ not in namespaces and is_of_others(_file(kind)):
            return []
        return self._add(_Attributes(vars(value), name)) + self._classes(kind)

    def _classes(self, kind):
        """Adds a class and those that it inherits from."""
        return [(k, k.__name__) for k in kind.__mro__]

    def _class(self, kind):
        if is_of_others(_file(kind)):
            return []
        functions = types.FunctionType, staticmethod, classmethod, property
        held = [(f, kind.__name__) for f in vars(kind).values() if isinstance(f, functions)]
        return held + self._add(_OfClass(kind))


def _is_plain_object(value):
    """Returns whether a value has attributes alone, whatever package its class is of."""
    others = torch.Tensor, torch.nn.Module, torch.optim.Optimizer, type, types.FunctionType, types.MethodType
    return hasattr(value, "__dict__") and not isinstance(value, others)


def is_of_others(file):
    """Returns whether a file belongs to Python or to an installed package."""
    return file is None or os.path.realpath(file).startswith(_OTHERS)


def is_same(a, b):
    """Returns whether two values are one object, or numbers or texts that are equal."""
    if a is b:
        return True
    if type(a) is not type(b):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    if isinstance(a, torch.Tensor):
        return False
    return isinstance(a, _PLAIN) and (a == b or a != a and b != b)


def described(value):
    """Returns what two runs of a step must store alike: numbers, and the shapes of tensors."""
    leaves, structure = tree_flatten(value)
    return str(structure), tuple(map(_described, leaves))


def _described(leaf):
    if isinstance(leaf, torch.Tensor):
        return tuple(leaf.shape), leaf.dtype
    return repr(leaf) if isinstance(leaf, _PLAIN) else type(leaf)


def _is_alike(one, other):
    return one.keys() == other.keys() and all(is_same(one[key], other[key]) for key in one)


def _file(kind):
    return getattr(sys.modules.get(kind.__module__), "__file__", None)


def _names(code):
    """Returns the names that code and what it defines use."""
    names = set(code.co_names)
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            names.update(_names(inner))
    return sorted(names)


class _Place:
    """What holds values by keys. `label` is its name."""

    is_of_buffers = False
    label = ""

    def restore(self, key, value):
        """Has a key hold a value that it held before."""
        self.write({**self.read(), key: value})


class _Attributes(_Place):
    """Attributes by name: all of a dict, or some, or all without some."""

    def __init__(self, values, owner, names=None, without=(), is_of_buffers=False):
        self._values, self.label, self._names, self._without = values, owner, names, without
        self.is_of_buffers = is_of_buffers

    def read(self):
        names = self._values if self._names is None else self._names
        values = self._values
        return {n: values[n] for n in names if n in values and n not in self._without}

    def write(self, before):
        for name in self.read():
            if name not in before:
                del self._values[name]
        self._values.update(before)

    def name_of(self, name):
        return f"{self.label}.{name}" if self.label else name


class _Dict(_Attributes):
    def name_of(self, key):
        return f"{self.label}[{key!r}]"


class _OfClass(_Place):
    """The attributes of a class that are no functions."""

    def __init__(self, kind):
        self._kind = kind

    def read(self):
        kinds = (*_PLAIN, list, dict, set, deque, tuple, torch.Tensor)
        own = vars(self._kind).items()
        return {n: v for n, v in own if isinstance(v, kinds) and not n.startswith("__")}

    def write(self, before):
        now = self.read()
        for name in now:
            if name not in before:
                delattr(self._kind, name)
        for name, value in before.items():
            if now.get(name, MISSING) is not value:
                setattr(self._kind, name, value)

    def name_of(self, name):
        return f"{self._kind.__name__}.{name}"


class _List(_Place):
    def __init__(self, values, owner):
        self._values, self.label = values, owner

    def read(self):
        return dict(enumerate(self._values))

    def write(self, before):
        self._values.clear()
        self._values.extend(before.values())

    def name_of(self, key):
        return f"{self.label}[{key}]"


class _Set(_Place):
    def __init__(self, values, owner):
        self._values, self.label = values, owner

    def read(self):
        return {value: True for value in self._values}

    def write(self, before):
        self._values.clear()
        self._values.update(before)

    def name_of(self, value):
        return self.label


class _Cell(_Place):
    """A variable of a function that another one within it uses."""

    def __init__(self, cell, name):
        self._cell, self.label = cell, name

    def read(self):
        try:
            return {self.label: self._cell.cell_contents}
        except ValueError:  # it has no value
            return {}

    def write(self, before):
        if before:
            self._cell.cell_contents = before[self.label]
        else:
            del self._cell.cell_contents

    def name_of(self, name):
        return name


class _Cache(_Place):
    """What `functools.lru_cache` keeps. A cache that has grown is emptied: it may hold fakes."""

    def __init__(self, function, name):
        self._function, self.label = function, name

    def read(self):
        return {"entries": self._function.cache_info().currsize}

    def write(self, before):
        self._function.cache_clear()

    def name_of(self, key):
        return self.label


class _Generator(_Place):
    """A generator of random numbers of Python or NumPy."""

    def __init__(self, read, write, name):
        self._read, self._write, self.label = read, write, name

    def read(self):
        return {"state": self._read()}

    def write(self, before):
        self._write(_thawed(before["state"]))

    def name_of(self, key):
        return self.label


class _Array(_Place):
    """The values of an array of NumPy."""

    def __init__(self, array, name):
        self._array, self.label = array, name

    def read(self):
        return {"values": self._array.tobytes()}

    def write(self, before):
        numpy = sys.modules["numpy"]
        values = numpy.frombuffer(before["values"], self._array.dtype)
        self._array[...] = values.reshape(self._array.shape)

    def name_of(self, key):
        return self.label


def _frozen(state):
    """Returns the state of a generator of NumPy as tuples, which can be compared."""
    if isinstance(state, dict):
        return ("dict", tuple((key, _frozen(value)) for key, value in state.items()))
    if isinstance(state, (tuple, list)):
        return ("tuple", tuple(map(_frozen, state)))
    return ("array", str(state.dtype), state.tobytes()) if hasattr(state, "tobytes") else state


def _thawed(state):
    if isinstance(state, tuple) and state and state[0] == "dict":
        return {key: _thawed(value) for key, value in state[1]}
    if isinstance(state, tuple) and state and state[0] == "tuple":
        return tuple(map(_thawed, state[1]))
    if isinstance(state, tuple) and state and state[0] == "array":
        return sys.modules["numpy"].frombuffer(state[2], state[1])
    return state

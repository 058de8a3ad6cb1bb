"""Which values of Python a step can see: attributes of modules, and what its functions reach.

A number that a function takes from elsewhere is a constant of the capture. Watched are numbers,
texts, and containers of them, as they are reached by name from the code.
"""

import dis
import os
import sys
import types
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from operator import itemgetter

import torch

from .errors import CaptureError

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device, torch.Size)
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)
_CALLABLE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, partial)
_MOST_ITEMS = 256  # of a container that is watched
_DEEPEST = 3
_INTERNALS = set(vars(torch.nn.Module())) - {"training"}
# Methods of modules that make or copy them, which a step does not call.
_OUTSIDE_STEPS = {
    *("__init__", "__copy__", "__deepcopy__"),
    *("__getstate__", "__setstate__", "__reduce__", "__reduce_ex__"),
}
_OTHERS = tuple(
    os.path.realpath(path) + os.sep
    for path in {os.path.dirname(os.path.dirname(torch.__file__)), os.path.dirname(os.__file__)}
)
_HERE = os.path.dirname(os.path.realpath(__file__)) + os.sep
_INSTRUCTIONS = {}  # by code: the names of globals and of attributes


@dataclass(frozen=True)
class Change:
    """What differs from the capture. `kind` is "replaced" where tensors are others, "changed" where
    another capture is needed, and "refused" where none helps; then `advice` says what does."""

    kind: str
    sentence: str
    advice: str = (
        "A step has such values as constants: put what changes into the batch as a tensor, or"
        " capture again"
    )


class Source:
    """Some values of one owner: `read` returns them, `names` has what they are called. `sized`
    tells whether there are more. `within` is the dict that they are read from, None if there is none."""

    def __init__(self, read, names, owner, kind, sized=None, within=None):
        self.read, self.names, self.owner, self.kind, self.sized = read, names, owner, kind, sized
        self.within = within
        self.take()

    def take(self):
        self.values = list(self.read())
        self.count = None if self.sized is None else len(self.sized)


def difference(source):
    """Returns the first `Change` of a source, or None."""
    try:
        now = list(source.read())
    except (KeyError, ValueError):
        return Change(source.kind, f"{source.owner} has lost an attribute")
    if len(now) != len(source.values) or source.sized is not None and len(source.sized) != source.count:
        return Change(source.kind, f"{source.owner} has other members")
    for k, (value, before) in enumerate(zip(now, source.values)):
        if not is_same(value, before):
            name = source.names[k] if k < len(source.names) else source.names[-1]
            return Change(source.kind, f"{name} of {source.owner} {_told(value, before)}")
    return None


def _told(value, before):
    if is_plain(value) and is_plain(before):
        return f"is {value!r}, but {before!r} was captured"
    return "is not the one that was captured"


def is_same(a, b):
    """Returns whether two values are one object, or plain and the same."""
    if a is b:
        return True
    if type(a) is not type(b) or not is_plain(a):
        return False
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(is_same, a, b))
    return a == b or a != a and b != b


def is_plain(value):
    """Returns whether a value is a number, a text or the like."""
    if type(value) in (tuple, frozenset):
        return len(value) <= _MOST_ITEMS and all(map(is_plain, value))
    return isinstance(value, _PLAIN)


class Reached:
    """What is reached from modules and functions, as sources. `tensors` are the states that were
    captured; other tensors are not watched."""

    def __init__(self, tensors):
        self.sources, self.modules = [], []
        self._tensors = {id(t) for t in tensors}
        self._seen = {}  # what was seen, by identity, which stays alive
        self._attributes = set()  # names that the functions use
        self._read = set()  # those of them that a step may use
        self._objects = {}  # by identity, with their labels

    def module(self, name, root):
        """Watches a module and all that are within it."""
        for path, module in root.named_modules():
            if self._is_new(module):
                label = f"{name}.{path}" if path else name
                self.modules.append((label, module))
                self._watch_module(label, module)
                self._add_class(label, type(module))
                for kind in type(module).__mro__:
                    if not _is_of_others(sys.modules.get(kind.__module__)):
                        for n, method in vars(kind).items():
                            is_run = n not in _OUTSIDE_STEPS
                            self.function(f"{label}.{kind.__name__}", method, is_run)

    def _watch_module(self, label, module):
        own = vars(module)
        names = [n for n, v in own.items() if n not in _INTERNALS and self._is_watched(v)]
        # One more name has `itemgetter` return a tuple always.
        read = partial(itemgetter(*names, "_modules"), own)
        self.sources.append(Source(read, [*names, "_modules"], label, "changed", own, own))
        for kind in ("_parameters", "_buffers", "_modules"):
            members, replaces = own[kind], "changed" if kind == "_modules" else "replaced"
            source = Source(members.values, list(members), label, replaces, members, members)
            self.sources.append(source)
        for n in names:
            self._value(f"{label}.{n}", own[n], "changed")

    def finish(self):
        """Watches the objects that were reached, once the names of all attributes are known."""
        known = None
        while known != (known := (len(self._objects), len(self._attributes), len(self._read))):
            for found in list(self._objects.values()):
                self._explore(*found)
        for label, module in self.modules:
            for n, value in vars(module).items():
                if n in self._read:
                    _refuse_iterator(f"{n} of {label}", value)
        for label, value, kind, _ in self._objects.values():
            names = [n for n in self._names_of(value, kind) if self._is_watched(vars(value)[n])]
            if names:
                read = partial(itemgetter(*names, names[0]), vars(value))
                self.sources.append(Source(read, names, label, kind, within=vars(value)))
        return self

    def function(self, name, function, is_run=True):
        """Watches what a function uses of its closure and of its module, and what it calls.
        `is_run` is false where a step does not call it, but may call functions that it defines."""
        if isinstance(function, (staticmethod, classmethod)):
            function = function.__func__
        if isinstance(function, partial):
            for value in (function.func, *function.args, *function.keywords.values()):
                self._used(name, value)
        elif isinstance(function, types.MethodType):
            self._used(name, function.__self__)
            self.function(name, function.__func__)
        elif isinstance(function, torch.nn.Module):
            self.module(name, function)
        elif isinstance(function, types.FunctionType):
            if self._is_new(function) and not _is_of_others(function.__code__):
                self._watch_function(function.__qualname__, function, is_run)
        elif isinstance(function, type):
            self._add_class(name, function)
        elif not isinstance(function, _CALLABLE) and callable(function):
            self._used(name, function)
            self._call_of(name, function)

    def _watch_function(self, name, function, is_run):
        used, attributes = _names(function.__code__)
        of_step = {*used, *attributes, *function.__code__.co_freevars}
        if not is_run:
            of_step &= _names_within(function.__code__)
        self._attributes |= attributes
        self._read |= attributes & of_step
        known = function.__globals__
        names = [n for n in used if n in known]
        watched = [n for n in names if self._is_watched(known[n])]
        label = f"{name} ({function.__code__.co_filename}:{function.__code__.co_firstlineno})"
        if watched:
            # The second occurrence has `itemgetter` return a tuple always.
            read = partial(itemgetter(*watched, watched[0]), known)
            self.sources.append(Source(read, watched, label, "refused"))
        for n in names:
            self._used(f"{n} of {label}", known[n], n in of_step)
        for cell, n in zip(function.__closure__ or (), function.__code__.co_freevars):
            try:
                value = cell.cell_contents
            except ValueError:
                continue
            if self._is_watched(value):
                read = lambda cell=cell: (cell.cell_contents,)
                self.sources.append(Source(read, [n], label, "refused"))
            self._used(f"{n} of {label}", value, n in of_step)
        for value in (*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()):
            self._used(label, value)

    def _used(self, label, value, is_read=True):
        """Watches a value that a function has reached. `is_read` tells whether a step may use it."""
        if is_read:
            _refuse_iterator(label, value)
        if isinstance(value, torch.nn.Module):
            self.module(label, value)
        elif isinstance(value, _CALLABLE):
            self.function(label, value)
        else:
            self._value(label, value, "refused")
            if callable(value):
                self._call_of(label, value)

    def _call_of(self, label, value):
        """Watches what the call of an object runs: its method, or what a decorator has wrapped."""
        for function in (getattr(type(value), "__call__", None), getattr(value, "__wrapped__", None)):
            if isinstance(function, types.FunctionType):
                self.function(label, function)

    def _add_class(self, label, kind):
        """Adds the classes of which the attributes are to be watched that the functions use."""
        for base in kind.__mro__:
            if not _is_of_others(sys.modules.get(base.__module__)) and base is not object:
                its = label if base is kind else f"{base.__qualname__} of {label}"
                self._objects.setdefault(id(base), (its, base, "refused", 0))

    def _value(self, label, value, kind, depth=0):
        if is_plain(value) or isinstance(value, torch.Tensor) or depth > _DEEPEST:
            return
        if isinstance(value, _CONTAINERS):
            if len(value) <= _MOST_ITEMS and self._is_new(value):
                self._watch_container(label, value, kind, depth)
        elif kind == "refused" or not isinstance(value, _CALLABLE):
            self._add_object(label, value, kind, depth)

    def _watch_container(self, label, value, kind, depth):
        is_dict = isinstance(value, dict)
        items = list(value.values() if is_dict else value)
        if self._is_watched(value) and not is_dict:
            self.sources.append(Source(value.__iter__, ["an item"], label, kind, value))
        elif is_dict:
            names = [n for n, item in value.items() if self._is_watched(item)]
            if names:
                read = partial(itemgetter(*names, names[0]), value)
                self.sources.append(Source(read, names, label, kind))
        for item in items:
            if isinstance(item, (torch.nn.Module, *_CALLABLE)) and kind == "refused":
                self._used(label, item)
            else:
                self._value(label, item, kind, depth + 1)

    def _add_object(self, label, value, kind, depth):
        """Adds an object whose attributes are to be watched."""
        if type(getattr(value, "__dict__", None)) is not dict or _is_of_others(value):
            return
        if not isinstance(value, (torch.nn.Module, torch.Tensor, torch.optim.Optimizer)):
            self._objects.setdefault(id(value), (label, value, kind, depth))

    def _names_of(self, value, kind):
        """Returns the names of an object's attributes that occur in the functions; all of one that
        a module has, such as its configuration."""
        return [n for n in vars(value) if kind != "refused" or n in self._attributes]

    def _explore(self, label, value, kind, depth):
        """Follows the attributes and the methods of an object."""
        for n in self._names_of(value, kind):
            if kind == "refused":
                self._used(f"{n} of {label}", vars(value)[n], n in self._read)
            else:
                self._value(f"{label}.{n}", vars(value)[n], kind, depth + 1)
        for n in list(self._attributes) if kind == "refused" else ():
            method = getattr(type(value), n, None)
            if isinstance(method, types.FunctionType):
                self.function(label, method)

    def _is_watched(self, value, depth=0):
        """Returns whether an owner of a value is asked for it. An empty container may be there to
        collect what the step makes."""
        if isinstance(value, torch.Tensor):
            return id(value) in self._tensors
        if isinstance(value, _CONTAINERS) and not is_plain(value):
            items = value.values() if isinstance(value, dict) else value
            is_small = 0 < len(value) <= _MOST_ITEMS and depth < _DEEPEST
            return is_small and all(self._is_watched(item, depth + 1) for item in items)
        return is_plain(value) or isinstance(value, _CALLABLE)

    def _is_new(self, value):
        is_new = id(value) not in self._seen
        self._seen[id(value)] = value
        return is_new


def _refuse_iterator(label, value):
    """Refuses what gives a step other items each time, in a way that cannot be watched."""
    is_builtin = type(value).__module__ in ("builtins", "itertools")
    if is_builtin and isinstance(value, Iterator):
        raise CaptureError(
            f"{label} is an iterator, whose next item a captured step would not ask for: take it"
            " outside of the step, and put what it gives into the batch as a tensor"
        )


def _is_of_others(value):
    """Returns whether code or a module belongs to Python or to an installed package."""
    if isinstance(value, types.ModuleType):
        file = getattr(value, "__file__", None)
    elif isinstance(value, types.CodeType):
        file = value.co_filename
    else:
        return False
    if file is None:
        return True  # it is built in
    file = os.path.realpath(file)
    return file.startswith((*_OTHERS, _HERE))


def _names(code):
    """Returns the names of globals and those of attributes that code and what it defines use."""
    if code not in _INSTRUCTIONS:
        used, attributes = set(), set()
        for instruction in dis.get_instructions(code):
            if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                used.add(instruction.argval)
            elif instruction.opname in ("LOAD_ATTR", "LOAD_METHOD"):
                attributes.add(instruction.argval)
        for inner in code.co_consts:
            if isinstance(inner, types.CodeType):
                its_used, its_attributes = _names(inner)
                used.update(its_used)
                attributes |= its_attributes
        _INSTRUCTIONS[code] = sorted(used), attributes
    return _INSTRUCTIONS[code]


def _names_within(code):
    """Returns all names that the functions use which code defines."""
    names = set()
    for inner in code.co_consts:
        if isinstance(inner, types.CodeType):
            used, attributes = _names(inner)
            names.update(used, attributes, inner.co_freevars)
    return names

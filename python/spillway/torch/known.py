"""Integers and truth values that a step computes from shapes and constants alone, such as positions of tokens. They are
the same in each iteration, so Python may use them while a step is captured."""

import sys
from contextlib import contextmanager

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .memory import empty

MOST_ELEMENTS = 1 << 20
UNDEFINED = {"empty", "empty_like", "empty_permuted", "empty_strided", "new_empty", "new_empty_strided"}


class Known:
    """The values of some storages. The processor computes them, and every device computes the same values."""

    def __init__(self):
        self._values = {}  # by storage: a tensor at its start

    def value(self, view):
        """Returns the value of a view; None if it is not known."""
        value = self._values.get(view.tensor)
        if value is None or value.dtype != view.dtype:
            return None
        with _disable_current_modes():
            return torch.as_strided(value, view.shape, view.stride, view.offset)

    def number(self, view):
        """Returns the number, or the truth value, of a view of one element; None if it is not known."""
        value = self.value(view)
        if value is None:
            return None
        with _disable_current_modes():
            return value.item()

    def compute(self, function, arguments, view_of, results):
        """Computes the results of a recorded op if the values of its operands are known. `results` has their views."""
        if not results or not all(map(_is_exact, results)) or not _is_defined(function):
            return
        operands = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, torch.Tensor)]
        values = {id(fake): self.value(view_of(fake)) for fake in operands}
        if any(value is None for value in values.values()):
            return

        def real(leaf):
            if isinstance(leaf, torch.Tensor):
                return values[id(leaf)]
            return torch.device("cpu") if isinstance(leaf, torch.device) else leaf

        with _disable_current_modes():
            args, kwargs = tree_map(real, arguments)
            try:
                made = function(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                return  # the processor does not have the op
            for view, one in zip(results, made if isinstance(made, (tuple, list)) else [made]):
                value = empty(view, "cpu")
                self._values[view.tensor] = value.copy_(one)

    def forget(self, storages):
        """Forgets the values of storages that are written."""
        for storage in storages:
            self._values.pop(storage, None)


def _is_exact(view):
    """Returns whether a result has whole numbers, at most `MOST_ELEMENTS`, and begins at the start of its storage."""
    return (
        view is not None
        and view.tensor is not None
        and not view.offset
        and not (view.dtype.is_floating_point or view.dtype.is_complex)
        and view.nbytes <= MOST_ELEMENTS * view.dtype.itemsize
    )


def _is_defined(function):
    """Returns whether an op makes equal results of equal operands."""
    name = function._schema.name.split("::")[1]
    return (
        function.namespace == "aten"
        and name not in UNDEFINED
        and torch.Tag.nondeterministic_seeded not in function.tags
    )


@contextmanager
def shown_to_transformers(is_known):
    """Within it, transformers reads tensors whose values are known. Otherwise it reads no tensor while a step is
    captured, and makes attention masks that it leaves out in eager mode."""
    module = sys.modules.get("transformers.masking_utils")
    original = getattr(module, "is_tracing", None)
    if original is None:
        yield
        return

    def is_tracing(tensor=None):
        return original(None if isinstance(tensor, FakeTensor) and is_known(tensor) else tensor)

    module.is_tracing = is_tracing
    try:
        yield
    finally:
        module.is_tracing = original

"""Bundles of small parameters. One collective exchanges the rows of a bundle, since a collective takes longer to
start than to move a small parameter."""

from dataclasses import dataclass
from itertools import accumulate

import torch

SMALL_BYTES = 64 << 10  # of a whole parameter
BUNDLE_BYTES = 256 << 10  # of all whole parameters of a bundle
ALIGNMENT_BYTES = 64


@dataclass(frozen=True)
class Part:
    """A parameter in a bundle: its place among the rows that one process keeps, in elements."""

    parameter: torch.nn.Parameter
    start: int
    elements: int


class Bundle:
    """Some parameters of one type, and where the rows of each are. Each part is aligned as a tensor is."""

    def __init__(self, sizes, processes):
        """`sizes` are pairs of a parameter and the elements that each process keeps of it."""
        self.dtype, self._processes = sizes[0][0].dtype, processes
        aligned = [_aligned(elements, self.dtype) for _, elements in sizes]
        starts = accumulate(aligned, initial=0)
        self.parts = [Part(p, start, n) for (p, n), start in zip(sizes, starts)]
        self.elements = sum(aligned)

    def whole(self, flat, part):
        """Returns the elements of a parameter of all processes, a row for each process, in a tensor that holds one
        parameter after the other."""
        return flat.as_strided(
            (self._processes, part.elements), (part.elements, 1), part.start * self._processes
        )

    def of_all(self, flat, part):
        """Returns the same in a tensor that holds the elements of one process after the other."""
        return flat.as_strided((self._processes, part.elements), (self.elements, 1), part.start)

    def of_one(self, flat, part):
        """Returns the elements of a parameter in a tensor that holds the elements of one process."""
        return flat[part.start : part.start + part.elements]

    def empty(self, like):
        """Returns a tensor for the elements of all processes."""
        return like.new_empty(self._processes * self.elements)


class Gradients:
    """The gradients of a bundle. They wait here from the first gradient until one collective averages them."""

    def __init__(self, bundle):
        self.bundle, self.flat = bundle, None
        self.added = []  # parts whose gradients are there

    def add(self, parameter, given):
        """Adds the elements of all processes of a gradient."""
        if self.flat is None:
            self.flat = self.bundle.empty(given)
        part = next(part for part in self.bundle.parts if part.parameter is parameter)
        self.bundle.of_all(self.flat, part).copy_(given.view(-1, part.elements))
        self.added.append(part)

    def has(self, parameter):
        """Returns whether the gradient of a parameter has been added."""
        return any(parameter is part.parameter for part in self.added)

    def is_full(self):
        """Returns whether no gradient is missing."""
        return len(self.added) == len(self.bundle.parts)


def bundles(sizes, processes):
    """Puts small parameters into bundles, in the given order. Leaves out a parameter that would be alone."""
    found = {}  # lists of parameters, by their type
    for parameter, elements in sizes:
        nbytes = _whole_bytes(parameter, elements, processes)
        if nbytes > SMALL_BYTES:
            continue
        lists = found.setdefault(parameter.dtype, [[]])
        if nbytes + sum(_whole_bytes(*size, processes) for size in lists[-1]) > BUNDLE_BYTES:
            lists.append([])
        lists[-1].append((parameter, elements))
    return [Bundle(some, processes) for lists in found.values() for some in lists if len(some) > 1]


def _whole_bytes(parameter, elements, processes):
    return _aligned(elements, parameter.dtype) * processes * parameter.dtype.itemsize


def _aligned(elements, dtype):
    unit = max(ALIGNMENT_BYTES // dtype.itemsize, 1)
    return -(-elements // unit) * unit

"""Runs each kind of op once on real memory: its results' layouts, time, workspace, randomness."""

import time
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_flatten

from .launching import launch
from .recording import View
from .scalars import Scalar


@dataclass(frozen=True)
class Measured:
    """What one launch of an op costs."""

    time_ns: int
    workspace_bytes: int
    draws: bool  # draws random numbers


class Measurements:
    """Measures ops. Ops with the same function, shapes and strides are measured once."""

    def __init__(self):
        self._layouts = {}
        self._measured = {}

    def layouts(self, call, storages):
        """Returns the shape and the strides of each result of the real op."""
        key = _key(call)
        if key not in self._layouts:
            memory = _Operands(storages)
            with plain_mode(), _generator_kept():
                out = _plain(call, memory)
            outs = out if isinstance(out, (tuple, list)) else [out]
            self._layouts[key] = [
                (tuple(t.shape), tuple(t.stride())) if isinstance(t, torch.Tensor) else None
                for t in outs
            ]
        return self._layouts[key]

    def measure(self, call, storages):
        """Returns the costs of a launch."""
        key = _key(call)
        if key not in self._measured:
            self._measured[key] = _measure(call, _Operands(storages))
        return self._measured[key]


def peak_bytes(profile):
    """Returns the most bytes that were allocated at once in a profile with memory."""
    held = peak = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak


def memory_profile():
    """Returns a profiler that records allocations."""
    return torch.autograd.profiler.profile(profile_memory=True)


@contextmanager
def plain_mode():
    """Within it, ops run without autograd, autocast and the modes that capture uses."""
    with _disable_current_modes(), torch.no_grad(), torch._C._DisableAutocast():
        yield


class _Operands:
    """Memory for the tensors of one call; calling it gives the tensor of a view."""

    def __init__(self, storages):
        self._storages = storages
        self._tensors = {}

    def __call__(self, view):
        if view.tensor is None:
            return torch.empty_strided(view.shape, view.stride, dtype=view.dtype)
        if view.tensor not in self._tensors:
            elements = self._storages[view.tensor].nbytes // view.dtype.itemsize
            value = 0.5 if view.dtype.is_floating_point else 0
            self._tensors[view.tensor] = torch.full((elements,), value, dtype=view.dtype)
        flat = self._tensors[view.tensor]
        if flat.dtype != view.dtype:
            flat = flat.view(view.dtype)
        return flat.as_strided(view.shape, view.stride, view.offset)


class _generator_kept:
    """Gives the generator its state back at the end."""

    def __enter__(self):
        self.state = torch.get_rng_state()
        return self

    def __exit__(self, *_):
        torch.set_rng_state(self.state)

    def has_moved(self):
        return not torch.equal(torch.get_rng_state(), self.state)


def _measure(call, memory):
    if call.function is None:
        return Measured(0, 0, False)
    with plain_mode(), _generator_kept() as generator:
        launch(call, memory)  # makes the operands and warms up
        draws = generator.has_moved()
        with memory_profile() as profile:
            launch(call, memory)
        start = time.perf_counter_ns()
        launch(call, memory)
        time_ns = time.perf_counter_ns() - start
    return Measured(max(time_ns, 1), peak_bytes(profile), draws)


def _plain(call, memory):
    """Runs a call whose results have no memory yet."""
    made = []
    function = call.function
    plain = replace(call, function=lambda *a, **k: made.append(function(*a, **k)), results=[])
    launch(plain, memory)
    return made[0]


def _key(call):
    """Returns what decides the costs of a call: its function, shapes, strides and constants."""
    numbers = {}
    leaves, structure = tree_flatten((call.args, call.kwargs, call.results))

    def part(leaf):
        if isinstance(leaf, View):
            local = numbers.setdefault(leaf.tensor, len(numbers))
            return (local, leaf.shape, leaf.stride, leaf.offset, leaf.dtype)
        if isinstance(leaf, Scalar):
            return "number"
        return (type(leaf), leaf)

    return call.function, str(structure), tuple(map(part, leaves))

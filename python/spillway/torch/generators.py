"""Random numbers that a captured step cannot draw as eager mode does."""

import random
import sys
from contextlib import contextmanager
from functools import partial

import torch

from .errors import CaptureError, is_asked_by_package, quoted_line

_OF_CUDA = "manual_seed", "manual_seed_all", "seed", "seed_all", "set_rng_state", "set_rng_state_all"


class _Unseeded:
    """PyTorch's generator, which a step may not seed."""

    def __init__(self, generator):
        self._generator = generator

    def __getattr__(self, name):
        return getattr(self._generator, name)

    def set_state(self, state):
        if not is_asked_by_package():
            refuse_seeds()
        return self._generator.set_state(state)

    def manual_seed(self, seed):
        refuse_seeds()

    def seed(self):
        refuse_seeds()


def refuse_seeds(*_, **__):
    """Refuses the line of the step that sets the state of PyTorch's generator."""
    raise CaptureError(
        f"{quoted_line()}: sets the state of PyTorch's generator within the step, whose random ops"
        " draw from the state that each iteration begins with: seed it between iterations, or put"
        " the random tensors into the batch"
    )


@contextmanager
def unseeded():
    """Within it, code that sets the state of PyTorch's generator is refused."""
    module, generator, cuda = torch.random, torch.random.default_generator, torch.cuda
    before = [torch.get_rng_state(), {name: getattr(cuda, name) for name in _OF_CUDA}]
    try:
        module.default_generator = _Unseeded(generator)
        for name in _OF_CUDA:
            setattr(cuda, name, partial(_seed_of_cuda, before[1][name]))
        yield
    finally:
        module.default_generator = generator
        for name in _OF_CUDA:
            setattr(cuda, name, before[1][name])
        has_moved = not torch.equal(torch.get_rng_state(), before[0])
        torch.set_rng_state(before[0])
    if has_moved:
        raise CaptureError(
            "the step sets the state of PyTorch's generator, whose random ops draw from the state"
            " that each iteration begins with: seed it between iterations"
        )


def _seed_of_cuda(function, *args, **kwargs):
    if not is_asked_by_package():
        refuse_seeds()
    return function(*args, **kwargs)


class PythonsGenerators:
    """The generators of `random` and `numpy.random`, as they are now."""

    def __init__(self):
        self._states = self.states()

    def states(self):
        """Returns the state of each, by name."""
        numpy = sys.modules.get("numpy")
        found = {"Python's random module": random.getstate()}
        if numpy:
            name, keys, *others = numpy.random.get_state()
            found["numpy.random"] = (name, keys.tobytes(), *others)
        return found

    def moved(self):
        """Returns the name of one that has drawn since, or None."""
        now = self.states()
        return next((n for n, state in self._states.items() if state != now[n]), None)

    def seed(self, seed):
        """Seeds them."""
        random.seed(seed)
        if "numpy.random" in self._states:
            sys.modules["numpy"].random.seed(seed)
        return self

    def put_back(self):
        """Gives them the states back that they had."""
        random.setstate(self._states["Python's random module"])
        if "numpy.random" in self._states:
            numpy = sys.modules["numpy"]
            name, keys, *others = self._states["numpy.random"]
            numpy.random.set_state((name, numpy.frombuffer(keys, numpy.uint32), *others))



"""Runs each kind of op once on real memory: its results' layouts, time, workspace, randomness."""

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch.utils._pytree import tree_flatten

from .collectives import is_collective
from .errors import CaptureError
from .launching import bind, forget_out_variant, out_variant, plain_mode
from .memory import Memory, empty, viewed
from .numbers import Numbers
from .processor import Processor
from .recording import View, layout_of
from .scalars import Scalar
from .workspaces import Place

GARBAGE = 0x33
NUMBER_BYTES = 8


@dataclass(frozen=True)
class Measured:
    """What one launch of an op costs."""

    time_ns: int
    workspace_bytes: int
    draws: bool  # draws random numbers
    repeats: bool  # gives the same bytes again, if it draws the same random numbers
    places: tuple[Place, ...] = ()  # of results that it makes in their planned memory


class Measurements:
    """Measures ops on a device. Ops with the same function, shapes and strides are measured once."""

    def __init__(self, device):
        self.device = device
        self._layouts = {}
        self._measured = {}
        self._memory = Memory(device)

    def layouts(self, call, storages, fakes):
        """Returns the layout of each result of the real op."""
        key = _key(call)
        if key not in self._layouts:
            with plain_mode(), _generator_kept(self.device):
                out = self._tried(call, storages, _plain)
            outs = out if isinstance(out, (tuple, list)) else [out]
            self._layouts[key] = list(map(layout_of, outs))
        return self._layouts[key]

    def measure(self, call, storages):
        """Returns the costs of a launch."""
        key, call = _key(call), replace(call, unless=None)
        if key not in self._measured:
            measure = partial(_measure, device=self.device)
            self._measured[key] = self._tried(call, storages, measure)
        return self._measured[key]

    @contextmanager
    def on_host(self):
        """Within it, the result measures ops on the host while both links copy."""
        with self.device.copying():
            yield Measurements(Processor())

    def _tried(self, call, storages, run):
        """Returns what `run` does for a call and memory of some values. An op may refuse zeros, as
        those for factored matrices do: their pivots begin at 1. Raises `CaptureError` if it refuses
        all."""
        for integer in (0, 1):
            memory = _Operands(storages, self._memory, self.device, integer)
            try:
                return run(call, memory)
            except (RuntimeError, NotImplementedError, IndexError) as error:
                refused = error
        raise CaptureError(
            f"{call.line}: `{call.function}` cannot be measured, and so not planned: {refused}; compute"
            " it outside of the step, or by other ops"
        ) from refused

    def give_back(self):
        """Gives back the memory in which ops were measured."""
        self._memory = Memory(self.device)


class _Operands:
    """Memory for the tensors of one call; calling it gives the tensor of a view."""

    def __init__(self, storages, memory, device, integer):
        self._storages = storages
        self._memory = memory
        self._device = device
        self._integer = integer
        self._tensors = {}
        self.numbers = None if device.torch_device.type == "cpu" else Numbers()
        memory.take_back()

    def __call__(self, view):
        if view.tensor is None:
            return empty(view, self._device.torch_device)
        if view.tensor not in self._tensors:
            nbytes = self._storages[view.tensor].nbytes
            memory = self._memory.take(nbytes)
            # A single number may be a step count, of which Python computes roots.
            number = 2 if nbytes <= NUMBER_BYTES else 0.5
            number = number if view.dtype.is_floating_point else self._integer
            self._device.fill(memory.view(view.dtype), number)
            self._tensors[view.tensor] = memory
        return viewed(self._tensors[view.tensor], view)

    def results(self, call):
        """Returns the bytes of the tensors that a call makes."""
        views = [v for v in call.results if v is not None and v.tensor is not None]
        return [self._tensors[v.tensor] for v in views]

    def copy(self, tensor):
        """Returns a copy of bytes."""
        return self._memory.take(tensor.numel()).copy_(tensor)


class _generator_kept:
    """Gives the generator its state back at the end."""

    def __init__(self, device):
        self.device = device

    def __enter__(self):
        self.state = self.device.random_state()
        return self

    def __exit__(self, *_):
        self.restore()

    def restore(self):
        self.device.set_random_state(self.state)

    def has_moved(self):
        return not torch.equal(self.device.random_state(), self.state)


def _measure(call, memory, device):
    if call.function is None:
        return Measured(1, 0, draws=False, repeats=True)
    with plain_mode(), _generator_kept(device) as generator:
        launch = _warmed_up(call, memory)
        draws = generator.has_moved() or may_draw(call)
        made = memory.results(call)
        first = [memory.copy(result) for result in made]
        for result in made:
            result.fill_(GARBAGE)

        def again():
            generator.restore()
            return launch()

        results = _results(call, memory)
        workspace = device.workspace(again, [None if r is None else _bytes_from(r) for r in results])
        repeats = all(map(torch.equal, first, made))
        addresses = [None if r is None else r.data_ptr() for r in results]
        time_ns = device.time_ns(launch, workspace, addresses, is_collective(call))
    return Measured(max(time_ns, 1), workspace.nbytes, draws, repeats, workspace.places)


def _results(call, memory):
    """Returns the tensor of each result of a call, and None for a result that has no memory of its own on the device.
    A collective's results are left out."""
    if is_collective(call):
        return []
    have = [v is not None and v.tensor is not None and not v.is_host_number for v in call.results]
    return [memory(v) if yes else None for v, yes in zip(call.results, have)]


def _bytes_from(result):
    """Returns the bytes from the start of a result to the end of its memory."""
    return result.untyped_storage().data_ptr() + result.untyped_storage().nbytes() - result.data_ptr()


def may_draw(call):
    """Returns whether a call may draw random numbers for other values than those it was measured
    with, as `rrelu` does for negative ones alone."""
    if torch.Tag.nondeterministic_seeded not in call.function.tags:
        return False
    arguments = call.function._schema.arguments
    given = dict(zip((a.name for a in arguments), call.args)) | call.kwargs
    defaults = {a.name: a.default_value for a in arguments if a.has_default_value()}
    return (defaults | given).get("dropout_p") != 0.0


def _warmed_up(call, memory):
    """Binds a call and runs it once, without its out variant if that needs to resize results."""
    launch = bind(call, memory)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            launch()
    except RuntimeError:
        if out_variant(call.function)[0] is None:
            raise
        forget_out_variant(call.function)
        launch = bind(call, memory)
        launch()
    return launch


def _plain(call, memory):
    """Runs a call whose results have no memory yet."""
    made = []
    function = call.function
    plain = replace(call, function=lambda *a, **k: made.append(function(*a, **k)), results=[])
    bind(plain, memory)()
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

    return call.function, call.with_gradients, str(structure), tuple(map(part, leaves))

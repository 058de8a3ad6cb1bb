"""Runs each kind of op once on real memory: its results' layouts, time, workspace, randomness."""

import warnings
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import product

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map

from .collectives import is_collective
from .errors import CaptureError
from .launching import bind, has_variant, plain_mode
from .memory import Memory, empty, have_same_bits, viewed
from .numbers import Numbers
from .processor import Processor
from .recording import View, layout_of, unique
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
    copies: bool = False  # whether its out variant computes something else


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
        """Returns the costs of a launch. Has the call copy its results if its out variant computes something else."""
        key = _key(call)
        if key not in self._measured:
            measure = partial(_measure, device=self.device)
            self._measured[key] = self._tried(call, storages, measure)
        call.copies |= self._measured[key].copies
        return self._measured[key]

    @contextmanager
    def on_host(self):
        """Within it, the result measures ops on the host while both links copy."""
        with self.device.copying():
            yield Measurements(Processor())

    def _tried(self, call, storages, run):
        """Returns what `run` does for a call and memory of some values. An op may refuse integers of 0, as ops for
        factored matrices do, whose pivots begin at 1; or a probability of 2. Raises `CaptureError` if it refuses all
        values."""
        for integer, number in product((0, 1), (2, 0.5)):
            memory = _Operands(storages, self._memory, self.device, integer, number)
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

    def __init__(self, storages, memory, device, integer, number):
        self._storages = storages
        self._memory = memory
        self._device = device
        self._integer, self._number = integer, number
        self._tensors = {}
        self.numbers = None if device.torch_device.type == "cpu" else Numbers()
        memory.take_back()

    def __call__(self, view):
        if view.tensor is None:
            return empty(view, self._device.torch_device)
        if view.tensor not in self._tensors:
            nbytes = self._storages[view.tensor].nbytes
            memory = self._memory.take(nbytes)
            numbers = memory.view(view.dtype)
            if numbers.is_complex():
                numbers = torch.view_as_real(numbers).view(-1)
            # A single number may be a step count, of which Python computes roots.
            number = self._number if nbytes <= NUMBER_BYTES else 0.5
            self._device.fill(numbers, number if numbers.is_floating_point() else self._integer)
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
    args, kwargs = tree_map(_example, (call.args, call.kwargs))
    call = replace(call, args=args, kwargs=kwargs, unless=None)
    with plain_mode(), _generator_kept(device) as generator:
        launch = _warmed_up(call, memory, generator)
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
    return Measured(max(time_ns, 1), workspace.nbytes, draws, repeats, workspace.places, call.copies)


def _example(arg):
    """Returns the value of the example in place of a number that is known before an iteration. Other values may have no
    root, or none of another function that computes the number."""
    return arg.example() if isinstance(arg, Scalar) and arg.is_known else arg


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


def _warmed_up(call, memory, generator):
    """Binds a call and runs it once. Has it copy its results if its out variant needs to resize them or computes
    something else, as that of `native_batch_norm` does with transposed input (seen with PyTorch 2.15)."""
    launch = bind(call, memory)
    if any(call.results) and has_variant(call.function):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                if _agrees(call, memory, launch, generator):
                    return launch
        except RuntimeError:
            pass
        call.copies = True
        launch = bind(call, memory)
        generator.restore()
    launch()
    return launch


def _agrees(call, memory, launch, generator):
    """Returns whether a launch gives the bits of the op itself, if these are the same each time."""
    views = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, View)]
    written = [memory(v) for v in unique(views) if v.tensor in call.writes and not v.is_host_number]
    before = [tensor.clone() for tensor in written]

    def after(run):
        for tensor, value in zip(written, before):
            tensor.copy_(value)
        generator.restore()
        made = run()
        made = made if isinstance(made, (tuple, list)) else [made]
        made = [t for v, t in zip(call.results, made) if v is not None and not v.is_host_number]
        return made + [tensor.clone() for tensor in written]

    def launched():
        launch()
        return [None if v is None else memory(v) for v in call.results]

    plain = after(lambda: _plain(call, memory))
    if all(map(have_same_bits, plain, after(launched))):
        return True
    return not all(map(have_same_bits, plain, after(lambda: _plain(call, memory))))


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

"""Records the ops of a step while it runs on fake tensors.

Storages become tensors of the graph, and views vanish.
"""

from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain
from math import prod

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
)
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from . import collectives
from .errors import CaptureError, advice, quoted_line, user_line
from .known import Known
from .layouts import has_gaps
from .memory import bytes_if_small
from .scalars import Scalar, read_tensor
from .substitutes import StandIns

aten = torch.ops.aten

# These update running statistics, which their schemas do not say: argument by name, and the
# argument that must be true. The first two are composed of others, except in inference mode.
HIDDEN_WRITES = {
    "aten::batch_norm": (("running_mean", "running_var"), "training"),
    "aten::instance_norm": (("running_mean", "running_var"), "use_input_stats"),
    "aten::native_batch_norm": (("running_mean", "running_var"), "training"),
    "aten::cudnn_batch_norm": (("running_mean", "running_var"), "training"),
    "aten::miopen_batch_norm": (("running_mean", "running_var"), "training"),
}

# In-place ops that read nothing of what they write.
OVERWRITING = {
    "aten::" + name
    for name in (
        "copy_ fill_ zero_ bernoulli_ uniform_ normal_ random_ exponential_ geometric_"
        " cauchy_ log_normal_"
    ).split()
}

LEAST_GROUP_BYTES = 4 << 10  # that one call on lists of tensors may take

AS_STRIDED = {aten.as_strided.default, aten.as_strided_copy.default, aten.as_strided_scatter.default}
UNSUPPORTED = {aten.resize_.default, aten.set_.source_Tensor, aten.set_.source_Storage}


def _empty(*args, **kwargs):
    return (None,)


def _zeros(*args, **kwargs):
    return (aten.zero_.default,)


def _ones(*args, **kwargs):
    return aten.fill_.Scalar, 1


def _full(_, value, **kwargs):
    return aten.fill_.Scalar, value


# Ops that make a tensor of nothing but its shape, as the op that fills it in place. The result
# of the first has no defined value.
FACTORIES = {
    aten.empty.memory_format: _empty,
    aten.empty_like.default: _empty,
    aten.empty_strided.default: _empty,
    aten.new_empty.default: _empty,
    aten.new_empty_strided.default: _empty,
    aten.zeros.default: _zeros,
    aten.zeros_like.default: _zeros,
    aten.new_zeros.default: _zeros,
    aten.ones.default: _ones,
    aten.ones_like.default: _ones,
    aten.new_ones.default: _ones,
    aten.full.default: _full,
    aten.full_like.default: _full,
    aten.new_full.default: lambda _, size, value, **kwargs: (aten.fill_.Scalar, value),
    aten.scalar_tensor.default: lambda value, **kwargs: (aten.fill_.Scalar, value),
    aten.rand_like.default: lambda *args, **kwargs: (aten.uniform_.default, 0.0, 1.0),
    aten.randn_like.default: lambda *args, **kwargs: (aten.normal_.default, 0.0, 1.0),
}


@dataclass(frozen=True)
class View:
    """A tensor as an op sees it: a part of a storage. `tensor` is None where it has no bytes.

    `is_host_number` is true for a number on the processor in a step on another device.
    """

    tensor: int | None
    shape: tuple
    stride: tuple
    offset: int
    dtype: torch.dtype
    is_host_number: bool = False

    @property
    def nbytes(self):
        return prod(self.shape) * self.dtype.itemsize

    def fills(self, nbytes):
        """Returns whether the view covers all bytes of a storage of `nbytes` bytes."""
        elements, expected = 1, 1
        for size, stride in sorted(zip(self.shape, self.stride), key=lambda x: (x[1], x[0])):
            if size != 1 and stride != expected:
                return False
            expected *= size
            elements *= size
        return self.offset == 0 and elements * self.dtype.itemsize == nbytes


@dataclass
class Storage:
    """A tensor of the graph: the storage of one or more PyTorch tensors."""

    name: str
    nbytes: int
    kind: str  # "state", "given" (a temporary that the caller fills), "temporary" or "output"
    value: torch.Tensor | None = None  # a state's own tensor
    writes: int = 0


@dataclass
class Call:
    """One op: a function of PyTorch, with views for its tensors and `Scalar`s for its numbers.

    The function is None where an op only makes memory for a result.
    """

    name: str
    function: object
    args: tuple
    kwargs: dict
    with_gradients: bool
    results: list = field(default_factory=list)
    reads: list = field(default_factory=list)
    writes: list = field(default_factory=list)
    line: str = ""
    in_backward: bool = False
    by_optimizer: bool = False
    unless: View | None = None  # a number, which is 0 if the call runs
    copies: bool = False  # whether it makes its results elsewhere and copies them, though it has an out variant


class Recorder(TorchDispatchMode):
    """Records every op below autograd. Enter it inside a `FakeTensorMode`."""

    def __init__(self, fake_mode, measure):
        super().__init__()
        self.fake_mode = fake_mode
        self.measure = measure
        self.storages = []
        self.calls = []
        self.constants = []  # the storages of tensors of no module
        self.is_updating = False  # whether the optimizer's step runs
        self._unless = None  # a number; an iteration leaves out the calls of now if it is not 0
        self._made_unless = set()  # tensors that such calls make
        self._with_gaps = set()  # tensors of the caller with memory between their elements
        self.previous = None  # the recorder of an earlier run, which may have left tensors
        self.left = {}  # those: by tensor, its number in the earlier run
        self._left = {}  # their fake tensors, by storage
        self.bytes_of_constants = {}  # of small ones, as they were first read
        self.is_common = False  # whether all processes run one plan
        self.gathered = {}  # by tensor: the names of the whole parameters in it, by offset
        self._gathers = {}  # the calls that gather those, until they are used
        self.refuse_former = lambda storage: None
        self._values = Known()
        self.stand_ins = StandIns()
        self._owned = {}  # fake tensors of states, by the storages of the real ones
        self._made = set()  # those that the step makes of numbers, anew in each iteration
        self._ids = {}
        self._alive = []  # keeps storages alive, so that their identities stay unique
        self._names = {}

    def adopt(self, fake, kind, name, value=None):
        """Registers the storage of a fake tensor; a storage that is known keeps its name."""
        storage = fake.untyped_storage()
        if storage.nbytes() and storage._cdata not in self._ids:
            self._ids[storage._cdata] = len(self.storages)
            self._alive.append(storage)
            # In PyTorch 2.11, the storage of a fake tensor may be smaller than that of the real one.
            nbytes = (storage if value is None else value.untyped_storage()).nbytes()
            self.storages.append(Storage(self._unique(name), nbytes, kind, value))
            if kind == "given" and has_gaps(fake):
                self._with_gaps.add(self._ids[storage._cdata])

    def gather_later(self, call, names):
        """Keeps a call that gathers whole parameters into a tensor, until an op uses one. `names` has the name
        of each parameter by its offset in the tensor."""
        (tensor,) = call.writes
        call.name = self._unique(call.name)
        self.gathered[tensor], self._gathers[tensor] = names, call

    def name_of_gathered(self, view):
        """Returns the name of the whole parameter of a view."""
        names = self.gathered[view.tensor]
        return names[max(start for start in names if start <= view.offset)]

    @contextmanager
    def updating(self):
        """Within it, the optimizer's step runs. There `.item()` may read what the step computes: Python
        may compute with it, but not branch on it."""
        was_updating, self.is_updating = self.is_updating, True
        try:
            yield
        finally:
            self.is_updating = was_updating

    @contextmanager
    def unless(self, fake):
        """Within it, an iteration leaves out the recorded calls if a number is not 0."""
        self._unless, first = self.view(fake), len(self.storages)
        try:
            yield
        finally:
            self._unless = None
            made = range(first, len(self.storages))
            self._made_unless.update(k for k in made if self.storages[k].kind == "temporary")

    @property
    def may_leave_out(self):
        """Whether an iteration may leave out the calls that are recorded now."""
        return self._unless is not None

    def own(self, real, fake):
        """Has all real tensors that share memory with a state stand for it."""
        if real.layout is torch.strided and real.untyped_storage().nbytes():
            self._owned.setdefault(real.untyped_storage()._cdata, fake)

    def view(self, fake):
        """Returns the view of a fake tensor whose storage is known. A view without elements is of no tensor."""
        storage = fake.untyped_storage()
        tensor = self._ids[storage._cdata] if storage.nbytes() and fake.numel() else None
        return View(
            tensor,
            tuple(fake.shape),
            tuple(fake.stride()),
            fake.storage_offset(),
            fake.dtype,
            fake.dim() == 0 and self._is_elsewhere(fake),
        )

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if function.namespace in ("prim", "profiler"):
            return function(*args, **kwargs)
        args, kwargs = tree_map(self.known, (args, kwargs))
        if function is aten._local_scalar_dense.default:
            return self._item(args[0])
        if function is aten.lift_fresh.default:
            self._made.add(self.view(args[0]).tensor)
        if function._schema.name.startswith(("aten::_foreach_", "aten::_fused_", "aten::_amp_foreach_")):
            return self._each(function, args, kwargs)
        if function.namespace in collectives.NAMESPACES:
            record = lambda function, args, kwargs={}: self._record(function, args, kwargs)
            return collectives.record(function, args, kwargs, record)
        return self._record(function, args, kwargs)

    def known(self, arg):
        """Returns the fake tensor of an argument; a real tensor of no module becomes a state."""
        if not isinstance(arg, torch.Tensor):
            return arg
        if arg.layout is not torch.strided or arg.is_conj() or arg.is_neg():
            raise CaptureError(f"{user_line()}: only plain strided tensors can be captured")
        if isinstance(arg, FakeTensor):
            return arg if arg.fake_mode is self.fake_mode else self._of_earlier_run(arg)
        if arg.requires_grad and torch.is_grad_enabled():
            raise CaptureError(
                f"{quoted_line()}: computes gradients of a tensor of shape {tuple(arg.shape)} that"
                " neither the model nor the optimizer has: add it to one of them, or use it under"
                " torch.no_grad()"
            )
        owner = self._owned.get(arg.untyped_storage()._cdata)
        if owner is not None:
            return self._part(owner, arg)
        self.refuse_former(arg.untyped_storage())
        fake = self.fake_mode.from_tensor(arg)
        count = len(self.storages)
        self.adopt(fake, "state", "constant", arg)
        if len(self.storages) > count:
            self.constants.append(count)
            self.bytes_of_constants[count] = bytes_if_small(arg)
        return fake

    def has_value(self, fake):
        """Returns whether the values of a fake tensor are the same in each iteration, and known."""
        return self.has(fake) and self._values.value(self.view(fake)) is not None

    def is_known(self, real):
        """Returns whether a real tensor, or another one of its storage, has been met."""
        storage = real.untyped_storage()
        met = any(storage._cdata == s.value.untyped_storage()._cdata for s in self._with_values())
        return isinstance(real, FakeTensor) or met

    def _with_values(self):
        return (s for s in self.storages if s.value is not None)

    def _of_earlier_run(self, arg):
        """Returns the fake tensor for one that an earlier run has left."""
        storage = arg.untyped_storage()
        if self.previous is None or not self.previous.has(arg):
            raise CaptureError(f"{quoted_line()}: uses a tensor that an earlier capture has left")
        state = self.previous.state_of(arg)
        if state is not None:
            owner = self._owned.get(state.untyped_storage()._cdata)
            return self._part(self.known(state.detach()) if owner is None else owner, arg)
        if storage._cdata not in self._left:
            with self.fake_mode:
                fake = torch.empty(storage.nbytes(), dtype=torch.uint8, device=arg.device)
            if storage.nbytes():
                self.left[len(self.storages)] = self.previous._ids[storage._cdata]
            self.adopt(fake, "given", "left")
            self._left[storage._cdata] = fake
        fake = self._left[storage._cdata]
        with self.fake_mode, torch.no_grad():
            part = torch.empty(0, dtype=arg.dtype, device=arg.device)
            part.set_(fake.untyped_storage(), arg.storage_offset(), arg.shape, arg.stride())
        return part

    def state_of(self, fake):
        """Returns the real tensor of the state that a fake tensor shares memory with, or None."""
        view = self.view(fake)
        storage = None if view.tensor is None else self.storages[view.tensor]
        return storage.value if storage is not None and storage.kind == "state" else None

    def has(self, fake):
        """Returns whether the storage of a fake tensor is known."""
        storage = fake.untyped_storage()
        return not storage.nbytes() or storage._cdata in self._ids

    def _part(self, owner, arg):
        """Returns the fake tensor of a real one that shares memory with a state."""
        if arg.dtype != owner.dtype:
            raise CaptureError(
                f"{quoted_line()}: reads {self.storages[self.view(owner).tensor].name} as"
                f" {arg.dtype}, but it is {owner.dtype}"
            )
        with torch.no_grad():
            return owner.detach().as_strided(arg.shape, arg.stride(), arg.storage_offset())

    def _item(self, fake):
        view = self.view(fake)
        number = self._values.number(view)
        if number is not None:
            return number
        storage = self.storages[view.tensor]
        if view.tensor in self._made:
            with _disable_current_modes():
                return storage.value.as_strided(view.shape, view.stride, view.offset).item()
        is_unknown = storage.kind == "temporary" and not self.is_updating
        if is_unknown or not fake.dtype.is_floating_point:
            raise CaptureError(
                f"{user_line()}: Python needs the value of a tensor (`.item()`, `if`, `print`),"
                f" which differs between iterations{advice()}"
            )
        return torch.SymFloat(Scalar(read_tensor, (view, storage.writes)))

    def _each(self, function, args, kwargs):
        """Records a call for each group of tensors of the lists, so that not all need to be resident."""

        args, kwargs = tree_map(self.stand_ins.number, (args, kwargs))

        def pick(arg, places):
            return [arg[k] for k in places] if isinstance(arg, (list, tuple)) and arg else arg

        lists = [a for a in (*args, *kwargs.values()) if isinstance(a, (list, tuple))]
        results = []
        for places in _groups(lists, self.measure.device):
            some = tuple(pick(a, places) for a in args), {n: pick(a, places) for n, a in kwargs.items()}
            results.append(self._record(function, *some))
        returns = function._schema.returns
        if len(returns) <= 1:
            return list(chain.from_iterable(results)) if returns else None
        return tuple(list(chain.from_iterable(column)) for column in zip(*results))

    def _record(self, function, args, kwargs):
        _refuse_numbers(function, args, kwargs)
        out = self._run(function, args, kwargs)
        fakes = list(out) if isinstance(out, (tuple, list)) else [out]
        fresh = [k for k, f in enumerate(fakes) if self._is_new(f)]
        for k in fresh:
            fakes[k] = self._apart(fakes[k], [fakes[j] for j in fresh if j < k])
        if any(self._is_elsewhere(fakes[k]) for k in fresh):
            self._check_number(function, [fakes[k] for k in fresh])
        written = self._written(function, args, kwargs)
        if not fresh and not written:
            return out  # a view
        call_args, call_kwargs = tree_map(self._argument, (args, kwargs))
        name = self._unique(function._schema.name.split("::")[1])
        call = Call(name, function, call_args, call_kwargs, torch.is_grad_enabled())
        call.line = user_line()
        call.in_backward = torch._C._current_graph_task_id() != -1
        call.by_optimizer = self.is_updating
        if fresh and function not in FACTORIES:
            layouts = self.measure.layouts(call, self.storages, fakes)
            for k, fake in enumerate(fakes):
                if k in fresh or is_empty(fake):
                    fakes[k] = self._with_layout(fake, layouts[k])
            fresh = [k for k, f in enumerate(fakes) if self._is_new(f)]
        first = len(self.storages)
        for k in fresh:
            self.adopt(fakes[k], "temporary", call.name if k == 0 else f"{call.name}.{k}")
        call.results = [
            self.view(f) if k in fresh or is_empty(f) else None for k, f in enumerate(fakes)
        ]
        if function in FACTORIES:
            call.function, *more = FACTORIES[function](*args, **kwargs)
            call.args, call.kwargs = (call.results[0], *map(self._argument, more)), {}
        self._find_operands(call, written)
        self._values.forget(call.writes)
        self._values.compute(function, (args, kwargs), self.view, call.results)
        if function in FACTORIES:
            call.results = []
        self._leave_out(call, first)
        self._gather(call)
        self.calls.append(call)
        return type(out)(fakes) if isinstance(out, (tuple, list)) else fakes[0]

    def _leave_out(self, call, first):
        """Lets an iteration leave a call out within `unless`. The tensors that the call writes then keep their
        values, except the tensors that it makes, which are `first` and later ones."""
        if self._unless is not None:
            kept = [tensor for tensor in call.writes if tensor < first]
            call.unless, call.reads = self._unless, unique([*call.reads, self._unless.tensor, *kept])
        elif not self._made_unless.isdisjoint(call.reads):
            raise CaptureError(
                f"{quoted_line()}: the step uses a tensor that the optimizer's step makes, but a scaler may"
                " leave that out: compute it outside of the step"
            )

    def _gather(self, call):
        """Records the gather of whole parameters that a call is the first to read."""
        for view in tree_leaves((call.args, call.kwargs)):
            if isinstance(view, View) and view.tensor in call.writes and view.tensor in self.gathered:
                raise CaptureError(
                    f"{quoted_line()}: writes {self.name_of_gathered(view)}, of which each process keeps"
                    " only rows: let the optimizer alone write it, or capture without shard"
                )
        for tensor in call.reads:
            if tensor in self._gathers:
                gather = self._gathers.pop(tensor)
                gather.line = call.line
                self.calls.append(gather)

    def _run(self, function, args, kwargs):
        """Runs an op on fake tensors, with any numbers in place of those read from tensors."""
        if function in UNSUPPORTED:
            rnn = (
                "; cuDNN's recurrent networks do: capture and train with torch.backends.cudnn.flags(enabled=False)"
                if function is aten.set_.source_Storage
                else ""
            )
            raise CaptureError(f"{user_line()}: `{function}` changes a tensor's storage{rnn}")
        if function in AS_STRIDED and self.view(args[0]).tensor in self._with_gaps:
            raise CaptureError(
                f"{quoted_line()}: `{function}` may read memory between the elements of"
                f" {self.storages[self.view(args[0]).tensor].name}: give it contiguous (`x.contiguous()`)"
            )
        if not function._schema.returns:
            return None  # in-place, on lists
        if function in collectives.COLLECTIVES:
            return kwargs.get("out", args[0])  # nobody takes part
        args, kwargs = tree_map(
            lambda a: 1.0 if isinstance(a, torch.SymFloat) else a, (args, kwargs)
        )
        try:
            return function(*args, **kwargs)
        except (DataDependentOutputException, DynamicOutputShapeException):
            raise CaptureError(
                f"{user_line()}: the shape or the value of `{function}` depends on data{advice()}"
            ) from None

    def _argument(self, arg):
        """Returns an argument as a call keeps it."""
        if isinstance(arg, torch.SymFloat):
            for view, writes in arg.node.leaves():
                if self.storages[view.tensor].writes != writes:
                    raise CaptureError(
                        f"{user_line()}: uses the number read from"
                        f" {self.storages[view.tensor].name}, which has been written since"
                    )
            return arg.node
        if isinstance(arg, torch.Generator):
            raise CaptureError(f"{user_line()}: draws from a generator that is not the default one")
        return self.view(arg) if isinstance(arg, FakeTensor) else arg

    def _is_elsewhere(self, fake):
        """Returns whether a tensor is on the processor, but the step on another device."""
        return fake.device.type == "cpu" != self.measure.device.torch_device.type

    def _check_number(self, function, results):
        """Refuses what another device would not compute as the processor does."""
        if any(r.dim() for r in results) or torch.Tag.nondeterministic_seeded in function.tags:
            raise CaptureError(
                f"{user_line()}: `{function}` makes a tensor on the processor, but the model is on"
                f" {self.measure.device.torch_device}"
            )

    def _is_new(self, result):
        if not isinstance(result, FakeTensor):
            return False
        if result.layout is not torch.strided:
            raise CaptureError(
                f"{quoted_line()}: makes a sparse tensor, but only plain strided tensors can be"
                " captured: use dense ones (`sparse=False`, `to_dense()`)"
            )
        storage = result.untyped_storage()
        return storage.nbytes() > 0 and storage._cdata not in self._ids

    def _apart(self, fake, others):
        """Returns a tensor of its own for a result that is also another one. Fake ops return the
        same tensor twice only when they run first."""
        if not any(fake is other for other in others):
            return fake
        with self.fake_mode:
            return torch.empty_strided(
                fake.shape, fake.stride(), dtype=fake.dtype, device=fake.device
            )

    def _with_layout(self, fake, layout):
        """Replaces a result whose shape, strides, type or device are not those of the real op, whose `layout` is
        None where it returns no tensor. Attention with dropout returns its seed on the processor, and on the processor
        layer normalization under autocast its statistics in 32 bits."""
        if layout is None:
            return None
        if layout_of(fake) == layout:
            return fake
        shape, stride, dtype, device = layout
        with self.fake_mode:
            return torch.empty_strided(shape, stride, dtype=dtype, device=device)

    def _written(self, function, args, kwargs):
        """Returns the tensors that an op writes, with whether it may read them too."""
        schema = function._schema
        if torch.Tag.inplace_view in function.tags:
            return []
        given = dict(zip((a.name for a in schema.arguments), args)) | kwargs
        written = []
        for argument in schema.arguments:
            if argument.alias_info is not None and argument.alias_info.is_write:
                overwrites = argument.is_out or schema.name in OVERWRITING
                tensors = tree_leaves(given.get(argument.name))
                written += [(t, overwrites) for t in tensors if isinstance(t, FakeTensor)]
        names, condition = HIDDEN_WRITES.get(schema.name, ((), None))
        if names and given[condition]:
            written += [(given[n], False) for n in names if given[n] is not None]
        return written

    def _find_operands(self, call, written):
        """Fills in what a call reads and writes."""
        overwritten = set()
        views = [v for v in tree_leaves((call.args, call.kwargs)) if isinstance(v, View)]
        for fake, overwrites in written:
            view = self.view(fake)
            if view.tensor is None:
                continue
            if view.tensor in self._made:
                self._copy_first(view.tensor)
            uses = sum(v.tensor == view.tensor for v in views)
            if overwrites and uses == 1 and view.fills(self.storages[view.tensor].nbytes):
                overwritten.add(view.tensor)
            call.writes.append(view.tensor)
        numbers = [s for s in tree_leaves((call.args, call.kwargs)) if isinstance(s, Scalar)]
        views += [view for scalar in numbers for view, _ in scalar.leaves()]
        fresh = [v.tensor for v in call.results if v is not None]
        not_read = overwritten.union(fresh, [None])
        call.reads = unique(v.tensor for v in views if v.tensor not in not_read)
        call.writes = unique(t for t in call.writes + fresh if t is not None)
        for tensor in call.writes:
            self.storages[tensor].writes += 1

    def _copy_first(self, tensor):
        """Has each iteration begin with a copy of a constant, which the step writes."""
        copy, original = self.storages[tensor], len(self.storages)
        self.storages.append(Storage(copy.name, copy.nbytes, "state", copy.value))
        self.constants[self.constants.index(tensor)] = original
        self._made.remove(tensor)
        self.bytes_of_constants[original] = self.bytes_of_constants.pop(tensor, None)
        copy.name, copy.kind, copy.value = self._unique("copy"), "temporary", None
        views = [View(t, (copy.nbytes,), (1,), 0, torch.uint8) for t in (tensor, original)]
        call = Call(self._unique("copy_"), aten.copy_.default, tuple(views), {}, False, [None])
        call.reads, call.writes, call.line = [original], [tensor], user_line()
        self.calls.insert(0, call)

    def _unique(self, name):
        """Returns the name, with a number where it is taken."""
        self._names[name] = count = self._names.get(name, -1) + 1
        return self._unique(f"{name}_{count}") if count else name


def _refuse_numbers(function, args, kwargs):
    """Refuses numbers that an op makes a shape of, and an op that has whole numbers in eager mode, but numbers in
    floating point as it is recorded."""
    leaves = tree_leaves((args, kwargs))
    numbers = [a.node for a in leaves if isinstance(a, torch.SymFloat)]
    if numbers and function.overloadpacket in (aten.arange, aten.range):
        numbers[0].guard_int()  # The number of elements depends on it.
    whole = [number for number in numbers if number.may_be_whole]
    if not whole or kwargs.get("dtype"):
        return
    if not any(isinstance(a, FakeTensor) and (a.is_floating_point() or a.is_complex()) for a in leaves):
        raise CaptureError(
            f"{user_line()}: `{function}` computes with {whole[0].kept.name}, a whole number, and with no tensor in"
            " floating point: give it a dtype"
        )


def _groups(lists, device):
    """Yields ranges of places in lists of tensors. One call takes the tensors of a range, which have few bytes."""
    places = range(max(map(len, lists), default=0))
    columns = [part for part in lists if part and isinstance(part[0], torch.Tensor)]
    nbytes = [sum(column[k].nbytes for column in columns) for k in places]
    most_bytes = min(max(sum(nbytes) // device.list_calls, LEAST_GROUP_BYTES), device.list_bytes)
    group, group_bytes = [], 0
    for k in places:
        if group and group_bytes + nbytes[k] > most_bytes:
            yield group
            group, group_bytes = [], 0
        group.append(k)
        group_bytes += nbytes[k]
    if group:
        yield group


def layout_of(result):
    """Returns the shape, the strides, the type and the device of a result; None for no tensor."""
    if not isinstance(result, torch.Tensor):
        return None
    return tuple(result.shape), tuple(result.stride()), result.dtype, result.device


def is_empty(tensor):
    """Returns whether a result is a tensor without bytes."""
    return isinstance(tensor, FakeTensor) and tensor.untyped_storage().nbytes() == 0


def unique(items):
    """Returns the items in the order of their first occurrence."""
    return list(dict.fromkeys(items))

"""Sharded parameters: each process keeps some rows. A step gathers whole parameters when it needs them."""

from collections import Counter
from contextlib import contextmanager
from dataclasses import replace
from itertools import zip_longest
from math import prod

import torch
from torch import distributed
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._pytree import tree_leaves
from torch.utils.weak import WeakIdKeyDictionary

from .bundles import Gradients, bundles
from .collectives import ALL_GATHER, ALL_REDUCE, GATHER_TOGETHER, REDUCE_SCATTER
from .common import Common
from .errors import CaptureError, ChangedError
from .holding import held
from .ownership import FUSED
from .processes import averaged_twice
from .recording import Call, View, unique

_ROWS = WeakIdKeyDictionary()  # of the parameters that are sharded

# These compute each element alone, but have no tag that says so.
_ELEMENTWISE = {
    f"aten::{name}"
    for name in ("copy_", "clone", "_to_copy", "zero_", "fill_", *(kernel.__name__ for kernel in FUSED))
}


class Rows:
    """The rows of a parameter that this process keeps. All processes keep equally many, padded with zeros."""

    def __init__(self, parameter, group):
        self.group = group
        self.shape = tuple(parameter.shape)
        self._row_elements = prod(self.shape[1:])
        self.stride = (self._row_elements, *parameter.stride()[1:])
        self.kept = -(-self.shape[0] // group.size())
        self.elements = self.kept * self._row_elements
        self.is_vector = max(self.shape) == prod(self.shape)

    def of(self, whole):
        """Returns a copy of the rows of a tensor of the parameter's shape."""
        start = self.group.rank() * self.kept
        some = whole[start : start + self.kept]
        rows = self.shaped(whole.new_zeros(self.elements))
        rows[: len(some)].copy_(some)
        return rows

    def shaped(self, flat):
        """Returns flat elements as rows."""
        return flat.as_strided((self.kept, *self.shape[1:]), self.stride)

    def flat(self, rows):
        """Returns rows as flat elements."""
        return rows.detach().as_strided((self.elements,), (1,))

    def whole(self, flat):
        """Returns the flat elements of all processes as a tensor of the parameter's shape."""
        return flat.as_strided(self.shape, self.stride)

    def padded(self, whole):
        """Returns a tensor of the parameter's shape as flat elements of all processes."""
        elements = self.elements * self.group.size()
        if whole.stride()[1:] == self.stride[1:] and whole.numel() == elements:
            if self.shape[0] == 1 or whole.stride()[0] == self.stride[0]:
                return whole.as_strided((elements,), (1,), whole.storage_offset())
        flat = whole.new_empty(elements)
        if elements > whole.numel():
            flat[whole.numel() :].zero_()
        self.whole(flat).copy_(whole)
        return flat

    def gathered(self, rows):
        """Returns the whole parameter, from the rows of all processes."""
        flat = rows.new_empty(self.elements * self.group.size())
        distributed.all_gather_into_tensor(flat, self.flat(rows), group=self.group)
        return self.whole(flat)


def full_state_dict(model: torch.nn.Module) -> dict[str, object]:
    """Returns the state dict of a sharded model with whole parameters, in process 0 of its group, and an
    empty one elsewhere. All processes call it at the same time, after `sync`."""
    found: dict[str, object] = {}
    is_first = True
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, torch.Tensor):
            rows = _ROWS.get(value)
            if rows and held(value).holder is not None:
                raise ChangedError(f"the session has a newer value of {name}: call sync() first")
            is_first = rows.group.rank() == 0 if rows else is_first
            value = rows.gathered(value) if rows else value.detach().clone()
        found[name] = value
    return found if is_first else {}


def refuse_function(clipping):
    """Refuses clipping by a function, for a step whose gradients are rows."""
    if clipping.functions():
        raise CaptureError(
            "clip_grad is a function, which would get rows of the gradients: give the largest norm of all"
            " gradients together, such as 1.0, or capture without shard"
        )


def refuse_scaler(scaling):
    """Refuses a scaler, for a step whose gradients are rows."""
    if scaling.is_enabled:
        raise CaptureError(
            "scaler cannot check all gradients, since each process has only rows of them: leave it out, or capture"
            " without shard"
        )


def refuse_rows(model):
    """Refuses a model whose parameters are rows, for a step that needs whole ones."""
    for name, parameter in model.named_parameters():
        if parameter in _ROWS:
            raise CaptureError(
                f"{name} has only the rows that this process keeps, since capture(..., shard=True): capture"
                " with shard=True again, evaluate by train.evaluate(), or load full_state_dict(model) into"
                " another model"
            )


class Shards(Common):
    """The processes of a group, each of which keeps some rows of each parameter and of what the optimizer
    keeps for it."""

    stays_cut = True  # the model, after the capture
    averages_each_pass = False

    def __init__(self, group, model, optimizers, device):
        self._optimizers = optimizers
        self._parameters = [(n, p) for n, p in model.named_parameters() if p.numel()]
        self._former = {}  # names of what has been cut, by storages that others may still have
        new = [(n, p) for n, p in self._parameters if p not in _ROWS]
        if any(_ROWS[p].group is not group for _, p in self._parameters if p in _ROWS):
            raise CaptureError("the model is sharded over other processes: give their process_group")
        _refuse_others(new, model)
        super().__init__(group, [*(p for _, p in new), *model.buffers()], device)
        self._new = new

    @contextmanager
    def cut(self):
        """Replaces parameters by their rows. Puts whole parameters back if the body fails, or if the model
        does not stay cut."""
        whole = [(p, p.data, p.grad) for _, p in self._new]
        is_captured = False
        try:
            for name, parameter in self._new:
                self._cut(name, parameter)
            yield
            is_captured = True
        finally:
            if is_captured and self.stays_cut:
                whole, self._new = [], []
            for parameter, data, gradient in whole:
                parameter.grad, parameter.data = None, data
                parameter.grad = gradient
                _ROWS.pop(parameter, None)

    def _cut(self, name, parameter):
        _ROWS[parameter] = rows = Rows(parameter, self.group)
        storage = StorageWeakRef(parameter.untyped_storage())
        self._former[storage.cdata] = name, storage
        parameter.grad, parameter.data = None, rows.of(parameter.detach())
        for optimizer in self._optimizers:
            states = optimizer.state.get(parameter, {})
            for key, value in states.items():
                if isinstance(value, torch.Tensor) and value.dim():
                    if tuple(value.shape) != rows.shape:
                        _refuse_state(name, key, value)
                    states[key] = rows.of(value)

    def _refuse_former(self, storage):
        """Refuses memory of parameters from before they were cut."""
        name, former = self._former.get(storage._cdata, (None, None))
        if name is not None and not former.expired():
            raise CaptureError(
                f"the step uses memory that {name} had before capture(..., shard=True): use the"
                " parameter itself, or a copy from before"
            )

    def begin(self, recorder, fakes):
        """Gives the model whole parameters. The recorder gathers each one before its first use."""
        recorder.is_common, recorder.refuse_former = True, self._refuse_former
        self._bytes_in_bundles = {}  # of the gradients in bundles, by tensor and offset
        self._waiting = []  # the gradients of each bundle
        for _, parameter in self._parameters:
            if parameter not in _ROWS or parameter.shape[0] != _ROWS[parameter].kept:
                raise ChangedError("a sharded parameter has other rows: capture the step again")
        together = self._bundles(lambda parameter: True)
        for bundle in together:
            self._gather_together(fakes, bundle)
        bundled = {part.parameter for bundle in together for part in bundle.parts}
        for _, parameter in self._parameters:
            if parameter not in bundled:
                self._gather_alone(fakes, parameter)

    def _bundles(self, is_wanted):
        """Returns bundles of small parameters of one dimension, such as biases and the weights of norms: there
        are many of them, and together they are small too."""
        found = [p for _, p in self._parameters if _ROWS[p].is_vector and is_wanted(p)]
        sizes = [(p, _ROWS[p].elements) for p in found]
        return bundles(sizes, self.group.size())

    def _gather_alone(self, fakes, parameter):
        recorder, name, rows = fakes.recorder, fakes.name(parameter), _ROWS[parameter]
        with recorder.fake_mode, torch.no_grad():
            own = rows.flat(fakes.rows(parameter))
            flat = own.new_empty(self.group.size() * rows.elements)
        recorder.adopt(flat, "temporary", f"{name} gathered")
        self._give_whole(fakes, parameter, flat)
        own, out = recorder.view(own), recorder.view(flat)
        self._gather(recorder, ALL_GATHER, own, out, {0: name})

    def _gather_together(self, fakes, bundle):
        recorder, names = fakes.recorder, {}
        with recorder.fake_mode, torch.no_grad():
            own = [_ROWS[p.parameter].flat(fakes.rows(p.parameter)) for p in bundle.parts]
            flat = own[0].new_empty(self.group.size() * bundle.elements)
            whole = [bundle.whole(flat, part) for part in bundle.parts]
        first = fakes.name(bundle.parts[0].parameter)
        recorder.adopt(flat, "temporary", f"{first} and {len(own) - 1} more gathered")
        for part, one in zip(bundle.parts, whole):
            self._give_whole(fakes, part.parameter, one)
            names[one.storage_offset()] = fakes.name(part.parameter)
        own, out = list(map(recorder.view, own)), list(map(recorder.view, whole))
        self._gather(recorder, GATHER_TOGETHER, own, out, names)

    def _give_whole(self, fakes, parameter, flat):
        """Gives the model a whole parameter in the elements of all processes."""
        with fakes.recorder.fake_mode, torch.no_grad():
            whole = torch.nn.Parameter(_ROWS[parameter].whole(flat), parameter.requires_grad)
        fakes.gather(parameter, whole)

    def _gather(self, recorder, function, own, out, names):
        """Gathers rows before the first use of a parameter. `names` has the name of each by its offset."""
        first, *others = names.values()
        name = f"gather {first} and {len(others)} more" if others else f"gather {first}"
        args = own, self.group.size(), self.group.group_name
        call = Call(name, function, args, {"out": out}, False)
        call.reads = unique(view.tensor for view in tree_leaves(own))
        call.writes = unique(view.tensor for view in tree_leaves(out))
        recorder.gather_later(call, names)

    def find_buckets(self, backward):
        """There are none: which gradients are averaged together does not depend on their order."""

    def averaging(self, fakes):
        """Returns a function that averages a gradient over the processes, and keeps the rows of this one."""
        together = self._bundles(lambda p: p.requires_grad and self._adds_alike_anywhere(_ROWS[p]))
        self._fakes, self._waiting = fakes, [Gradients(bundle) for bundle in together]
        waiting_of = {part.parameter: g for g in self._waiting for part in g.bundle.parts}

        @torch.no_grad()
        def average(parameter, whole):
            if parameter not in _ROWS:
                return  # it is empty
            rows, waiting = _ROWS[parameter], waiting_of.get(parameter)
            if fakes.rows(parameter).grad is not None or waiting is not None and waiting.has(parameter):
                raise averaged_twice()
            given, whole.grad = rows.padded(whole.grad), None
            if waiting is None:
                fakes.rows(parameter).grad = rows.shaped(self._reduced(given))
                return
            waiting.add(parameter, given)
            if waiting.is_full():
                self._reduce(waiting)

        return average

    def _adds_alike_anywhere(self, rows):
        """Returns whether Gloo adds a gradient in the same order at every place in a bundle. Gloo divides the
        elements that a process keeps into halves, and adds each half in another order."""
        return self.group.size() == 2 or rows.elements % 2 == 0

    def end_backward(self):
        """Averages the gradients of each bundle that has some gradients, but not all."""
        for gradients in self._waiting:
            if gradients.added and not gradients.is_full():
                self._reduce(gradients)

    def _reduced(self, given):
        """Averages a gradient over the processes. Returns the elements that this process keeps."""
        count = self.group.size()
        own = given.new_empty(given.numel() // count)
        REDUCE_SCATTER(given, "avg", count, self.group.group_name, out=own)
        return own

    @torch.no_grad()
    def _reduce(self, gradients):
        own = self._reduced(gradients.flat)
        for part in gradients.added:
            rows = self._fakes.rows(part.parameter)
            rows.grad = _ROWS[part.parameter].shaped(gradients.bundle.of_one(own, part))
            view = self._fakes.recorder.view(rows.grad)
            self._bytes_in_bundles[view.tensor, view.offset] = view.nbytes

    def clip(self, clipping, parameters):
        """Clips gradients, of which each process has rows."""
        if clipping.max_norm is None:
            return
        gradients = [p.grad for p in parameters if p.grad is not None]
        norms = torch.stack([torch.linalg.vector_norm(g) for g in gradients]) ** 2.0
        ALL_REDUCE(norms, "sum", self.group.group_name)
        norm = torch.linalg.vector_norm(norms**0.5)
        torch.nn.utils.clip_grads_with_norm_(parameters, clipping.max_norm, norm, foreach=False)

    def refuse_mixing(self, calls, storages):
        """Refuses an optimizer that does not update each element alone."""
        for call in calls:
            if call.function is not None and not self._is_elementwise(call, storages):
                raise CaptureError(
                    f"{call.line}: the optimizer calls `{call.function}`, which does not compute each"
                    " element alone, but each process has only rows of the parameters: use an"
                    " optimizer such as SGD, Adam or AdamW, clip gradients by capture(...,"
                    " clip_grad=1.0), or capture without shard"
                )

    def _is_elementwise(self, call, storages):
        draws = torch.Tag.nondeterministic_seeded in call.function.tags
        computes_alone = _computes_elements_alone(call.function) and not draws
        for views in _computed_together(call):
            of_many = [v for v in views if storages[v.tensor].nbytes > v.dtype.itemsize]
            are_whole = all(self._is_whole(v, storages) and v.shape == of_many[0].shape for v in of_many)
            if of_many and not (computes_alone and are_whole):
                return False
        return True

    def _is_whole(self, view, storages):
        """Returns whether a view is a whole tensor, or a whole gradient of a bundle."""
        nbytes = self._bytes_in_bundles.get((view.tensor, view.offset))
        if nbytes is None:
            return view.fills(storages[view.tensor].nbytes)
        return replace(view, offset=0).fills(nbytes)


def _computes_elements_alone(function):
    """Returns whether a function computes each element of a tensor, or of each tensor of lists, alone."""
    name, of_lists = function._schema.name, "aten::_foreach_"
    if name in _ELEMENTWISE or torch.Tag.pointwise in function.tags:
        return True
    if not name.startswith(of_lists) or name.rstrip("_") == "aten::_foreach_max":  # the largest of all elements
        return False
    # Functions of lists have no tags. Those of single tensors, which do the same, have.
    plain = getattr(torch.ops.aten, name.removeprefix(of_lists).rstrip("_"), None)
    overloads = [getattr(plain, overload) for overload in plain.overloads()] if plain else []
    tagged = any(torch.Tag.pointwise in overload.tags for overload in overloads)
    return tagged or name.replace("_foreach_", "") in _ELEMENTWISE


def _computed_together(call):
    """Yields the views with memory that a call computes with each other. Of lists, these are those at one place."""
    args = *call.args, *call.kwargs.values(), call.results
    lists = [arg for arg in args if isinstance(arg, (list, tuple))]
    alone = [arg for arg in args if not isinstance(arg, (list, tuple))]
    for place in list(zip_longest(*lists)) or [()]:
        yield [v for v in (*alone, *place) if isinstance(v, View) and v.tensor is not None]


def _refuse_others(parameters, model):
    """Refuses parameters that cannot be cut into rows."""
    tensors = [*(p for _, p in parameters), *model.buffers()]
    storages = Counter(t.untyped_storage()._cdata for t in tensors if t.numel())
    for name, p in parameters:
        way = None
        if not p.dim():
            way = "has no dimension: give it one, by torch.nn.Parameter(value.reshape(1))"
        elif p.layout is not torch.strided or type(p.data) is not torch.Tensor:
            way = f"is a {type(p.data).__name__} of layout {p.layout}: make it a plain tensor"
        elif storages[p.untyped_storage()._cdata] > 1:
            way = "shares memory with another parameter or buffer: make it that parameter itself, or copy it"
        elif not _has_rows_in_turn(p):
            way = "does not have its rows one after the other: make it contiguous"
        elif p._backward_hooks or getattr(p, "_post_accumulate_grad_hooks", None):
            way = "has a hook, which would get gradients of one process: remove it"
        if way is not None:
            raise CaptureError(f"{name} cannot be sharded, as it {way}")


def _has_rows_in_turn(parameter):
    """Returns whether the memory of a parameter is its rows, one after the other."""
    view = View(None, parameter.shape, parameter.stride(), 0, parameter.dtype)
    in_turn = len(parameter) == 1 or parameter.stride(0) == parameter[0].numel()
    return in_turn and view.fills(parameter.nbytes)


def _refuse_state(name, key, value):
    raise CaptureError(
        f"the optimizer keeps {key} of shape {tuple(value.shape)} for {name}, which has another shape, so"
        " that it has no rows: use an optimizer such as SGD, Adam or AdamW, or capture without shard"
    )

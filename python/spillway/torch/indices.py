"""Indices that an op checks against a size: those that come from the batch are checked before an
iteration begins."""

from dataclasses import dataclass

import torch

from .layouts import laid_out
from .recording import View

aten = torch.ops.aten

# The argument that has indices, and the function from the call's arguments to their bound.
_BY_DIMENSION = lambda args: args[0].shape[args[1]] if args[0].shape else 1
_CLASSES = lambda args: args[0].shape[1 if len(args[0].shape) > 1 else 0]
_INDICES = {
    "aten::embedding": (1, lambda args: args[0].shape[0]),
    "aten::_embedding_bag": (1, lambda args: args[0].shape[0]),
    "aten::nll_loss_forward": (1, _CLASSES),
    "aten::nll_loss2d_forward": (1, _CLASSES),
    "aten::gather": (2, _BY_DIMENSION),
    "aten::index_select": (2, _BY_DIMENSION),
    "aten::scatter": (2, _BY_DIMENSION),
    "aten::scatter_": (2, _BY_DIMENSION),
    "aten::scatter_add": (2, _BY_DIMENSION),
    "aten::scatter_add_": (2, _BY_DIMENSION),
    "aten::index_add": (2, _BY_DIMENSION),
    "aten::index_add_": (2, _BY_DIMENSION),
    "aten::index_copy": (2, _BY_DIMENSION),
    "aten::index_copy_": (2, _BY_DIMENSION),
    "aten::index_fill": (2, _BY_DIMENSION),
    "aten::index_fill_": (2, _BY_DIMENSION),
}
_WITH_LISTS = {"aten::index", "aten::index_put", "aten::index_put_"}
_FAILING = {
    *_INDICES,
    *_WITH_LISTS,
    "aten::_ctc_loss",
    "aten::take",
    "aten::put_",
    "aten::bincount",
    "aten::multi_margin_loss",
    "aten::_assert_async",
    "aten::_linalg_check_errors",
    "aten::embedding_renorm_",
}
_COPYING = {"aten::clone", "aten::_to_copy"}


def may_fail_by_values(call):
    """Returns whether an op checks values that it reads. A backward pass uses the indices that the
    forward pass has checked."""
    if call.function is None or call.in_backward:
        return False
    name = call.function._schema.name
    return name in _FAILING or call.function.namespace not in ("aten", "c10d", "_c10d_functional")


@dataclass(frozen=True)
class Check:
    """Which values an op takes of a part of the batch: those from `least` up to `end`, and one that
    it ignores."""

    number: int  # of the tensor in the batch
    view: View
    least: int
    end: int
    ignored: int | None
    line: str

    def check(self, value, strides):
        """Raises `IndexError` where another value is among those of a tensor of a batch, which has such strides in a
        plan."""
        if value.stride() != strides:
            value = laid_out(value, strides)
        v = self.view
        part = value.as_strided(v.shape, v.stride, value.storage_offset() + v.offset)
        if not part.numel():
            return
        least, most = torch.aminmax(part)
        if least >= self.least and most < self.end:
            return
        wrong = (part < self.least) | (part >= self.end)
        if self.ignored is not None:
            wrong &= part != self.ignored
        if wrong.any():
            raise IndexError(
                f"batch.{self.number} has {part[wrong][0].item()}, but {self.line} takes values"
                f" from {self.least} to {self.end - 1}; the iteration has not begun"
            )


def checks(recorder, batch):
    """Returns the checks of the indices that a step takes from its batch, given as views."""
    numbers = {view.tensor: k for k, view in enumerate(batch) if view.tensor is not None}
    makers = {}
    found = []
    for call in recorder.calls:
        if call.function is None:
            continue
        name = call.function._schema.name
        if name in _COPYING and len(call.results) == 1 and isinstance(call.args[0], View):
            makers[call.writes[0] if call.writes else None] = call
        for view, least, end, ignored in () if call.in_backward else _indices(name, call):
            view = _origin(view, makers, recorder.storages)
            if view is not None and view.tensor in numbers and not recorder.storages[view.tensor].writes:
                found.append(Check(numbers[view.tensor], view, least, end, ignored, call.line))
    return list(dict.fromkeys(found))


def _indices(name, call):
    """Yields the views of indices, with their bounds."""
    if name in _INDICES:
        position, bound = _INDICES[name]
        ignored = None
        if "nll_loss" in name:
            ignored = call.args[4] if len(call.args) > 4 else call.kwargs.get("ignore_index", -100)
        if len(call.args) > position and isinstance(call.args[position], View):
            yield call.args[position], 0, bound(call.args), ignored
    elif name in _WITH_LISTS:
        for dimension, view in enumerate(call.args[1]):
            if isinstance(view, View) and view.dtype in (torch.int64, torch.int32):
                size = call.args[0].shape[dimension]
                yield view, -size, size, None


def _origin(view, makers, storages):
    """Returns the view of what a view's storage is a copy of, with the same values, or the view."""
    while view.tensor in makers:
        call = makers[view.tensor]
        source, made = call.args[0], call.results[0]
        if made is None or source.dtype.is_floating_point or storages[view.tensor].writes > 1:
            return None
        if not made.fills(storages[view.tensor].nbytes) or _count(view) != _count(made):
            return None
        view = source
    return view if not view.dtype.is_floating_point and view.dtype is not torch.bool else None


def _count(view):
    count = 1
    for size in view.shape:
        count *= size
    return count

"""What a step takes and returns: tensors, nested in containers with fixed values."""

import dataclasses
import enum
import inspect
from collections.abc import Mapping
from typing import Any

import torch
from torch.utils._pytree import keystr, tree_flatten, tree_flatten_with_path, tree_unflatten

from .errors import BatchError, CaptureError, WrittenBatchError, quoted

_FIXED = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device)


@dataclasses.dataclass(frozen=True)
class _Fixed:
    """A number, a text or the like. Another value is another capture, and the same nesting."""

    value: object = dataclasses.field(compare=False)

    def whole(self, tensors):
        return self.value

    def fixed(self):
        yield f"{type(self.value).__name__} {self.value!r}"


@dataclasses.dataclass(frozen=True)
class _Container:
    """A container that PyTorch does not look into, with the nesting of its items."""

    cls: type
    nesting: "Nesting"

    def fixed(self):
        return self.nesting.fixed()


class _Mapping(_Container):
    """A mapping, such as a `BatchEncoding`."""

    def whole(self, tensors):
        return self.cls(self.nesting.whole(tensors))


class _Dataclass(_Container):
    """An instance of a dataclass."""

    def whole(self, tensors):
        instance = object.__new__(self.cls)
        for name, value in self.nesting.whole(tensors).items():
            object.__setattr__(instance, name, value)
        return instance


@dataclasses.dataclass(frozen=True)
class Nesting:
    """The containers and the fixed values of a batch, without its tensors. Two nestings are equal if they
    have containers and tensors at the same places; fixed values may differ."""

    structure: object
    leaves: tuple  # None is a tensor

    def whole(self, tensors):
        """Returns the batch with these tensors, an iterator."""
        values = [next(tensors) if leaf is None else leaf.whole(tensors) for leaf in self.leaves]
        return tree_unflatten(values, self.structure)

    def fixed(self):
        """Yields the fixed values, as text."""
        for leaf in self.leaves:
            if leaf is not None:
                yield from leaf.fixed()


def call(model: torch.nn.Module, batch: Any) -> Any:
    """Returns `model(batch)`."""
    return model(batch)


def call_on(function, model, batch):
    """Calls a function with a model and a batch. If the batch is a tuple or a list, and the function takes several
    arguments after the model, it gets each item as an argument."""
    if isinstance(batch, (tuple, list)) and _takes_several(function, batch):
        return function(model, *batch)
    return function(model, batch)


def _takes_several(function, batch):
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function in C
        return False
    kinds = [parameter.kind for parameter in signature.parameters.values()]
    if kinds[1:2] == [inspect.Parameter.VAR_POSITIONAL]:
        return True
    return not _binds(signature, batch) and _binds(signature, *batch)


def _binds(signature, *batch):
    try:
        signature.bind(None, *batch)
    except TypeError:
        return False
    return True


def flatten(batch, path=lambda: "batch"):
    """Returns the tensors of a batch, and its nesting. Raises `CaptureError` if it has a value that is
    neither a tensor, nor fixed, nor a container of these. `path` returns the batch's name."""
    tensors, leaves = [], []
    values, structure = tree_flatten(batch)
    for k, value in enumerate(values):
        if isinstance(value, torch.Tensor):
            tensors.append(value)
            leaves.append(None)
            continue
        if isinstance(value, _FIXED):
            leaves.append(_Fixed(value))
            continue

        def path_of_value(k=k):
            return path() + keystr(tree_flatten_with_path(batch)[0][k][0])

        kind, items = _kind_and_items(value, path_of_value)
        its_tensors, nesting = flatten(items, path_of_value)
        tensors += its_tensors
        leaves.append(kind(type(value), nesting))
    return tensors, Nesting(structure, tuple(leaves))


def unflatten(tensors, nesting):
    """Returns the batch that has been flattened."""
    return nesting.whole(iter(tensors))


def _kind_and_items(value, path):
    """Returns the kind of a container that PyTorch does not look into, and its items."""
    if isinstance(value, Mapping):
        return _Mapping, dict(value)
    name = type(value).__name__
    if not dataclasses.is_dataclass(value) or isinstance(value, type):
        raise CaptureError(
            f"{path()} is of type {name}: a batch holds tensors, numbers and texts, in lists, tuples,"
            " mappings and dataclasses"
        )
    fields = [field.name for field in dataclasses.fields(value)]
    if others := set(getattr(value, "__dict__", ())).difference(fields):
        raise CaptureError(
            f"{path()} of type {name} has {min(others)}, which is no field of the dataclass: make it one"
        )
    return _Dataclass, {name: getattr(value, name) for name in fields}


def refuse_other(nesting, expected):
    """Refuses a batch whose tensors lie at other places than in the example."""
    if nesting == expected:
        return
    its, captured = (unflatten(_Places(), one) for one in (nesting, expected))
    raise BatchError(f"the batch is {its}, but {captured} was captured")


class _Places:
    """Stands for each tensor of a batch in a text."""

    def __iter__(self):
        return self

    def __next__(self):
        return self

    def __repr__(self):
        return "tensor"


def loss_of(returned):
    """Returns the loss of what `loss_fn` returns: a tensor, the first of a tuple or list, or the entry
    "loss" of a mapping."""
    loss = returned
    if isinstance(returned, (tuple, list)):
        loss = returned[0] if returned else None
    elif isinstance(returned, Mapping):
        loss = returned.get("loss")
    if isinstance(loss, torch.Tensor) and loss.numel() == 1:
        return loss
    what = f"a tensor of shape {list(loss.shape)}" if torch.is_tensor(loss) else type(loss).__name__
    raise CaptureError(
        f"the loss is {what}: loss_fn must return a tensor with one element, a tuple that begins with"
        ' it, or a mapping in which it is "loss"'
    )


def refuse_other_results(values):
    """Refuses a result that is neither a tensor nor a fixed value: it may hold tensors of the capture,
    which have no values."""
    for value in values:
        if not isinstance(value, (torch.Tensor, *_FIXED)):
            raise CaptureError(
                f"the step returns a value of type {type(value).__name__}: return tensors, numbers and"
                " texts, in tuples, lists and dicts"
            )


def refuse_gradients(example_batch):
    """Refuses a batch that wants gradients, which no iteration hands back."""
    for k, value in enumerate(flatten(example_batch)[0]):
        if value.requires_grad:
            raise CaptureError(
                f"batch.{k} requires a gradient, but a step returns none for its batch: pass it by"
                f" `.detach()`. Where the loss needs the gradient, have loss_fn take"
                " `x.clone().requires_grad_()`"
            )


def refuse_layouts(tensors):
    """Refuses tensors of a batch whose elements do not lie in memory by strides."""
    for k, value in enumerate(tensors):
        if value.is_nested or value.layout != torch.strided:
            kind = "nested" if value.is_nested else "sparse"
            way = "pad it (`to_padded_tensor`)" if value.is_nested else "give it as `to_dense()`"
            raise CaptureError(f"batch.{k} is a {kind} tensor, which cannot be captured: {way}")


def refuse_writes(recorder, batch):
    """Refuses ops that write into the batch, given as fake tensors, of which an iteration has a copy."""
    numbers = {recorder.view(fake).tensor: k for k, fake in enumerate(batch)}
    calls = {}  # those of the first writes, by the number of a tensor
    for call in recorder.calls:
        for number in (numbers[tensor] for tensor in call.writes if tensor in numbers):
            calls.setdefault(number, call)
    if calls:
        number, call = next(iter(calls.items()))
        raise WrittenBatchError(
            f"{quoted(call.line)}: writes into batch.{number}, but the caller's tensor would keep its values: write"
            " into a copy (`x = x.clone()`)",
            tuple(sorted(calls)),
        )

"""What a step takes and returns: tensors, nested in containers with fixed values."""

import dataclasses
import enum
from collections.abc import Mapping

import torch
from torch.utils._pytree import keystr, tree_flatten_with_path, tree_unflatten

from .errors import BatchError, CaptureError, quoted

_FIXED = (type(None), bool, int, float, complex, str, bytes, enum.Enum, torch.dtype, torch.device)


@dataclasses.dataclass(frozen=True)
class _Fixed:
    """A value that a batch has beside its tensors; another value is another capture."""

    value: object = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class _Mapped:
    """A mapping that PyTorch does not look into, such as a `BatchEncoding`."""

    cls: type
    nesting: "Nesting"

    def whole(self, values):
        return self.cls(self.nesting.whole(values))


@dataclasses.dataclass(frozen=True)
class _Fields:
    """An instance of a dataclass."""

    cls: type
    nesting: "Nesting"

    def whole(self, values):
        instance = object.__new__(self.cls)
        for name, value in self.nesting.whole(values).items():
            object.__setattr__(instance, name, value)
        return instance


@dataclasses.dataclass(frozen=True)
class Nesting:
    """All of a batch but its tensors. In batches of equal nestings the tensors have the same places;
    fixed values may differ."""

    structure: object
    leaves: tuple  # None is a tensor

    def whole(self, tensors):
        """Returns the batch with these tensors, an iterator."""

        def leaf(of):
            match of:
                case None:
                    return next(tensors)
                case _Fixed():
                    return of.value
            return of.whole(tensors)

        return tree_unflatten([leaf(of) for of in self.leaves], self.structure)

    def fixed(self):
        """Returns the fixed values, as text."""
        for of in self.leaves:
            match of:
                case _Fixed():
                    yield f"{type(of.value).__name__} {of.value!r}"
                case _Mapped() | _Fields():
                    yield from of.nesting.fixed()


def flatten(batch, path="batch"):
    """Returns the tensors of a batch, and its nesting. Raises `CaptureError` where it has another
    value than tensors and fixed ones."""
    tensors, leaves = [], []
    entries, structure = tree_flatten_with_path(batch)
    for keys, leaf in entries:
        if isinstance(leaf, torch.Tensor):
            tensors.append(leaf)
            leaves.append(None)
            continue
        if isinstance(leaf, _FIXED):
            leaves.append(_Fixed(leaf))
            continue
        nested, items = _container(leaf, path + keystr(keys))
        its_tensors, nesting = flatten(items, path + keystr(keys))
        tensors += its_tensors
        leaves.append(nested(type(leaf), nesting))
    return tensors, Nesting(structure, tuple(leaves))


def unflatten(tensors, nesting):
    """Returns the batch that has been flattened."""
    return nesting.whole(iter(tensors))


def _container(leaf, path):
    """Returns the kind of a container that PyTorch does not know, and its items."""
    if isinstance(leaf, Mapping):
        return _Mapped, dict(leaf)
    name = type(leaf).__name__
    if not dataclasses.is_dataclass(leaf) or isinstance(leaf, type):
        raise CaptureError(
            f"{path} is of type {name}: a batch holds tensors, numbers and texts, in lists, tuples,"
            " mappings and dataclasses"
        )
    fields = [field.name for field in dataclasses.fields(leaf)]
    if others := set(getattr(leaf, "__dict__", ())).difference(fields):
        raise CaptureError(
            f"{path} of type {name} has {min(others)}, which is no field of the dataclass: make it one"
        )
    return _Fields, {name: getattr(leaf, name) for name in fields}


def refuse_other(nesting, expected):
    """Refuses a batch whose tensors have other places than those of the example."""
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
    """Refuses what a step returns beside tensors and fixed values: it may hold tensors without values."""
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


def refuse_writes(recorder):
    """Refuses ops that write into the batch, of which an iteration has a copy."""
    for call in recorder.calls:
        for tensor in call.writes:
            storage = recorder.storages[tensor]
            if storage.kind == "given" and storage.name.startswith("batch"):
                raise CaptureError(
                    f"{quoted(call.line)}: writes into {storage.name}, but the caller's tensor would"
                    " keep its values: write into a copy (`x = x.clone()`)"
                )

"""Tensors that a step stores for the next one, in place of those that it found: states, which each
iteration writes at its end."""

from dataclasses import dataclass

import torch
from torch.utils._pytree import tree_flatten

from .errors import CaptureError
from .storing import described


@dataclass
class Replaced:
    """A tensor, by name, that the step has replaced. One that `is_kept` is a state at any rate,
    others only if the step reads them."""

    name: str
    before: torch.Tensor
    after: object
    is_kept: bool = True


def replaced_in(change, real):
    """Returns the `Replaced` tensors of a `Change`, or None where it has changed anything else.
    `real` returns the real tensor of a state's fake one."""
    (before, structure), (after, its_structure) = map(tree_flatten, (change.before, change.after))
    before, after = [[real(leaf) for leaf in leaves] for leaves in (before, after)]
    if structure != its_structure or not before:
        return None
    found = []
    for k, (one, other) in enumerate(zip(before, after)):
        if isinstance(one, torch.Tensor) and isinstance(other, torch.Tensor):
            if one is not other:
                is_buffer = change.place.is_of_buffers
                name = change.name if len(before) == 1 else f"{change.name}[{k}]"
                found.append(Replaced(name, one, other, is_buffer))
        elif described(one) != described(other):
            return None
    return found


def carry(recorder, replaced):
    """Records that each state gets the tensor by which the step has replaced it."""
    pairs = []
    for r in replaced:
        if r.is_kept or recorder.is_known(r.before):
            _check(r)
        elif _difference(r):
            continue
        pairs.append((r, recorder.known(r.before), recorder.known(r.after)))
    targets = {target.untyped_storage()._cdata for _, target, _ in pairs}
    copies = []
    for r, target, source in pairs:
        storage = recorder.view(source).tensor
        if source.untyped_storage()._cdata in targets:
            if _is_same_part(source, target):
                continue
            copies.append((target, source, True))
        elif storage is not None and recorder.storages[storage].kind == "state":
            raise CaptureError(
                f"{r.name} is replaced by a view of {recorder.storages[storage].name}, which later"
                " steps change: store a clone of it"
            )
        else:
            copies.append((target, source, False))
    with torch.no_grad(), recorder.fake_mode, recorder:
        copies = [(target, source.clone() if twice else source) for target, source, twice in copies]
        for target, source in copies:
            target.copy_(source)


def _check(replaced):
    difference = _difference(replaced)
    if difference:
        raise CaptureError(
            f"{replaced.name} is replaced by a tensor that {difference}, so it is no state of the"
            " step"
        )


def _difference(replaced):
    """Returns why a tensor cannot be copied into the one that it replaces, or None."""
    before, after = replaced.before, replaced.after
    if not isinstance(after, torch.Tensor):
        return f"is none, but {type(after).__name__}"
    if isinstance(before, torch.nn.Parameter):
        return "takes the place of a parameter: write into the parameter under torch.no_grad()"
    if after.requires_grad:
        return "needs gradients of an earlier step: store it with .detach()"
    for name in ("shape", "dtype", "device"):
        one, other = getattr(before, name), getattr(after, name)
        if one != other and name != "device":
            return f"has another {name} ({other}, not {one}): give both the same, as with padding"
    return None


def _is_same_part(one, other):
    same = one.untyped_storage()._cdata == other.untyped_storage()._cdata
    layouts = [(t.shape, t.stride(), t.storage_offset()) for t in (one, other)]
    return same and layouts[0] == layouts[1]

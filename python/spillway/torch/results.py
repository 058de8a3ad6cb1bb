"""What a graph returns: tensors that are handed out, views of other tensors, and constants."""

from dataclasses import dataclass, replace
from math import prod

import torch
from torch.utils._pytree import tree_unflatten

from .errors import CaptureError
from .layouts import extent_of
from .recording import View


@dataclass(frozen=True)
class _Alias:
    """A result that is a view of an input, or of another result."""

    of: str  # "input" or "result"
    number: int
    view: View  # its offset is from the first element of the other
    requires_grad: bool

    def made(self, results, inputs):
        source = (inputs if self.of == "input" else results)[self.number]
        source = source if self.requires_grad else source.detach()
        offset = source.storage_offset() + self.view.offset
        return source.as_strided(self.view.shape, self.view.stride, offset)


class Results:
    """What a graph returns: tensors that are handed out, aliases of tensors, and constants."""

    def __init__(self, recorder, inputs, given, returned, structure):
        """`returned` has the leaves of what the graph returns, whose nesting is `structure`."""
        self._structure = structure
        self._constants = [None if isinstance(x, torch.Tensor) else x for x in returned]
        self._strides = [x.stride() if isinstance(x, torch.Tensor) else None for x in returned]
        self._requires_grad = [isinstance(x, torch.Tensor) and x.requires_grad for x in returned]
        self._views = [recorder.view(x) if isinstance(x, torch.Tensor) else None for x in returned]
        self._aliases = {}
        self._find_aliases(recorder, inputs, given, returned)

    def _find_aliases(self, recorder, inputs, given, returned):
        sizes = [s.nbytes for s in recorder.storages]
        views = [recorder.view(x) if isinstance(x, torch.Tensor) else None for x in given]
        owners = {v.tensor: k for k, v in enumerate(views) if v and v.tensor is not None}
        whole = {}  # results that are a whole storage
        for k, view in enumerate(self._views):
            if view and view.tensor is not None and view.fills(sizes[view.tensor]):
                whole.setdefault(view.tensor, k)
        for k, view in enumerate(self._views):
            if view and view.tensor in owners:
                of = owners[view.tensor]
                same_layout = given[of].stride() == inputs[of].stride()
                self._alias(k, "input", of, given[of], returned[k], same_layout)
            elif view and whole.get(view.tensor, k) != k:
                of = whole[view.tensor]
                self._alias(k, "result", of, returned[of], returned[k])
        handed = [v for v in self.views() if v and v.tensor is not None]
        for k, view in enumerate(handed):
            if any(_overlap(view, other, sizes[view.tensor]) for other in handed[:k]):
                raise CaptureError(
                    "two results are views that share memory: return a copy of one, or use"
                    " spillway.torch.capture"
                )

    def _alias(self, k, of, number, source, result, same_layout=True):
        more = result.requires_grad and not source.requires_grad
        if source.dtype != result.dtype or more or not same_layout:
            raise CaptureError(
                f"result {k} shares the memory of {of} {number}: return a copy, or use"
                " spillway.torch.capture"
            )
        view = self._views[k]
        view = replace(view, offset=view.offset - source.storage_offset())
        self._aliases[k] = _Alias(of, number, view, result.requires_grad)

    def views(self):
        """Returns the view of each result that is handed out, and None for the others."""
        return [None if k in self._aliases else v for k, v in enumerate(self._views)]

    def differentiable(self):
        """Returns, for each result, whether it is handed out and may get a gradient."""
        has_bytes = [v is not None and v.tensor is not None for v in self.views()]
        return [a and b for a, b in zip(has_bytes, self._requires_grad)]

    def likely_pattern(self):
        """Returns the pattern where the losses get gradients: results with one element, or all."""
        candidates = [k for k, yes in enumerate(self.differentiable()) if yes]
        losses = [k for k in candidates if prod(self._views[k].shape) == 1]
        chosen = losses or candidates
        return tuple(s if k in chosen else None for k, s in enumerate(self._strides))

    def assembled(self, handed, inputs):
        """Returns what the graph returns, given the results that were handed out."""
        results = [c if v is None else x for x, v, c in zip(handed, self._views, self._constants)]
        for k, alias in self._aliases.items():
            results[k] = alias.made(handed, inputs)
        return tree_unflatten(results, self._structure)


def refuse_overlaps(inputs, written, names, own):
    """Refuses two inputs of a graph that share memory if the graph writes one, since each has its own memory in a plan.
    `written` has the positions of the inputs that it writes. Inputs at the positions `own` may share memory with each
    other."""
    if not written:
        return
    extents = sorted(_extent(x, k) for k, x in enumerate(inputs) if isinstance(x, torch.Tensor))
    if all(end <= start for (_, end, _), (start, _, _) in zip(extents, extents[1:])):
        return  # which inputs these are does not matter
    last = {}  # the input whose memory ends last so far, and this end, by whether it is written and own
    for start, end, k in extents:
        is_written, is_own = k in written, k in own
        for (other_is_written, other_is_own), (other_end, other) in last.items():
            if start < other_end and (is_written or other_is_written) and not (is_own and other_is_own):
                one, two = (other, k) if other_is_written else (k, other)
                raise CaptureError(
                    f"the model writes into {names[one]}, which shares memory with {names[two]}: pass a copy of one"
                    " (`x.clone()`), or leave this call out of torch.compile"
                )
        last[is_written, is_own] = max((end, k), last.get((is_written, is_own), (0, k)))


def _extent(tensor, k):
    """Returns where a tensor's memory begins and ends, and its position."""
    is_whole = tensor.is_contiguous()  # mostly, and found out sooner
    nbytes = tensor.nbytes if is_whole else extent_of(tensor.shape, tensor.stride()) * tensor.itemsize
    return tensor.data_ptr(), tensor.data_ptr() + nbytes, k


def _overlap(a, b, nbytes):
    """Returns whether two views of storages of `nbytes` bytes share an element."""
    if a.tensor != b.tensor:
        return False
    if a.dtype != b.dtype:
        return True
    covered = torch.zeros(nbytes // a.dtype.itemsize, dtype=torch.bool)
    covered.as_strided(a.shape, a.stride, a.offset).fill_(True)
    return bool(covered.as_strided(b.shape, b.stride, b.offset).any())

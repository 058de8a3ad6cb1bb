"""The layouts in memory of the tensors that a caller gives."""

from math import prod

import torch

MOST_SPREAD = 4  # bytes of a copy for each byte of a tensor, where gaps stay as they are
LINE = 16  # elements: with another remainder of the stride between rows, kernels may compute otherwise


def plain_strides(tensor):
    """Returns a tensor's strides, or those of a contiguous one where elements share memory other
    than by `expand`."""
    extent = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape)):
        if size > 1 and stride > 0:
            if stride < extent:
                return torch.empty(tensor.shape, device="meta").stride()
            extent += stride * (size - 1)
    return tensor.stride()


def kept_strides(tensor):
    """Returns the strides of a tensor's copy in a plan. Kernels may give other last bits if elements have gaps or share
    memory, so the copy has the tensor's own strides; but wide gaps become narrow, and windows with wide gaps
    contiguous."""
    own = tensor.stride()
    if tensor.is_contiguous() or extent_of(tensor.shape, own) <= MOST_SPREAD * _elements_once(tensor):
        return own
    strides = plain_strides(tensor)
    narrow, dense = list(strides), 1
    for stride, k in sorted((stride, k) for k, stride in enumerate(strides) if stride and tensor.shape[k] > 1):
        gap = 1 if dense == 1 else (stride - dense) % LINE or LINE
        narrow[k] = dense + gap if stride > dense else dense
        dense = narrow[k] * tensor.shape[k]
    return tuple(narrow)


def handed_strides(tensor):
    """Returns the strides of a result that is handed out: as `kept_strides` does, but windows are contiguous."""
    return kept_strides(tensor) if plain_strides(tensor) == tensor.stride() else plain_strides(tensor)


def has_gaps(tensor):
    """Returns whether there is memory between the elements of a tensor that none of them has."""
    return extent_of(tensor.shape, tensor.stride()) > _elements_once(tensor)


def _elements_once(tensor):
    """Returns how many elements there are without the copies that `expand` makes."""
    return prod(size for size, stride in zip(tensor.shape, tensor.stride()) if stride)


def extent_of(shape, strides):
    """Returns how many elements there are from the first element of a tensor to the last."""
    return 1 + sum((size - 1) * stride for size, stride in zip(shape, strides)) if prod(shape) else 0


def flat(tensor):
    """Returns the memory from the first element of a tensor to the last, with any gaps."""
    return tensor.as_strided((extent_of(tensor.shape, tensor.stride()),), (1,))


def shared_once(source, target):
    """Returns the parts of two tensors of one shape to copy between. Elements of the second that share memory are
    copied once."""
    if target.is_contiguous():
        return source, target
    if plain_strides(target) != target.stride():  # both are windows of the same layout
        return flat(source), flat(target)
    part = tuple(slice(0, 1) if stride == 0 else slice(None) for stride in target.stride())
    return source[part], target[part]


def fill(target, source):
    """Copies a tensor to another of its shape, in any layouts."""
    source, target = shared_once(source, target)
    target.copy_(source)


def laid_out(tensor, strides):
    """Returns a tensor's copy with these strides."""
    copy = torch.empty_strided(tensor.shape, strides, dtype=tensor.dtype, device=tensor.device)
    fill(copy, tensor)
    return copy

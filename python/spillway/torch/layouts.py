"""The layouts in memory of the tensors that a caller gives."""

from math import prod

import torch

MOST_SPREAD = 4  # bytes of a copy for each byte of a tensor, where gaps stay as they are
GAP = 16  # elements between rows that do not follow each other


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


def captured_strides(tensor):
    """Returns the strides of a captured batch's copy in a plan. Kernels may give other last bits if elements have gaps
    or share memory, so numbers with a fraction have gaps of one width where the tensor has any, and share memory as
    there. Windows with wide gaps are contiguous."""
    if tensor.is_contiguous():
        return tensor.stride()
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return torch.empty_like(tensor, device="meta").stride()
    strides = plain_strides(tensor)
    if strides != tensor.stride():
        return tensor.stride() if _is_narrow(tensor) else strides
    by_stride = sorted((stride, k) for k, stride in enumerate(strides) if stride and tensor.shape[k] > 1)
    own, copied, captured = 1, 1, list(strides)  # strides at which the next dimension would go on without a gap
    for stride, k in by_stride:
        gap = 0 if stride == own else 1 if copied == 1 else GAP
        captured[k] = copied + gap
        own, copied = stride * tensor.shape[k], captured[k] * tensor.shape[k]
    return tuple(captured)


def kept_strides(tensor):
    """Returns the strides of the copy in a plan that a graph's input or result has: its own, unless gaps are wide."""
    return tensor.stride() if tensor.is_contiguous() or _is_narrow(tensor) else captured_strides(tensor)


def _is_narrow(tensor):
    return extent_of(tensor.shape, tensor.stride()) <= MOST_SPREAD * _elements_once(tensor)


def handed_strides(tensor):
    """Returns the strides of a result that is handed out: as `kept_strides` does, but windows are contiguous."""
    plain = plain_strides(tensor)
    return kept_strides(tensor) if plain == tensor.stride() else plain


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

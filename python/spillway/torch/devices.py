"""Which device a step is on."""

import torch

from .cuda import Cuda
from .errors import CaptureError
from .processor import Processor


def tensors_of(model):
    """Returns the parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]


def device_of(tensors, device=None):
    """Returns the device of a step: `device`, or the device of all tensors. Raises `CaptureError` if they are on
    several devices, or on a device of a kind for which there are no sessions."""
    found = {t.device for t in tensors}
    if device is not None:
        given = torch.device(device)
        found = {given if given.index is not None else torch.device(given.type, 0)}
    if all(device.type == "cpu" for device in found):
        return Processor()
    first, *others = found
    if not others and first.type == "cuda":
        return Cuda(first)
    names = ", ".join(sorted(map(str, found)))
    raise CaptureError(
        f"there are no steps on {names}: move the model to the processor or to one CUDA device"
    )

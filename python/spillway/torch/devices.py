"""Which device a step is on."""

import torch

from .cuda import Cuda
from .errors import CaptureError
from .processor import Processor


def tensors_of(model):
    """Returns the parameters and buffers of a model."""
    return [*model.parameters(), *model.buffers()]


def indexed(device):
    """Returns a device by its name, with an index."""
    given = torch.device(device)
    return given if given.index is not None or given.type == "cpu" else torch.device(given.type, 0)


def device_of(tensors, device=None):
    """Returns the device of a step: `device`, or the device of all tensors. Raises `CaptureError` if they are on
    several devices, or on a device of a kind for which there are no sessions."""
    found = {t.device for t in tensors}
    if device is not None:
        found = {indexed(device)}
    if all(device.type == "cpu" for device in found):
        return Processor()
    first, *others = found
    if not others and first.type == "cuda":
        return Cuda(first)
    names = ", ".join(sorted(map(str, found)))
    raise CaptureError(
        f"there are no steps on {names}: move the model to the processor or to one CUDA device"
    )

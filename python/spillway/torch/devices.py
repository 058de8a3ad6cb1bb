"""Which device a model is on."""

import torch

from .cuda import Cuda
from .errors import CaptureError
from .processor import Processor


def device_of(model, device=None):
    """Returns the device of a step: the one given, or that which has all parameters and buffers of
    the model. Raises `CaptureError` where that is not one, or is of a kind for which there are no
    sessions."""
    found = {t.device for t in (*model.parameters(), *model.buffers())}
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

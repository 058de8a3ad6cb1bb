"""Which device a model is on."""

from .cuda import Cuda
from .errors import CaptureError
from .processor import Processor


def device_of(model):
    """Returns the device that has all parameters and buffers of a model. Raises `CaptureError`
    where that is not one, or is of a kind for which there are no sessions."""
    found = {t.device for t in (*model.parameters(), *model.buffers())}
    if all(device.type == "cpu" for device in found):
        return Processor()
    first, *others = found
    if not others and first.type == "cuda":
        return Cuda(first)
    names = ", ".join(sorted(map(str, found)))
    raise CaptureError(
        f"the model is on {names}: move all of it to the processor or to one CUDA device"
    )

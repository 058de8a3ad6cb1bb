"""Settings of optimizers that may change between iterations: learning rates, and momenta that a schedule cycles."""

import torch

from .errors import CaptureError
from .scalars import Compared


def scheduled(group):
    """Returns a group's settings that may change, as tensors by name."""
    cycled = _cycled(group)
    momenta = {} if cycled is None else {"momentum": torch.tensor(cycled, dtype=torch.float64)}
    return {"lr": _rate(group), **momenta}


def settings_with(group, numbers):
    """Returns a group's settings with other numbers for those that may change."""
    if "momentum" not in numbers:
        return dict(numbers)
    momentum = torch.SymFloat(Compared(numbers["momentum"].node, _cycled(group)))
    return {"lr": numbers["lr"], **_with_momentum(group, momentum)}


def constants(group):
    """Returns the settings that must not change."""
    settings = {n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")}
    cycled = _cycled(group)
    if cycled is not None:
        # Optimizers compare momentum with 0.
        momentum = "0" if cycled == 0 else "a number above 0" if cycled > 0 else "a number below 0"
        settings.update(_with_momentum(group, momentum))
    return settings


def has_tensor_rate(group):
    """Returns whether a group's learning rate is a tensor."""
    return isinstance(group["lr"], torch.Tensor)


def _rate(group):
    rate = group["lr"]
    if not isinstance(rate, (int, float, torch.Tensor)):
        raise CaptureError(
            f"lr of the optimizer is {rate!r}: give it a number, which may change between iterations"
        )
    return rate if has_tensor_rate(group) else torch.tensor(rate, dtype=torch.float64)


def _with_momentum(group, momentum):
    """Returns the setting of a group that has the momentum, with another momentum."""
    return {"betas": (momentum, *group["betas"][1:])} if "betas" in group else {"momentum": momentum}


def _cycled(group):
    """Returns the momentum of a group if a schedule cycles it, otherwise `None`. `OneCycleLR` and `CyclicLR`
    write the limits of the momentum into the group. Fused kernels take only a number of Python."""
    if "max_momentum" not in group or group.get("fused"):
        return None
    momentum = group["betas"][0] if "betas" in group else group.get("momentum")
    return momentum if isinstance(momentum, (int, float)) else None

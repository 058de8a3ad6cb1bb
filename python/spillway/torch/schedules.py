"""Settings of optimizers that may change between iterations: learning rates, weight decays, and momenta that a
schedule cycles."""

import torch

from .arguments import is_of_torch
from .errors import CaptureError


def scheduled(optimizer):
    """Returns the settings that may change, as tensors by name, for each group."""
    settings = []
    for group in optimizer.param_groups:
        compared = _compared(optimizer, group).items()
        numbers = {name: torch.tensor(number, dtype=torch.float64) for name, number in compared}
        settings.append({**_rates(group), **numbers})
    return settings


def settings_with(optimizer, numbers_by_group):
    """Returns each group's settings with other numbers for those that may change."""
    settings = []
    for group, numbers in zip(optimizer.param_groups, numbers_by_group):
        settings.append({name: numbers[name] for name in _rates(group)})
        for name in _compared(optimizer, group):
            settings[-1].update(_with(group, name, numbers[name]))
    return settings


def constants(optimizer):
    """Returns the settings that must not change, for each group."""
    settings = []
    for group in optimizer.param_groups:
        settings.append({n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")})
        for name, number in _compared(optimizer, group).items():
            sign = "0" if number == 0 else "a number above 0" if number > 0 else "a number below 0"
            settings[-1].update(_with(group, name, sign))
    return settings


def has_tensor_rate(group):
    """Returns whether a group's learning rate is a tensor."""
    return isinstance(group.get("lr"), torch.Tensor)


def _rates(group):
    """Returns the learning rate of a group by its name, as a tensor. Few optimizers have none."""
    if "lr" not in group:
        return {}
    rate = group["lr"]
    if not isinstance(rate, (int, float, torch.Tensor)):
        raise CaptureError(
            f"lr of the optimizer is {rate!r}: give it a number, which may change between iterations"
        )
    return {"lr": rate if has_tensor_rate(group) else torch.tensor(rate, dtype=torch.float64)}


def _compared(optimizer, group):
    """Returns the numbers of a group that may change and that optimizers compare with 0, by name."""
    is_own = is_of_torch(type(optimizer))
    if group.get("fused") and not is_own:  # Its kernels may take only numbers of Python.
        return {}
    numbers = {}
    if "max_momentum" in group:  # `OneCycleLR` and `CyclicLR` write the limits of the momentum there.
        numbers["momentum"] = group["betas"][0] if "betas" in group else group.get("momentum")
    # Other packages' optimizers may do more with it than multiply.
    if is_own and group.get("weight_decay", 0) != 0:
        numbers["weight_decay"] = group["weight_decay"]
    return {name: number for name, number in numbers.items() if isinstance(number, (int, float))}


def _with(group, name, value):
    """Returns a group's setting with another value."""
    if name == "momentum" and "betas" in group:
        return {"betas": (value, *group["betas"][1:])}
    return {name: value}

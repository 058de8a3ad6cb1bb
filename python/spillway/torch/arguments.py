"""Refuses arguments of `capture` that have the wrong type."""

import torch

from .errors import CaptureError


def refuse_others(model, function):
    """Refuses a model that is no module, and a function that cannot be called."""
    if not isinstance(model, torch.nn.Module):
        raise CaptureError(
            f"the model is of type {type(model).__name__}: give a torch.nn.Module; for several models, a"
            " torch.nn.ModuleList of them"
        )
    if not callable(function):
        raise CaptureError(
            f"{type(function).__name__} cannot be called: give a function that takes the model and a batch"
        )


def refuse_no_optimizer(optimizer):
    """Refuses a missing optimizer, several of them, and a scheduler."""
    if hasattr(optimizer, "param_groups") and hasattr(optimizer, "step"):
        return
    kind = type(optimizer).__name__
    if optimizer is None:
        way = "for a step without one, use capture_inference"
    elif isinstance(optimizer, (list, tuple, dict)):
        way = "give one, with a group of parameters for each that you have, or capture a step for each"
    elif isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
        way = "give its optimizer, and call the scheduler between the iterations"
    else:
        way = "give a torch.optim.Optimizer"
    raise CaptureError(f"the optimizer is of type {kind}: {way}")

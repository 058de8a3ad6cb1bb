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


def optimizers_of(optimizer):
    """Returns a tuple of optimizers, given one optimizer or a list."""
    is_list = isinstance(optimizer, (list, tuple))
    optimizers = tuple(optimizer) if is_list and optimizer else (optimizer,)
    for one in optimizers:
        refuse_no_optimizer(one)
    if len({id(one) for one in optimizers}) < len(optimizers):
        raise CaptureError("one optimizer is given several times: give it once")
    return optimizers


def named(optimizers):
    """Returns a pair for each optimizer: its name in messages, and the optimizer."""
    if len(optimizers) == 1:
        return [("the optimizer", optimizers[0])]
    return [(f"optimizer {k} ({type(one).__name__})", one) for k, one in enumerate(optimizers)]


def groups_of(optimizers):
    """Returns a pair for each group of all optimizers: its name in messages, and the group."""
    return [
        (f"{name}'s group {k}", group)
        for name, optimizer in named(optimizers)
        for k, group in enumerate(optimizer.param_groups)
    ]


def is_of_torch(kind):
    """Returns whether an optimizer's class is one of `torch.optim`."""
    return kind.__module__.startswith("torch.optim.")


def refuse_wrapper(optimizer):
    """Refuses an optimizer whose states and groups are those of another one."""
    if not {"state", "param_groups"} <= vars(optimizer).keys():
        raise CaptureError(
            f"{type(optimizer).__name__} keeps its states and groups in another optimizer: give that one, or use"
            " torch.compile(model, backend='spillway'), which leaves the optimizer outside"
        )


def refuse_joined(optimizer):
    """Refuses an optimizer that has joined the plans of `torch.compile`."""
    if "joining" in vars(optimizer):
        raise CaptureError(
            f"{type(optimizer).__name__} has joined the plans of torch.compile, by spillway.torch.optimizer: make"
            " another one for capture"
        )


def refuse_no_optimizer(optimizer):
    """Refuses a missing optimizer, a container of optimizers, and a scheduler."""
    if hasattr(optimizer, "param_groups") and hasattr(optimizer, "step"):
        return
    kind = type(optimizer).__name__
    if optimizer is None:
        way = "for a step without one, use capture_inference"
    elif isinstance(optimizer, (list, tuple, dict)):
        way = "give one; capture(...) also takes a list of optimizers"
    elif isinstance(optimizer, torch.optim.lr_scheduler.LRScheduler):
        way = "give its optimizer, and call the scheduler between the iterations"
    else:
        way = "give a torch.optim.Optimizer"
    raise CaptureError(f"the optimizer is of type {kind}: {way}")

"""Collectives in a step: all-reduces in place, whichever of PyTorch's functions asks for one."""

import torch

from .errors import CaptureError, user_line

NAMESPACES = {"c10d", "_c10d_functional"}
ALL_REDUCE = torch.ops._c10d_functional.all_reduce_.default
REDUCTIONS = "sum", "avg", "product", "min", "max"


def is_collective(call):
    """Returns whether a call waits for other processes."""
    return call.function is ALL_REDUCE


def launched(*args):
    """Runs an all-reduce to its end."""
    torch.ops._c10d_functional.wait_tensor(ALL_REDUCE(*args))


def record(function, args, record_call):
    """Records a collective as all-reduces in place. Returns what the function would.

    `record_call` records a function with its arguments, and returns its result.
    """
    name = function._schema.name
    if function is ALL_REDUCE:
        return record_call(function, args)
    if name == "_c10d_functional::wait_tensor":
        return args[0]  # each launch waits
    if name == "_c10d_functional::all_reduce":
        copy = record_call(torch.ops.aten.clone.default, args[:1])
        return record_call(ALL_REDUCE, (copy, *args[1:]))
    if name == "c10d::allreduce_":
        tensors, group, reduction = args[:3]
        group_name = torch.distributed.ProcessGroup.unbox(group).group_name
        for tensor in tensors:
            record_call(ALL_REDUCE, (tensor, _name(reduction), group_name))
        return function(*args)
    raise CaptureError(f"{user_line()}: of all collectives, only all_reduce can be captured")


def _name(boxed):
    """Returns the name of a reduction."""
    reduction = torch.distributed.ReduceOp.unbox(boxed)
    for name in REDUCTIONS:
        if reduction == getattr(torch.distributed.ReduceOp, name.upper()):
            return name
    raise CaptureError(f"{user_line()}: an all_reduce is one of {', '.join(REDUCTIONS)}")

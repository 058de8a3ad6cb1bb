"""Collectives in a step, in place or into a given tensor, whichever of PyTorch's functions asks for
one."""

import random
from contextlib import ExitStack

import torch

from .errors import CaptureError, user_line

NAMESPACES = {"c10d", "_c10d_functional"}
functional = torch.ops._c10d_functional
ALL_REDUCE = functional.all_reduce_.default
BROADCAST = functional.broadcast_.default
ALL_GATHER = functional.all_gather_into_tensor_out.default
REDUCE_SCATTER = functional.reduce_scatter_tensor_out.default
_LIBRARY = torch.library.Library("spillway", "DEF")
_LIBRARY.define(
    "gather_together(Tensor[] rows, int group_size, str group_name, *, Tensor(a!)[] out) -> ()"
)
GATHER_TOGETHER = torch.ops.spillway.gather_together.default
# All but the last return before they have ended. They have the group's name as their last argument but `out`.
COLLECTIVES = {ALL_REDUCE, BROADCAST, ALL_GATHER, REDUCE_SCATTER, GATHER_TOGETHER}
NAMES = "all_reduce, broadcast, all_gather_into_tensor and reduce_scatter_tensor"
REDUCTIONS = "sum", "avg", "product", "min", "max"


def is_collective(call):
    """Returns whether a call takes part in what all processes do together."""
    return call.function in COLLECTIVES


def _gather_together(rows, group_size, group_name, *, out):
    """Gathers several tensors by one collective, each into a tensor with a row for each process."""
    own = torch.cat(rows)
    received = own.new_empty(group_size * own.numel())
    wait(ALL_GATHER(own, group_size, group_name, out=received))
    by_process = received.view(group_size, own.numel())
    torch.split_with_sizes_copy(by_process, [r.numel() for r in rows], 1, out=out)


_LIBRARY.impl("gather_together", _gather_together, "CompositeExplicitAutograd")


def to_its_end(function):
    """Returns the function that runs a collective and waits for it."""
    if function is GATHER_TOGETHER:
        return function
    return lambda *args, **kwargs: wait(function(*args, **kwargs))


def wait(tensor):
    """Waits for the collective that returned a tensor."""
    functional.wait_tensor(tensor)


class UnderWay:
    """The collectives that have been started and may not have ended, by the number of their start.

    Their tensors must stay where they are.
    """

    def __init__(self):
        self._started = {}

    def start(self, number, tensor):
        """Adds a collective, by the tensor that it returned."""
        self._started[number] = tensor

    def wait(self, number):
        """Waits for a collective, unless it has been waited for."""
        if number in self._started:
            wait(self._started.pop(number))

    def wait_for_all(self):
        """Waits for each, also after one has failed."""
        with ExitStack() as waits:
            for number in list(self._started):
                waits.callback(self.wait, number)


def record(function, args, kwargs, record_call):
    """Records a collective. Returns what the function would.

    `record_call` records a function with its arguments, and returns its result.
    """
    name = function._schema.name
    if function in COLLECTIVES:
        return record_call(function, args, kwargs)
    if name == "_c10d_functional::wait_tensor":
        return args[0]  # what uses the tensor waits
    if name.startswith("_c10d_functional::"):
        return _record_functional(name.split("::")[1], args, record_call)
    if name in C10D:
        C10D[name](record_call, *args)
        generator = random.getstate()
        try:
            return function(*args, **kwargs)  # whose fake draws a number
        finally:
            random.setstate(generator)
    raise _unknown()


def _record_functional(name, args, record_call):
    """Records a collective that returns a tensor of its own."""
    if name in ("all_reduce", "broadcast"):
        copy = record_call(torch.ops.aten.clone.default, args[:1])
        return record_call(ALL_REDUCE if name == "all_reduce" else BROADCAST, (copy, *args[1:]))
    rows, *others = args[0].shape
    if name == "all_gather_into_tensor":
        function, shape = ALL_GATHER, [rows * args[1], *others]
    elif name == "reduce_scatter_tensor":
        function, shape = REDUCE_SCATTER, [rows // args[2], *others]
    else:
        raise _unknown()
    out = record_call(torch.ops.aten.new_empty.default, (args[0], shape))
    return record_call(function, args, dict(out=out))


def _all_reduce(record_call, tensors, group, reduction, *_):
    for tensor in tensors:
        record_call(ALL_REDUCE, (tensor, _reduction(reduction), _group(group).group_name))


def _broadcast(record_call, tensors, group, source, *_):
    for tensor in tensors:
        record_call(BROADCAST, (tensor, source, _group(group).group_name))


def _all_gather(record_call, output, given, group, *_):
    group = _group(group)
    record_call(ALL_GATHER, (given, group.size(), group.group_name), dict(out=output))


def _reduce_scatter(record_call, output, given, group, reduction, *_):
    group = _group(group)
    args = given, _reduction(reduction), group.size(), group.group_name
    record_call(REDUCE_SCATTER, args, dict(out=output))


C10D = {
    "c10d::allreduce_": _all_reduce,
    "c10d::broadcast_": _broadcast,
    "c10d::_allgather_base_": _all_gather,
    "c10d::_reduce_scatter_base_": _reduce_scatter,
}


def _unknown():
    return CaptureError(f"{user_line()}: of all collectives, only {NAMES} can be captured")


def _group(boxed):
    return torch.distributed.ProcessGroup.unbox(boxed)


def _reduction(boxed):
    """Returns the name of a reduction."""
    if not hasattr(torch.distributed.ReduceOp, "unbox"):  # since PyTorch 2.15
        raise CaptureError(
            f"{user_line()}: PyTorch {torch.__version__} does not tell which reduction torch.distributed"
            " is asked for: use torch.distributed._functional_collectives, or PyTorch 2.15 or later"
        )
    reduction = torch.distributed.ReduceOp.unbox(boxed)
    for name in REDUCTIONS:
        if reduction == getattr(torch.distributed.ReduceOp, name.upper()):
            return name
    raise CaptureError(f"{user_line()}: a reduction is one of {', '.join(REDUCTIONS)}")

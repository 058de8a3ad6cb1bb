"""Runs a recorded op on given memory."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .collectives import is_collective, to_its_end
from .recording import HIDDEN_WRITES, View
from .scalars import Scalar

_OUT_VARIANTS = {}


@contextmanager
def plain_mode():
    """Within it, ops run below autograd and autocast, and without the modes of capture."""
    enabled = torch.is_grad_enabled()
    try:
        with (
            _disable_current_modes(),
            torch._C._AutoDispatchBelowAutograd(),
            torch._C._DisableAutocast(),
        ):
            yield
    finally:
        torch._C._set_grad_enabled(enabled)


def out_variant(function):
    """Returns the overload that writes its results into tensors that it is given, and their
    names; (None, []) if there is none."""
    if function not in _OUT_VARIANTS:
        _OUT_VARIANTS[function] = _find_out_variant(function)
    return _OUT_VARIANTS[function]


def forget_out_variant(function):
    """Has a function's results copied from now on."""
    _OUT_VARIANTS[function] = None, []


def _find_out_variant(function):
    wanted = [(a.name, str(a.type)) for a in function._schema.arguments]
    packet = function.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        if outs and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted:
            return overload, outs
    return None, []


def bind(call, tensor_of):
    """Returns the function that runs a call, in `plain_mode`, on the same memory each time.

    `tensor_of` returns the tensor of a view, or None where a repeat must leave the memory alone.
    """
    if call.function is None:
        return lambda: None
    views = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, View)]
    is_on_device = any(not view.is_host_number for view in views)

    def argument(arg):
        if not isinstance(arg, View):
            return arg
        tensor = tensor_of(arg)
        # Among numbers alone, an op may as well run on the device.
        return _HostNumber(tensor) if is_on_device and arg.is_host_number else tensor

    args, kwargs = tree_map(argument, (call.args, call.kwargs))
    function = to_its_end(call.function) if is_collective(call) else call.function
    results = [None if view is None else tensor_of(view) for view in call.results]
    if any(call.results):
        variant, names = out_variant(function)
        if names and _returns_list(function):
            results = [results]
        if len(names) == len(results) and None not in call.results:
            function = variant
            kwargs = kwargs | dict(zip(names, results))
        else:
            function = _copying(function, results)
    if any(isinstance(leaf, (Scalar, _HostNumber)) for leaf in tree_leaves((args, kwargs))):
        function = _reading(function, tensor_of)
    unless = None if call.unless is None else tensor_of(call.unless)

    def run():
        if unless is not None and unless.item():
            return
        torch._C._set_grad_enabled(call.with_gradients)  # some kernels ask
        function(*args, **kwargs)

    return run


def _copying(function, results):
    """Returns a function that copies what another makes into `results`."""

    def run(*args, **kwargs):
        made = function(*args, **kwargs)
        for result, tensor in zip(results, made if isinstance(made, (tuple, list)) else [made]):
            if result is not None:
                result.copy_(tensor)

    return run


@dataclass
class _HostNumber:
    """A number in device memory that an op reads on the processor, as eager mode has it."""

    tensor: torch.Tensor


def _reading(function, tensor_of):
    """Returns a function that computes the numbers among its arguments before it runs another."""

    def number(arg):
        if isinstance(arg, Scalar):
            return arg.value(lambda view, _: tensor_of(view).item())
        return arg.tensor.cpu() if isinstance(arg, _HostNumber) else arg

    def run(*args, **kwargs):
        args, kwargs = tree_map(number, (args, kwargs))
        function(*args, **kwargs)

    return run


def _returns_list(function):
    return str(function._schema.returns[0].type) == "List[Tensor]"


def leaves_states_alone(call):
    """Returns whether a call can run without the states that it writes."""
    return call.function is not None and call.function._schema.name in HIDDEN_WRITES

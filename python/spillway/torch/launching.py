"""Runs a recorded op on given memory."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_map

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


def launch(call, tensor_of):
    """Runs a call, in `plain_mode`. `tensor_of` returns the tensor of a view, or None where a
    repeat must leave the memory alone."""

    def argument(arg):
        if isinstance(arg, View):
            return tensor_of(arg)
        if isinstance(arg, Scalar):
            return arg.value(lambda view, _: tensor_of(view).item())
        return arg

    if call.function is None:
        return
    torch._C._set_grad_enabled(call.with_gradients)  # some kernels ask
    args, kwargs = tree_map(argument, (call.args, call.kwargs))
    if not any(call.results):
        call.function(*args, **kwargs)
        return
    results = [None if view is None else tensor_of(view) for view in call.results]
    variant, names = out_variant(call.function)
    if _returns_list(call.function):
        results = [results] if names else results
    if len(names) == len(results) and None not in call.results:
        variant(*args, **kwargs, **dict(zip(names, results)))
        return
    made = call.function(*args, **kwargs)
    for result, tensor in zip(results, made if isinstance(made, (tuple, list)) else [made]):
        if result is not None:
            result.copy_(tensor)


def _returns_list(function):
    return str(function._schema.returns[0].type) == "List[Tensor]"


def leaves_states_alone(call):
    """Returns whether a call can run without the states that it writes."""
    return call.function is not None and call.function._schema.name in HIDDEN_WRITES

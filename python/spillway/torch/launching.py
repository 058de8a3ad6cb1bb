"""Runs a recorded op on given memory."""

from contextlib import contextmanager

import torch
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves, tree_map

from .collectives import is_collective, to_its_end
from .numbers import Number, placed
from .recording import HIDDEN_WRITES, View, unique
from .scalars import Scalar

# Out variants that cannot be used: this one replaces the tensor that it is given for the reserve space, which it
# then frees once too often (seen with PyTorch 2.11).
_OUT_VARIANTS: dict = {torch.ops.aten.cudnn_batch_norm.default: (None, [])}

aten = torch.ops.aten


def _copied(result, source, **_):
    result.copy_(source)


def _slice_backward(result, gradient, input_sizes, dim, start, end, step):
    aten.slice.Tensor(result.zero_(), dim, start, end, step).copy_(gradient)


def _select_backward(result, gradient, input_sizes, dim, index):
    aten.select.int(result.zero_(), dim, index).copy_(gradient)


def _masked_fill(result, source, mask, value):
    result.copy_(source).masked_fill_(mask, value)


def _relu(result, source):
    aten.clamp_min.out(source, 0, out=result)


def _embedding(result, weight, indices, *_, **__):
    aten.index_select.out(weight, 0, indices.reshape(-1), out=result.view(-1, weight.shape[1]))


# Ops whose out variants, if they have any, make the result elsewhere and copy it, as functions that do the same in
# the result's memory.
IN_PLACE = {
    aten._to_copy.default: _copied,
    aten.clone.default: _copied,
    aten.slice_backward.default: _slice_backward,
    aten.select_backward.default: _select_backward,
    aten.masked_fill.Scalar: _masked_fill,
    aten.masked_fill.Tensor: _masked_fill,
    aten.relu.default: _relu,
    aten.embedding.default: _embedding,
}


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


def has_variant(function):
    """Returns whether another function computes the same in the memory of the results."""
    return function in IN_PLACE or out_variant(function)[0] is not None


def _find_out_variant(function):
    wanted = [(a.name, str(a.type)) for a in function._schema.arguments]
    packet = function.overloadpacket
    for name in packet.overloads():
        overload = getattr(packet, name)
        arguments = overload._schema.arguments
        outs = [a.name for a in arguments if a.is_out]
        if outs and [(a.name, str(a.type)) for a in arguments if not a.is_out] == wanted:
            # PyTorch generates variants that make their results elsewhere and copy them.
            return (None, []) if torch.Tag.generated in overload.tags else (overload, outs)
    return None, []


def bind(call, tensor_of):
    """Returns the function that runs a call, in `plain_mode`, on the same memory each time.

    `tensor_of` returns the tensor of a view, or None where a repeat must leave the memory alone. Numbers on
    the processor are in `tensor_of.numbers`, if the step is on another device. If the call cannot be told where to make
    its results, the function returns the addresses at which the call has made them.
    """
    if call.function is None:
        return lambda: None

    def operand(arg):
        return placed(arg, tensor_of) if isinstance(arg, View) else arg

    args, kwargs = tree_map(operand, (call.args, call.kwargs))
    function = to_its_end(call.function) if is_collective(call) else call.function
    results = [None if view is None else operand(view) for view in call.results]
    if any(call.results) and call.copies:
        function = _Copying(function, results)
    elif any(call.results):
        function, args, kwargs = _into(function, args, kwargs, results)
    copies = isinstance(function, _Copying)
    args_now, kwargs_now, reads = _read_at_launch(args, kwargs, operand)
    numbers_written = [] if tensor_of.numbers is None else _numbers_written(call, operand)
    unless = None if call.unless is None else tensor_of(call.unless)
    set_grad_enabled, with_gradients = torch._C._set_grad_enabled, call.with_gradients

    def run():
        set_grad_enabled(with_gradients)  # some kernels ask
        made = function(*args, **kwargs)
        return made if copies else None

    def run_with_numbers():
        if unless is not None and unless.item():
            return
        set_grad_enabled(with_gradients)
        made = function(*args_now(), **kwargs_now())
        for number in numbers_written:
            number.written()
        return made if copies else None

    return run_with_numbers if reads or numbers_written or unless is not None else run


def _into(function, args, kwargs, results):
    """Returns the function that writes its results into given tensors, and its arguments."""
    if function in IN_PLACE and results[0] is not None:
        return IN_PLACE[function], (results[0], *args), kwargs
    variant, names = out_variant(function)
    given = [results] if names and _returns_list(function) else results
    if len(names) == len(given) and all(isinstance(result, torch.Tensor) for result in results):
        return variant, args, kwargs | dict(zip(names, given))
    return _Copying(function, results), args, kwargs


class _Copying:
    """Calls a function, and copies each tensor that it makes into a result, unless the function has made the tensor
    there. Returns the addresses of the tensors."""

    def __init__(self, function, results):
        self._function = function
        self._results = [(r, r.data_ptr() if isinstance(r, torch.Tensor) else None) for r in results]

    def __call__(self, *args, **kwargs):
        made = self._function(*args, **kwargs)
        made = made if isinstance(made, (tuple, list)) else [made]
        addresses = [x.data_ptr() if isinstance(x, torch.Tensor) else None for x in made]
        for (result, there), tensor, address in zip(self._results, made, addresses):
            if result is None:
                continue
            if address != there:
                result.copy_(tensor)
            elif tensor.stride() != result.stride():
                result.copy_(tensor.clone())
        return addresses


def _numbers_written(call, operand):
    """Returns the numbers that a call writes in place."""
    views = [leaf for leaf in tree_leaves((call.args, call.kwargs)) if isinstance(leaf, View)]
    written = unique(v for v in views if v.is_host_number and v.tensor in call.writes)
    return [number for number in map(operand, written) if number is not None]


def _read_at_launch(args, kwargs, operand):
    """Returns two functions without parameters, which read the numbers among the arguments and return all arguments.
    Also returns whether there are such numbers."""
    reads = {name: _reading(arg, operand) for name, arg in (*enumerate(args), *kwargs.items())}
    if not any(reads.values()):
        return lambda: args, lambda: kwargs, False
    positional = [(arg, reads[k]) for k, arg in enumerate(args)]
    named = [(name, arg, reads[name]) for name, arg in kwargs.items()]
    return (
        lambda: [read() if read else arg for arg, read in positional],
        lambda: {name: read() if read else arg for name, arg, read in named},
        True,
    )


def _reading(arg, operand):
    """Returns the function that reads an argument at a launch; None if it is the same at each."""
    if isinstance(arg, Number):
        return arg.read
    if isinstance(arg, Scalar):
        function, leaves = arg.compiled
        tensors = [operand(view) for view, _ in leaves]
        return lambda: function(*[tensor.item() for tensor in tensors])
    if isinstance(arg, (list, tuple)):
        reads = [(part, _reading(part, operand)) for part in arg]
        if any(read for _, read in reads):
            return lambda: [read() if read else part for part, read in reads]
    return None


def _returns_list(function):
    return str(function._schema.returns[0].type) == "List[Tensor]"


def leaves_states_alone(call):
    """Returns whether a call can run without the states that it writes."""
    return call.function is not None and call.function._schema.name in HIDDEN_WRITES

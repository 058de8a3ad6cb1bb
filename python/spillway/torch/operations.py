"""Turns recorded calls into the ops of a graph, and adds those around them: the batch comes in,
results go out, and the generator's state is a tensor."""

from dataclasses import dataclass, field, replace
from math import prod
from typing import Callable

import torch

from .collectives import is_collective
from .launching import bind, leaves_states_alone
from .measuring import Measured
from .recording import Storage, View, unique

# Some bytes of their results are undefined; they may be the same by chance when they are measured.
PARTLY_UNDEFINED = {"aten::mkldnn_rnn_layer"}

GENERATOR_BYTES = torch.get_rng_state().numel()
GENERATOR_COSTS = Measured(1000, 2 * GENERATOR_BYTES, draws=False, repeats=False)


@dataclass
class Operation:
    """An op of the graph. `bind(tensor_of, is_repeat)` returns what does its work on given
    memory: a function of what the iteration exchanges with its caller."""

    name: str
    reads: list
    writes: list
    bind: Callable
    measured: Measured = field(default=Measured(1000, 0, draws=False, repeats=True))
    repeatable: bool = False
    line: str = ""


@dataclass
class Outside:
    """What an iteration exchanges with its caller: batch and learning rates, results and
    generator state."""

    batch: list
    rates: list
    results: list
    generator: torch.Tensor | None = None


def operations(recorder, batch, rates, name, results):
    """Returns the ops of one iteration, in order. May add tensors to the recorder's storages.

    `batch` and `rates` are the views of what the caller supplies, `results` of what it gets, where
    that is a tensor; `name` is for the ops that hand these out.
    """
    ops = [_supply("batch", batch, lambda outside: outside.batch)]
    if rates:
        ops.append(_supply("learning rates", rates, lambda outside: outside.rates))
    handed = [_result(name, k, view) for k, view in enumerate(results) if view]
    first, body, last = recorded(recorder)
    return ops + first + body + last + handed


def recorded(recorder, part=slice(None)):
    """Returns the ops of a part of the recorded calls, in order: those that take the state of
    PyTorch's generator, those of the calls, and those that hand the state back. May add tensors to
    the recorder's storages."""
    random, order = _Randomness(recorder.storages), Order(recorder.storages)
    calls, body = recorder.calls, []
    for call in (calls[k] for k in range(len(calls))[part] if not _is_useless(k, calls)):
        measured = recorder.measure.measure(call, recorder.storages)
        repeatable = measured.repeats and _is_repeatable(call, recorder.storages)
        if measured.draws:
            body += random.operations(call, measured, repeatable)
        elif is_collective(call):
            body.append(order.next(_plain(call, measured, repeatable=False)))
        else:
            body.append(_plain(call, measured, repeatable))
    return random.first(), body, random.last()


def _is_useless(k, calls):
    """Returns whether a call only makes memory that the next op on it overwrites."""
    call = calls[k]
    if call.function is not None:
        return False
    (tensor,) = call.writes
    for later in calls[k + 1 :]:
        if tensor in later.reads:
            return False
        if tensor in later.writes:
            return True
    return True


def _plain(call, measured, repeatable):
    def bound(tensor_of, is_repeat):
        run = bind(call, tensor_of)
        return lambda outside: run()

    return Operation(call.name, call.reads, call.writes, bound, measured, repeatable, call.line)


def _is_repeatable(call, storages):
    """Returns whether a repeat is defined: not by a library that may do anything, and possible
    without the states that the call writes."""
    if call.function is None:
        return True
    if all(storages[t].kind == "state" for t in call.writes):
        return False
    if any(storages[t].kind == "state" for t in call.writes) and not leaves_states_alone(call):
        return False
    return (
        call.function.namespace == "aten"
        and call.function._schema.name not in PARTLY_UNDEFINED
        and torch.Tag.nondeterministic_bitwise not in call.function.tags
    )


class Order:
    """A token that some ops read and write, so that no plan changes their order."""

    def __init__(self, storages):
        self.storages = storages
        self.token = None

    def next(self, operation):
        """Returns an op, which comes after those before."""
        before = [] if self.token is None else [self.token]
        if self.token is None:
            self.storages.append(Storage("order", 1, "temporary"))
            self.token = len(self.storages) - 1
        return replace(
            operation, reads=operation.reads + before, writes=[*operation.writes, self.token]
        )


class _Randomness:
    """The generator's state as a tensor that each random op reads and writes in turn.

    Before each, an op copies the state to a temporary, which the random op reads: so it draws
    the same numbers when it is launched again.
    """

    def __init__(self, storages):
        self.storages = storages
        self.state = None

    def operations(self, call, measured, repeatable):
        if self.state is None:
            self.state = self._tensor("generator", "state")
        seed = self._tensor(f"generator before {call.name}", "temporary")
        state, before = _bytes_of(self.state), _bytes_of(seed)

        def copy(tensor_of, is_repeat):
            source, target = tensor_of(state), tensor_of(before)
            return lambda outside: target.copy_(source)

        def draw(tensor_of, is_repeat):
            source, target = tensor_of(before), tensor_of(state)
            run = bind(call, tensor_of)

            def drawn(outside):
                torch.set_rng_state(source)
                run()
                if not is_repeat:
                    target.copy_(torch.get_rng_state())

            return drawn

        measured = replace(
            measured,
            workspace_bytes=max(measured.workspace_bytes, GENERATOR_COSTS.workspace_bytes),
        )
        reads, writes = unique([seed, *call.reads]), unique([*call.writes, self.state])
        return [
            Operation(f"before {call.name}", [self.state], [seed], copy, line=call.line),
            Operation(call.name, reads, writes, draw, measured, repeatable, call.line),
        ]

    def first(self):
        """Returns the op that takes over the state of PyTorch's generator."""
        if self.state is None:
            return []

        def take(tensor_of, is_repeat):
            target = tensor_of(_bytes_of(self.state))
            return lambda outside: target.copy_(torch.get_rng_state())

        return [Operation("generator", [], [self.state], take, GENERATOR_COSTS)]

    def last(self):
        """Returns the op that hands the state back."""
        if self.state is None:
            return []

        def give(tensor_of, is_repeat):
            source = tensor_of(_bytes_of(self.state))
            return lambda outside: setattr(outside, "generator", source.clone())

        return [Operation("generator's end", [self.state], [], give, GENERATOR_COSTS)]

    def _tensor(self, name, kind):
        self.storages.append(Storage(name, GENERATOR_BYTES, kind, torch.get_rng_state()))
        return len(self.storages) - 1


def _bytes_of(tensor):
    return View(tensor, (GENERATOR_BYTES,), (1,), 0, torch.uint8)


def _supply(name, views, values):
    """Returns the op that copies what the caller supplies."""
    pairs = [(k, view) for k, view in enumerate(views) if view.tensor is not None]

    def copy(tensor_of, is_repeat):
        targets = [(k, tensor_of(view)) for k, view in pairs]

        def run(outside):
            for k, target in targets:
                target.copy_(values(outside)[k])

        return run

    return Operation(name, [], [view.tensor for _, view in pairs], copy, repeatable=True)


def _result(name, k, view):
    """Returns the op that gives the caller a copy of a result."""

    def hand_out(tensor_of, is_repeat):
        result = tensor_of(view)

        def run(outside):
            outside.results[k] = result.clone()

        return run

    nbytes = prod(view.shape) * view.dtype.itemsize
    costs = Measured(max(nbytes, 1000), nbytes, draws=False, repeats=False)
    reads = [] if view.tensor is None else [view.tensor]
    return Operation(f"{name}.{k}" if k else name, reads, [], hand_out, costs)

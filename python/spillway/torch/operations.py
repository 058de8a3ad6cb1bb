"""Turns recorded calls into the ops of a graph, and adds those around them: the batch comes in,
results go out, and the generator's state is a tensor."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch
from torch.utils._pytree import tree_map

from .collectives import ALL_GATHER, GATHER_TOGETHER, UnderWay, is_collective
from .hosting import may_run_on_host
from .indices import may_fail_by_values
from .launching import bind, leaves_states_alone
from .layouts import fill, flat
from .measuring import Measured
from .numbers import placed, value_of
from .recording import Call, Storage, View, unique

# Some bytes of their results are undefined; they may be the same by chance when they are measured.
PARTLY_UNDEFINED = {"aten::mkldnn_rnn_layer"}

START_NS = 50_000  # to start a collective


@dataclass
class Operation:
    """An op of the graph. `bind(tensor_of, is_repeat)` returns what does its work on given
    memory (`Tensors`): a function of what the iteration exchanges with its caller."""

    name: str
    reads: list
    writes: list
    bind: Callable
    measured: Measured = field(default=Measured(1000, 0, draws=False, repeats=True))
    repeatable: bool = False
    line: str = ""
    start: Operation | None = None  # that of the collective that this op waits for
    may_fail: bool = False  # because of the values that it reads
    may_end: bool = False  # the iteration, which is then abandoned
    host_call: Call | None = None  # what it does, if it may run on the host
    exchanges: bool = False  # with other processes
    results: list = field(default_factory=list)  # the views of its results, by the numbers in `measured.places`

    def places(self, memory):
        """Returns the places of results, each with its address, given the memory of tensors."""
        views = [(place, self.results[place.result]) for place in self.measured.places]
        return [(p, memory[v.tensor].address + v.offset * v.dtype.itemsize) for p, v in views]


@dataclass
class Outside:
    """What an iteration exchanges with its caller: batch and learning rates, results and
    generator state; and its collectives."""

    batch: list
    rates: list
    results: list
    generator: torch.Tensor | None = None
    only: range | None = None  # the ops that run, if not all do
    under_way: UnderWay = field(default_factory=UnderWay)


def operations(recorder, batch, rates, name, results, outputs):
    """Returns the ops of one iteration, in order. May add tensors to the recorder's storages.

    `batch` and `rates` are the views of what the caller supplies, `results` of what it gets, where
    that is a tensor; `name` is for the ops that hand these out, if they are no `outputs`.
    """
    ops = [_supply("batch", batch, lambda outside: outside.batch)]
    if rates:
        ops.append(_supply("learning rates", rates, lambda outside: outside.rates))
    handed = _results(name, results) if outputs is None else outputs.copies
    first, body, last = recorded(recorder)
    return ops + first + body + handed + last


def recorded(recorder, part=slice(None)):
    """Returns the ops of a part of the recorded calls, in order: those that take the state of
    PyTorch's generator, those of the calls, and those that hand the state back. May add tensors to
    the recorder's storages."""
    random = _Randomness(recorder.storages, recorder.measure.device)
    collectives = _Collectives(recorder.storages)
    calls, body = recorder.calls, []
    for call in (calls[k] for k in range(len(calls))[part] if not _is_useless(k, recorder)):
        body += collectives.waits({*call.reads, *call.writes})
        measured = recorder.measure.measure(call, recorder.storages)
        repeatable = measured.repeats and _is_repeatable(call, recorder.storages)
        if measured.draws:
            body += random.operations(call, measured, repeatable)
        elif is_collective(call) and recorder.is_common:
            body.append(_plain(call, measured, _may_be_launched_again(call, recorder.storages)))
        elif is_collective(call):
            body.append(collectives.start(call, measured))
        else:
            body.append(_plain(call, measured, repeatable))
    body += collectives.waits()
    return random.first(), body, random.last()


def _is_useless(k, recorder):
    """Returns whether a call only makes memory that the next op on it overwrites, or that nothing reads."""
    call = recorder.calls[k]
    if call.function is not None:
        return False
    (tensor,) = call.writes
    for later in recorder.calls[k + 1 :]:
        if tensor in later.reads:
            return False
        if tensor in later.writes:
            return True
    return recorder.storages[tensor].kind != "output"


def _plain(call, measured, repeatable):
    def bound(tensor_of, is_repeat):
        run = bind(call, tensor_of)
        return lambda outside: run()

    may_fail = may_fail_by_values(call)
    operation = Operation(call.name, call.reads, call.writes, bound, measured, repeatable, call.line)
    host_call = call if may_run_on_host(call) else None
    exchanges = is_collective(call)
    return replace(
        operation, may_fail=may_fail, host_call=host_call, exchanges=exchanges, results=call.results
    )


def _is_repeatable(call, storages):
    """Returns whether a repeat is defined: not by a library that may do anything, and possible
    without the states and outputs that the call writes."""
    if any(storages[t].kind == "output" for t in call.writes):
        return False
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


def _may_be_launched_again(call, storages):
    """Returns whether a collective is repeatable where all processes run one plan, and so repeat it
    together."""
    are_temporaries = all(storages[t].kind == "temporary" for t in call.writes)
    gathers = call.function in (ALL_GATHER, GATHER_TOGETHER)
    return gathers and are_temporaries and not {*call.reads} & {*call.writes}


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


class _Collectives:
    """Collectives as two ops each: one starts it, and one waits for it before its tensors are used.
    All start in one order."""

    def __init__(self, storages):
        self.order = Order(storages)
        self.count = 0
        self.under_way = {}  # by number: start, call, and costs

    def start(self, call, measured):
        """Returns the op that starts a collective."""
        number = self.count = self.count + 1

        def started(tensor_of, is_repeat):
            args, kwargs = tree_map(
                lambda a: tensor_of(a) if isinstance(a, View) else a, (call.args, call.kwargs)
            )
            return lambda outside: outside.under_way.start(number, call.function(*args, **kwargs))

        costs = replace(measured, time_ns=min(measured.time_ns, START_NS))
        start = Operation(call.name, call.reads, call.writes, started, costs, line=call.line)
        start = self.order.next(start)
        self.under_way[number] = start, call, measured
        return start

    def waits(self, tensors=None):
        """Returns the ops that wait for those collectives under way that use one of the tensors,
        or for all."""
        ending = [
            number
            for number, (_, call, _) in self.under_way.items()
            if tensors is None or tensors & {*call.reads, *call.writes}
        ]
        return [_wait(number, *self.under_way.pop(number)) for number in ending]


def _wait(number, start, call, measured):
    """Returns the op that waits for a collective. It has all of its time: a plan in another order
    may run nothing between start and wait."""

    def waited(tensor_of, is_repeat):
        return lambda outside: outside.under_way.wait(number)

    reads, name = unique([*call.reads, *call.writes]), f"wait for {call.name}"
    return Operation(name, reads, call.writes, waited, measured, line=call.line, start=start)


class _Randomness:
    """The generator's state as a tensor that each random op reads and writes in turn.

    Before each, an op copies the state to a temporary, which the random op reads: so it draws
    the same numbers when it is launched again.
    """

    def __init__(self, storages, device):
        self.storages = storages
        self.device = device
        self.nbytes = device.random_state().numel()
        self.costs = Measured(1000, 2 * self.nbytes, draws=False, repeats=False)
        self.state = None

    def operations(self, call, measured, repeatable):
        if self.state is None:
            self.state = self._tensor("generator", "state")
        seed = self._tensor(f"generator before {call.name}", "temporary")
        state, before = self._view(self.state), self._view(seed)
        device = self.device

        def copy(tensor_of, is_repeat):
            source, target = placed(state, tensor_of), placed(before, tensor_of)
            return lambda outside: target.copy_(value_of(source))

        def draw(tensor_of, is_repeat):
            source, target = placed(before, tensor_of), placed(state, tensor_of)
            run = bind(call, tensor_of)

            def drawn(outside):
                device.set_random_state(value_of(source))
                made = run()
                if not is_repeat:
                    target.copy_(device.random_state())
                return made

            return drawn

        measured = replace(
            measured,
            workspace_bytes=max(measured.workspace_bytes, self.costs.workspace_bytes),
        )
        reads, writes = unique([seed, *call.reads]), unique([*call.writes, self.state])
        return [
            Operation(f"before {call.name}", [self.state], [seed], copy, line=call.line),
            Operation(call.name, reads, writes, draw, measured, repeatable, call.line, results=call.results),
        ]

    def first(self):
        """Returns the op that takes over the state of PyTorch's generator."""
        if self.state is None:
            return []

        def take(tensor_of, is_repeat):
            target = placed(self._view(self.state), tensor_of)
            return lambda outside: target.copy_(self.device.random_state())

        return [Operation("generator", [], [self.state], take, self.costs)]

    def last(self):
        """Returns the op that hands the state back."""
        if self.state is None:
            return []

        def give(tensor_of, is_repeat):
            source = placed(self._view(self.state), tensor_of)
            return lambda outside: setattr(outside, "generator", value_of(source).clone())

        return [Operation("generator's end", [self.state], [], give, self.costs)]

    def _tensor(self, name, kind):
        self.storages.append(Storage(name, self.nbytes, kind, self.device.random_state()))
        return len(self.storages) - 1

    def _view(self, tensor):
        return View(tensor, (self.nbytes,), (1,), 0, torch.uint8, is_host_number=True)


def _supply(name, views, values):
    """Returns the op that copies what the caller supplies."""
    pairs = [(k, view) for k, view in enumerate(views) if view.tensor is not None]

    def copy(tensor_of, is_repeat):
        targets = [(k, placed(view, tensor_of)) for k, view in pairs]

        def run(outside):
            for k, target in targets:
                _fill(target, values(outside)[k])

        return run

    return Operation(name, [], [view.tensor for _, view in pairs], copy, repeatable=True)


def _fill(target, value):
    """Copies what the caller supplies, without waiting for the device."""
    if not isinstance(target, torch.Tensor):
        target.copy_(value)
    elif value.device != target.device and value.device.type == "cpu":
        # The caller may write its tensor again before the device copies.
        staged = torch.empty(flat(target).shape, dtype=value.dtype, pin_memory=True)
        fill(staged.as_strided(target.shape, target.stride()), value)
        flat(target).copy_(staged, non_blocking=True)
    else:
        fill(target, value)


def _results(name, views):
    return [_result(name, k, view) for k, view in enumerate(views) if view]


def _result(name, k, view):
    """Returns the op that copies a result to the caller's tensor."""

    def hand_out(tensor_of, is_repeat):
        result = tensor_of(view)

        return lambda outside: fill(outside.results[k], result)

    costs = Measured(max(view.nbytes, 1000), 0, draws=False, repeats=False)
    reads = [] if view.tensor is None else [view.tensor]
    return Operation(f"{name}.{k}" if k else name, reads, [], hand_out, costs)

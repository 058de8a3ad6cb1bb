"""Records the step of an optimizer behind the passes of a graph."""

from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from .arguments import is_of_torch
from .capturing import explained
from .carrying import carry
from .counting import Entries, keys_by_owner, refuse
from .errors import CaptureError
from .ownership import Substitution
from .recording import Recorder
from .storing import Stored
from .substitutes import functions_of_numbers
from .supplying import Supplied
from .swapping import (
    Fakes,
    SwappedOptimizer,
    given,
    initialise,
    kept,
    refuse_first_step,
)
from .twice import compare, left_by, other_change, told


@dataclass
class Update:
    """A recorded step of an optimizer: the views of what its caller supplies. `parameters` and
    `gradients` are by the positions of the graph's inputs. `states` are those of the optimizer that the
    step was recorded with, by parameter: what they have without counts, and the keys of counts, which are
    `supplied`."""

    parameters: dict
    gradients: dict
    rates: list
    states: dict
    supplied: Supplied


def record_update(recorder, optimizer, names, parameters):
    """Records the step that an optimizer makes where `parameters`, by position, have gradients and no
    others do. `names` has the names of positions."""
    updated = {id(p) for p in parameters.values()}
    with kept([optimizer]):
        with states_on_processor(optimizer) as real:
            is_initialised = initialise(optimizer, lambda p: id(real.get(p, p)) in updated)
        optimizer.joining.counts = counts = optimizer.joining.counts.again(optimizer)
        counts.add_steps(optimizer, vars(optimizer)["state"])
        keeps_values = not is_of_torch(type(optimizer))  # in Python
        stored = Stored(optimizer=optimizer) if keeps_values else Stored()
        run = partial(_Run, optimizer, names, parameters, is_initialised, counts, stored)
        try:
            if counts.all or keeps_values:
                _try(run, recorder.measure, stored)
            return run(recorder).update()
        finally:
            stored.put_back()


def _try(run, measurements, stored):
    """Runs an optimizer's step until its counts are known, and once more. Refuses the optimizer unless both runs do the
    same and leave the same in Python."""
    anew = lambda: run(Recorder(FakeTensorMode(allow_non_fake_inputs=True), measurements))
    first = anew()
    while first.supplied.after is None:
        stored.put_back()
        first = anew()
    again = anew()
    change = other_change(first.left, again.left)
    if change:
        raise CaptureError(told(*change))
    compare(first, again)
    stored.put_back()


class _Run:
    """One run of an optimizer's step on fake tensors. `left` are the changes that it has left in Python."""

    returned = None

    def __init__(self, optimizer, names, parameters, is_initialised, counts, stored, recorder):
        self._optimizer, self._parameters = optimizer, parameters
        self.recorder, self.optimizers, fakes = recorder, [self], Fakes(recorder)
        self._views = {k: _stand_in(recorder, fakes, p, names[k]) for k, p in parameters.items()}
        _pass_by(recorder, fakes, optimizer, {id(p) for p in parameters.values()})
        self.supplied = Supplied(recorder, optimizer, counts)
        with SwappedOptimizer(optimizer, fakes, self.supplied):
            entries = Entries(optimizer, fakes.real)
            _step(recorder, fakes, optimizer)
            changes = entries.changes()
            if not is_initialised and (any(optimizer.state.values()) or counts.other_change(changes)):
                refuse_first_step(optimizer)
            self.supplied.after = counts.take(optimizer, changes, entries.now())
            if counts.refused:
                refuse(optimizer, counts.refused, None)
            self.left, replaced = left_by(stored, fakes.real)
            carry(recorder, entries.replaced() + replaced)

    def update(self):
        """Returns what was recorded."""
        own = vars(self._optimizer)["state"]
        parameters, gradients = ({k: pair[n] for k, pair in self._views.items()} for n in (0, 1))
        counted = keys_by_owner(self.supplied.counts)
        states = {p: _apart(own.get(p, {}), counted[id(p)]) for p in self._parameters.values()}
        rates = [self.recorder.view(rate) for rate in self.supplied.rates]
        return Update(parameters, gradients, rates, states, self.supplied)


def _apart(entries, counted):
    """Returns what a state has without counts, and the keys of counts."""
    return {key: value for key, value in entries.items() if key not in counted}, counted


@contextmanager
def states_on_processor(optimizer):
    """Moves an optimizer's states to the processor. Within it, tensors on the processor, without values, stand in for
    parameters that are elsewhere, so that the optimizer makes new states there. Yields the parameters by the tensors
    that stand in for them."""
    groups, state = optimizer.param_groups, optimizer.state
    elsewhere = [p for group in groups for p in group["params"] if p.device.type != "cpu"]
    stand_ins = {p: torch.empty_strided(p.shape, p.stride(), dtype=p.dtype) for p in elsewhere}
    real = {stand_in: p for p, stand_in in stand_ins.items()}
    for p in elsewhere:
        if p in state:
            state[p].update((name, v.cpu()) for name, v in state[p].items() if isinstance(v, torch.Tensor))
    _replace(groups, state, stand_ins)
    try:
        yield real
    finally:
        _replace(groups, state, real)


def _replace(groups, state, others):
    """Puts other tensors in the place of parameters."""
    for group in groups:
        group["params"] = [others.get(p, p) for p in group["params"]]
    for p in [p for p in others if p in state]:
        state[others[p]] = state.pop(p)


def _stand_in(recorder, fakes, parameter, name):
    """Gives a parameter a fake tensor with a gradient, on the device of the step. Returns the views of both."""
    device = recorder.measure.device.torch_device
    fake, gradient = (given(recorder, n, parameter, device) for n in (name, f"gradient of {name}"))
    fakes.give(parameter, fake.requires_grad_(), name)
    fake.grad = gradient
    return recorder.view(fake), recorder.view(gradient)


def _pass_by(recorder, fakes, optimizer, updated):
    """Gives fake tensors without memory to what the step leaves alone: parameters without gradients, on the device of
    the step, and their states."""
    device = recorder.measure.device.torch_device
    for k, group in enumerate(optimizer.param_groups):
        for n, p in enumerate(group["params"]):
            if id(p) not in updated:
                states = optimizer.state.get(p, {}).values()
                for tensor in (p, *(v for v in states if isinstance(v, torch.Tensor))):
                    fake = recorder.fake_mode.from_tensor(tensor.detach())
                    if tensor is p:
                        with recorder.fake_mode:
                            fake = fake.to(device)
                    fakes.give(tensor, fake, f"parameter {n} of group {k}")


def _step(recorder, fakes, optimizer):
    """Records the step, within the swapped optimizer."""
    with explained(), Substitution(fakes), recorder.fake_mode, recorder, recorder.updating():
        with functions_of_numbers(optimizer):
            optimizer.plain_step()

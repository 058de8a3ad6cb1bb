"""Records the step of an optimizer behind the passes of a graph."""

from contextlib import contextmanager
from dataclasses import dataclass

import torch

from .capturing import explained
from .carrying import carry
from .counting import Numbers, refuse
from .ownership import Substitution
from .scalars import min_and_max_of
from .swapping import (
    Fakes,
    SwappedOptimizer,
    given,
    given_settings,
    initialise,
    kept,
    refuse_first_step,
)


@dataclass
class Update:
    """A recorded step of an optimizer: the views of what its caller supplies. `parameters` and
    `gradients` are by the positions of the graph's inputs. `states` are those of the optimizer that the
    step was recorded with, by parameter."""

    parameters: dict
    gradients: dict
    rates: list
    states: dict


def record_update(recorder, optimizer, names, parameters):
    """Records the step that an optimizer makes where `parameters`, by position, have gradients and no
    others do. `names` has the names of positions."""
    updated = {id(p) for p in parameters.values()}
    with kept([optimizer]):
        with states_on_processor(optimizer) as real:
            is_initialised = initialise(optimizer, lambda p: id(real.get(p, p)) in updated)
        fakes, views, gradients = Fakes(recorder), {}, {}
        for k, p in parameters.items():
            views[k], gradients[k] = _stand_in(recorder, fakes, p, names[k])
        _pass_by(recorder, fakes, optimizer, updated)
        rates, settings = given_settings(recorder, optimizer)
        with SwappedOptimizer(optimizer, fakes, settings):
            _step(recorder, fakes, optimizer)
            if not is_initialised and any(optimizer.state.values()):
                refuse_first_step(optimizer)
    states = {p: dict(optimizer.state.get(p, {})) for p in parameters.values()}
    return Update(views, gradients, [recorder.view(rate) for rate in rates], states)


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
    numbers = Numbers(optimizer)
    with explained(), Substitution(fakes), recorder.fake_mode, recorder, recorder.updating():
        with min_and_max_of(optimizer):
            optimizer.plain_step()
    change = numbers.change()
    if change:
        refuse(optimizer, change[1], None)
    carry(recorder, numbers.replaced())

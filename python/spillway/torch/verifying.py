"""Runs a few steps beside eager mode, and names the first tensor that differs."""

import random
from contextlib import contextmanager
from itertools import islice, repeat

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from .arguments import groups_of
from .batches import call_on, loss_of
from .devices import tensors_of
from .errors import CaptureError
from .holding import overlook
from .memory import bytes_of, have_same_bits, set_bytes_of
from .pausing import version

_MEMBERS = "_parameters", "_buffers", "_modules"


def verify(step, batches, steps, train):
    """Runs steps eagerly and by a function that is compiled from the step, for the same batches and
    random numbers, and returns how many. The model and the optimizer keep their values. Without
    `batches`, each step has that of the example."""
    if step.source.processes.group is not None or step.source.moves_batch:
        raise CaptureError(
            "a step of several processes, or on another device than its model, has no eager step"
            " beside it: verify one of one process where the model is"
        )
    count = 0
    with _kept(step):
        for batch in islice(repeat(step.example()) if batches is None else batches, steps):
            count += 1
            run = train.beside(batch)
            before = torch.get_rng_state()
            expected = _eager(step, batch)
            after = torch.get_rng_state()
            torch.set_rng_state(before)
            _compare(count, expected, run(), after, train)
    if not count:
        raise ValueError("there is no batch to verify with")
    return count


def _eager(step, batch):
    """Runs a step without a plan."""
    source, optimizers = step.source, step.optimizers
    if not optimizers:
        with torch.no_grad():
            return call_on(source.forward, source.model, batch)
    scaler = source.scaling.beside()
    for optimizer in optimizers:
        optimizer.zero_grad(set_to_none=True)
    with torch.enable_grad():
        returned = call_on(source.loss_fn, source.model, batch)
        if source.steps_itself:
            return returned
        loss = loss_of(returned)
        if loss.requires_grad:
            scaler.scale(loss).backward()
    if source.clipping.is_wanted:
        for optimizer in optimizers:
            scaler.unscale_(optimizer)
        source.clipping.clip([p for _, group in groups_of(optimizers) for p in group["params"]])
    for optimizer in optimizers:
        scaler.step(optimizer)
    scaler.update()
    return returned


def _compare(number, expected, result, generator, train):
    is_loss = isinstance(expected, torch.Tensor) and not train.is_inference
    for k, (a, b) in enumerate(zip(tree_leaves(result), tree_leaves(expected))):
        if isinstance(b, torch.Tensor):
            name = "the loss" if is_loss else f"result {k}"
            _compare_tensors(number, name, a, b.detach())
    for name, value, tensor in train.values():
        _compare_tensors(number, name, value, tensor)
    if not torch.equal(torch.get_rng_state(), generator):
        raise CaptureError(f"step {number} draws other random numbers than in eager mode")


def _compare_tensors(number, name, a, b):
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        what = f"has {a.dtype} {tuple(a.shape)} instead of {b.dtype} {tuple(b.shape)}"
    elif not have_same_bits(a.cpu(), b.cpu()):
        wide = torch.complex128 if a.is_complex() else torch.float64
        most = (a.cpu().to(wide) - b.cpu().to(wide)).abs().max().item()
        what = f"is the first tensor that does, by at most {most:.3g}"
    else:
        return
    raise CaptureError(
        f"step {number} differs from eager mode: {name} {what}. It depends on something that a"
        " capture does not see: put what changes into the batch as a tensor, or train eagerly"
    )


@contextmanager
def _kept(step):
    """Within it, eager steps may run. At the end the model, the optimizer and the generators have
    their values again."""
    model, optimizers = step.source.model, step.optimizers
    states = [s.value for s in step.storages if s.kind == "state"]
    tensors = {id(t): t for t in (*states, *tensors_of(model))}
    groups = [group for _, group in groups_of(optimizers)]
    parameters = [*model.parameters(), *(p for group in groups for p in group["params"])]
    before = [(t, version(t), bytes_of(t).copy()) for t in tensors.values()]
    gradients = [(p, p.grad, p.requires_grad) for p in parameters]
    kept = [_Members(vars(module)) for module in model.modules()]
    kept += [_Members(vars(module)[name]) for module in model.modules() for name in _MEMBERS]
    kept += [_Members(group) for group in groups]
    for optimizer in optimizers:
        kept += [_Members(own) for own in (vars(optimizer), optimizer.state, *optimizer.state.values())]
    python, torchs, numpys = random.getstate(), torch.get_rng_state(), np.random.get_state()
    try:
        yield
    finally:
        for own in kept:
            own.restore()
        for tensor, seen, value in before:
            buffer = bytes_of(tensor)
            buffer[:] = value
            set_bytes_of(tensor, buffer)
            overlook(tensor, seen)
        for parameter, gradient, requires_grad in gradients:
            parameter.grad = gradient
            parameter.requires_grad_(requires_grad)
        random.setstate(python)
        torch.set_rng_state(torchs)
        np.random.set_state(numpys)


class _Members:
    """A dict, with what it has now."""

    def __init__(self, own):
        self._own, self._before = own, dict(own)

    def restore(self):
        if self._own.keys() != self._before.keys():
            self._own.clear()
        self._own.update(self._before)

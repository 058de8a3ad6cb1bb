"""Captures a training step or an inference."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from .errors import CaptureError
from .measuring import Measurements
from .operations import operations
from .recording import Recorder
from .step import Step, rate_of
from .swapping import Fakes, initialise, swapped_module, swapped_optimizer


def capture(model, loss_fn, optimizer, example_batch):
    """Captures one training step: forward, backward and the optimizer's update.

    `loss_fn(model, batch)` returns the loss, a tensor with one element. A batch is any nesting
    of tensors in tuples, lists and dicts. The model is not run on real values, and keeps its
    values; the optimizer gets the states that its first step would make.

    Raises `CaptureError` where the step depends on the values of tensors.
    """
    return _Training(model, loss_fn, optimizer).capture(example_batch)


def call(model, batch):
    """Returns `model(batch)`."""
    return model(batch)


def capture_inference(model, example_batch, forward=call):
    """Captures one inference: `forward(model, batch)`, without gradients.

    It returns any nesting of tensors. The model is not run on real values, and keeps its values.

    Raises `CaptureError` where the inference depends on the values of tensors.
    """
    return _Inference(model, forward).capture(example_batch)


class _Training:
    """A training step, captured once for each shape of its batches."""

    def __init__(self, model, loss_fn, optimizer):
        self.model, self.loss_fn, self.optimizer = model, loss_fn, optimizer
        self.measurements = Measurements()

    def capture(self, example_batch):
        model, optimizer = self.model, self.optimizer
        recorder = _recorder(self.measurements)
        fakes = Fakes(recorder)
        batch, structure = _given_batch(recorder, example_batch)
        with torch.enable_grad(), swapped_module(model, fakes), recorder.fake_mode, recorder:
            loss = self.loss_fn(model, tree_unflatten(batch, structure))
            if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
                raise CaptureError("loss_fn must return a tensor with one element")
            loss.backward()
        initialise(optimizer, lambda p: fakes.has_gradient(p))
        groups = optimizer.param_groups
        rates = [_given(recorder, f"lr.{k}", rate_of(g)) for k, g in enumerate(groups)]
        with recorder.fake_mode, recorder:
            numbers = [r if g.get("fused") else r.item() for r, g in zip(rates, groups)]
        with swapped_module(model, fakes), swapped_optimizer(optimizer, fakes, numbers):
            with recorder.fake_mode, recorder:
                optimizer.step()
        return _step(self, recorder, batch, rates, "loss", loss, example_batch)


class _Inference:
    """An inference, captured once for each shape of its batches."""

    optimizer = None

    def __init__(self, model, forward):
        self.model, self.forward = model, forward
        self.measurements = Measurements()

    def capture(self, example_batch):
        recorder = _recorder(self.measurements)
        fakes = Fakes(recorder)
        batch, structure = _given_batch(recorder, example_batch)
        with torch.no_grad(), swapped_module(self.model, fakes), recorder.fake_mode, recorder:
            results = self.forward(self.model, tree_unflatten(batch, structure))
        return _step(self, recorder, batch, [], "result", results, example_batch)


def _recorder(measurements):
    return Recorder(FakeTensorMode(allow_non_fake_inputs=True), measurements)


def _given_batch(recorder, example_batch):
    """Returns the fake tensors for those of an example, and how they are nested."""
    values, structure = tree_flatten(example_batch)
    return [_given(recorder, f"batch.{k}", v) for k, v in enumerate(values)], structure


def _given(recorder, name, value):
    """Returns the fake tensor of what the caller supplies in each iteration."""
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"{name} is no tensor but {value!r}: a batch holds tensors alone")
    with recorder.fake_mode:
        fake = torch.empty_like(value, device=value.device)
    recorder.adopt(fake, "given", name)
    return fake


def _step(source, recorder, batch, rates, name, returned, example_batch):
    values, structure = tree_flatten(returned)
    results = [_result(recorder, value) for value in values]
    constants = [None if view else value for value, view in zip(values, results)]
    batch, rates = [[recorder.view(fake) for fake in given] for given in (batch, rates)]
    ops = operations(recorder, batch, rates, name, results)
    source.measurements.give_back()
    returned = constants, structure
    name = type(source.model).__name__
    storages = recorder.storages
    return Step(name, storages, ops, example_batch, returned, source.optimizer, source.capture)


def _result(recorder, value):
    """Returns the view of a tensor that the step returns, and None for what is no tensor."""
    if isinstance(value, torch.SymFloat):
        raise CaptureError("the step returns a number that it reads from a tensor")
    return recorder.view(recorder.known(value)) if isinstance(value, torch.Tensor) else None

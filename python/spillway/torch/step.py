"""A training step: captured, planned, and run within its plan."""

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten, tree_unflatten

from spillway import Graph, Session

from .allocations import Allocations
from .errors import AllocationError, CaptureError
from .launching import plain_mode
from .machine import this_machine
from .measuring import Measurements
from .memory import bytes_of, tensors_at
from .operations import Outside, operations
from .recording import Recorder
from .swapping import Fakes, initialise, swapped_module, swapped_optimizer


def capture(model, loss_fn, optimizer, example_batch):
    """Captures one training step: forward, backward and the optimizer's update.

    `loss_fn(model, batch)` returns the loss, a tensor with one element. A batch is any nesting
    of tensors in tuples, lists and dicts. The model is not run on real values, and keeps its
    values; the optimizer gets the states that its first step would make.

    Raises `CaptureError` where the step depends on the values of tensors.
    """
    recorder = Recorder(FakeTensorMode(allow_non_fake_inputs=True), Measurements())
    fakes = Fakes(recorder)
    values, structure = tree_flatten(example_batch)
    batch = [_given(recorder, f"batch.{k}", v) for k, v in enumerate(values)]
    with swapped_module(model, fakes), recorder.fake_mode, recorder:
        loss = loss_fn(model, tree_unflatten(batch, structure))
        _check_loss(loss)
        loss.backward()
    initialise(optimizer, lambda p: fakes.has_gradient(p))
    rates = [_given(recorder, f"lr.{k}", _rate(g)) for k, g in enumerate(optimizer.param_groups)]
    with recorder.fake_mode, recorder:
        numbers = [
            rate if group.get("fused") else rate.item()
            for rate, group in zip(rates, optimizer.param_groups)
        ]
    with swapped_module(model, fakes), swapped_optimizer(optimizer, fakes, numbers):
        with recorder.fake_mode, recorder:
            optimizer.step()
    batch, rates, loss = map(recorder.view, batch), map(recorder.view, rates), recorder.view(loss)
    ops = operations(recorder, list(batch), list(rates), loss)
    return Step(type(model).__name__, optimizer, recorder.storages, ops, (values, structure))


def _given(recorder, name, value):
    """Returns the fake tensor of what the caller supplies in each iteration."""
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"{name} is no tensor but {value!r}: a batch holds tensors alone")
    with recorder.fake_mode:
        fake = torch.empty_like(value, device=value.device)
    recorder.adopt(fake, "given", name)
    return fake


def _rate(group):
    rate = group["lr"]
    return rate if isinstance(rate, torch.Tensor) else torch.tensor(rate, dtype=torch.float64)


def _check_loss(loss):
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise CaptureError("loss_fn must return a tensor with one element")


class Step:
    """A captured training step. `graph` is what is planned."""

    def __init__(self, name, optimizer, storages, ops, example):
        self.name = name
        self.storages = storages
        self.operations = ops
        self.optimizer = optimizer
        self._example = example
        self._groups = [_constants(g) for g in optimizer.param_groups]
        self.graph = Graph(name)
        for s in storages:
            add = self.graph.state if s.kind == "state" else self.graph.temporary
            add(s.name, s.nbytes)
        for op in ops:
            m = op.measured
            self.graph.op(op.name, m.time_ns, op.reads, op.writes, m.workspace_bytes, op.repeatable)

    def plan(self, budget="35%", machine=None, strategy="auto", settings={}):
        """Returns a plan for a budget: bytes, "8GiB", or a percentage of what the step needs
        at most. `machine` is this one where none is given."""
        machine = machine or self._this_machine()
        return self.graph.plan(machine, budget=budget, strategy=strategy, settings=settings)

    def least(self, machine=None, strategy="auto"):
        """Returns the smallest budget in bytes for which the strategy has a plan."""
        return self.graph.least(machine or self._this_machine(), strategy)

    def _this_machine(self):
        return this_machine(sum(s.nbytes for s in self.storages))

    def compile(self, plan, strict=False):
        """Returns the function that trains within a plan: `loss = train(batch)`.

        With `strict`, each iteration counts what its ops allocate, and raises `AllocationError`
        where an op has taken more than its workspace.
        """
        return Training(self, plan, strict)

    def supplied(self, batch):
        """Returns what an iteration gets: the tensors of a batch and the learning rates."""
        values, structure = tree_flatten(batch)
        expected, expected_structure = self._example
        if structure != expected_structure:
            raise ValueError(f"the batch is {structure}, but {expected_structure} was captured")
        for k, (value, example) in enumerate(zip(values, expected)):
            if value.shape != example.shape or value.dtype != example.dtype:
                raise ValueError(
                    f"batch.{k} is {tuple(value.shape)} of {value.dtype}, but"
                    f" {tuple(example.shape)} of {example.dtype} was captured"
                )
        for k, group in enumerate(self.optimizer.param_groups):
            for name, constant in self._groups[k].items():
                if group[name] != constant:
                    raise ValueError(
                        f"{name} of the optimizer's group {k} is {group[name]}, but {constant}"
                        " was captured; only learning rates may change"
                    )
        return Outside(values, [_rate(g) for g in self.optimizer.param_groups])


def _constants(group):
    return {n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")}


class Training:
    """Trains within a plan. Calling it runs one iteration and returns the loss."""

    def __init__(self, step, plan, strict):
        self._step = step
        self._plan = plan
        self._strict = strict
        self.load()

    def __call__(self, batch):
        outside = self._kernels.outside = self._step.supplied(batch)
        if self._strict:
            self._step_counted()
        else:
            self._step_once()
        self._step.optimizer._opt_called = True  # schedulers of learning rates look at it
        if outside.generator is not None:
            torch.set_rng_state(outside.generator)
        return outside.loss

    def _step_once(self):
        with plain_mode():
            self._session.step()

    def _step_counted(self):
        with Allocations() as allocations:
            self._kernels.allocations = allocations
            self._step_once()
        for number, peak_bytes in allocations.peaks():
            op = self._step.operations[number]
            if peak_bytes > op.measured.workspace_bytes:
                raise AllocationError(
                    f"{op.name} (line {op.line}) allocated {peak_bytes} bytes, but its workspace"
                    f" has {op.measured.workspace_bytes}"
                )

    def load(self):
        """Begins again with the values that the model and the optimizer hold now."""
        self._kernels = _Kernels(self._step)
        self._session = Session(self._plan, self._kernels)
        for tensor, storage in self._states():
            self._session.write_state(tensor, bytes_of(storage.value))

    def sync(self):
        """Gives the model and the optimizer the values that training has reached."""
        for tensor, storage in self._states():
            if storage.writes:
                self._session.read_state(tensor, bytes_of(storage.value))

    def _states(self):
        return [(t, s) for t, s in enumerate(self._step.storages) if s.kind == "state"]


class _Kernels:
    """What a session calls. Each op is bound once to the addresses at which it is launched."""

    def __init__(self, step):
        self._step = step
        self._bound = {}
        self.outside = None
        self.allocations = None

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        key = op, is_repeat, *reads, *writes
        run = self._bound.get(key)
        if run is None:
            run = self._bound[key] = self._bind(op, is_repeat, reads, writes)
        if self.allocations is None:
            run(self.outside)
            return
        with self.allocations.of(op):
            run(self.outside)

    def _bind(self, op, is_repeat, reads, writes):
        operation = self._step.operations[op]
        addresses = dict(zip(operation.reads, reads)) | dict(zip(operation.writes, writes))
        return operation.bind(tensors_at(addresses, self._step.storages), is_repeat)

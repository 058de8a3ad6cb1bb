"""What is captured: a training step or an inference, planned, and run within its plan."""

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from spillway import Graph, Session

from .allocations import Allocations
from .errors import AllocationError
from .launching import plain_mode
from .machine import this_machine
from .memory import bytes_of, tensors_at
from .operations import Outside


class Step:
    """A captured training step, or an inference, which has no optimizer. `graph` is what is
    planned."""

    def __init__(self, name, storages, ops, example_batch, returned, optimizer):
        self.name = name
        self.storages = storages
        self.operations = ops
        self.optimizer = optimizer
        self._example = tree_flatten(example_batch)
        self._returned = returned
        self._settings = [_constants(g) for g in self._groups()]
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
        """Returns the function that runs the step within a plan: `loss = train(batch)`.

        With `strict`, each iteration counts what its ops allocate, and raises `AllocationError`
        where an op has taken more than its workspace.
        """
        return Compiled(self, plan, strict)

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
        return Outside(values, self._rates(), list(self._returned[0]))

    def returned(self, results):
        """Returns what the captured function would: the loss, or the results of an inference."""
        return tree_unflatten(results, self._returned[1])

    def _rates(self):
        """Returns the learning rates. Raises `ValueError` where another setting has changed."""
        for k, (group, settings) in enumerate(zip(self._groups(), self._settings)):
            for name, constant in settings.items():
                if group[name] != constant:
                    raise ValueError(
                        f"{name} of the optimizer's group {k} is {group[name]}, but {constant}"
                        " was captured; only learning rates may change"
                    )
        return [rate_of(group) for group in self._groups()]

    def _groups(self):
        return self.optimizer.param_groups if self.optimizer else []


def rate_of(group):
    """Returns the learning rate of a group of an optimizer as a tensor."""
    rate = group["lr"]
    return rate if isinstance(rate, torch.Tensor) else torch.tensor(rate, dtype=torch.float64)


def _constants(group):
    return {n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")}


class Compiled:
    """Runs a step within a plan. Calling it runs one iteration and returns what the step does."""

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
        if self._step.optimizer:
            self._step.optimizer._opt_called = True  # schedulers of learning rates look at it
        if outside.generator is not None:
            torch.set_rng_state(outside.generator)
        return self._step.returned(outside.results)

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
        """Gives the model and the optimizer the values that the iterations have reached."""
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

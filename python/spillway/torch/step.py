"""What is captured: a training step or an inference, which can be planned."""

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from spillway import Graph

from .errors import CaptureError
from .operations import Outside
from .running import Compiled


class Step:
    """A captured training step, or an inference, which has no optimizer. `graph` is what is
    planned, `source.capture` captures it for another batch."""

    def __init__(self, source, storages, ops, example_batch, returned):
        self.source = source
        self.storages = storages
        self.operations = ops
        self.optimizer = source.optimizer
        self._example = tree_flatten(example_batch)
        self.shapes = self.shapes_of(example_batch)
        self.device = source.measurements.device
        self._returned = returned
        self._settings = [_constants(g) for g in self._groups()]
        self._tensors = [_is_tensor(g) for g in self._groups()]
        self.graph = Graph(type(source.model).__name__)
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
        tensor_bytes = sum(s.nbytes for s in self.storages)
        return self.device.machine(tensor_bytes, self.source.copied_bytes_per_s)

    def compile(
        self, plan, strict=False, max_shapes=8, machine=None, strategy="auto", settings={}
    ):
        """Returns the function that runs the step within a plan: `loss = train(batch)`.

        A batch of another shape is captured when it first comes, and planned for the bytes of the
        plan's budget; `machine`, which is the plan's where none is given, `strategy` and
        `settings` are for these plans. More than `max_shapes` shapes, that of the example
        included, are refused.

        With `strict`, each iteration counts what its ops allocate, and raises `AllocationError`
        where an op has taken more than its workspace.
        """
        how = dict(machine=machine, strategy=strategy, settings=settings)
        return Compiled(self, plan, strict, max_shapes, how)

    def shapes_of(self, batch):
        """Returns the shapes of a batch. Raises `ValueError` where more than these differs from
        the example."""
        values, structure = tree_flatten(batch)
        expected, expected_structure = self._example
        if structure != expected_structure:
            raise ValueError(f"the batch is {structure}, but {expected_structure} was captured")
        for k, (value, example) in enumerate(zip(values, expected)):
            if value.dtype != example.dtype:
                raise ValueError(f"batch.{k} is {value.dtype}, but {example.dtype} was captured")
        return tuple(tuple(value.shape) for value in values)

    def supplied(self, batch):
        """Returns what an iteration gets: the tensors of a batch and the learning rates."""
        results = [
            torch.empty_like(r, device=self.device.torch_device) if torch.is_tensor(r) else r
            for r in self._returned[0]
        ]
        return Outside(tree_flatten(batch)[0], self.rates(), results)

    def returned(self, results):
        """Returns what the captured function would: the loss, or the results of an inference."""
        return tree_unflatten(results, self._returned[1])

    def rates(self):
        """Returns the learning rates. Raises `ValueError` where another setting has changed."""
        for k, (group, settings) in enumerate(zip(self._groups(), self._settings)):
            for name, constant in settings.items():
                if group[name] != constant:
                    raise ValueError(
                        f"{name} of the optimizer's group {k} is {group[name]}, but {constant}"
                        " was captured; only learning rates may change"
                    )
            kinds = ["a tensor" if x else "a number" for x in (_is_tensor(group), self._tensors[k])]
            if kinds[0] != kinds[1]:
                raise ValueError(
                    f"lr of the optimizer's group {k} is {kinds[0]}, but {kinds[1]} was captured:"
                    " change its value only"
                )
        return [rate_of(group) for group in self._groups()]

    def _groups(self):
        return self.optimizer.param_groups if self.optimizer else []


def rate_of(group):
    """Returns the learning rate of a group of an optimizer as a tensor."""
    rate = group["lr"]
    if not isinstance(rate, (int, float, torch.Tensor)):
        raise CaptureError(
            f"lr of the optimizer is {rate!r}: give it a number, which may change between iterations"
        )
    return rate if isinstance(rate, torch.Tensor) else torch.tensor(rate, dtype=torch.float64)


def _is_tensor(group):
    return isinstance(group["lr"], torch.Tensor)


def _constants(group):
    return {n: v for n, v in group.items() if n not in ("params", "lr", "initial_lr")}

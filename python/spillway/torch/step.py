"""What is captured: a training step or an inference, which can be planned."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from inspect import signature
from typing import Any, Generic, Literal

import torch
from torch.utils._pytree import tree_unflatten

from spillway import Graph, InfeasibleError, Machine, Plan

from .batches import flatten, refuse_other, unflatten
from .errors import BatchError, CaptureError, ChangedError
from .hosting import host_times, settings_for
from .logs import timed
from .machine import PAGE_BYTES
from .operations import Outside
from .running import Batch, Compiled, Result
from .storing import is_same
from .verifying import verify

Settings = Mapping[str, bool | int | str]
Host = Literal["optimizer"]


class Step(Generic[Batch, Result]):
    """A captured training step, or an inference, which has no optimizer. `graph` is what is
    planned, `source.capture` captures it for another batch.

    `numbers` has what the optimizers supply each iteration with.
    `surroundings` is what a call compares, and `checks` are those of indices in its batch. `outputs` has the
    results, unless ops copy them to the caller."""

    graph: Graph
    keeps_states = True  # after an error of an op
    ways_to_write = (
        "call sync() before you read or write them between steps; load() goes on with what they hold now"
    )
    way_to_overwrite = ", and sync(overwrite=True) with what the sessions have"
    way_after_loss = (
        "the values since the last sync() are lost. load() begins again with those that the model and"
        " the optimizer hold"
    )

    def __init__(
        self, source, storages, ops, example_batch, returned, numbers, surroundings=None, checks=(), outputs=None
    ):
        self.source = source
        self.storages = storages
        self.operations = ops
        self._example = flatten(example_batch)
        self.shapes = self.shapes_of(example_batch)
        self._strides = [source.strides_of(value) for value in self._example[0]]
        self.device = source.measurements.device
        self._returned, self.outputs = returned, outputs
        self.surroundings, self._checks = surroundings, checks
        self.draws = any(s.name == "generator" and not s.writes for s in storages)
        self._numbers = numbers
        self._scaling = source.scaling.constants()
        self.graph, self._hosted = self._graph([None] * len(ops)), None

    @property
    def optimizers(self) -> tuple[torch.optim.Optimizer, ...]:
        """The optimizers that the step runs: none for an inference."""
        return self.source.optimizers

    def __repr__(self) -> str:
        values = [s if isinstance(s, str) else list(s) for s in self.shapes]
        model = type(self.source.model).__name__
        return f"Step({model}, {len(self.operations)} ops, batch of {values})"

    def _graph(self, host_times):
        """Returns a graph, given the times of ops on the host."""
        graph = Graph(type(self.source.model).__name__)
        for s in self.storages:
            add = dict(state=graph.state, output=graph.output).get(s.kind, graph.temporary)
            add(s.name, s.nbytes)
        for op, host_ns in zip(self.operations, host_times):
            m = op.measured
            costs = m.time_ns, op.reads, op.writes, m.workspace_bytes, op.repeatable, host_ns
            graph.op(op.name, *costs, collective=op.exchanges)
        return graph

    def add_states_of(self, other: "Step[Any, Any]") -> None:
        """Adds the states of another step that this one does not have, so that a session can switch
        between the two."""
        names = {s.name for s in self.storages if s.kind == "state"}
        others = [s for s in other.storages if s.kind == "state" and s.name not in names]
        self.storages += [replace(s, writes=0) for s in others]
        self.graph = self._graph([None] * len(self.operations))

    def graph_for(self, host: Host | None = None) -> Graph:
        """Returns the graph that is planned: `graph`, or with `host="optimizer"` one in which the ops of
        the optimizer may run on the host. Their times there are measured once."""
        if host is None:
            return self.graph
        if host != "optimizer":
            raise ValueError(f"host is {host!r}: it is 'optimizer' or None")
        if not self.optimizers:
            raise CaptureError(
                "the step has no optimizer that could run on the host: capture a training step by"
                " spillway.torch.capture"
            )
        if self._hosted is None:
            self._hosted = self._graph(self.source.processes.longest(host_times(self)))
        return self._hosted

    def plan(
        self,
        budget: int | str | None = None,
        machine: Machine | None = None,
        strategy: str = "auto",
        settings: Settings = {},
        chunk_bytes: int | None = None,
        host: Host | None = None,
    ) -> Plan:
        """Returns a plan for a budget: bytes, "8GiB", a percentage of what the step needs in-core, or "min".
        Without a budget, the plan may use all of the device's memory, and takes what the step needs in-core
        if that is less. The default of `machine` is this machine.

        `chunk_bytes` is the unit in which memory is mapped. Where neither it nor a machine is given,
        chunks are so large that the plan needs few of the mappings that a process may have
        (`plan.mappings`).

        With `host="optimizer"`, the ops of the optimizer may run on the host, by PyTorch's kernels for
        the processor, beside the device's ops. Which of them do, the plan decides (`plan.host_ops`). If
        the device is not the processor, all of them do."""
        settings = settings if host is None else settings_for(self, strategy, settings)
        how: dict[str, Any] = dict(budget=budget, strategy=strategy, settings=settings)
        with timed(f"plan for {budget or 'all memory'}") as found:
            graph = self.graph_for(host)
            make = lambda: self._planned(graph, machine, chunk_bytes, how)
            plan = self.source.processes.planned(how | dict(host=host), make)
            found.append(f"{plan.figures.period_ns / 1e6:.0f} ms an iteration predicted")
        costs = self.source.setup_costs
        return plan if costs is None else plan.with_setup_costs(costs)

    def _planned(self, graph, machine, chunk_bytes, how):
        plan = _plan_on(self._on(machine, chunk_bytes), graph, **how)
        if machine is None and chunk_bytes is None:
            plan = self._plan_with_fewer_mappings(graph, plan, how)
        return plan

    def min_feasible_bytes(
        self,
        machine: Machine | None = None,
        strategy: str = "auto",
        chunk_bytes: int | None = None,
        host: Host | None = None,
    ) -> int:
        """Returns the smallest budget in bytes for which the strategy has a plan. `host` is as for
        `plan`."""
        settings = {} if host is None else settings_for(self, strategy, {})
        return self.graph_for(host).min_feasible_bytes(self._on(machine, chunk_bytes), strategy, settings)

    def _on(self, machine, chunk_bytes):
        """Returns a machine, or this one, with chunks of a size."""
        if machine is None:
            tensor_bytes = sum(s.nbytes for s in self.storages)
            speed = self.source.copied_bytes_per_s
            machine = self.source.processes.machine(self.device, tensor_bytes, speed)
        if chunk_bytes is None:
            return machine
        if chunk_bytes <= 0 or chunk_bytes % PAGE_BYTES:
            raise ValueError(f"chunk_bytes is {chunk_bytes}: not whole pages of {PAGE_BYTES} bytes")
        return machine.with_chunk_bytes(chunk_bytes)

    def _plan_with_fewer_mappings(self, graph, plan, how):
        """Returns the plan, or one with larger chunks if it takes too many mappings."""
        while plan.mappings > self.device.most_mappings:
            larger = plan.machine.with_chunk_bytes(2 * plan.machine.chunk_bytes)
            try:
                plan = _plan_on(larger, graph, **how)
            except InfeasibleError:
                break  # its first step says so if the process cannot have as many
        return plan

    def compile(
        self,
        plan: Plan,
        strict: bool = False,
        max_shapes: int = 8,
        machine: Machine | None = None,
        strategy: str = "auto",
        settings: Settings = {},
    ) -> Compiled[Batch, Result]:
        """Returns the function that runs the step within a plan: `loss = train(batch)`.

        A batch of another shape is captured when it first comes, and planned for the bytes of the
        plan's budget; `machine`, which is the plan's where none is given, `strategy` and
        `settings` are for these plans. Ops of the optimizer may run on the host where some of the plan's
        do. More than `max_shapes` shapes, that of the example
        included, are refused.

        With `strict`, each iteration counts what its ops allocate, and raises `AllocationError`
        where an op has taken more than its workspace.
        """
        how = dict(machine=machine, strategy=strategy, settings=settings)
        return Compiled(self, plan, strict, max_shapes, how)

    def verify(
        self, batches: Iterable[Batch] | None = None, steps: int = 3, plan: Plan | None = None
    ) -> int:
        """Runs a few steps beside eager mode, and compares losses and states bit by bit after each.
        Returns how many steps ran; the model and the optimizer keep their values.

        `batches` are those to run; without them, each step has the batch of the example. `plan` is
        for all memory that the step needs, where none is given.

        Raises `CaptureError`, which names the first tensor that differs.
        """
        train = self.compile(plan or self._in_core())
        try:
            return verify(self, batches, steps, train)
        finally:
            train.close()

    def _in_core(self):
        try:
            return self.plan("100%")
        except InfeasibleError:
            return self.plan("min")

    def example(self) -> Batch:
        """Returns the batch that was captured."""
        return unflatten(*self._example)

    def shapes_of(self, batch: Batch) -> tuple[Any, ...]:
        """Returns the shapes of a batch, and its fixed values as texts. Raises `BatchError` where more
        than these differs from the example."""
        values, nesting = flatten(batch)
        expected, expected_nesting = self._example
        refuse_other(nesting, expected_nesting)
        for k, (value, example) in enumerate(zip(values, expected)):
            for name in ("dtype", "device", "layout"):
                its, captured = getattr(value, name), getattr(example, name)
                if its != captured:
                    raise BatchError(f"batch.{k} is {its}, but {captured} was captured")
        return (*map(self._shape, values), *nesting.fixed())

    def _shape(self, tensor):
        """Returns a tensor's shape, with the strides if its copy is not contiguous, and whether it requires a gradient:
        for others, PyTorch may compute other values."""
        more = ("with a gradient",) if tensor.requires_grad else ()
        if not tensor.is_contiguous():
            strides = self.source.strides_of(tensor)
            if not torch.empty_strided(tensor.shape, strides, device="meta").is_contiguous():
                more = (f"strides {strides}", *more)
        return (*tensor.shape, *more)

    def supplied(self, batch: Batch) -> Outside:
        """Returns what an iteration gets: the tensors of a batch and the learning rates. Raises
        `IndexError` where an index in the batch is beyond what an op takes, and `ChangedError` if the scaler has other
        settings."""
        self.refuse_other_scaler()
        values = flatten(batch)[0]
        for check in self._checks:
            # Ops on a device check indices themselves, and looking at them here would wait for the device.
            if values[check.number].device.type == "cpu":
                check.check(values[check.number], self._strides[check.number])
        device = self.device.torch_device if self.outputs is None else "cpu"
        results = [
            torch.empty_strided(r.shape, r.stride(), dtype=r.dtype, device=device) if torch.is_tensor(r) else r
            for r in self._returned[0]
        ]
        return Outside(values, self.rates(), results)

    def returned(self, results: list[Any]) -> Result:
        """Returns what the captured function would: the loss, or the results of an inference."""
        return tree_unflatten(results, self._returned[1])

    def rates(self) -> list[torch.Tensor]:
        """Returns the learning rates, and the other numbers that may change, as tensors."""
        return self._numbers.rates(self.optimizers)

    def fits(self) -> bool:
        """Returns whether the optimizers would do what they did when the step was captured: they have the same
        settings, their code branches in the same way, and what they count is of the same kinds."""
        return self._numbers.fit(self.optimizers)

    def refuse_other_scaler(self) -> None:
        """Raises `ChangedError` if the scaler has other settings than when the step was captured."""
        scaling = self.source.scaling.constants()
        if scaling != self._scaling:
            raise ChangedError(
                f"the scaler has {scaling}, but {self._scaling} was captured: capture the step again"
            )

    def advance(self, rates: list[torch.Tensor]) -> None:
        """Has the optimizers count on, after an iteration with these rates."""
        for optimizer, place, value in list(self._numbers.after(self.optimizers, rates)):
            place.write(optimizer, value)

    def refuse_other_counts(self, rates: list[torch.Tensor]) -> None:
        """Raises `CaptureError` unless the optimizers have counted as an iteration with these rates does."""
        for optimizer, place, value in self._numbers.after(self.optimizers, rates):
            now = place.value(optimizer)
            if not is_same(value, now):
                raise CaptureError(f"{place} of the optimizer is {now} in eager mode, but {value} in the captured step")


def _plan_on(machine, graph, budget, strategy, settings):
    if budget is None:
        # A session takes its whole budget. On the processor, all of the device is all memory of this machine.
        in_core_bytes = graph.min_feasible_bytes(machine, "in-core")
        budget = min(in_core_bytes, machine.device_bytes)
    return graph.plan(machine, budget, strategy, settings)


PLAN_OPTIONS = tuple(signature(Step.plan).parameters)[1:]

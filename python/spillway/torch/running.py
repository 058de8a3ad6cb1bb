"""Runs a step within its plans, one for each shape of its batches."""

import torch

from spillway import Session

from .allocations import Allocations
from .errors import AllocationError
from .launching import plain_mode
from .memory import bytes_of, tensors_at


class Compiled:
    """Runs a step within a plan. Calling it runs one iteration and returns what the step does.

    There is one session at a time, that of the last batch's shape. Before another starts, the
    states go to the model and the optimizer, and the memory of the session is given back.
    """

    def __init__(self, step, plan, strict, max_shapes, how):
        self._example, self._plan = step, plan
        self._strict = strict
        self._max_shapes = max_shapes
        self._how = how
        self._planned = {step.shapes: (step, plan)}
        self._session = None
        self._start(step.shapes)

    def __call__(self, batch):
        shapes = self._example.shapes_of(batch)
        if self._session is None or shapes != self._step.shapes:
            self._switch(shapes, batch)
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

    def load(self):
        """Begins again with the values that the model and the optimizer hold now."""
        self._start(self._step.shapes)

    def sync(self):
        """Gives the model and the optimizer the values that the iterations have reached."""
        if self._session is None:
            return  # they have them
        for tensor, storage in self._states():
            if storage.writes:
                self._session.read_state(tensor, bytes_of(storage.value))

    def close(self):
        """Gives the memory back, without `sync`. The next call begins again, as `load` does."""
        self._end()

    def _switch(self, shapes, batch):
        """Goes on with the plan for other shapes. After an error the states are the model's."""
        if shapes not in self._planned and len(self._planned) == self._max_shapes:
            raise ValueError(
                f"{shapes} would be one shape more than the {self._max_shapes} that a step may"
                " have: pad batches to fewer shapes, or raise max_shapes"
            )
        self.sync()
        self._end()
        if shapes not in self._planned:
            self._example.rates()  # refuses changed settings
            step = self._example.source.capture(batch)
            self._planned[shapes] = step, step.plan(self._plan.budget_bytes, **self._how)
        self._start(shapes)

    def _start(self, shapes):
        self._end()
        self._step, plan = self._planned[shapes]
        self._kernels = _Kernels(self._step)
        self._session = Session(plan, self._kernels)
        for tensor, storage in self._states():
            self._session.write_state(tensor, bytes_of(storage.value))

    def _end(self):
        if self._session is not None:
            self._session.close()
        self._session = self._kernels = None

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

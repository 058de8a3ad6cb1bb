"""Runs a step within its plans, one for each shape of its batches."""

from contextlib import nullcontext

import torch

from spillway import Session, SwitchError

from .allocations import Allocations
from .errors import AllocationError
from .launching import plain_mode
from .memory import bytes_of, set_bytes_of, tensors_at


class Compiled:
    """Runs a step within a plan. Calling it runs one iteration and returns what the step does.

    There is one session, which switches to the plan for each batch's shape. `switched` is what
    the last switch was predicted to cost, and None if there was none or the states went through
    the model.
    """

    def __init__(self, step, plan, strict, max_shapes, how):
        self._example = step
        self._device = step.device
        self._strict = strict
        self._max_shapes = max_shapes
        self._how = how
        self._steps = {step.shapes: step}
        self._session = self.switched = None
        self.use(plan)
        self._start(step, plan)

    def __call__(self, batch):
        shapes = self._example.shapes_of(batch)
        if self._session is None or self._plans.get(shapes) is not self._running:
            self._switch(*self._planned(shapes, batch))
        outside = self._kernels.outside = self._step.supplied(batch)
        if self._strict and not self._device.limits_workspaces:
            self._step_counted()
        else:
            self._step_once()
        if self._step.optimizer:
            self._step.optimizer._opt_called = True  # schedulers of learning rates look at it
        if outside.generator is not None:
            self._device.set_random_state(outside.generator)
        return self._step.returned(outside.results)

    def use(self, plan):
        """Goes on with another plan of the captured step from the next iteration on. Other shapes
        are planned again, for its budget."""
        self._plan = plan
        self._plans = {self._example.shapes: plan}

    def load(self):
        """Begins again with the values that the model and the optimizer hold now."""
        self._start(self._step, self._running)

    def sync(self):
        """Gives the model and the optimizer the values that the iterations have reached."""
        if self._session is None:
            return  # they have them
        for tensor, storage in self._states():
            if storage.writes:
                buffer = bytes_of(storage.value)
                self._session.read_state(tensor, buffer)
                set_bytes_of(storage.value, buffer)

    def close(self):
        """Gives the memory back, without `sync`. The next call begins again, as `load` does."""
        if self._session is not None:
            self._session.close()
        self._session = self._kernels = None

    def _planned(self, shapes, batch):
        """Returns the step and the plan for a batch's shapes. An error changes nothing."""
        if shapes not in self._steps and len(self._steps) == self._max_shapes:
            raise ValueError(
                f"{shapes} would be one shape more than the {self._max_shapes} that a step may"
                " have: pad batches to fewer shapes, or raise max_shapes"
            )
        if shapes not in self._plans:
            self._example.rates()  # refuses changed settings
            step = self._steps.get(shapes) or self._example.source.capture(batch)
            self._plans[shapes] = self._plan_like_first(step)
            self._steps[shapes] = step
        return self._steps[shapes], self._plans[shapes]

    def _plan_like_first(self, step):
        """Returns a plan for another shape, to which a switch from the first plan is cheap."""
        how = self._how | dict(machine=self._how["machine"] or self._plan.machine)
        plan = step.plan(self._plan.budget_bytes, **how)
        try:
            return min(
                (plan, plan.arranged_after(self._plan)),
                key=lambda p: self._plan.switch_to(p).time_ns,
            )
        except SwitchError:
            return plan

    def _switch(self, step, plan):
        """Goes on with another plan. Where its states are others, or the session has too little
        memory for it or more than its budget, they go through the model to a new session."""
        self.switched = None
        if self._session is not None and self._started.budget_bytes <= plan.budget_bytes:
            kernels = _Kernels(step, plan)
            try:
                self.switched = self._session.switch(plan, kernels)
            except SwitchError:
                pass
            else:
                self._step, self._running, self._kernels = step, plan, kernels
                return
        self.sync()
        self._start(step, plan)

    def _start(self, step, plan):
        """Begins a session, with memory for all plans so far. After an error the states are the
        model's."""
        self.close()
        self._kernels = _Kernels(step, plan)
        self._step, self._running, self._started = step, plan, plan
        plans, device = list(self._plans.values()), self._device.session_device
        session = Session(plan, self._kernels, plans, device=device)
        for tensor, storage in self._states():
            session.write_state(tensor, bytes_of(storage.value))
        self._session = session

    def _step_once(self):
        try:
            with plain_mode(), self._device.stepping(self._session.stream):
                self._session.step()
        finally:
            self._kernels.outside.under_way.wait_for_all()

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

    def __init__(self, step, plan):
        self._step = step
        self._waits_at_once = set(_moving_collectives(step, plan))
        self._bound = {}
        self.outside = None
        self.allocations = None

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        key = op, is_repeat, workspace, *reads, *writes
        run = self._bound.get(key)
        if run is None:
            run = self._bound[key] = self._bind(op, is_repeat, reads, writes, workspace)
        with nullcontext() if self.allocations is None else self.allocations.of(op):
            run(self.outside)
        if op in self._waits_at_once:
            self.outside.under_way.wait_for_all()

    def _bind(self, op, is_repeat, reads, writes, workspace):
        operation = self._step.operations[op]
        addresses = dict(zip(operation.reads, reads)) | dict(zip(operation.writes, writes))
        device = self._step.device
        tensor_of = tensors_at(addresses, self._step.storages, device)
        return device.bound(operation.bind(tensor_of, is_repeat), operation, workspace)


def _moving_collectives(step, plan):
    """Yields the ops that start collectives whose tensors the plan moves before their end."""
    numbers = {id(op): number for number, op in enumerate(step.operations)}
    for wait, op in enumerate(step.operations):
        if op.start is not None:
            start = numbers[id(op.start)]
            if not all(plan.leaves_alone(tensor, start, wait) for tensor in op.reads):
                yield start

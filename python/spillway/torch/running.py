"""Runs a step within its plans, one for each shape of its batches."""

from collections.abc import Callable, Iterator
from functools import partial
from types import TracebackType
from typing import Any, Generic, TypeVar, overload

import torch
from typing_extensions import TypeVarTuple, Unpack

from spillway import Plan, Session, SwitchError, SwitchFigures

from .allocations import Allocations
from .batches import call
from .captures import Captures
from .errors import AllocationError, ChangedError, LostError
from .holding import Changes, States
from .hosting import on_host
from .interrupts import Deferred
from .launching import plain_mode
from .memory import Tensors, bytes_of, set_bytes_of, viewed
from .numbers import Numbers
from .processor import Processor
from .recording import View
from .undoing import Undo

Batch = TypeVar("Batch")
Result = TypeVar("Result")
Given = TypeVar("Given")  # by an evaluation
Items = TypeVarTuple("Items")
Returned = TypeVar("Returned")


class Compiled(Generic[Batch, Result]):
    """Runs a step within a plan. Calling it runs one iteration and returns what the step does.

    The end of a `with` block calls `sync` and `close`, also after an error in the block. That error comes
    out even if `sync` fails.

    There is one session, which switches to the plan for each batch's shape. `plan` is the plan of the
    captured step. `switched` is what the last switch was predicted to cost, and None if there was none or
    the states went through the model. `iterations` counts those that are complete.
    """

    iterations: int
    plan: Plan
    switched: SwitchFigures | None

    def __init__(self, step, plan, strict, max_shapes, how):
        self._example = step
        self._device = step.device
        self._strict = strict
        self._max_shapes = max_shapes
        self._how = how
        self.iterations = 0
        self._captures = Captures(step.source, max_shapes, self._plan_like_first)
        self._captures.begin(step)
        self._evaluations = []  # the captures of each function
        self._session = self._states = self.switched = self._lost = self._excess = None
        self.use(plan)
        self._start(step, plan)

    def __call__(self, batch: Batch) -> Result:
        return self._call(self._captures, batch)

    @overload
    def evaluate(self) -> Callable[[Any], Any]: ...

    @overload
    def evaluate(self, forward: Callable[[Any, Given], Returned]) -> Callable[[Given], Returned]: ...

    @overload
    def evaluate(
        self, forward: Callable[[Any, Unpack[Items]], Returned]
    ) -> Callable[[tuple[Unpack[Items]]], Returned]: ...

    def evaluate(self, forward: Callable[..., Any] = call) -> Callable[[Any], Any]:
        """Returns the function that runs `forward(model, batch)`, or `forward(model, *batch)`, without
        gradients, with the values that the iterations have reached: `results = evaluate(batch)`.

        It runs in the session's memory, within the same budget, to which the session switches. Each shape of
        a batch is captured when it first comes; `max_shapes` counts those of each function.
        """
        source = self._example.source.evaluation(self._example, forward)
        captures = Captures(source, self._max_shapes, self._plan_like_first)
        self._evaluations.append(captures)
        return partial(self._call, captures)

    @torch.compiler.disable  # a function that is compiled may call it
    def _call(self, captures, batch):
        if self._lost is not None:
            raise LostError(self._lost)
        with self._processes.together() as said:
            training = self._captures.change() if captures is not self._captures else None
            if training is not None and training.kind == "replaced":
                self._follow(self._captures)  # before the evaluation writes states, such as a mean
            self._follow(captures)  # first, since what the optimizer counts is compared with present captures
            shapes = captures.shapes_of(batch)
            goes_on = self._session is not None and captures.plans.get(shapes) is self._running
            said.append(f"{self._what(captures)} shapes {shapes}{'' if goes_on else ' anew'}")
            outside = self._step.supplied(batch) if goes_on else None  # checks the batch
        if outside is None:
            self._switch(*captures.planned(shapes, batch))
            with self._processes.together():
                outside = self._step.supplied(batch)
        with Deferred(self._give_up):
            self._take_over()
            self._iterate(outside)
            self._step.advance(outside.rates)
        if self._excess is not None:
            raise self._excess
        return self._step.returned(outside.results)

    def _what(self, captures):
        if captures is self._captures:
            return "trains with"
        return f"evaluates function {self._evaluations.index(captures)} with"

    @property
    def _processes(self):
        return self._example.source.processes

    def __enter__(self) -> "Compiled[Batch, Result]":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        try:
            try:
                if error is None or self._lost is None:
                    self.sync()
            finally:
                self.close()
        except Exception as second:
            if error is None:
                raise
            _note(error, f"the values since the last sync() are lost, as sync() failed: {second}")

    def __repr__(self) -> str:
        return f"Compiled({self._example!r}, {self.plan!r}, {self.iterations} iterations)"

    def beside(self, batch: Batch) -> Callable[[], Result]:
        """Returns the function that runs an iteration while others write the model and the optimizer, which is not
        looked at any more. It raises `CaptureError` unless they have counted in Python as the iteration does."""
        shapes = self._captures.shapes_of(batch)
        if self._plans.get(shapes) is not self._running:
            self._switch(*self._captures.planned(shapes, batch))
        outside = self._step.supplied(batch)

        def run():
            self._iterate(outside)
            self._step.refuse_other_counts(outside.rates)
            return self._step.returned(outside.results)

        return run

    def values(self) -> Iterator[tuple[str, torch.Tensor, torch.Tensor]]:
        """Yields the name, the value and the tensor of each state that the step writes."""
        for number, storage, _ in self._states.held_by(self):
            tensor = storage.value.detach()
            buffer = bytes_of(tensor).copy()
            self._session.read_state(number, buffer)
            view = View(None, tensor.shape, tensor.stride(), tensor.storage_offset(), tensor.dtype)
            yield storage.name, viewed(torch.from_numpy(buffer), view), tensor

    @property
    def holds(self) -> bool:
        """Whether the session has newer values of states than their tensors."""
        return self._session is not None and any(self._states.held_by(self))

    @property
    def is_inference(self) -> bool:
        """Whether there is no optimizer."""
        return not self._example.optimizers

    def use(self, plan: Plan) -> None:
        """Goes on with another plan of the captured step from the next iteration on. Other shapes
        are planned again, for its budget."""
        self._processes.check(plan)
        self.plan = plan
        self._captures.use(plan)
        for captures in self._evaluations:
            captures.use(None)

    def load(self) -> None:
        """Begins again with the values that the model and the optimizer hold now."""
        self._lost = None
        if self._states is not None:
            self._states.release(self)
            self._states.accept_edited()
            self._states.forget()
        change = self._captures.change()
        if change is not None:
            self._vary(self._captures, change)
            self.close()
        elif self._session is None:
            self._start(self._step, self._running)
        else:
            self._take_over()

    def sync(self, overwrite: bool = False) -> int:
        """Gives the model and the optimizer the values that the iterations have reached, and returns
        how many there were. The next iteration begins with what they hold then.

        Raises `ChangedError` where they were written meanwhile, unless `overwrite` is true.
        """
        if self._lost is not None:
            raise LostError(self._lost)
        if not overwrite:
            self._refuse_conflicts(None if self._captures.await_capture else self._captures.change())
        with Deferred(lambda: None):
            self.hand_back()
            self._states.reread()
        return self.iterations

    def close(self) -> None:
        """Gives the memory back, without `sync`. The next call begins again, as `load` does."""
        if self._states is not None:
            self._states.release(self)
            self._states.forget()
        if self._session is not None:
            self._session.close()
        self._session = self._kernels = None

    def hand_over(self, h: Any) -> None:
        """Gives one tensor the value that the session has. Raises `ChangedError` where it was written
        meanwhile."""
        if h.is_edited():
            self._refuse_conflicts(None)
        for number, storage, one in self._states.held_by(self):
            if one is h:
                self._read(number, storage, h)
        h.holder = None
        Changes.count += 1

    def hand_back(self) -> None:
        """Gives the tensors the values that the session has, as `sync` does, without any check."""
        if self._session is None:
            return  # the tensors have the values
        for number, storage, h in self._states.held_by(self):
            self._read(number, storage, h)
        self._states.release(self)

    def _read(self, number, storage, h):
        buffer = bytes_of(storage.value)
        self._session.read_state(number, buffer)
        set_bytes_of(storage.value, buffer)
        h.look()

    def _follow(self, captures):
        """Follows what has changed around captures. Raises `ChangedError` where that cannot be."""
        change = captures.change()
        if self._refuse_conflicts(None if captures.await_capture else change):
            self._states.accept_edited()
        if change is not None:
            self._vary(captures, change)

    def _refuse_conflicts(self, change):
        """Refuses tensors that were written or replaced while a session has newer values. Returns
        the names of those that were written."""
        written = self._states.edited() if self._states is not None else []
        replaced = change is not None and change.kind == "replaced"
        if (written or replaced) and self._states.are_held():
            what = change.sentence if replaced else f"{written[0]} was written"
            raise ChangedError(
                f"{what} while sessions have newer values of the model and the optimizer than these"
                f" themselves: {self._example.ways_to_write}"
                + ("" if replaced else self._example.way_to_overwrite)
            )
        return written

    def _vary(self, captures, change):
        """Goes on with the captures of other surroundings, in which the next call captures."""
        if change.kind == "refused":
            raise ChangedError(f"{change.sentence}. {change.advice}")
        self.hand_back()
        captures.vary(change)

    def _plan_like_first(self, step):
        """Returns a plan for another capture, to which a switch from the first plan is cheap."""
        how = self._how | dict(
            machine=self._how["machine"] or self.plan.machine,
            host="optimizer" if self.plan.host_ops and step.optimizers else None,
        )
        plan = step.plan(self.plan.budget_bytes, **how)
        try:
            return min(
                (plan, plan.arranged_after(self.plan)),
                key=lambda p: self.plan.switch_to(p).time_ns,
            )
        except SwitchError:
            return plan

    def _switch(self, step, plan):
        """Goes on with another plan. States that it does not have, or has as other tensors, go back to the model. Where
        the session has too little memory for the plan or more than its budget, all go through the model to a new
        session."""
        self.switched = None
        states = States(step, self._known)
        if not states.have_all_held_by(self, self._states):
            self.hand_back()
        if self._session is not None and self._started.budget_bytes <= plan.budget_bytes:
            kernels = _Kernels(step, plan, self._undo, self._strict)
            try:
                self.switched = self._session.switch(plan, kernels)
            except SwitchError:
                pass
            except BaseException as error:
                self._lose(error)
                raise
            else:
                self._step, self._running, self._kernels = step, plan, kernels
                self._states = states
                return
        self.hand_back()
        self._start(step, plan)

    def _start(self, step, plan):
        """Begins a session, with memory for all plans so far. After an error the states are the
        model's."""
        self.close()
        self._undo = Undo()
        self._kernels = _Kernels(step, plan, self._undo, self._strict)
        self._step, self._running, self._started = step, plan, plan
        self._known = {}
        self._states = States(step, self._known)
        captures, device = [self._captures, *self._evaluations], self._device.session_device
        plans = [plan for one in captures for plan in one.plans.values()]
        self._device.give_back()
        self._session = Session(plan, self._kernels, plans, device=device)
        self._take_over()

    def _take_over(self):
        """Gives the session the values of states that others have written."""
        for number, storage in self._states.new():
            self._session.write_state(number, bytes_of(storage.value))
            self._undo.forget(storage)
            self._kernels.numbers.forget()

    def _iterate(self, outside):
        """Runs an iteration. After an error the session has the states from before it, or none."""
        self._kernels.outside = outside
        self._kernels.begin()
        self._undo.begin()
        generator = self._device.random_state() if self._step.draws else None
        self._excess = None
        try:
            if self._strict and not self._device.limits_workspaces:
                self._step_counted()
            else:
                self._step_once()
        except BaseException as raised:
            self._lose(raised)
            raise
        error = self._kernels.error
        if error is not None:
            if generator is not None:
                self._device.set_random_state(generator)
            self._put_back(error)
            raise error
        self._undo.commit()
        self._states.claim(self)
        self.iterations += self._step.source is self._example.source
        for optimizer in self._step.optimizers:
            optimizer._opt_called = True  # schedulers of learning rates look at it
        if outside.generator is not None:
            self._device.set_random_state(outside.generator)

    def _give_up(self):
        """Has the iteration under way end early, if its states can be put back."""
        kernels = self._kernels
        if kernels.error is None and self._before_iteration() is not None:
            kernels.error = KeyboardInterrupt()

    def _put_back(self, error):
        """Puts the states back that a failed iteration has written."""
        values = self._before_iteration()
        if values is None:
            self._lose(error)
            return
        try:
            for number, value in values:
                self._session.write_state(number, value)
            self._kernels.numbers.forget()
        except BaseException:
            self._lose(error)
            raise
        if self._step.surroundings is not None:
            _note(error, f"the states are those after iteration {self.iterations}: sync() hands them back")

    def _before_iteration(self):
        states = [(n, s, h.holder is self) for n, s, h in self._states.all]
        return self._undo.values(states, self._kernels.overwritten)

    def _lose(self, error):
        """Ends the session after an error that it does not outlive."""
        were_held = self._states is not None and any(self._states.held_by(self))
        self.close()
        if were_held and self._step.keeps_states:
            self._lost = (
                f"iteration {self.iterations + 1} failed, and its states cannot be put back"
                f" ({type(error).__name__}: {error}): {self._step.way_after_loss}"
            )
            _note(error, self._lost)

    def _step_once(self):
        self._kernels.network_stream = self._session.network_stream
        with plain_mode(), self._device.stepping(self._session.stream):
            try:
                self._session.step()
                if self._kernels.waits_for_others:
                    self._session.wait()
                if self._step.outputs is not None and self._kernels.error is None:
                    self._step.outputs.read(self._session, self._kernels.outside.results)
            finally:
                # On the session's stream, which then frees and overwrites their tensors.
                self._kernels.outside.under_way.wait_for_all()

    def _step_counted(self):
        with Allocations() as allocations:
            self._kernels.allocations = allocations
            self._step_once()
        for number, peak_bytes in allocations.peaks():
            op = self._step.operations[number]
            if peak_bytes > op.measured.workspace_bytes and self._excess is None:
                self._excess = AllocationError(
                    f"{op.name} (line {op.line}) allocated {peak_bytes} bytes, but its workspace"
                    f" has {op.measured.workspace_bytes}"
                )

    @property
    def _steps(self):
        return self._captures.steps

    @property
    def _plans(self):
        return self._captures.plans


def _note(error, text):
    if hasattr(error, "add_note"):  # since Python 3.11
        error.add_note(text)


def _written_states(step):
    """Returns the states that each op writes, with their places among what it writes, and the states
    that some op overwrites without reading them. Not the generator's, which each iteration sets."""
    written, overwritten = {}, set()
    for number, op in enumerate(step.operations):
        states = [
            (place, tensor)
            for place, tensor in enumerate(op.writes)
            if step.storages[tensor].kind == "state" and step.storages[tensor].writes
        ]
        if states:
            written[number] = states
            overwritten |= {tensor for _, tensor in states if tensor not in op.reads}
    return written, overwritten


class _Kernels:
    """What a session calls. Each op is bound once to the addresses at which it runs, on the device or on
    the host.

    After an error, which `error` keeps, the ops of the iteration that are left do nothing, where the
    step `keeps_states`: so the session goes on, and `undo` has what has to be put back.
    """

    def __init__(self, step, plan, undo, strict):
        self._step = step
        self._strict = strict
        written_on_host = {tensor for op in plan.host_ops for tensor in step.operations[op].writes}
        self.numbers = Numbers(written_on_host)
        self._undo = undo
        self._waits_at_once = set(_moving_collectives(step, plan))
        self._bound, self._latest = {}, {}
        self._written, self.overwritten = _written_states(step)
        runs_at_once = step.device.runs_at_once and step.keeps_states
        self._exchanges = {number for number, op in enumerate(step.operations) if op.exchanges}
        # A thread of a session on the processor runs these, and the group's next collective comes after them.
        in_a_thread = bool(self._exchanges) and step.device.session_device is None
        self.waits_for_others = in_a_thread or runs_at_once and bool(plan.host_ops)
        self.network_stream = None  # of the session
        ops = enumerate(step.operations)
        self._may_fail = {number for number, op in ops if op.may_end or runs_at_once and op.may_fail}
        self.outside = None
        self.allocations = None
        self._host = Processor()
        self.error = self.failed = None

    def begin(self):
        """Begins an iteration."""
        self.error = self.failed = None
        self._to_come = {op for op in self._may_fail if not self._is_left_out(op)}
        self._threads = torch.get_num_threads()

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        if self._is_left_out(op):
            return
        try:
            if op in self._exchanges:
                with self._exchanging():
                    self._launch(op, self._step.device, is_repeat, reads, writes, workspace)
            else:
                self._launch(op, self._step.device, is_repeat, reads, writes, workspace)
        except BaseException as error:
            if not self._step.keeps_states:
                raise
            self.error, self.failed = error, self._step.operations[op]

    def launch_on_host(self, op, iteration, reads, writes):
        """Runs an op on the host, in a thread of the session."""
        if self._is_left_out(op):
            return
        try:
            with on_host(self._threads):
                self._launch(op, self._host, False, reads, writes)
        except BaseException as error:
            if not self.waits_for_others:  # the iteration may have ended for its caller
                raise
            self.error, self.failed = error, self._step.operations[op]

    def _exchanging(self):
        return self._step.device.exchanging(self.network_stream, self._threads)

    def _is_left_out(self, op):
        only = self.outside.only
        return self.error is not None or only is not None and op not in only

    def _launch(self, op, device, is_repeat, reads, writes, workspace=None):
        written = () if is_repeat else self._written.get(op, ())
        for place, tensor in written:
            copies = self._to_come and tensor not in self.overwritten
            memory = partial(device.at, writes[place]) if copies else None
            self._undo.before(self._step.storages[tensor], memory)
        run = self._function(op, device, is_repeat, reads, writes, workspace)
        elsewhere = device is self._host or op in self._exchanges  # in a thread that is not profiled
        if self.allocations is None or elsewhere:
            run(self.outside)
        else:
            with self.allocations.of(op):
                run(self.outside)
        if op in self._waits_at_once:
            self.outside.under_way.wait_for_all()
        if not is_repeat:
            self._to_come.discard(op)
        for place, tensor in written:
            if tensor in self.overwritten and self._may_fail:
                self._undo.overwritten(self._step.storages[tensor], device.at(writes[place]))

    def _function(self, op, device, is_repeat, reads, writes, workspace):
        """Returns the function that runs an op on given memory."""
        # A session passes the same tuples while the memory stays the same. To compare their addresses takes longer.
        latest = self._latest.get((op, is_repeat))
        if latest is not None and latest[0] is reads and latest[1] is writes and latest[2] is workspace:
            return latest[3]
        key = op, device, is_repeat, workspace, reads, writes
        run = self._bound.get(key)
        if run is None:
            run = self._bound[key] = self._bind(op, device, is_repeat, reads, writes, workspace)
        self._latest[op, is_repeat] = reads, writes, workspace, run
        return run

    def _bind(self, op, device, is_repeat, reads, writes, workspace):
        operation = self._step.operations[op]
        memory = dict(zip(operation.reads, reads)) | dict(zip(operation.writes, writes))
        numbers = None if device.torch_device.type == "cpu" else self.numbers
        run = operation.bind(Tensors(memory, device, numbers), is_repeat)
        return device.bound(run, operation, workspace, self._strict, memory)


def _moving_collectives(step, plan):
    """Yields the ops that start collectives whose tensors the plan moves before their end."""
    numbers = {id(op): number for number, op in enumerate(step.operations)}
    for wait, op in enumerate(step.operations):
        if op.start is not None:
            start = numbers[id(op.start)]
            if not all(plan.leaves_alone(tensor, start, wait) for tensor in op.reads):
                yield start

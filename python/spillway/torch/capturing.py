"""Captures a training step or an inference."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, TypeVar, overload

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.amp.grad_scaler import GradScaler
from torch.utils._pytree import tree_flatten
from typing_extensions import Unpack

from spillway import Error

from .arguments import groups_of, named, optimizers_of, refuse_joined, refuse_others, refuse_wrapper
from .batches import (
    call,
    call_on,
    flatten,
    loss_of,
    refuse_gradients,
    refuse_layouts,
    refuse_other_results,
    refuse_writes,
    unflatten,
)
from .checkpoints import without_checkpoints
from .clipping import Clipping
from .collectives import is_collective
from .constants import Constants
from .counting import Counts, refuse_closures
from .devices import device_of, tensors_of
from .errors import CaptureError, line_that_raised, quoted
from .generators import PythonsGenerators, unseeded
from .guards import Surroundings
from .indices import checks
from .known import shown_to_transformers
from .layouts import captured_strides, handed_strides
from .logs import timed
from .machine import measure_copies
from .measuring import Measurements
from .memory import form
from .operations import operations
from .outputs import Outputs
from .ownership import (
    Substitution,
    refuse_gradients_elsewhere,
    refuse_parameters_elsewhere,
    refuse_wrapped,
)
from .processes import Alone, Processes, averaged_twice
from .recording import Recorder
from .running import Items
from .scaling import Scaling
from .sharding import Shards, refuse_function, refuse_rows, refuse_scaler
from .step import Step
from .stepping import RecordedOptimizer, no_other_steps
from .storing import Stored
from .supplying import Numbers
from .swapping import Fakes, given, kept, rows_in_module, swapped_module
from .twice import Runs

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Model = TypeVar("Model", bound=torch.nn.Module)
Batch = TypeVar("Batch")
Result = TypeVar("Result")
Loss = TypeVar("Loss", bound=torch.Tensor | tuple[Any, ...] | list[Any] | Mapping[str, Any])
Device = torch.device | str | int


Clip = float | Callable[[list[torch.Tensor]], object]


@overload
def capture(
    model: Model,
    loss_fn: Callable[[Model, Batch], Loss],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    example_batch: Batch,
    process_group: "ProcessGroup | None" = None,
    device: Device | None = None,
    verify: bool = False,
    clip_grad: Clip | None = None,
    shard: bool = False,
    scaler: GradScaler | None = None,
) -> Step[Batch, Loss]: ...


@overload
def capture(
    model: Model,
    loss_fn: Callable[[Model, Unpack[Items]], Loss],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    example_batch: tuple[Unpack[Items]],
    process_group: "ProcessGroup | None" = None,
    device: Device | None = None,
    verify: bool = False,
    clip_grad: Clip | None = None,
    shard: bool = False,
    scaler: GradScaler | None = None,
) -> Step[tuple[Unpack[Items]], Loss]: ...


def capture(
    model: torch.nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
    example_batch: Any,
    process_group: "ProcessGroup | None" = None,
    device: Device | None = None,
    verify: bool = False,
    clip_grad: Clip | None = None,
    shard: bool = False,
    scaler: GradScaler | None = None,
) -> Step[Any, Any]:
    """Captures one training step: forward, backward and the optimizer's update.

    `loss_fn(model, batch)` returns the loss, a tensor with one element; or a tuple that begins with
    it, or a mapping in which it is "loss": then each iteration returns all of that. If it takes several
    arguments after the model, it gets each item of a batch that is a tuple or a list: `loss_fn(model, *batch)`.
    It may run backward passes itself, such as one for each micro-batch; if it then returns a detached loss, no
    other pass follows.

    `optimizer` may be a list. If `loss_fn` calls `step()` of an optimizer, it must call `step()` of all optimizers
    and run all backward passes, and may return any values. The captured step then ends with `loss_fn`.

    A batch is any nesting of tensors in tuples, lists, mappings and dataclasses. Numbers and texts in it are
    fixed: other ones are captured as another shape is. The model is not run on real values, and keeps its
    values; the optimizer gets the states that its first step would make.

    The step runs on the device of the model. With a `device`, such as "cuda", it runs there, for
    batches that are copied there, and the model and the optimizer stay where they are.

    With a `process_group` of `torch.distributed`, all its processes capture the same step at the
    same time, each for a batch of its own. Parameters and buffers become those of process 0, and
    gradients are averaged in each iteration.

    With `shard`, each process keeps some rows of each parameter, of its gradient and of its optimizer states.
    The model's parameters become these rows; `full_state_dict` returns whole parameters. All processes run
    one plan, which decides when to gather a parameter.

    `clip_grad` is the largest norm of all gradients together, as `torch.nn.utils.clip_grad_norm_`
    takes it; or a function that is called with the optimizer's parameters after the backward pass.

    `scaler` scales the loss and its gradients, and leaves out the optimizer's step if one is infinite or no
    number, as in the usual loop. Its scale is a state of the step, which `sync` copies.

    With `verify`, a few steps run beside eager mode first, as `Step.verify` has them.

    Raises `CaptureError` where the step depends on the values of tensors, and where processes
    would run different collectives.
    """
    clipping, scaling = Clipping(clip_grad), Scaling(scaler)
    source = Training(model, loss_fn, optimizer, process_group, shard, device, clipping, scaling)
    step: Step[Any, Any] = source.capture(example_batch)
    if verify:
        step.verify()
    return step


@overload
def capture_inference(
    model: torch.nn.Module, example_batch: Batch, *, device: Device | None = None
) -> Step[Batch, Any]: ...


@overload
def capture_inference(
    model: Model,
    example_batch: Batch,
    forward: Callable[[Model, Batch], Result],
    device: Device | None = None,
) -> Step[Batch, Result]: ...


@overload
def capture_inference(
    model: Model,
    example_batch: tuple[Unpack[Items]],
    forward: Callable[[Model, Unpack[Items]], Result],
    device: Device | None = None,
) -> Step[tuple[Unpack[Items]], Result]: ...


def capture_inference(
    model: torch.nn.Module,
    example_batch: Any,
    forward: Callable[..., Any] = call,
    device: Device | None = None,
) -> Step[Any, Any]:
    """Captures one inference: `forward(model, batch)`, or `forward(model, *batch)` as for `capture`, without
    gradients.

    It returns any nesting of tensors, which are on the device of the model's own tensors. The model is not run
    on real values, and keeps its values. `device` is as for `capture`.

    Raises `CaptureError` where the inference depends on the values of tensors.
    """
    return Inference(model, forward, device).capture(example_batch)


@contextmanager
def explained():
    """Within it, whatever the user's code raises becomes a `CaptureError` with the line."""
    try:
        yield
    except Error:
        raise
    except Exception as error:
        line = line_that_raised(error)
        raise CaptureError(
            f"{quoted(line) if line else 'the step'}: raises {type(error).__name__}: {error}. While"
            " a step is captured, it runs on tensors that have no values and stand in for yours. If"
            " eager mode runs this line, do what it does outside of the step"
        ) from error


class _Source:
    """What is captured, once for each shape of its batches. Where `has_outputs`, its results are outputs of the
    graph. Otherwise an op copies each to a tensor of the caller's on the device."""

    has_outputs = False
    strides_of = staticmethod(captured_strides)  # of a batch's tensors

    def capture(self, example_batch):
        with kept(self.optimizers), self.processes.cut(), timed(f"capture {type(self.model).__name__}") as found:
            step = self._captured(example_batch)
            found.append(f"{len(step.operations)} ops")
            return step

    def _captured(self, example_batch):
        stored, generators = Stored(**self.roots()), PythonsGenerators()
        runs = Runs(stored, generators, lambda previous: self._record(example_batch, previous))
        try:
            with unseeded():
                self._prepare(example_batch)
                with self.processes.together(), explained():
                    first = runs.first()
                self._agree(first)
                runs.compare_again(first)
        finally:
            runs.put_back()
        return _step(self, first, self.returns, example_batch)

    def evaluation(self, step, forward):
        """Returns the source of inferences beside a step that has been captured of this one."""
        return _Evaluation(step, forward)

    def _prepare(self, example_batch):
        """Does what comes before the first run."""

    def _agree(self, recorded):
        """Compares the run with those of other processes."""
        self.processes.agree(recorded.recorder.calls, recorded.fakes.name)


class Training(_Source):
    """A training step."""

    returns = "loss"

    def __init__(self, model, loss_fn, optimizer, process_group, shard, device, clipping, scaling):
        self._begin_with(model, loss_fn, optimizer, process_group, clipping, scaling)
        self.moves_batch = device is not None
        self.measurements = Measurements(device_of(tensors_of(model), device))
        if process_group is not None:
            self.measurements.device.refuse_group(process_group)
            refuse_parameters_elsewhere(model, self.optimizers)
        self.processes = _processes(process_group, shard, self, clipping, scaling)
        self.copied_bytes_per_s = self.processes.measure_copies()
        self.setup_costs = self.measurements.device.setup_costs()

    def _begin_with(self, model, loss_fn, optimizer, process_group, clipping, scaling):
        """Checks and keeps what the user gives."""
        refuse_others(model, loss_fn)
        self.model, self.loss_fn, self.optimizers = model, loss_fn, optimizers_of(optimizer)
        self.clipping, self.scaling = clipping, scaling
        refuse_wrapped(model, process_group)
        for one in self.optimizers:
            refuse_wrapper(one)
            refuse_joined(one)
            refuse_closures(one)
        self._without_states = []  # optimizers that are known to have no states
        self._counts = [Counts() for _ in self.optimizers]  # what they count in Python, as far as runs have found
        self.steps_itself = False  # whether loss_fn runs the optimizers' steps
        self.constants = Constants()

    def roots(self):
        """Returns what the step's code can reach, by name."""
        return dict(model=self.model, **self._optimizers_by_name(), **self.functions())

    def _optimizers_by_name(self):
        """Returns the optimizers by their names in messages about stored values."""
        several = len(self.optimizers) > 1
        return {f"optimizer {k}" if several else "optimizer": one for k, one in enumerate(self.optimizers)}

    def _prepare(self, example_batch):
        self._counts = [counts.again(one) for counts, one in zip(self._counts, self.optimizers)]
        self.scaling.begin(next(iter(self.optimizers[0].param_groups[0]["params"])).device)
        self.processes.find_buckets(lambda ready: self._find_gradients(example_batch, ready))

    def functions(self):
        """Returns the functions of the step, by name."""
        return dict(loss_fn=self.loss_fn, **self.clipping.functions())

    def _find_gradients(self, example_batch, on_gradient):
        """Calls a function with each parameter whose gradient is ready, and its fake tensor. Returns whether
        `loss_fn` runs the optimizers' steps."""
        recorded = self._begin(example_batch, None)
        with self._swapped(recorded):
            self._backward(recorded, on_gradient)
        return recorded.steps_itself

    def _record(self, example_batch, previous):
        recorded = self._begin(example_batch, previous)
        with self._swapped(recorded):
            self._backward(recorded, self.processes.averaging(recorded.fakes))
            if not recorded.steps_itself:
                self._update(recorded)
            for one in recorded.optimizers:
                one.finish()
        recorded.refuse_gradients_of_before()
        self.steps_itself = recorded.steps_itself
        return recorded

    def _begin(self, example_batch, previous):
        refuse_gradients(example_batch)
        recorded = Recorded(self, example_batch, previous)
        recorded.fakes.of_module(self.model)
        for label, group in groups_of(self.optimizers):
            for n, parameter in enumerate(group["params"]):
                recorded.fakes.of(parameter, f"parameter {n} of {label}")
        if previous is not None and previous.steps_itself:
            recorded.begin_with_gradients_of(previous)
        self.processes.begin(recorded.recorder, recorded.fakes)
        return recorded

    @contextmanager
    def _swapped(self, recorded):
        """Within it, the model, the optimizers and the scaler have fake tensors."""
        with ExitStack() as within:
            within.enter_context(swapped_module(self.model, recorded.fakes))
            within.enter_context(self.scaling.swapped(recorded.fakes))
            for (name, optimizer), counts in zip(named(self.optimizers), self._counts):
                one = RecordedOptimizer(optimizer, counts, name, recorded, self.model, self._without_states)
                recorded.optimizers.append(within.enter_context(one))
            yield

    def _backward(self, recorded, on_gradient):
        """Records forward and backward pass. `on_gradient`, if there is one, is called with each
        parameter whose gradient is ready, and its fake tensor."""
        recorder, fakes = recorded.recorder, recorded.fakes
        with (
            torch.enable_grad(),
            without_checkpoints(),
            Substitution(fakes),
            recorder.fake_mode,
            recorder,
            shown_to_transformers(recorder.has_value),
            # Backward passes of CUDA run in another thread otherwise, without the user's line.
            torch.autograd.set_multithreading_enabled(False),
        ):
            if on_gradient:
                fakes.on_gradients(on_gradient)
            with no_other_steps(recorder):
                recorded.returned = call_on(self.loss_fn, self.model, recorded.batch_as_given())
                recorded.steps_itself = any(one.steps for one in recorded.optimizers)
                if recorded.steps_itself:
                    self._check_own_steps(recorded)
                else:
                    self._end_backward(recorded, loss_of(recorded.returned))
            if on_gradient:
                self.processes.end_backward()
        refuse_gradients_elsewhere(fakes, recorder.storages)

    def _end_backward(self, recorded, loss):
        """Records the backward pass, unless `loss_fn` has run all passes itself."""
        if self.scaling.is_used(recorded.recorder):
            raise CaptureError("loss_fn scales the loss, and so does capture(..., scaler=scaler): return it unscaled")
        if self._has_backward(loss, recorded):
            self.scaling.scaler.scale(loss).backward()

    def _has_backward(self, loss, recorded):
        parameters = (p for one in recorded.optimizers for p in one.parameters())
        if loss.requires_grad or all(p.grad is None for p in parameters):
            return True
        if self.processes.group is not None:
            raise averaged_twice()
        if self.scaling.is_enabled:
            raise CaptureError(
                "loss_fn runs the backward passes itself, but the scaler scales the loss that it returns:"
                " return the mean of all losses"
            )
        return False

    def _check_own_steps(self, recorded):
        """Checks a step whose `loss_fn` runs the steps of optimizers itself."""
        left = next((one for one in recorded.optimizers if not one.steps), None)
        if left is not None:
            raise CaptureError(
                f"loss_fn calls step() of another optimizer, but not of {left.name}: call step() of all, or of none"
                " and return the loss"
            )
        if not self.processes.averages_each_pass:
            raise CaptureError(
                "loss_fn calls step() itself, but gradients are averaged after loss_fn, since the step is sharded, or"
                " did not call it with the first batch: return the loss, and leave backward() and step() to capture"
            )
        if self.clipping.is_wanted:
            raise CaptureError("loss_fn calls step() itself: clip there too, and leave out clip_grad")
        if self.scaling.is_enabled and not self.scaling.is_used(recorded.recorder):
            raise CaptureError(
                "loss_fn calls step() itself, but not the scaler: call scaler.scale(loss).backward(),"
                " scaler.step(optimizer) and scaler.update() there, or leave out scaler"
            )

    def _update(self, recorded):
        """Records clipping and the steps of the optimizers."""
        recorder, scaler = recorded.recorder, self.scaling.scaler
        with (
            rows_in_module(self.model, recorded.fakes),
            Substitution(recorded.fakes),
            recorder.fake_mode,
            recorder,
            recorder.updating(),
        ):
            if self.clipping.is_wanted:
                for optimizer in self.optimizers:
                    scaler.unscale_(optimizer)
                parameters = [p for one in recorded.optimizers for p in one.parameters()]
                self.processes.clip(self.clipping, parameters)
            before = {id(call) for call in recorder.calls}
            for optimizer in self.optimizers:
                scaler.step(optimizer)
            scaler.update()
        calls = [call for call in recorder.calls if id(call) not in before]
        self.processes.refuse_mixing(calls, recorder.storages)


def _processes(group, shard, source, clipping, scaling):
    """Returns the processes that run the step."""
    model = source.model
    if not shard:
        refuse_rows(model)
        return Alone() if group is None else Processes(group, tensors_of(model))
    if group is None:
        raise CaptureError("shard=True needs capture(..., process_group=...)")
    refuse_function(clipping)
    refuse_scaler(scaling)
    return Shards(group, model, source.optimizers, source.measurements.device)


class Inference(_Source):
    """An inference."""

    optimizers, processes, scaling = (), Alone(), Scaling(None)
    returns = "result"
    has_outputs = True

    def __init__(self, model, forward, device, measurements=None):
        """`measurements` are those of an equal model on the same device, if there is one."""
        refuse_rows(model)
        self._begin_with(model, forward)
        self.moves_batch = device is not None
        self.measurements = measurements or Measurements(device_of(tensors_of(model), device))
        # Results are where the model is.
        own = "cpu" if self.moves_batch else self.measurements.device.torch_device.type
        places = {t.device.type for t in tensors_of(model)} or {own}
        self.has_outputs = places == {"cpu"}
        self.copied_bytes_per_s = measure_copies()
        self.setup_costs = self.measurements.device.setup_costs()

    def functions(self):
        """Returns the functions of the step, by name."""
        return dict(forward=self.forward)

    def _begin_with(self, model, forward):
        """Checks and keeps what the user gives."""
        refuse_others(model, forward)
        refuse_wrapped(model, None)
        self.model, self.forward, self.constants = model, forward, Constants()

    def roots(self):
        """Returns what the inference's code can reach, by name."""
        return dict(model=self.model, forward=self.forward)

    def _record(self, example_batch, previous):
        recorded = Recorded(self, example_batch, previous)
        recorder, fakes = recorded.recorder, recorded.fakes
        with torch.no_grad():
            fakes.of_module(self.model)
            self.processes.begin(recorder, fakes)
        with (
            torch.no_grad(),
            swapped_module(self.model, fakes),
            recorder.fake_mode,
            recorder,
            shown_to_transformers(recorder.has_value),
        ):
            recorded.returned = call_on(self.forward, self.model, recorded.batch_as_given())
        return recorded


class _Evaluation(Inference):
    """Inferences that share a session with a step: their graphs have all of its states."""

    def __init__(self, step, forward):
        source = step.source
        refuse_others(source.model, forward)
        self.model, self.forward, self._beside = source.model, forward, step
        self.moves_batch, self.measurements = source.moves_batch, source.measurements
        self.constants = source.constants
        # On another device, the session's host block has no memory for them.
        self.has_outputs = self.measurements.device.session_device is None
        if source.processes.have_one_plan:
            self.processes = source.processes
        self.copied_bytes_per_s, self.setup_costs = source.copied_bytes_per_s, source.setup_costs

    def capture(self, example_batch):
        step = super().capture(example_batch)
        step.add_states_of(self._beside)
        return step


class Recorded:
    """One run of a step on fake tensors. `previous` is an earlier run, if there is one."""

    def __init__(self, source, example_batch, previous):
        self.recorder = recorder = _recorder(source.measurements)
        recorder.previous = previous and previous.recorder
        self.fakes = Fakes(recorder, previous and previous.fakes)
        self.batch, self._nesting = _given_batch(recorder, example_batch, source)
        self.returned, self.optimizers = None, []
        self.steps_itself = False  # whether loss_fn runs the steps of the optimizers
        self._gradients_of_before = {}  # names of parameters, by tensor

    def batch_as_given(self):
        """Returns the fake tensors of the batch, nested as the example is."""
        return unflatten(self.batch, self._nesting)

    def begin_with_gradients_of(self, previous):
        """Gives parameters the gradients that the previous run has left, as eager mode does."""
        for one in previous.optimizers:
            for p in (p for group in one.optimizer.param_groups for p in group["params"]):
                if previous.fakes.has_gradient(p):
                    name = self.fakes.name(p)
                    fake = self.fakes.rows(p)
                    fake.grad = given(self.recorder, f"gradient of {name}", fake)
                    self._gradients_of_before[self.recorder.view(fake.grad).tensor] = name

    def refuse_gradients_of_before(self):
        """Refuses a step that uses gradients of the previous step."""
        for recorded_call in self.recorder.calls:
            for tensor in self._gradients_of_before.keys() & set(recorded_call.reads):
                raise CaptureError(
                    f"{quoted(recorded_call.line)}: uses the gradient of {self._gradients_of_before[tensor]} that the"
                    " previous iteration has left: call zero_grad() of its optimizer before backward()"
                )

    def is_trial(self):
        """Returns whether this run has only found out something about an optimizer, so that another is needed."""
        return any(one.is_trial for one in self.optimizers) and not any(one.counts.refused for one in self.optimizers)


def _recorder(measurements):
    return Recorder(FakeTensorMode(allow_non_fake_inputs=True), measurements)


def _given_batch(recorder, example_batch, source):
    """Returns the fake tensors for those of an example, and how they are nested."""
    tensors, nesting = flatten(example_batch)
    refuse_layouts(tensors)
    device = recorder.measure.device.torch_device if source.moves_batch else None
    return [given(recorder, f"batch.{k}", t, device, source.strides_of) for k, t in enumerate(tensors)], nesting


def _step(source, recorded, name, example_batch):
    recorder = recorded.recorder
    refuse_writes(recorder, recorded.batch)
    if source.processes.group is None:
        refuse_collectives(recorder.calls)
    source.constants.name([recorder.storages[t] for t in recorder.constants])
    values, structure = tree_flatten(recorded.returned)
    results = [_result(recorder, value) for value in values]
    refuse_other_results(values)
    returns = [_handed(view) if view else value for value, view in zip(values, results)]
    supplied = [one.supplied for one in recorded.optimizers]
    given = recorded.batch, [rate for one in supplied for rate in one.rates]
    batch, rates = [[recorder.view(fake) for fake in fakes] for fakes in given]
    outputs = Outputs(recorder.storages, results, name) if source.has_outputs else None
    ops = operations(recorder, batch, rates, name, results, outputs)
    numbers = Numbers(supplied, rates)
    source.processes.share(ops, recorder.storages)
    source.measurements.give_back()
    states = {s.name: s.value for s in recorder.storages if s.kind == "state" and s.name != "generator"}
    around = Surroundings(source.model, source.functions(), source.optimizers, states)
    found = checks(recorder, batch)
    return Step(
        source, recorder.storages, ops, example_batch, (returns, structure), numbers, around, found, outputs
    )


def _handed(view):
    """Returns a tensor without memory of the layout in which a result is handed out."""
    return form(replace(view, stride=handed_strides(form(view))))


def refuse_collectives(calls):
    for collective in filter(is_collective, calls):
        raise CaptureError(f"{collective.line}: a collective needs capture(..., process_group=...)")


def _result(recorder, value):
    """Returns the view of a tensor that the step returns, and None for what is no tensor."""
    if isinstance(value, torch.SymFloat):
        raise CaptureError("the step returns a number that it reads from a tensor")
    if not isinstance(value, torch.Tensor):
        return None
    view = recorder.view(recorder.known(value))
    if view.tensor in recorder.gathered:
        raise CaptureError(
            f"the step returns {recorder.name_of_gathered(view)}, of which each process keeps only rows:"
            " return what is computed from it"
        )
    return view

"""Captures the forward and the backward pass of a graph as one step, with the step of an optimizer that
has joined.

Between them ops wait. The first has handed out the results, and gets their gradients; the second has
handed out the gradients of parameters, and goes on when the optimizer steps. Parameters, buffers and
other inputs are copied from the caller's tensors, as often as the plan needs them. Before the update,
parameters and gradients are copied again, since the caller may have written them. One op copies all small
tensors at once.
"""

import weakref
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_flatten

from .capturing import explained, refuse_collectives
from .checkpoints import without_checkpoints
from .constants import Constants
from .errors import CaptureError, FirstStepError, quoted
from .layouts import kept_strides, shared_once
from .logs import timed
from .measuring import Measured
from .memory import Lent
from .numbers import Number, placed, value_of
from .operations import Operation, Order, recorded
from .processes import Alone
from .recording import Recorder, Storage, View, unique
from .results import Results, refuse_overlaps
from .scaling import Scaling
from .step import Step
from .supplying import Numbers
from .swapping import Fakes, given, swapped_module
from .updating import record_update

LEAST_NS = 1000  # that a copy takes
# Python and the session take as long for an op as for a copy of 100 KiB, so that one op copies small tensors. These
# take memory earlier than if each had an op, and longer: all of them, at most a part of what the caller supplies.
SMALL_BYTES = 64 << 10
SMALL_PART = 128


class Passes:
    """The two passes of a graph, captured for each shape and each pattern of gradients, on the device of
    `measurements`.

    `names` are those of the graph's inputs; `own` has the positions of parameters and buffers. If the graph
    `moves`, its callers' tensors are on the processor.
    """

    processes, scaling = Alone(), Scaling(None)

    def __init__(self, graph, names, own, measurements, moves=False):
        self.model, self._names, self._own = graph, names, own
        self.measurements, device = measurements, measurements.device
        self.constants = Constants()
        callers = torch.device("cpu") if moves else device.torch_device
        self.lent = Lent(callers)  # by all shapes
        self.copied_bytes_per_s = device.copied_bytes_per_s(callers)
        self._moves_to = device.torch_device if moves else None
        self.setup_costs = device.setup_costs()
        devices = ("cpu", "cuda")
        self._autocast = [
            (d, torch.get_autocast_dtype(d), torch.is_autocast_enabled(d)) for d in devices
        ]

    def capture(self, inputs, optimizer, pattern=None, updated=None):
        """Returns the joint step for inputs like these, as `_captured` does."""
        with timed("capture a graph of torch.compile") as found:
            with explained():
                step = self._captured(inputs, optimizer, pattern, updated)
            found.append(f"{len(step.operations)} ops")
            return step

    def has_own(self, values):
        """Returns whether a parameter or a buffer has a value, given a value or None for each input."""
        return any(values[k] is not None for k in self._own)

    def refuse_overlaps(self, inputs, written):
        """Refuses two inputs that share memory if one is at the `written` positions."""
        refuse_overlaps(inputs, written, self._names, self._own)

    def _captured(self, inputs, optimizer, pattern, updated):
        """Returns the joint step for inputs like these, and for an optimizer that has joined, or None.

        A pattern has the strides of each result's gradient, or None where it gets none. `updated` are
        the positions of the parameters that the optimizer updates. Without them, likely ones are taken.
        """
        recorder = Recorder(FakeTensorMode(allow_non_fake_inputs=True), self.measurements)
        fakes = [self._given(recorder, k, value) for k, value in enumerate(inputs)]
        with self._recording(recorder, forward=True):
            returned, structure = tree_flatten(self.model.forward(*fakes))  # a call would lose the line of an error
            returned = [recorder.known(value) for value in returned]
        last = recorder.calls[-1:]
        results = Results(recorder, inputs, fakes, returned, structure)
        pattern = results.likely_pattern() if pattern is None else pattern
        tangents = [
            None if strides is None else _fake(recorder, f"gradient.{k}", returned[k], strides)
            for k, strides in enumerate(pattern)
        ]
        with self._recording(recorder, forward=False):
            gradients = _gradients(returned, tangents, fakes)
        refuse_collectives(recorder.calls)
        # The backward pass may have put copies of constants before all other calls.
        boundary = next((k for k, c in enumerate(recorder.calls, 1) if [c] == last), 0)
        written = self._written(recorder, fakes, boundary)
        end, update = len(recorder.calls), self._update(recorder, optimizer, inputs, gradients, updated)
        self.constants.name([recorder.storages[t] for t in recorder.constants])
        ops = _Ops(recorder, (boundary, end), self.copied_bytes_per_s)
        ops.pause(tangents)
        ops.hand_out("result", "results", results.views(), before_pause=True)
        ops.hand_out("update", "updates", written, before_pause=True)
        views = [None if g is None else recorder.view(g) for g in gradients]
        ops.hand_out("gradient", "gradients", views)
        ops.take(fakes, written)
        if update:
            ops.update(update)
        self.measurements.give_back()
        return Joint(self, recorder.storages, ops, pattern, results, update, optimizer)

    def _update(self, recorder, optimizer, inputs, gradients, positions):
        """Records the optimizer's step for the parameters at some positions, if there are any."""
        if optimizer is None:
            return None
        first = {id(x): k for k, x in reversed([*enumerate(inputs)])}
        own = {first.get(id(p)): p for group in optimizer.param_groups for p in group["params"]}
        is_guess = positions is None
        if is_guess:
            positions = {k for k, p in own.items() if k is not None and p.requires_grad}
            positions = {k for k in positions if gradients[k] is not None or own[k].grad is not None}
        parameters = {k: own[k] for k in sorted(positions)}
        if not parameters:
            return None
        try:
            with self._autocasting(forward=False):
                return record_update(recorder, optimizer, self._names, parameters)
        except FirstStepError:
            if is_guess:  # The optimizer may make its states before it steps.
                return None
            raise

    def _given(self, recorder, k, value):
        if not isinstance(value, torch.Tensor):
            return value
        return given(recorder, self._names[k], value, self._moves_to, kept_strides)

    @contextmanager
    def _recording(self, recorder, forward):
        """Within it, a pass is recorded."""
        with self._autocasting(forward), swapped_module(self.model, Fakes(recorder)):
            with torch.enable_grad(), without_checkpoints(), recorder.fake_mode, recorder:
                yield

    @contextmanager
    def _autocasting(self, forward):
        """Within it, the forward pass has the autocast of its caller. The backward pass and the optimizer's step have
        none, although the forward pass may be captured together with them."""
        with ExitStack() as within:
            for device, dtype, enabled in self._autocast:
                if enabled:
                    within.enter_context(torch.autocast(device, dtype, enabled=forward))
            yield

    def _written(self, recorder, given, boundary):
        """Returns the view of each input that the forward pass writes, and None for the others.
        Their storages become states. Refuses inputs that the backward pass writes, and inputs that
        require gradients unless they are parameters."""
        late = {tensor for call in recorder.calls[boundary:] for tensor in call.writes}
        views = [recorder.view(x) if isinstance(x, torch.Tensor) else None for x in given]
        for k, view in enumerate(views):
            storage = recorder.storages[view.tensor] if view and view.tensor is not None else None
            if storage is None or not storage.writes:
                views[k] = None
            elif view.tensor in late or (given[k].requires_grad and k not in self._own):
                line = next(call.line for call in recorder.calls if view.tensor in call.writes)
                raise CaptureError(
                    f"{quoted(line)}: writes into {storage.name}, which the model is given: copy it first"
                    " (`x = x.clone()`), or use spillway.torch.capture"
                )
            else:
                storage.kind = "state"
                storage.value = torch.zeros(storage.nbytes, dtype=torch.uint8)
        return views


class Joint(Step):
    """The forward and the backward pass of a graph, and the update of the parameters at the positions
    `updated_parameters`. An iteration takes the place of a batch.

    `update_ops` are the ops of the update, from the one that waits for it.
    """

    ways_to_write = "read optimizer.state again whenever you read or write its tensors between steps"
    way_to_overwrite = ""
    way_after_loss = (
        "the optimizer's states are lost. Go on from a checkpoint of the model and the optimizer"
        " (load_state_dict)"
    )

    def __init__(self, source, storages, ops, pattern, results, update, optimizer):
        # A thread that waits for an optimizer must not keep it alive.
        self._optimizer = optimizer and weakref.ref(optimizer)
        self.pattern = pattern
        self.keeps_states = update is not None  # the caller's tensors have all others
        self.updated_parameters = frozenset(update.parameters if update else ())
        self._states = update.states if update else {}
        self.updated = [k for k, view in enumerate(ops.handed("updates")) if view]
        self._handed = {name: ops.handed(name) for name in ("results", "updates", "gradients")}
        for k in self.updated:  # the caller has their values between iterations, and after errors
            storages[self._handed["updates"][k].tensor].writes = 0
        self._results = results
        ordered = ops.ordered()
        waiting = next((k for k, op in enumerate(ordered) if op.name == "step"), len(ordered))
        self.update_ops = range(waiting, len(ordered))
        numbers = Numbers([update.supplied], update.rates) if update else Numbers()
        super().__init__(source, storages, ordered, (), ((), None), numbers)
        self.draws = False  # so that nobody but the caller puts the generator back after an error

    @property
    def optimizer(self):
        """The optimizer that has joined, or None."""
        return self._optimizer and self._optimizer()

    @property
    def optimizers(self):
        return () if self.optimizer is None else (self.optimizer,)

    def graph_for(self, host=None):
        """Does the same as `Step.graph_for`. A graph without parameters has nothing to run on the host."""
        if host == "optimizer" and self.optimizer is None:
            if self.source.has_own(self._handed["gradients"]):
                raise CaptureError(
                    "no optimizer has joined that could run on the host: give the optimizer of the model to"
                    " spillway.torch.optimizer before the first call"
                )
            host = None
        return super().graph_for(host)

    def has_current_states(self):
        """Returns whether the optimizer has the states that the update was captured with."""
        states = vars(self.optimizer)["state"] if self._states else {}
        return all(_are_same(states.get(p, {}), *known) for p, known in self._states.items())

    def written_states(self):
        """Returns the identities of the memory of states that the step writes."""
        states = (s for s in self.storages if s.kind == "state" and s.writes)
        return {s.value.untyped_storage()._cdata for s in states}

    def shapes_of(self, batch):
        return ()

    def supplied(self, batch):
        return batch

    def returned(self, results):
        return None

    def memory(self, name):
        """Returns tensors for "results", "updates" or "gradients", in the caller's memory."""
        return [v and self.source.lent.tensor((name, k), v) for k, v in enumerate(self._handed[name])]

    def differentiable(self):
        """Returns, for each result, whether it is handed out and may get a gradient."""
        return self._results.differentiable()

    def assembled(self, handed, inputs):
        """Returns what the graph returns, given the results that were handed out."""
        return self._results.assembled(handed, inputs)


@dataclass
class _Copy:
    """A copy between a view and the tensor of the caller that `outside` returns for an iteration. It may be
    made at a position among the recorded ops: from there on into the view, or up to there out of it."""

    name: str
    view: View
    outside: Callable
    position: float


class _Ops:
    """The recorded ops, and among them those that exchange tensors with the caller.

    Recorded ops have whole numbers as positions, the others come between them.
    """

    def __init__(self, recorder, ends, copied_bytes_per_s):
        """`ends` has how many calls there are up to the end of the forward pass, and of the backward
        pass."""
        self._recorder, self._copied_bytes_per_s = recorder, copied_bytes_per_s
        self._placed, self._handed = [], {}
        self._most_small_bytes = sum(s.nbytes for s in recorder.storages if s.kind == "given") // SMALL_PART
        self._writes, self._uses = defaultdict(list), defaultdict(list)  # positions by tensor
        boundary, end = ends
        first, body, last = recorded(recorder, slice(boundary))
        self._append(first + body)
        self._append(last, in_order=True)
        self._boundary = len(self._placed) - 0.5
        first, body, last = recorded(recorder, slice(boundary, end))
        self._append(first, in_order=True)
        self._append(body)
        self._append(last, in_order=True)
        self._end = len(self._placed) - 0.1  # also behind what is handed out at the boundary
        first, body, last = recorded(recorder, slice(end, None))
        self._append(first, in_order=True)
        self._append(body + last)

    def ordered(self):
        """Returns all ops, in order. No plan moves those with `in_order` past each other."""
        if not self._placed:  # a graph of views of its inputs
            return [self._operation("nothing", [], [], lambda tensor_of, is_repeat: lambda iteration: None)]
        order = Order(self._recorder.storages)
        return [order.next(op) if in_order else op for _, op, in_order in self._sorted()]

    def _sorted(self):
        return sorted(self._placed, key=itemgetter(0))

    def handed(self, name):
        """Returns the views that are handed out as "results", "updates" or "gradients"."""
        return self._handed[name]

    def pause(self, tangents):
        """Adds the op that waits between the passes, where any result gets a gradient."""
        views = [(k, self._recorder.view(x)) for k, x in enumerate(tangents) if x is not None]
        views = [(k, view) for k, view in views if view.tensor is not None]
        if not views:
            return

        device = self._recorder.measure.device

        def bound(tensor_of, is_repeat):
            targets = [(k, placed(view, tensor_of)) for k, view in views]

            def run(iteration):
                if not is_repeat:
                    iteration.pause("backward")
                for k, target in targets:
                    _copy(device, iteration.tangents[k], target)

            return run

        writes = [view.tensor for _, view in views]
        op = self._operation("backward", [], writes, bound, repeatable=True)
        self._place(self._boundary, op, in_order=True)

    def hand_out(self, name, to, views, before_pause=False):
        """Adds ops that copy views, each just after its last write: in the forward pass, or at all."""
        self._handed[to] = views
        copies = []
        for k, view in enumerate(views):
            if view is None or view.tensor is None:
                continue
            writes = self._writes[view.tensor]
            if before_pause:
                last = max((w for w in writes if w < self._boundary), default=self._boundary - 0.4)
            else:
                last = max([self._boundary, *writes])
            copies.append(_Copy(f"{name}.{k}", view, lambda i, k=k: getattr(i, to)[k], last + 0.25))
        self._place_copies(to, copies, in_order=True)

    def take(self, given, updated):
        """Adds ops that copy inputs, each just before its first use."""
        fixed, written = [], []
        for k, fake in enumerate(given):
            view = self._recorder.view(fake) if _is_tensor(fake) else None
            uses = self._uses[view.tensor] if view is not None else []
            if uses and view.tensor is not None:
                name = f"take {self._recorder.storages[view.tensor].name}"
                copy = _Copy(name, view, lambda i, k=k: i.input(k), min(uses) - 0.25)
                (written if updated[k] else fixed).append(copy)
        self._place_copies("take inputs", fixed, into=True, repeatable=True)
        self._place_copies("take buffers", written, into=True)

    def update(self, update):
        """Adds the op that waits for the optimizer's step, and those that copy for it."""
        storages = self._recorder.storages
        storages.append(Storage("step", 1, "temporary"))
        token = len(storages) - 1

        def wait(tensor_of, is_repeat):
            return lambda iteration: iteration.pause("update")

        waits = self._operation("step", [], [token], wait)
        waits.may_end = True
        self._place(self._end, waits, in_order=True)
        rates = [
            _Copy(f"lr.{k}", view, lambda i, k=k: i.rates[k], self._after_end(view))
            for k, view in enumerate(update.rates)
        ]
        parameters = {k: view for k, view in update.parameters.items() if view.tensor is not None}  # with elements
        takes = []
        for k, view in parameters.items():
            gradient = update.gradients[k]
            takes += [
                _Copy(f"take {k} again", view, lambda i, k=k: i.update[k][0], self._after_end(view)),
                _Copy(f"take gradient.{k}", gradient, lambda i, k=k: i.update[k][1], self._after_end(gradient)),
            ]
        self._place_copies("rates", rates, into=True, repeatable=True, after=[token])
        self._place_copies("take parameters and gradients", takes, into=True, repeatable=True, after=[token])
        last = lambda view: max(self._writes[view.tensor]) + 0.25
        written = [
            _Copy(f"parameter.{k}", view, lambda i, k=k: i.update[k][0], last(view))
            for k, view in parameters.items()
        ]
        self._place_copies("parameters", written)
        self._write_states_after(token)

    def _write_states_after(self, token):
        """Has no op of the update write a state before there is a token: the iteration may end at the wait for it."""
        later = {token}
        for op in (op for position, op, _ in self._sorted() if position > self._end):
            if later.isdisjoint(op.reads) and any(self._recorder.storages[t].kind == "state" for t in op.writes):
                op.reads = [*op.reads, token]
            if not later.isdisjoint(op.reads):
                later.update(op.writes)

    def _after_end(self, view):
        """Returns the position just before the first use of a tensor of the update."""
        return max(self._end, min(self._uses[view.tensor], default=0) - 0.25)

    def _append(self, ops, in_order=False):
        for op in ops:
            self._place(len(self._placed), op, in_order)

    def _place(self, position, op, in_order=False):
        self._placed.append((position, op, in_order))
        for tensor in op.writes:
            self._writes[tensor].append(position)
        for tensor in (*op.reads, *op.writes):
            self._uses[tensor].append(position)

    def _place_copies(self, name, copies, into=False, after=(), repeatable=False, in_order=False):
        """Adds an op for each copy out of the plan, or `into` it. One op makes all small copies: the first time that
        one of them is needed, or when all can be made."""
        storages = self._recorder.storages
        views = {k: copy.view for k, copy in enumerate(copies) if not copy.view.is_host_number}
        nbytes = {k: storages[view.tensor].nbytes for k, view in views.items()}
        small = _small(nbytes, self._most_small_bytes)
        groups = [[copy] for k, copy in enumerate(copies) if k not in small]
        groups += [[copies[k] for k in small]] if small else []
        for group in groups:
            positions = [copy.position for copy in group]
            op = self._copies(group[0].name if len(group) == 1 else f"{name} ({len(group)} small)", group, into, after)
            # A repeat would read all tensors again, some of which the caller may have written.
            op.repeatable = repeatable and len(group) == 1
            self._place(min(positions) if into else max(positions), op, in_order)

    def _copies(self, name, copies, into, after):
        """Returns the op that copies views into tensors of the caller, or these into the views."""
        device, outside = self._recorder.measure.device, [copy.outside for copy in copies]

        def bound(tensor_of, is_repeat):
            inside = [placed(copy.view, tensor_of) for copy in copies]

            def run(iteration):
                theirs = [tensor(iteration) for tensor in outside]
                sources, targets = (theirs, inside) if into else (inside, theirs)
                if len(copies) == 1:
                    _copy(device, sources[0], targets[0])
                else:
                    device.copy_each(*zip(*map(shared_once, sources, targets)))

            return run

        tensors = unique(copy.view.tensor for copy in copies)
        reads, writes = (after, tensors) if into else (tensors, [])
        return self._operation(name, [*reads], writes, bound, least_ns=LEAST_NS * len(copies))

    def _operation(self, name, reads, writes, bound, repeatable=False, least_ns=LEAST_NS):
        nbytes = sum(self._recorder.storages[t].nbytes for t in (*reads, *writes))
        time_ns = max(least_ns, nbytes * 10**9 // self._copied_bytes_per_s)
        costs = Measured(time_ns, 0, draws=False, repeats=repeatable)
        return Operation(name, reads, writes, bound, costs, repeatable)


def _small(nbytes, most_bytes):
    """Returns the places of the smallest tensors, given the bytes of each place: as many as take `most_bytes` together,
    or none if only one does."""
    small = []
    for place in sorted(nbytes, key=nbytes.get):
        most_bytes -= nbytes[place]
        if most_bytes < 0 or nbytes[place] > SMALL_BYTES:
            break
        small.append(place)
    return sorted(small) if len(small) > 1 else []


def _gradients(results, tangents, given):
    """Returns the gradient of each input, None where it has none."""
    pairs = [(r, t) for r, t in zip(results, tangents) if t is not None]
    wanted = [k for k, x in enumerate(given) if _is_tensor(x) and x.requires_grad]
    gradients = [None] * len(given)
    if pairs and wanted:
        results, tangents = zip(*pairs)
        inputs = [given[k] for k in wanted]
        found = torch.autograd.grad(results, inputs, tangents, allow_unused=True)
        for k, gradient in zip(wanted, found):
            gradients[k] = gradient
    return gradients


def _fake(recorder, name, like, strides):
    """Returns a fake tensor that the caller supplies."""
    with recorder.fake_mode, torch.no_grad():
        fake = torch.empty_strided(like.shape, strides, dtype=like.dtype, device=like.device)
    recorder.adopt(fake, "given", name)
    return fake


def _copy(device, source, target):
    """Copies elements that share memory once."""
    if isinstance(target, Number):
        target.copy_(source)
        return
    source = value_of(source)
    device.copy(*shared_once(source, target))


def _are_same(values, captured, counted):
    """Returns whether a parameter has the states that were captured, the same tensors, beside what is counted."""
    return values.keys() - counted == captured.keys() and all(values[n] is v for n, v in captured.items())


def _is_tensor(value):
    return isinstance(value, torch.Tensor)

"""The backend "spillway" of `torch.compile`: runs graphs within a budget, with and without
gradients."""

import itertools
import math
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from hashlib import sha256
from typing import Any

import torch

from spillway import InfeasibleError

from .devices import device_of, indexed
from .errors import CaptureError, name_lines_of
from .inferring import Inferring, States, WithStates
from .joint import Passes
from .layouts import kept_strides
from .measuring import Measurements
from .moving import OnDevice
from .optimizing import optimizer_of
from .step import PLAN_OPTIONS
from .training import Training

MAX_SHAPES = 8
MOST_NAMED = 3  # tensors of a batch in a message
SMALL_GRAPH_BYTES = 1 << 20
OPTIONS = (*PLAN_OPTIONS, "device")

# By identity of the options.
_DEVICES: weakref.WeakValueDictionary[int, "_Device"] = weakref.WeakValueDictionary()


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Returns the function that runs a graph within a plan. `options` are those of `Step.plan`, and a `device`, such
    as "cuda", where the graph of a model on the processor runs.

    The function captures and plans when a shape first comes.
    """
    _refuse_others(options or {})
    device = _DEVICES.get(id(options))
    if device is None:
        device = _DEVICES[id(options)] = _Device(options)
    return _Graph(graph, inputs, device)


def _refuse_others(options):
    """Refuses options that do not exist."""
    for name in options:
        if name not in OPTIONS:
            close = get_close_matches(name, OPTIONS, 1)
            meant = f", perhaps {close[0]!r}" if close else ""
            raise ValueError(f"{name!r} is no option of spillway{meant}: they are {', '.join(OPTIONS)}")


class _Device:
    """What the graphs of one `torch.compile` share: a budget, within which several plans may have memory at once."""

    def __init__(self, options):
        self._given = options  # which keeps its identity
        self._options = dict(options or {})
        device = self._options.pop("device", None)
        self.torch_device = None if device is None else indexed(device)  # if the model is elsewhere
        self.lock = threading.RLock()
        self._users = []  # weak references to the plans that may have memory; the last used comes last
        self._plans = weakref.WeakKeyDictionary()  # by step, with the digests of their graphs
        self._most_bytes = math.inf  # of all plans at once
        self._measurements = {}  # by the devices of a graph's inputs
        budget = str(self._options.get("budget"))
        # A percentage of what a graph needs, or the least: each model has a budget of its own.
        self._is_relative = budget == "min" or budget.endswith("%")

    def measurements(self, inputs):
        """Returns the measurements on the device of a graph's inputs, or on the device that the options name. Single
        numbers may be on the processor."""
        tensors = [x for x in inputs if isinstance(x, torch.Tensor)]
        tensors = [x for x in tensors if x.dim()] or tensors
        places = frozenset(x.device for x in tensors)
        if self.torch_device is not None and any(place.type != "cpu" for place in places):
            raise CaptureError(
                f"a model with device={str(self.torch_device)!r} in its options gets its batches on the processor, but"
                f" a tensor is on {max(places, key=str)}: move it, or move the model and leave out the option"
            )
        if places not in self._measurements:
            self._measurements[places] = Measurements(device_of(tensors, self.torch_device))
        return self._measurements[places]

    def compiled(self, step, user, **changed):
        """Returns a step that is compiled within the budget, with some changed options, for a user, which gets
        its `plan`."""
        user.plan = self._planned(step, {**self._options, **changed})
        self.make_room(user)
        return step.compile(user.plan)

    def _planned(self, step, options):
        """Returns a plan for a step: that of an equal graph, which an equal model has, if there is one."""
        digest = sha256(step.graph_for(options.get("host")).to_json()).digest()
        plan = next((plan for its, plan in self._plans.values() if its == digest), None)
        plan = self._new_plan(step, options) if plan is None else plan
        self._plans[step] = digest, plan
        return plan

    def _new_plan(self, step, options):
        try:
            plan = step.plan(**options)
        except InfeasibleError as error:
            # Graphs between two breaks may be so small that each tensor's last chunk counts more than the tensor.
            if not self._is_relative or error.min_feasible_bytes > SMALL_GRAPH_BYTES:
                raise
            plan = step.plan(**options | {"budget": "min"})
        if options.get("budget") is None:
            # The model, its gradients and its batches have the other half, unless they are elsewhere.
            are_elsewhere = self.torch_device is not None and self.torch_device.type != "cpu"
            self._most_bytes = plan.machine.device_bytes // (1 if are_elsewhere else 2)
            if plan.budget_bytes > self._most_bytes:
                plan = step.plan(**options | {"budget": self._most_bytes})
        elif not self._is_relative:
            self._most_bytes = plan.budget_bytes
            if plan.in_core_peak_bytes < plan.budget_bytes:
                # A session takes its whole budget.
                in_core = step.plan(**options | {"budget": None})
                plan = min(plan, in_core, key=lambda plan: plan.budget_bytes)
        return plan

    def use(self, user):
        """Gives a user memory. A user has its `plan`, the identities of the `states` that it writes, and
        those of the `tensors` of its model. It `waits` if a backward pass is to come."""
        if user not in self._alive():
            self.make_room(user)
        others = [one for one in self._alive() if one is not user]
        self._users = [weakref.ref(one) for one in (*others, user)]

    def make_room(self, user=None):
        """Takes memory back from the users that do not fit beside a new user, or from all users without a new
        one. Users that wait keep their memory first, and then the users that were used last."""
        users, kept = self._alive(), []
        for other in sorted(reversed(users), key=lambda one: not one.waits):
            if user is not None and self._fit([user, *kept, other]):
                kept.append(other)
            else:
                other.release()
        self._users = [weakref.ref(one) for one in users if one in kept]

    def has_room(self, user):
        """Returns whether a user may have memory beside all users that wait. If it waits itself, this asks for an
        equal user."""
        return self._fit([user, *self._waiting()])

    def is_full(self):
        """Returns whether no other plan of a model may have memory beside all users that wait."""
        return self._is_relative or sum(one.plan.budget_bytes for one in self._waiting()) >= self._most_bytes

    def _waiting(self):
        return [one for one in self._alive() if one.waits]

    def _alive(self):
        return [one for one in (reference() for reference in self._users) if one is not None]

    def _most_mappings(self):
        return min(one.device.most_mappings_at_once for one in self._measurements.values())

    def _fit(self, users):
        """Returns whether some users may have memory at once."""
        states = [state for one in users for state in one.states]
        models = [one.tensors for one in users if self._is_relative]
        return (
            len(set(states)) == len(states)
            and len(set(models)) == len(models)
            and sum(one.plan.budget_bytes for one in users) <= self._most_bytes
            and sum(one.plan.mappings for one in users) <= self._most_mappings()
        )


class _Graph:
    """A graph of `torch.compile`, with the plans for each of its shapes.

    TorchDynamo has one graph for all equal models. What holds states is kept for the tensors of each.
    """

    def __init__(self, graph, inputs, device):
        self._graph = graph if device.torch_device is None else OnDevice(graph, device.torch_device)
        name_lines_of(self._graph)
        self._device = device
        self._names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        self._own = [k for k, x in enumerate(inputs) if hasattr(x, "_dynamo_static_input_type")]
        self._passes = None
        self._inferences = {}  # by the identities of parameters and buffers
        self._trainings = {}  # those without an optimizer, which hold no states

    def __call__(self, *inputs):
        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
            return self._train(inputs)
        with self._device.lock:
            return self._infer(inputs)

    def _infer(self, inputs):
        states, inferences = self._inferences_of([inputs[k] for k in self._own])
        inference, shapes = self._planned(inferences, inputs)
        if inference is None:
            own = dict(zip(self._own, states.tensors))
            module = WithStates(self._graph, self._names, own, inputs)
            tensors = self._tensors(inputs)
            inference = inferences[shapes] = Inferring(module, inputs, self._device, tensors)
        self._device.use(inference)
        return inference(inputs)

    def _inferences_of(self, tensors):
        """Returns the states of a model, and the inferences with these."""
        key, kept = tuple(map(id, tensors)), self._inferences
        if key not in kept or not kept[key][0].are(tensors):
            kept[key] = States(tensors, lambda _: kept.pop(key, None)), {}
        return kept[key]

    def _tensors(self, inputs):
        """Returns the identities of a model's parameters and buffers, or of the graph if there are none."""
        return tuple(id(inputs[k]) for k in self._own) or id(self)

    def _train(self, inputs):
        with self._device.lock:
            if self._passes is None:
                measurements, moves = self._device.measurements(inputs), isinstance(self._graph, OnDevice)
                self._passes = Passes(self._graph, self._names, self._own, measurements, moves)
            optimizer = optimizer_of(inputs[k] for k in self._own if inputs[k].requires_grad)
            trainings = self._trainings_of(inputs, optimizer)
            training, shapes = self._planned(trainings, inputs)
            if training is None:
                tensors = self._tensors(inputs)
                training = trainings[shapes] = Training(self._passes, optimizer, self._device, tensors)
        return training(inputs)

    def _trainings_of(self, inputs, optimizer):
        """Returns the trainings with an optimizer, or None, for those of the inputs that require gradients.
        TorchDynamo compiles no graph anew for others in PyTorch 2.11."""
        kept = self._trainings
        if optimizer is not None:
            kept = optimizer.joining.trainings(self, [inputs[k] for k in self._own])
        pattern = tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        trainings = kept.setdefault(pattern, {})
        if len(kept) > MAX_SHAPES:
            del kept[next(iter(kept))]
        return trainings

    def _planned(self, by_shapes, inputs):
        """Returns what there is for the shapes of inputs, or None, and the shapes."""
        shapes = tuple(
            (x.shape, kept_strides(x), x.requires_grad) if isinstance(x, torch.Tensor) else x for x in inputs
        )
        if shapes not in by_shapes and len(by_shapes) == MAX_SHAPES:
            tensors = (x for k, x in enumerate(inputs) if k not in self._own and isinstance(x, torch.Tensor))
            batch = ", ".join(str(tuple(x.shape)) for x in itertools.islice(tensors, MOST_NAMED))
            raise ValueError(
                f"a batch of {batch} would be one shape more than the {MAX_SHAPES} that a graph may have: pad"
                " batches to fewer shapes; if a cache grows with each token, preallocate it (`generate` of"
                ' transformers: cache_implementation="static")'
            )
        return by_shapes.get(shapes), shapes

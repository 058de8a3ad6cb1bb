"""The backend "spillway" of `torch.compile`: runs graphs within a budget, with and without
gradients."""

import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from difflib import get_close_matches
from typing import Any

import torch

from .capturing import capture_inference
from .joint import Passes, plain_strides
from .optimizing import optimizer_of
from .step import PLAN_OPTIONS
from .training import Training

MAX_SHAPES = 8

# By identity of the options.
_DEVICES: weakref.WeakValueDictionary[int, "_Device"] = weakref.WeakValueDictionary()


def compile_graph(
    graph: torch.fx.GraphModule, inputs: Sequence[Any], *, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Returns the function that runs a graph within a plan. `options` are those of `Step.plan`.

    The function captures and plans when a shape first comes. It raises `CaptureError` for a graph
    that writes into a tensor of its caller.
    """
    _refuse_others(options or {})
    device = _DEVICES.get(id(options))
    if device is None:
        device = _DEVICES[id(options)] = _Device(options)
    return _Graph(graph, inputs, device)


def _refuse_others(options):
    """Refuses options that a plan does not have."""
    for name in options:
        if name not in PLAN_OPTIONS:
            close = get_close_matches(name, PLAN_OPTIONS, 1)
            meant = f", perhaps {close[0]!r}" if close else ""
            raise ValueError(f"{name!r} is no option of spillway{meant}: they are {', '.join(PLAN_OPTIONS)}")


class _Device:
    """What the graphs of one `torch.compile` share: one session at a time has memory."""

    def __init__(self, options):
        self._options = options  # which keeps its identity
        self.lock = threading.RLock()
        self._user = None

    def compiled(self, step):
        """Returns a step that is compiled within the budget. No session has memory meanwhile."""
        self.use(None)
        return step.compile(step.plan(**self._options or {}))

    def use(self, user):
        """Has all but one of the plans give their memory back."""
        if self._user not in (None, user):
            self._user.release()
        self._user = user


class _Graph:
    """A graph of `torch.compile`, with the plans for each of its shapes."""

    def __init__(self, graph, inputs, device):
        self._graph, self._device = graph, device
        self._names = [node.name for node in graph.graph.find_nodes(op="placeholder")]
        self._own = {k for k, x in enumerate(inputs) if hasattr(x, "_dynamo_static_input_type")}
        self._passes = None
        self._inferences, self._trainings = {}, {}  # the trainings by what requires gradients, too

    def __call__(self, *inputs):
        if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
            return self._train(inputs)
        with self._device.lock:
            return self._infer(inputs)

    def _infer(self, inputs):
        inference, shapes = self._planned(self._inferences, inputs)
        if inference is None or not inference.has(inputs):
            module = _WithStates(self._graph, self._names, self._own, inputs)
            inference = self._inferences[shapes] = _Inference(module, inputs, self._device)
        self._device.use(inference)
        return inference(inputs)

    def _train(self, inputs):
        with self._device.lock:
            optimizer = optimizer_of(inputs[k] for k in self._own if inputs[k].requires_grad)
            if self._passes is None or not self._passes.serve(optimizer):
                self._passes = Passes(self._graph, self._names, self._own, optimizer)
                self._trainings = {}
            trainings = self._trainings_of(inputs)
            training, shapes = self._planned(trainings, inputs)
            if training is None:
                training = trainings[shapes] = Training(self._passes, self._device)
        return training(inputs)

    def _trainings_of(self, inputs):
        """Returns the trainings for those of the inputs that require gradients. TorchDynamo compiles no graph
        anew for others in PyTorch 2.11."""
        pattern = tuple(isinstance(x, torch.Tensor) and x.requires_grad for x in inputs)
        trainings = self._trainings.setdefault(pattern, {})
        if len(self._trainings) > MAX_SHAPES:
            del self._trainings[next(iter(self._trainings))]
        return trainings

    def _planned(self, by_shapes, inputs):
        """Returns what there is for the shapes of inputs, or None, and the shapes."""
        shapes = tuple(
            (x.shape, plain_strides(x)) if isinstance(x, torch.Tensor) else x for x in inputs
        )
        if shapes not in by_shapes and len(by_shapes) == MAX_SHAPES:
            tensors = (x for k, x in enumerate(inputs) if k not in self._own)
            batch = tuple(tuple(x.shape) for x in tensors if isinstance(x, torch.Tensor))
            raise ValueError(
                f"{batch} would be one shape more than the {MAX_SHAPES} that a graph may have: pad"
                " batches to fewer shapes"
            )
        return by_shapes.get(shapes), shapes


class _Inference:
    """A graph without gradients within a plan. It follows what others do to the states between
    calls."""

    def __init__(self, module, inputs, device):
        device.use(None)
        self._module = module
        batch = module.batch(inputs)
        self._step = capture_inference(module, batch, lambda module, batch: module(*batch))
        self._compiled = device.compiled(self._step)

    def has(self, inputs):
        return self._module.has(inputs)

    def __call__(self, inputs):
        results = self._compiled(self._module.batch(inputs))
        self._compiled.hand_back()
        return results

    def release(self):
        self._compiled.close()


class _WithStates(torch.nn.Module):
    """A graph as a module, with the parameters and buffers among its inputs as its own, and its
    sizes as constants."""

    def __init__(self, graph, names, own, inputs):
        super().__init__()
        self.graph = graph
        self._names = names
        self._fixed = {}  # states and sizes by the positions of inputs
        for k, value in enumerate(inputs):
            if k in own:
                is_parameter = isinstance(value, torch.nn.Parameter)
                register = self.register_parameter if is_parameter else self.register_buffer
                register(names[k], value)
            if k in own or not isinstance(value, torch.Tensor):
                self._fixed[k] = value

    def has(self, inputs):
        """Returns whether the states among a graph's inputs are those of this module."""
        return all(inputs[k] is v for k, v in self._fixed.items() if isinstance(v, torch.Tensor))

    def batch(self, inputs):
        """Returns the inputs that are neither states nor sizes."""
        return [value for k, value in enumerate(inputs) if k not in self._fixed]

    def forward(self, *batch):
        given = iter(batch)
        return self.graph(*(self._input(k, given) for k in range(len(self._names))))

    def _input(self, k, given):
        if k not in self._fixed:
            return next(given)
        return getattr(self, self._names[k], self._fixed[k])


"""The backend "spillway" of `torch.compile`: runs graphs without gradients within a budget."""

import torch

from .capturing import capture_inference
from .errors import CaptureError


def compile_graph(graph, inputs, *, options=None):
    """Returns the function that runs a graph within a plan. `options` are those of `Step.plan`.

    Raises `CaptureError` for a graph that needs gradients, that takes sizes besides tensors, or
    that writes into a tensor of its caller.
    """
    if torch.is_grad_enabled() and any(getattr(x, "requires_grad", False) for x in inputs):
        raise CaptureError(
            "torch.compile hands over forward, backward and optimizer separately, but a plan is"
            " for a whole training step: use spillway.torch.capture(model, loss_fn, optimizer,"
            " example_batch). For inference, call the model under torch.no_grad()"
        )
    if not all(isinstance(x, torch.Tensor) for x in inputs):
        raise CaptureError(
            "a plan is for one shape: pass dynamic=False to torch.compile, so that it compiles"
            " the model for each shape"
        )
    return _Planned(graph, inputs, options or {})


class _Planned:
    """A graph within a plan. It follows what others do to the states between calls."""

    def __init__(self, graph, inputs, options):
        self._graph, self._options = graph, options
        self._capture(inputs)

    def __call__(self, *inputs):
        if not self._module.has(inputs):
            self._capture(inputs)
        versions = self._state_versions()
        if versions != self._versions:
            self._compiled.load()
        results = self._compiled(self._module.batch(inputs))
        self._compiled.sync()
        self._versions = versions
        return results

    def _capture(self, inputs):
        self._module = _WithStates(self._graph, inputs)
        batch = self._module.batch(inputs)
        self._step = capture_inference(self._module, batch, lambda module, batch: module(*batch))
        for storage in self._step.storages:
            if storage.kind == "given" and storage.writes:
                raise CaptureError(
                    "the model writes into a tensor that it is given: copy it first, or use"
                    " spillway.torch.capture_inference"
                )
        self._compiled = self._step.compile(self._step.plan(**self._options))
        self._versions = self._state_versions()

    def _state_versions(self):
        """Returns what differs from before where PyTorch may have written into a state."""
        states = [s.value for s in self._step.storages if s.kind == "state"]
        return [object() if t.is_inference() else t._version for t in states]


class _WithStates(torch.nn.Module):
    """A graph as a module, with the parameters and buffers among its inputs as its own."""

    def __init__(self, graph, inputs):
        super().__init__()
        self.graph = graph
        self._own = {}  # states by the positions of inputs
        for k, (node, value) in enumerate(zip(graph.graph.find_nodes(op="placeholder"), inputs)):
            if hasattr(value, "_dynamo_static_input_type"):
                self._own[k] = value
                is_parameter = isinstance(value, torch.nn.Parameter)
                register = self.register_parameter if is_parameter else self.register_buffer
                register(node.name, value)
        self._inputs = [n.name for n in graph.graph.find_nodes(op="placeholder")]

    def has(self, inputs):
        """Returns whether the states among a graph's inputs are those of this module."""
        return all(inputs[k] is value for k, value in self._own.items())

    def batch(self, inputs):
        """Returns the inputs that are no states."""
        return [value for k, value in enumerate(inputs) if k not in self._own]

    def forward(self, *batch):
        given = iter(batch)
        inputs = [
            getattr(self, name) if k in self._own else next(given)
            for k, name in enumerate(self._inputs)
        ]
        return self.graph(*inputs)

"""Runs a graph of torch.compile without gradients."""

import torch
from torch.utils._pytree import tree_flatten
from torch.utils.weak import WeakIdRef

from .capturing import Inference
from .errors import WrittenBatchError
from .layouts import kept_strides, laid_out
from .results import Results, refuse_overlaps


class Inferring:
    """A graph within a plan, for one shape. It follows what others do to the states between calls."""

    states = ()  # it hands them back at once
    waits = False

    def __init__(self, module, inputs, device, tensors):
        device.make_room()
        self._module, self.tensors = module, tensors
        self._source = _GraphInference(module, device.torch_device, device.measurements(inputs))
        batch = module.batch(inputs)
        try:
            step = self._source.capture(batch)
        except WrittenBatchError as error:
            module.written = error.numbers
            step = self._source.capture(batch)
        self._written = module.positions_of_written(step.storages)
        # An inference has no optimizer, which might run on the host.
        self._compiled = device.compiled(step, self, host=None)

    def __call__(self, inputs):
        """Returns what the graph does, and gives the inputs that it writes their new values."""
        refuse_overlaps(inputs, self._written, self._module.names, self._module.own)
        batch = self._module.batch(inputs)
        handed, written = self._compiled(batch)
        self._compiled.hand_back()
        for k, value in zip(self._module.written, written):
            batch[k].copy_(value)
        return self._source.assembled(handed, inputs)

    def release(self):
        self._compiled.close()


class _GraphInference(Inference):
    """An inference that returns the results that are handed out, and the new values of the batch's tensors that the
    graph writes."""

    strides_of = staticmethod(kept_strides)

    def __init__(self, module, device, measurements):
        super().__init__(module, lambda module, batch: module(*batch), device, measurements)

    def _record(self, example_batch, previous):
        recorded = super()._record(example_batch, previous)
        results, written = recorded.returned
        returned, structure = tree_flatten(results)
        returned = list(map(recorded.recorder.known, returned))
        batch = list(recorded.batch)
        for k, copy in zip(self.model.written, written):
            batch[k] = copy
        given = map(recorded.fakes.known, self.model.inputs(batch))
        self._results = Results(recorded.recorder, self.model.inputs(example_batch), list(given), returned, structure)
        is_handed = lambda x, view: view is not None or not isinstance(x, torch.Tensor)
        handed = [x if is_handed(x, view) else None for x, view in zip(returned, self._results.views())]
        recorded.returned = handed, written
        return recorded

    def assembled(self, handed, inputs):
        """Returns what the graph returns, given the results that were handed out."""
        return self._results.assembled(handed, inputs)


class States:
    """The parameters and buffers of a model. `tensors` share the memory and the versions of the model's own, which
    they do not keep alive, and require gradients as these do, by which PyTorch chooses ops even without gradients.
    `forget` is called if one of these is no more."""

    def __init__(self, own, forget):
        self._own = [WeakIdRef(x, forget) for x in own]
        self.tensors = [x.detach().requires_grad_(x.requires_grad) for x in own]

    def are(self, own):
        """Returns whether these are a model's parameters and buffers, in the same memory."""
        return all(
            its() is x and mine.data_ptr() == x.data_ptr() and mine.requires_grad == x.requires_grad
            for its, mine, x in zip(self._own, self.tensors, own)
        )


class WithStates(torch.nn.Module):
    """A graph as a module, with some inputs, by their positions, as its `own` states, and its sizes as
    constants. The graph writes copies of the `written` tensors of a batch, which are returned too."""

    def __init__(self, graph, names, own, inputs):
        super().__init__()
        self.graph = graph
        self.names = names
        self.own, self.written = frozenset(own), ()
        self._fixed = own | {k: x for k, x in enumerate(inputs) if not isinstance(x, torch.Tensor)}
        for k, value in own.items():
            self.register_buffer(names[k], value)

    def batch(self, inputs):
        """Returns the inputs that are neither states nor sizes."""
        return [value for k, value in enumerate(inputs) if k not in self._fixed]

    def inputs(self, batch):
        """Returns all inputs."""
        given = iter(batch)
        return [
            getattr(self, name, self._fixed[k]) if k in self._fixed else next(given)
            for k, name in enumerate(self.names)
        ]

    def positions_of_written(self, storages):
        """Returns the positions of the inputs that the graph writes."""
        states = {s.value.untyped_storage()._cdata for s in storages if s.kind == "state" and s.writes}
        own = {k for k in self.own if self._fixed[k].untyped_storage()._cdata in states}
        batch = self.batch(range(len(self.names)))
        return own.union(batch[k] for k in self.written)

    def forward(self, *batch):
        batch = [_copied(x) if k in self.written else x for k, x in enumerate(batch)]
        return self.graph.forward(*self.inputs(batch)), [batch[k] for k in self.written]


def _copied(x):
    return laid_out(x, x.stride()).requires_grad_(x.requires_grad)

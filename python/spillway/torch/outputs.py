"""What an inference returns as outputs of its graph, whose values each iteration leaves on the host."""

from dataclasses import replace

import torch

from .layouts import fill
from .measuring import Measured
from .memory import bytes_of, form, viewed
from .operations import Operation
from .recording import Storage


class Outputs:
    """The outputs of a graph, and the results that are read from each.

    A temporary of which a result is at least half becomes an output itself. Of others, and of states and
    batches, an op copies what is returned to an output.
    """

    def __init__(self, storages, results, name):
        self.storages = storages
        self.copies = []  # the ops that copy, which are the last of an iteration
        self._results = {}  # by output: the positions of its results, and their views of it
        views = [(k, view) for k, view in enumerate(results) if view and view.tensor is not None]
        for _, view in views:
            storage = storages[view.tensor]
            if storage.kind == "temporary" and 2 * view.nbytes >= storage.nbytes:
                storage.kind = "output"
        for k, view in views:
            if storages[view.tensor].kind != "output":
                view = self._copied(f"{name}.{k}" if k else name, view)
            self._results.setdefault(view.tensor, []).append((k, view))

    def _copied(self, name, view):
        """Adds an output for a result, and returns the view of it."""
        self.storages.append(Storage(name, view.nbytes, "output"))
        stride = torch.empty_like(form(view)).stride()
        target = replace(view, tensor=len(self.storages) - 1, stride=stride, offset=0)

        def bind(tensor_of, is_repeat):
            source, copy = tensor_of(view), tensor_of(target)
            return lambda outside: copy.copy_(source)

        costs = Measured(max(view.nbytes, 1000), 0, draws=False, repeats=False)
        self.copies.append(Operation(name, [view.tensor], [target.tensor], bind, costs))
        return target

    def read(self, session, results):
        """Reads the results of the last iteration."""
        for output, views in self._results.items():
            nbytes = self.storages[output].nbytes
            is_whole = lambda k, view: view.fills(nbytes) and view.stride == results[k].stride()
            whole = next((k for k, view in views if is_whole(k, view)), None)
            memory = torch.empty(nbytes, dtype=torch.uint8) if whole is None else results[whole]
            session.read_output(output, bytes_of(memory))
            source = torch.from_numpy(bytes_of(memory))
            for k, view in views:
                if k != whole:
                    fill(results[k], viewed(source, view))

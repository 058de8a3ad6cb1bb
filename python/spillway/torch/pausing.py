"""Runs the passes of a graph, and the step of an optimizer that has joined them, as one iteration that
pauses between them."""

import threading
from queue import SimpleQueue

import torch

from .collectives import UnderWay
from .errors import CaptureError


class Iteration:
    """One iteration of a joint step, in a thread of its own.

    The thread waits after the forward pass until the backward pass begins, and after that until the
    optimizer steps, or until the iteration is abandoned. What the iteration exchanges with its caller
    are attributes, as for other steps.
    """

    rates = ()
    generator = None  # what the last pass has made of the generator's state
    tangents = None
    update = None  # the parameters that the optimizer updates, by their position, and their gradients
    only = None  # the ops that run from now on, if not all do

    def __init__(self, step, compiled, inputs, versions):
        self._inputs, self._versions = inputs, versions
        self._step = step
        self.results, self.updates = step.memory("results"), step.memory("updates")
        self.gradients = None
        self.under_way = UnderWay()
        self._reports, self._orders = SimpleQueue(), SimpleQueue()
        self.waits_for = None  # "backward" or "update"
        self._thread = threading.Thread(
            target=self._run, args=(compiled,), name="spillway iteration", daemon=True
        )

    def forward(self):
        """Runs the forward pass. Returns the results, and the new values of written inputs."""
        self._go_on()
        results, updates = self.results, self.updates
        self.results = self.updates = None
        return results, updates

    def backward(self, tangents):
        """Runs the backward pass with the gradients of the results. Returns those of the inputs."""
        self.tangents, self.gradients = tangents, self._step.memory("gradients")
        self._go_on()
        gradients = self.gradients
        self.gradients = self.tangents = None
        return gradients

    def step(self, update, rates):
        """Runs the optimizer's step, with its learning rates: after the passes if the iteration waits
        there, and without them otherwise."""
        self.update, self.rates, self.only = update, rates, self._step.update_ops
        self._go_on()
        self.update = None

    def abandon(self):
        """Has the thread end where it waits. The session gives its memory back, unless it holds states."""
        self.waits_for = None
        self._orders.put(False)

    def end(self):
        """Abandons the iteration, if it has not ended, and waits until the thread has."""
        self.abandon()
        self._thread.join()

    def pause(self, event):
        """Waits until the backward pass or the update begins; called by the thread."""
        if self.update is not None:
            return
        self.waits_for = event
        self._step.device.lead(self._caller)
        self._reports.put(None)
        if not self._orders.get():
            raise _Abandoned
        self._step.device.follow(self._caller)
        self._use_threads()

    def input(self, k):
        """Returns an input. Raises `CaptureError` where it has been written since the call."""
        value = self._inputs[k]
        if version(value) != self._versions[k]:
            raise CaptureError(
                f"a tensor of shape {tuple(value.shape)} was written between forward and backward,"
                " but the backward pass needs its value: write into it after backward(), or use"
                " spillway.torch.capture"
            )
        return value

    def _go_on(self):
        """Has the thread begin or go on, and waits until it ends or waits again."""
        self.waits_for = None
        self._threads, self._caller = torch.get_num_threads(), self._step.device.stream()
        if self._thread.ident is None:
            self._thread.start()
        else:
            self._orders.put(True)
        error = self._reports.get()
        if error is not None:
            raise error

    def _use_threads(self):
        """Computes with as many threads as the caller, which some results depend on. A new thread
        would begin with another number."""
        torch.set_num_threads(self._threads)

    def _run(self, compiled):
        try:
            self._use_threads()
            self._step.device.follow(self._caller)
            try:
                compiled(self)
            finally:
                self._step.device.lead(self._caller)
        except BaseException as error:
            if not self._step.keeps_states:
                compiled.close()
            self._reports.put(error)
        else:
            self._reports.put(None)
        finally:
            self._inputs = None


class _Abandoned(Exception):
    """Ends the thread of an iteration that nobody waits for."""


def version(value):
    """Returns what changes when a tensor is written."""
    tracked = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if tracked else None

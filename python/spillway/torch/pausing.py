"""Runs forward and backward pass of a graph as one iteration that pauses between them."""

import threading
from queue import SimpleQueue

import torch

from .errors import CaptureError


class Iteration:
    """One iteration of a joint step, in a thread of its own.

    The thread waits after the forward pass until the backward pass begins, or until the iteration
    is abandoned. What the iteration exchanges with its caller are attributes, as for other steps.
    """

    rates = ()
    generator = None  # what the last pass has made of the generator's state
    tangents = None

    def __init__(self, step, compiled, inputs, versions):
        self._inputs, self._versions = inputs, versions
        self._step = step
        self.results, self.updates = step.memory("results"), step.memory("updates")
        self.gradients = None
        self._reports, self._orders = SimpleQueue(), SimpleQueue()
        self.is_paused = False
        self._thread = threading.Thread(
            target=self._run, args=(compiled,), name="spillway iteration", daemon=True
        )

    def forward(self):
        """Runs the forward pass. Returns the results, and the new values of written inputs."""
        self._threads = torch.get_num_threads()
        self._thread.start()
        self._wait()
        results, updates = self.results, self.updates
        self.results = self.updates = None
        return results, updates

    def backward(self, tangents):
        """Runs the backward pass with the gradients of the results. Returns those of the inputs."""
        self.is_paused = False
        self.tangents, self.gradients = tangents, self._step.memory("gradients")
        self._threads = torch.get_num_threads()
        self._orders.put(True)
        self._wait()
        gradients = self.gradients
        self.gradients = self.tangents = self._inputs = None
        return gradients

    def abandon(self):
        """Has the thread end where it waits, and give the memory of the session back."""
        self._orders.put(False)

    def end(self):
        """Abandons the iteration, if it has not ended, and waits until the thread has."""
        self.abandon()
        self._thread.join()
        self.is_paused = False

    def pause(self):
        """Waits until the backward pass begins; called by the thread."""
        self.is_paused = True
        self._reports.put(None)
        if not self._orders.get():
            raise _Abandoned
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

    def _use_threads(self):
        """Computes with as many threads as the caller, which some results depend on. A new thread
        would begin with another number."""
        torch.set_num_threads(self._threads)

    def _wait(self):
        error = self._reports.get()
        if error is not None:
            raise error

    def _run(self, compiled):
        try:
            self._use_threads()
            compiled(self)
        except BaseException as error:
            compiled.close()
            self._reports.put(error)
        else:
            self._reports.put(None)


class _Abandoned(Exception):
    """Ends the thread of an iteration that nobody waits for."""


def version(value):
    """Returns what changes when a tensor is written."""
    tracked = isinstance(value, torch.Tensor) and not value.is_inference()
    return value._version if tracked else None

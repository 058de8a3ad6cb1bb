"""Trains a graph: its two passes, as a function of autograd, and the step of an optimizer that has joined
them. One plan has all."""

import weakref

import torch

from .errors import CaptureError
from .guards import refuse_autocast
from .layouts import plain_strides
from .logs import LOG
from .pausing import Iteration, version
from .supplying import fitting

AGAIN = (
    "a forward pass runs again for its backward pass, since other calls needed the memory of the budget, or other"
    " results get gradients, or it is a second backward pass: with fullgraph=True, torch.compile names what breaks"
    " a model into graphs"
)
MOST = 8  # plans of a graph for one shape, of which the oldest gives way
NO_UPDATE: frozenset[int] = frozenset()


class Training:
    """A graph with gradients, for one shape, and for the parameters of one model where an optimizer has joined:
    a plan for each pattern of gradients, and for each set of parameters that the optimizer updates. Calls at once
    have a session each, as far as the budget has room."""

    turn = 0  # of the last call, among those of all graphs

    def __init__(self, passes, optimizer, device, tensors):
        self._passes, self.device, self._tensors = passes, device, tensors
        self._optimizer = optimizer and weakref.ref(optimizer)
        self._joined = []
        self.pattern = None  # of the last backward pass
        self._updated = None  # the parameters that the last step has updated, by their positions
        self._inputs = None  # those of the last call, which the optimizer's step may follow

    @property
    def optimizer(self):
        """The optimizer that has joined, or None."""
        return self._optimizer and self._optimizer()

    def for_call(self, pattern, inputs):
        """Returns the passes for a pattern and a call, which have the device's memory from now on. Other calls that
        wait keep theirs if the budget has room."""
        joined = next(self._found(pattern, self._updated), None)
        has_room = joined is None or (not joined.waits and self.device.has_room(joined))
        spare = None if has_room else self._spare(pattern, inputs)
        if spare is None:
            return self.joined(pattern, inputs)
        self.device.use(spare)
        return spare

    def _spare(self, pattern, inputs):
        """Returns passes without an update beside all calls that wait, or None if there is no room."""
        if self.device.is_full():
            return None
        spare = min(self._found(pattern, NO_UPDATE), key=lambda one: one.waits, default=None)
        if spare is not None and not self.device.has_room(spare):
            return None
        if spare is not None and not spare.waits:
            return spare
        if len(self._joined) == MOST:
            return None
        return self._new(spare.step if spare else self._passes.capture(inputs, self.optimizer, pattern, NO_UPDATE))

    def joined(self, pattern, inputs, updated=None):
        """Returns the passes for a pattern, and for an update, which have the device's memory from now
        on. Without an update, it is the last one, or a likely one."""
        updated = self._updated if updated is None else updated
        joined = next(self._found(pattern, updated), None)
        if joined is not None and not joined.step.has_current_states():
            joined.release()
            self._joined.remove(joined)
            joined = None
        if joined is None:
            self.device.make_room()
            if len(self._joined) == MOST:
                del self._joined[0]
            joined = self._new(self._passes.capture(inputs, self.optimizer, pattern, updated))
        self.pattern, self._updated = joined.step.pattern, joined.step.updated_parameters
        self.device.use(joined)
        return joined

    def _found(self, pattern, updated):
        """Returns an iterator over the passes for a pattern and an update, the oldest first."""
        is_for = lambda step: (step.pattern, step.updated_parameters) == (pattern, updated)
        return iter(fitting({joined: joined.step for joined in self._joined if is_for(joined.step)}))

    def _new(self, step):
        joined = _Joined(step, self.device, self._tensors)
        self._joined.append(joined)
        return joined

    def positions_of(self, parameters):
        """Removes the parameters that are inputs of the graph from a dict, in which they are by identity,
        and returns their positions."""
        found = ((k, parameters.pop(id(x), None)) for k, x in enumerate(self._inputs))
        return frozenset(k for k, p in found if p is not None)

    def update(self, positions):
        """Runs the optimizer's step for the parameters at some positions."""
        with self.device.lock:
            joined = self.joined(self.pattern, self._inputs, positions)
            joined.update({k: (self._inputs[k], self._inputs[k].grad) for k in positions})

    def __call__(self, inputs):
        """Returns what the graph does."""
        optimizer = self.optimizer
        if optimizer is not None:
            self._inputs = inputs
            optimizer.joining.called(self)
        call = _Call(self, inputs)
        handed = _Run.apply(call, *inputs)
        return call.step.assembled(handed, inputs)


class _Joined:
    """The passes and the update in one plan. At most one iteration is under way."""

    def __init__(self, step, device, tensors):
        self.step, self.states, self.tensors = step, step.written_states(), tensors
        self._device = device
        self._iteration, self._abandons = None, []
        self._compiled = device.compiled(step, self)

    @property
    def waits(self):
        """Whether an iteration is under way that waits for its backward pass."""
        return self._iteration is not None and self._iteration.waits_for == "backward"

    def iteration(self, inputs, versions):
        """Returns a new iteration. One that is under way ends."""
        self._end()
        if self.step.optimizer is not None:
            # From now on the session has the optimizer's states.
            self.step.optimizer.joining.holders.add(self)
        self._iteration = Iteration(self.step, self._compiled, inputs, versions)
        owners = self, self.step.optimizer
        self._abandons = [_abandoned_with(o, self._iteration) for o in owners if o is not None]
        return self._iteration

    def update(self, parameters):
        """Runs the optimizer's step. `parameters` has those that it updates, with their gradients, by
        position."""
        iteration, rates = self._iteration, self.step.rates()
        if iteration is None or iteration.waits_for != "update":
            iteration = self.iteration([], [])
        device = self.step.device
        state, iteration.generator = device.random_state(), None
        try:
            iteration.step(parameters, rates)
            self.step.advance(rates)
        finally:
            self._end()
            device.set_random_state(state if iteration.generator is None else iteration.generator)

    def hand_back(self):
        """Gives the optimizer's states the values that the session has. An iteration under way ends, since it would
        not see what is written into them now."""
        with self._device.lock:
            self._end()
            if self._compiled.holds:
                self._compiled.sync()
            self.step.optimizer.joining.holders.discard(self)

    def release(self):
        if self.step.optimizer is None:
            self._end()
        else:
            self.hand_back()
        self._compiled.close()

    def _end(self):
        if self._iteration is not None:
            for abandons in self._abandons:
                abandons.detach()
            self._iteration.end()
        self._iteration = None


class _Call:
    """One call of a graph that needs gradients, with what its backward pass needs.

    The forward pass runs again where its iteration has been abandoned or is used up, and where
    other results get gradients than the plan expected.
    """

    def __init__(self, training, inputs):
        self._training, self._inputs = training, list(inputs)
        self._iteration = None
        self.step = None

    def forward(self):
        """Returns the results that are handed out."""
        with self._training.device.lock:
            joined = self._training.for_call(self._training.pattern, self._inputs)
            self.step = joined.step
            self.step.source.refuse_overlaps(self._inputs, self.step.updated)
            updated = [self._inputs[k] for k in self.step.updated]
            for k, value in zip(self.step.updated, updated):
                self._inputs[k] = value.clone()
            self._versions = [version(x) for x in self._inputs]
            self._generator = self.step.device.random_state()
            results, updates = self._begin(joined)
            if self._iteration.generator is not None:
                self.step.device.set_random_state(self._iteration.generator)
        for k, value in zip(self.step.updated, updated):
            value.copy_(updates[k])
        return results

    def backward(self, gradients):
        """Returns the gradients of the inputs."""
        with self._training.device.lock:
            device = self.step.device
            state = device.random_state()
            try:
                iteration = self._paused(gradients)
                iteration.generator = None
                inputs = iteration.backward(gradients)
                self._abandons.detach()  # the optimizer may still step
                state = state if iteration.generator is None else iteration.generator
            finally:
                device.set_random_state(state)
        return inputs

    def _paused(self, gradients):
        """Returns an iteration that waits for such gradients."""
        pattern = tuple(None if g is None else g.stride() for g in gradients)
        if self._iteration.waits_for != "backward" or pattern != self.step.pattern:
            LOG.info(AGAIN)
            self._abandons()  # what was planned for other gradients
            joined = self._training.for_call(pattern, self._inputs)
            self.step = joined.step
            device, now = self.step.device, self.step.device.random_state()
            device.set_random_state(self._generator)
            self._begin(joined)
            device.set_random_state(now)
        return self._iteration

    def _begin(self, joined):
        self._iteration = joined.iteration(self._inputs, self._versions)
        self._abandons = _abandoned_with(self, self._iteration)
        return self._iteration.forward()


class _Run(torch.autograd.Function):
    """Connects a call's two passes for autograd."""

    @staticmethod
    def forward(ctx, call, *inputs):
        ctx.call = call
        ctx.set_materialize_grads(False)
        results = call.forward()
        fixed = [r for r, yes in zip(results, call.step.differentiable()) if not yes]
        ctx.mark_non_differentiable(*(r for r in fixed if r is not None))
        return tuple(results)

    # A function that is compiled may call backward(), and Dynamo would compile what runs there.
    @staticmethod
    @torch.compiler.disable
    def backward(ctx, *gradients):
        if torch.is_grad_enabled():
            raise CaptureError(
                "gradients of gradients (create_graph=True) have no plan in torch.compile: use"
                " spillway.torch.capture for the whole step"
            )
        refuse_autocast("the backward pass", "backward()")
        return (None, *ctx.call.backward([g if g is None else _plain(g) for g in gradients]))


def _abandoned_with(owner, iteration):
    """Has an iteration abandoned when its owner is dropped, until the finalizer that it returns is
    detached."""
    abandons = weakref.finalize(owner, iteration.abandon)
    abandons.atexit = False  # its thread must not run while Python ends
    return abandons


def _plain(gradient):
    """Returns a gradient whose elements share memory at most by `expand`."""
    return gradient if gradient.stride() == plain_strides(gradient) else gradient.contiguous()

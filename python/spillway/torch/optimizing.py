"""Optimizers whose steps join the plans of `torch.compile(model, backend="spillway")`."""

import functools
import weakref
from itertools import count
from typing import Protocol, TypeVar

import torch
from torch.optim import Optimizer
from torch.utils.weak import WeakTensorKeyDictionary

from .arguments import is_of_torch, refuse_no_optimizer, refuse_wrapper
from .counting import Counts, refuse_closures
from .errors import CaptureError, FirstStepError
from .guards import refuse_autocast
from .logs import LOG

_OPTIMIZERS = WeakTensorKeyDictionary()  # by parameter, those that have joined, as weak references
_TURNS = count()

NO_GRAPH = (
    "has a gradient, but no graph of torch.compile(model, backend='spillway') has used it with gradients:"
    " compile the module that has it, or give it an optimizer of its own. TORCH_LOGS=graph_breaks shows what"
    " torch.compile leaves out, such as nn.LSTM and nn.GRU without torch._dynamo.config.allow_rnn = True"
)


class Wrapper(Protocol):
    """Has an optimizer, as Lightning's does that is no `torch.optim.Optimizer` itself."""

    @property
    def optimizer(self) -> Optimizer: ...


Joined = TypeVar("Joined", bound=Optimizer | Wrapper)


def optimizer(optimizer: Joined) -> Joined:
    """Makes the states and the step of an optimizer a part of the plan of the model that
    `torch.compile(model, backend="spillway")` returns. Returns the same optimizer.

    `optimizer.step()` then runs within the budget, as the last part of the iteration that the forward
    pass began. Everything else about the optimizer stays as it is. Reading `optimizer.state`, as
    `state_dict()` does, copies the session's values into the states.

    The optimizer may be wrapped by Accelerate or Lightning.

    Raises `CaptureError` if the argument is no optimizer, or calls a closure several times in a step.
    """
    if isinstance(optimizer, (list, tuple)):
        raise CaptureError(
            f"the optimizer is of type {type(optimizer).__name__}: call spillway.torch.optimizer for each, and"
            " compile the module of each"
        )
    refuse_no_optimizer(optimizer)
    wrapped = getattr(optimizer, "optimizer", None)
    if isinstance(wrapped, Optimizer):
        _refuse_scaler(optimizer)
        _join(wrapped)
    else:
        _join(optimizer)
    return optimizer


def _refuse_scaler(wrapper):
    """Refuses a wrapper that keeps the step which its optimizer had, for a scaler of gradients."""
    if getattr(wrapper, "scaler", None) is not None:
        raise CaptureError(
            f"{type(wrapper).__name__} scales gradients, and keeps the step that its optimizer had: give"
            " the optimizer to spillway.torch.optimizer before it is wrapped"
        )


def _join(optimizer):
    if "joining" in vars(optimizer):
        return
    if not isinstance(optimizer, Optimizer):
        raise CaptureError(
            f"the optimizer is of type {type(optimizer).__name__}: give one that is derived from"
            " torch.optim.Optimizer"
        )
    refuse_wrapper(optimizer)
    refuse_closures(optimizer)
    # Schedulers put a step of their own before that of the class.
    own = vars(optimizer).get("step")
    if own is not None and not hasattr(own, "_wrapped_by_lr_sched"):
        raise CaptureError(
            f"the step of {type(optimizer).__name__} has been replaced by another one: give the optimizer"
            " to spillway.torch.optimizer before that"
        )
    vars(optimizer).pop("step", None)
    # GradScaler hands the scale to the step of some optimizers. It scales the gradients for all others.
    optimizer._step_supports_amp_scaling = False
    optimizer.joining = Joining(optimizer)
    optimizer.__class__ = _joined_class(type(optimizer))
    optimizer.joining.register()


def optimizer_of(parameters):
    """Returns the optimizer that has joined with some of the parameters, or None."""
    found = []
    for p in parameters:
        reference = _OPTIMIZERS.get(p)
        one = reference and reference()
        if one is not None and all(one is not other for other in found):
            found.append(one)
    if len(found) > 1:
        names = " and ".join(type(one).__name__ for one in found)
        raise CaptureError(
            f"the parameters of one graph have several optimizers that join its plan ({names}): give one"
            " optimizer several groups, or join only one of them"
        )
    return found[0] if found else None


class Joining:
    """What an optimizer that has joined knows: the graphs that its parameters were called in, and the
    plans that hold its states."""

    def __init__(self, optimizer):
        self._optimizer = weakref.ref(optimizer)
        self._trainings = weakref.WeakSet()  # those that were called
        self._kept = weakref.WeakKeyDictionary()  # by graph
        self.counts = Counts()  # numbers of Python, as far as captures have found
        self.holders = set()  # compiled passes whose sessions have newer values of states

    def register(self):
        """Has the graphs of all its parameters find the optimizer."""
        optimizer = self._optimizer()
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        self._ids = {id(p) for p in parameters}
        for p in parameters:
            _OPTIMIZERS[p] = weakref.ref(optimizer)

    def trainings(self, graph, tensors):
        """Returns the dict in which a graph keeps its trainings for those parameters of the optimizer that are
        among some tensors. Equal models share a graph, but each has parameters and states of its own.

        It lives as long as the optimizer, which has the parameters, so that none of them outlives a model.
        """
        parameters = [x for x in tensors if id(x) in self._ids]
        # They are kept, so that no other ones get their identities.
        return self._kept.setdefault(graph, {}).setdefault(tuple(map(id, parameters)), (parameters, {}))[1]

    def called(self, training):
        """Notes that a graph of the optimizer's parameters is called."""
        training.turn = next(_TURNS)
        self._trainings.add(training)

    def hand_back(self):
        """Gives the states their values."""
        for holder in list(self.holders):
            holder.hand_back()

    def step(self):
        """Updates the parameters that have gradients: each as a part of the graph that used it last."""
        refuse_autocast("the optimizer's step", "step()")
        groups = self._optimizer().param_groups
        left = {id(p): p for group in groups for p in group["params"] if p.grad is not None}
        for p in left.values():
            if p.grad.layout is not torch.strided:
                self._refuse(p, "has a sparse gradient: use a dense one (sparse=False)")
        parts = []
        for training in sorted(self._trainings, key=lambda t: t.turn, reverse=True):
            positions = training.positions_of(left)
            if positions:
                parts.append((training, positions))
        for p in left.values():
            self._refuse(p, NO_GRAPH)
        if len(parts) > 1:
            self._refuse_parts()
        try:
            for training, positions in parts:
                training.update(positions)
        except FirstStepError:
            if len(parts) > 1 or any(p.device.type != "cpu" for group in groups for p in group["params"]):
                raise
            LOG.info(f"{type(self._optimizer()).__name__} makes its states in a step outside of the plan")
            self._optimizer().plain_step()

    def _refuse_parts(self):
        """Refuses to update the parameters of several graphs one after the other, unless the optimizer is
        known to update each parameter by itself."""
        cls = _own_class(self._optimizer())
        if not is_of_torch(cls):
            raise CaptureError(
                f"the parameters of {cls.__name__} are used in several graphs, but its step may compute with"
                " all of them together: compile one module that has them (fullgraph=True names what breaks"
                " a graph), or leave the optimizer outside of the plan"
            )

    def _refuse(self, parameter, why):
        """Refuses a step because of a parameter."""
        groups = self._optimizer().param_groups
        places = (
            f"parameter {n} of group {k}"
            for k, group in enumerate(groups)
            for n, p in enumerate(group["params"])
            if p is parameter
        )
        raise CaptureError(f"{next(places)}, of shape {tuple(parameter.shape)}, {why}")


def _own_class(optimizer):
    """Returns the class that an optimizer had before it joined."""
    return type(optimizer).__mro__[1]


@functools.cache
def _joined_class(cls):
    """Returns the class of optimizers of a class that have joined. It has no other base, so that objects of both
    classes have one layout."""

    class Joined(cls):
        @property
        def state(self):
            self.joining.hand_back()
            return self.__dict__["state"]

        @state.setter
        def state(self, state):
            self.__dict__["state"] = state

        @torch.compiler.disable  # a function that is compiled may call it
        @Optimizer.profile_hook_step
        def step(self, closure=None):
            """Performs a single optimization step. Returns what the closure does, if there is one."""
            loss = None
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self.joining.step()
            self._opt_called = True  # schedulers look at it
            return loss

        def plain_step(self):
            """Performs the step of the optimizer's own class, without hooks."""
            step = super().step.__func__
            if getattr(step, "hooked", False):
                step = step.__wrapped__
            step(self)

        def add_param_group(self, group):
            super().add_param_group(group)
            self.joining.register()

        def __reduce_ex__(self, protocol):
            # A copy has not joined.
            return cls.__new__, (cls,), self.__getstate__()

    Joined.step.hooked = Joined.step._wrapped_by_lr_sched = True
    for name in ("__module__", "__name__", "__qualname__", "__doc__"):
        setattr(Joined, name, getattr(cls, name))
    return Joined

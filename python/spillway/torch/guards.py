"""What a capture depends on beside its batch, checked in each call.

A check compares versions of dicts and identities alone, in loops that Python runs in C. Only where
one differs are values compared, and the change is named.
"""

from collections import defaultdict
from functools import partial
from itertools import chain
from operator import is_, itemgetter

import torch
from torch.nn.modules import module as every_module
from torch.utils.hooks import RemovableHandle

from .arguments import named
from .errors import CaptureError
from .reached import Change, Reached, Source, difference

try:  # A number that every write to a dict changes, as TorchDynamo has it.
    from torch._C._dynamo.guards import dict_version
except ImportError:  # then the values of all dicts are compared
    dict_version = None  # type: ignore[assignment]

_HOOKS = (
    "_forward_pre_hooks",
    "_forward_hooks",
    "_backward_pre_hooks",
    "_backward_hooks",
)
_OPTIMIZER_HOOKS = "_optimizer_step_pre_hooks", "_optimizer_step_post_hooks"


class Surroundings:
    """The modules of a step, its functions and its optimizers, as they are now.

    `functions` has those that the step calls, by name, and `tensors` its states, by name.
    """

    def __init__(self, model, functions, optimizers, tensors):
        self._names, self._tensors = list(tensors), list(tensors.values())
        self._may_require = [t for t in self._tensors if isinstance(t, torch.nn.Parameter)]
        self._model, self._optimizers = model, optimizers
        self._parameters = {id(p): (name, p) for name, p in model.named_parameters()}
        reached = Reached(self._tensors)
        reached.module("model", model)
        for name, function in functions.items():
            reached.function(name, function)
        self._sources = reached.finish().sources
        self._hooks = [
            (f"{name} has other hooks: {kind[1:]}", module.__dict__[kind])
            for name, module in reached.modules
            for kind in _HOOKS
        ]
        for kind in _HOOKS:
            self._hooks.append(("the hooks of all modules differ", _of_all_modules(kind)))
        for name, parameter in zip(self._names, self._tensors):
            for kind in ("_backward_hooks", "_post_accumulate_grad_hooks"):
                self._hooks.append((f"{name} has other hooks", _HooksOf(parameter, kind)))
        for name, optimizer in named(optimizers):
            self._sources += _sources_of(name, optimizer)
            for kind in _OPTIMIZER_HOOKS:
                hooks = getattr(optimizer, kind, {})
                self._hooks.append((f"{name} has other hooks: {kind[1:]}", hooks))
        self._take()

    def _take(self):
        """Takes what there is now as unchanged."""
        for source in self._sources:
            source.take()
        self._kept_hooks = [list(hooks.values()) for _, hooks in self._hooks]
        # Adding a hook is seen by the handle that PyTorch makes, so these alone are looked at.
        self._with_hooks = [h for (_, h), kept in zip(self._hooks, self._kept_hooks) if kept]
        self._hook_counts = [*map(len, self._with_hooks)]
        self._handles = RemovableHandle.next_id
        self._requires_grad = [p.requires_grad for p in self._may_require]
        self._addresses = [*map(torch.Tensor.data_ptr, self._tensors)]
        self._autocast = _autocast()
        self._flatten()

    def _flatten(self):
        # A dict of another type may change its order without a write.
        kinds = () if dict_version is None else (dict, defaultdict)
        has_version = lambda source: type(source.within) in kinds
        versioned = [source for source in self._sources if has_version(source)]
        self._dicts = list({id(s.within): s.within for s in versioned}.values())
        self._of_dicts = _Identities(versioned)
        self._of_others = _Identities(s for s in self._sources if not has_version(s))
        self._versions = [*map(dict_version, self._dicts)]

    def _same_values(self):
        """Returns whether all values are the objects that were taken."""
        if not self._of_others.are_same():
            return False
        versions = [*map(dict_version, self._dicts)]
        if versions == self._versions:
            return True
        if not self._of_dicts.are_same():
            return False
        self._versions = versions  # what was written is not watched, or is as before
        return True

    def change(self):
        """Returns the first `Change` since, or None."""
        try:
            is_same = (
                self._same_values()
                and [p.requires_grad for p in self._may_require] == self._requires_grad
                and [*map(torch.Tensor.data_ptr, self._tensors)] == self._addresses
                and RemovableHandle.next_id == self._handles
                and [*map(len, self._with_hooks)] == self._hook_counts
                and _autocast() == self._autocast
            )
        except (KeyError, ValueError):  # something was deleted
            is_same = False
        if is_same:
            return None
        change = self._first_change()
        if change is None:  # other objects of the same values, or hooks of something else
            for source in self._sources:
                source.take()
            self._flatten()
            self._handles = RemovableHandle.next_id
        return change

    def _first_change(self):
        for name, tensor, address in zip(self._names, self._tensors, self._addresses):
            if tensor.data_ptr() != address:
                return Change("replaced", f"{name} has other memory")
        found = [d for d in map(difference, self._sources) if d is not None]
        for p, before in zip(self._may_require, self._requires_grad):
            if p.requires_grad != before:
                name, now = self._name_of(p), p.requires_grad
                found.append(Change("changed", f"requires_grad of {name} is {now}, not {before}"))
        for (label, hooks), kept in zip(self._hooks, self._kept_hooks):
            now = list(hooks.values())
            if len(now) != len(kept) or not all(map(is_, now, kept)):
                found.append(Change("changed", label))
        if _autocast() != self._autocast:
            advice = "Call the step under the autocast that it was captured under, or capture again"
            found.append(Change("refused", "autocast differs from that of the capture", advice))
        found += self._orphans()
        kinds = ("refused", "replaced", "changed")
        return min(found, key=lambda change: kinds.index(change.kind), default=None)

    def _name_of(self, tensor):
        return next(name for name, t in zip(self._names, self._tensors) if t is tensor)

    def _orphans(self):
        """Returns a change for a parameter that an optimizer has, but no longer the model."""
        now = set(map(id, self._model.parameters()))
        for optimizer, its in named(self._optimizers):
            for p in (p for group in its.param_groups for p in group["params"]):
                if id(p) in self._parameters and id(p) not in now:
                    name = self._parameters[id(p)][0]
                    sentence = f"{name} of the model is another tensor than that of {optimizer}"
                    return [Change("refused", sentence, "Make the optimizer again, and capture again")]
        return []


class _Identities:
    """The objects that some sources have, to be compared at once."""

    def __init__(self, sources):
        sources = list(sources)
        self._reads = [source.read for source in sources if source.values]
        self._expected = list(chain.from_iterable(source.values for source in sources))
        self._sized = [s.sized for s in sources if s.sized is not None]
        self._lengths = [*map(len, self._sized)]

    def are_same(self):
        """Returns whether they are as they were. A `KeyError` or `ValueError` says that one is gone."""
        return (
            all(map(is_, chain.from_iterable([read() for read in self._reads]), self._expected))
            and [*map(len, self._sized)] == self._lengths
        )


class _HooksOf:
    """The hooks of a parameter, which has no dict of them until it has one."""

    def __init__(self, parameter, kind):
        self._parameter, self._kind = parameter, kind

    def values(self):
        return (getattr(self._parameter, self._kind, None) or {}).values()

    def __len__(self):
        return len(self.values())


def _of_all_modules(kind):
    return getattr(every_module, f"_global{kind}", {})


def _sources_of(name, optimizer):
    """Returns what a step depends on in an optimizer, beside settings, which a call compares."""
    own = vars(optimizer)
    whole = lambda: (own["state"], own["param_groups"])
    sources = [Source(whole, ["the dict of states", "the list of groups"], name, "replaced")]
    groups = optimizer.param_groups
    sources.append(Source(groups.__iter__, ["groups"], name, "changed", groups))
    for k, group in enumerate(groups):
        members, label = group["params"], f"{name}'s group {k}"
        sources.append(Source(members.__iter__, ["parameters"], label, "changed", members))
        rate = lambda group=group: (type(group.get("lr")),)
        sources.append(Source(rate, ["the type of lr"], label, "changed"))
    state = optimizer.state
    sources.append(Source(state.values, ["states"], name, "changed", state, state))
    for values in state.values():
        items = values.items() if isinstance(values, dict) else ()
        names = [n for n, v in items if torch.is_tensor(v)]
        if names:
            read = partial(itemgetter(*names, names[0]), values)
            sources.append(Source(read, names, f"{name}'s state", "replaced", within=values))
    return sources


def refuse_autocast(what, call):
    """Refuses a call within autocast of what is planned without it."""
    if _autocast():
        raise CaptureError(
            f"{what} is planned without autocast: call {call} outside of it, or use spillway.torch.capture for the"
            " whole step"
        )


def _autocast():
    """Returns the types of autocast that are on."""
    return [torch.get_autocast_dtype(d) for d in ("cpu", "cuda") if torch.is_autocast_enabled(d)]

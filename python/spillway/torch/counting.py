"""Optimizers that keep numbers in Python, such as a step count, or replace their tensors.

A number that the optimizer's step changes becomes an expression (`scalars.py`). As with learning rates, each iteration
is supplied with the present number. After the iteration, Python computes the next one.
"""

import inspect
from collections import defaultdict
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch.utils._pytree import tree_flatten, tree_unflatten

from .arguments import is_of_torch
from .carrying import Replaced
from .errors import CaptureError, quoted
from .scalars import form_of
from .storing import MISSING, is_same
from .substitutes import NumberTensor, node_of

ADVICE = (
    "a captured step would compute with the same value in all iterations. Use an optimizer that has a number or a"
    " tensor there from its first step on, as those of torch.optim do, or torch.compile(model, backend='spillway'),"
    " which leaves the optimizer outside"
)
RATES = "lr", "initial_lr"  # settings that each iteration is supplied with, whether they have changed or not
MOST_WHOLE = 2**53  # whole numbers up to this are exact in double precision


class Place(NamedTuple):
    """An entry of an optimizer's groups or states, or a leaf of it if it is a container. `owner` is the number of a
    group, or what the optimizer has a state for, mostly a parameter."""

    owner: object
    key: str
    leaf: int | None = None

    def value(self, optimizer):
        """Returns what the optimizer has there: for a tensor of one element, its number."""
        value = self.now(optimizer)
        return value.item() if isinstance(value, torch.Tensor) and not value.dim() else value

    def now(self, optimizer):
        """Returns what the optimizer has there."""
        return self.within(self.entries(optimizer))

    def within(self, entries):
        """Returns what a group or a state has there."""
        value = entries.get(self.key, MISSING)
        return value if self.leaf is None else dict(enumerate(tree_flatten(value)[0])).get(self.leaf, MISSING)

    def put(self, entries, value):
        """Gives a group or a state a value there."""
        if self.leaf is not None:
            leaves, structure = tree_flatten(entries[self.key])
            leaves[self.leaf] = value
            value = tree_unflatten(leaves, structure)
        entries[self.key] = value

    def write(self, optimizer, number):
        """Gives the optimizer a number there."""
        entries = self.entries(optimizer)
        if isinstance(entries[self.key], torch.Tensor):
            with torch.no_grad():
                entries[self.key].fill_(number)
        else:
            self.put(entries, number)

    def entries(self, optimizer):
        """Returns the dict that has the entry."""
        if isinstance(self.owner, int):
            return optimizer.param_groups[self.owner]
        # To ask an optimizer that has joined for `state` would copy the session's states.
        return vars(optimizer)["state"][self.owner]

    def __str__(self):
        key = repr(self.key if self.leaf is None else f"{self.key}[{self.leaf}]")
        return f"{key} of group {self.owner}" if isinstance(self.owner, int) else f"{key} of a state"


@dataclass
class Count:
    """A number of Python that changes. It has the same value at all of its places."""

    places: list
    is_whole: bool

    def value(self, optimizer):
        """Returns the number that the optimizer has now."""
        return self.places[0].value(optimizer)

    def is_current(self, optimizer):
        """Returns whether the optimizer has one such number at all places."""
        first = self.value(optimizer)
        is_such = isinstance(first, int) and abs(first) <= MOST_WHOLE if self.is_whole else _is_number(first)
        return is_such and all(is_same(place.value(optimizer), first) for place in self.places)


class Counts:
    """The numbers of Python that an optimizer's step changes, as far as recorded steps have shown, and the settings
    that have changed between captures."""

    def __init__(self):
        self.all = []
        self.refused = None  # a change by the last run that no capture can have
        self._settings = {}  # the settings of the last capture, by place

    def again(self, optimizer):
        """Returns the numbers that are known to change, as another capture begins with them."""
        values = [(count, place, place.value(optimizer)) for count in self.all for place in count.places]
        counts = Counts()
        counts._settings = constants(self.all, optimizer)
        known = [
            (place, count.is_whole and isinstance(value, int), value)
            for count, place, value in values
            if _is_number(value)
        ]
        counts._add(known + [(place, False, value) for place, value in self._changed(optimizer, counts._settings)])
        return counts

    def _changed(self, optimizer, settings):
        """Yields the numbers among some settings that differ from those of the last capture, or that a scheduler
        cycles. Whole numbers mostly count something, so that Python needs their values."""
        for place, value in settings.items():
            group = optimizer.param_groups[place.owner]
            # `OneCycleLR` and `CyclicLR` write the limits of the momentum into the group.
            is_cycled = "max_momentum" in group and (place.key, place.leaf) in (("momentum", None), ("betas", 0))
            changes = is_cycled or self._settings.get(place, value) != value
            # The fused kernels of other packages may take only numbers of Python.
            is_fused = group.get("fused") and not is_of_torch(type(optimizer))
            if isinstance(value, float) and changes and not is_fused:
                yield place, value

    def add_steps(self, optimizer, states):
        """Adds step counts that are tensors, where the optimizer's code branches on them. Returns whether there are new
        ones."""
        if not isinstance(optimizer, torch.optim.RAdam) or any(group["capturable"] for group in optimizer.param_groups):
            return False
        steps = {Place(p, "step"): values["step"] for p, values in states.items() if values}
        new = steps.keys() - places_of(self.all)
        self._add((place, False, step.item()) for place, step in steps.items() if place in new)
        return bool(new)

    def take(self, optimizer, changes, entries):
        """Takes what the recorded steps of a swapped optimizer have changed, and its entries at the end of the run.
        Returns the numbers at the end, or None if another run is needed."""
        self.refused = self.other_change(changes)
        unknown = [] if self.refused else self._unknown(changes)
        self._add((change.place, change.is_of_whole_numbers, (change.before, change.form)) for change in unknown)
        return None if unknown or self.refused else self._after(optimizer, entries)

    def other_change(self, changes):
        """Returns the first change of what is neither a tensor nor a number, or None."""
        return next((change for change in self._unknown(changes) if not change.is_of_numbers), None)

    def _unknown(self, changes):
        """Returns the changes of what is no tensor, no known number, and no setting that may change."""
        known = places_of(self.all)
        return [
            change
            for change in changes
            if change.place not in known and not change.is_of_tensors and not isinstance(change.before, torch.SymFloat)
        ]

    def _add(self, numbers):
        """Adds numbers, given the place of each, whether it is whole, and what is the same for numbers that are one."""
        alike = defaultdict(list)
        for place, is_whole, same in numbers:
            alike[is_whole, same].append(place)
        self.all += [Count(places, is_whole) for (is_whole, _), places in alike.items()]

    def _after(self, optimizer, entries):
        """Returns the numbers after a step, given the optimizer's entries. Returns None if numbers that were one have
        come apart."""
        ends, parted = [], []
        for count in self.all:
            after = {place: _value_at(place, entries) for place in count.places}
            for place, value in after.items():
                if not isinstance(value, (int, float, torch.SymFloat, NumberTensor)):
                    refuse(optimizer, f"{place} is a number before the step and {_told(value)} after it", None)
            nodes = list(map(node_of, after.values()))
            ends.append(nodes[0])
            if len(set(map(form_of, nodes))) > 1:
                parted.append(count)
        for count in parted:
            self.all.remove(count)
            self.all += [Count([place], count.is_whole) for place in count.places]
        return None if parted else ends


def places_of(counts):
    """Returns all places of some counts."""
    return {place for count in counts for place in count.places}


def keys_by_owner(counts):
    """Returns the keys of some counts, by the identity of their owner."""
    keys = defaultdict(set)
    for place in places_of(counts):
        keys[id(place.owner)].add(place.key)
    return keys


def constants(counts, optimizer):
    """Returns the settings that are no counts, by place."""
    known = places_of(counts)
    return {place: v for place, v in settings(optimizer) if place not in known and place.key not in RATES}


def settings(optimizer):
    """Yields the settings of all groups with their places, the leaves of containers by themselves. For a container, its
    structure."""
    for k, group in enumerate(optimizer.param_groups):
        for key, value in group.items():
            if key != "params":
                if isinstance(value, (tuple, list, dict)):
                    leaves, value = tree_flatten(value)
                    yield from ((Place(k, key, n), leaf) for n, leaf in enumerate(leaves))
                yield Place(k, key), value


def plain_values(optimizer, counts):
    """Returns the values of Python in an optimizer's states that are no counts, by place."""
    known = places_of(counts)
    return {
        place: value
        for place, value in entries(optimizer).items()
        if not isinstance(place.owner, int) and not isinstance(value, torch.Tensor) and place not in known
    }


@dataclass
class Change:
    """What an optimizer has at a place before and after a recorded step."""

    place: Place
    before: object
    after: object

    @property
    def is_of_numbers(self):
        """Whether the step puts a number in the place of a number, not computed from tensors."""
        is_known = isinstance(self.after, torch.SymFloat) and self.after.node.is_known
        return self.place.leaf is None and _is_number(self.before) and (_is_number(self.after) or is_known)

    @property
    def is_of_whole_numbers(self):
        """Whether the step puts an `int` in the place of an `int`."""
        return isinstance(self.before, int) and isinstance(self.after, int)

    @property
    def form(self):
        """What is equal for equal values after the step."""
        return form_of(node_of(self.after))

    def parts(self):
        """Returns the changes of the parts of a container, if it is replaced by a container of the same form. Otherwise
        returns the change itself."""
        (before, structure), (after, its_structure) = map(tree_flatten, (self.before, self.after))
        if structure != its_structure or self.before is self.after or structure.is_leaf():
            return [self]
        places = [Place(self.place.owner, self.place.key, k) for k in range(len(before))]
        return [Change(*part) for part in zip(places, before, after)]

    @property
    def is_of_tensors(self):
        """Whether the step puts a tensor in the place of a tensor."""
        return isinstance(self.before, torch.Tensor) and isinstance(self.after, torch.Tensor)

    def __str__(self):
        return f"{self.place} is {_told(self.before)} before the step and {_told(self.after)} after it"


class Entries:
    """What a swapped optimizer has in its groups and states before its steps. `real` returns the parameter that a fake
    one stands for."""

    def __init__(self, optimizer, real):
        self._optimizer, self._real = optimizer, real
        self._before = self.now()

    def add(self):
        """Adds the entries that are new, before another step."""
        self._before = self.now() | self._before

    def changes(self):
        """Returns what has changed."""
        changes = [Change(place, self._before.get(place, MISSING), now) for place, now in self.now().items()]
        parts = [part for change in changes for part in change.parts()]
        return [part for part in parts if not is_equal(part.before, part.after)]

    def replaced(self):
        """Returns the tensors that have been replaced."""
        tensors = [change for change in self.changes() if change.is_of_tensors]
        return [Replaced(f"{change.place} of the optimizer", change.before, change.after) for change in tensors]

    def now(self):
        """Returns the entries by place."""
        return entries(self._optimizer, self._real)


def entries(optimizer, real=lambda parameter: parameter):
    """Returns what an optimizer has in its groups and states, by place."""
    found = {}
    for k, group in enumerate(optimizer.param_groups):
        found.update((Place(k, key), value) for key, value in group.items() if key != "params")
    for owner, values in optimizer.state.items():
        if isinstance(values, dict):
            found.update((Place(real(owner), key), value) for key, value in values.items())
    return found


def _value_at(place, entries):
    """Returns what is at a place, given the entries by place."""
    return place.within({place.key: entries.get(Place(place.owner, place.key), MISSING)})


def values_at(optimizer, place):
    """Returns the values at all places of an optimizer that messages name like this one."""
    found = [value for other, value in entries(optimizer).items() if str(other) == str(place)]
    return [value for value in found if not isinstance(value, (torch.Tensor, torch.SymFloat))]


def refuse_closures(optimizer):
    """Refuses an optimizer that computes the loss several times in a step."""
    closure = inspect.signature(type(optimizer).step).parameters.get("closure")
    if closure is not None and closure.default is inspect.Parameter.empty:
        raise CaptureError(
            f"{type(optimizer).__name__} calls a closure as often as the loss has it do: use"
            " torch.compile(model, backend='spillway'), which leaves the optimizer outside"
        )


def refuse(optimizer, sentence, line):
    """Refuses an optimizer for what its step changes."""
    where = f"{quoted(line)}: " if line else ""
    raise CaptureError(f"{where}{type(optimizer).__name__} keeps values in Python: {sentence}: {ADVICE}")


def is_equal(before, after):
    """Returns whether two values are one object, or equal values of Python."""
    if is_same(before, after):
        return True
    plain = not any(isinstance(value, (torch.Tensor, torch.SymFloat)) for value in (before, after))
    return plain and before == after


def _is_number(value):
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _told(value):
    if isinstance(value, torch.Tensor):
        return "a tensor"
    if isinstance(value, torch.SymFloat):
        return "computed from tensors"
    return "not there" if value is MISSING else value

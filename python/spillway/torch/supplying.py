"""Numbers that an iteration is supplied with: settings of optimizers that may change, and what they count in Python."""

import torch

from .counting import entries_without, plain_values
from .errors import CaptureError, ChangedError
from .scalars import Kept, Scalar, form_of
from .schedules import constants, has_tensor_rate, scheduled, settings_with
from .storing import is_same
from .substitutes import NumberTensor
from .swapping import given


class Supplied:
    """The numbers of an optimizer in one run on fake tensors: `rates` are their tensors, `settings` the settings of
    each group that may change, and `numbers` the counts, by place."""

    def __init__(self, recorder, optimizer, counts):
        self.counts = [*counts.all]
        self.after = None  # the counts at the end of the run
        self.decisions = []  # comparisons that the run has branched on, with their results
        self.constants = plain_values(optimizer, self.counts)  # of states, by place
        settings, values = scheduled(optimizer), _counted(optimizer, self.counts)
        self.rates = []
        by_group = [
            {name: self._setting(recorder, k, group, name, its[name]) for name in its}
            for k, (group, its) in enumerate(zip(optimizer.param_groups, settings))
        ]
        self.settings = settings_with(optimizer, by_group)
        self.numbers = {}
        for k, (count, value) in enumerate(zip(self.counts, values)):
            fake = self._given(recorder, f"count.{k}", value)
            number = self._number(recorder, str(count.places[0]), fake, value, count.is_whole)
            self.numbers.update((place, _like(place.entries(optimizer)[place.key], number)) for place in count.places)

    def _setting(self, recorder, k, group, name, value):
        fake = self._given(recorder, f"{name}.{k}", value)
        if name == "lr" and (group.get("fused") or has_tensor_rate(group)):
            return fake
        return self._number(recorder, f"{name} of group {k}", fake, value)

    def _given(self, recorder, name, value):
        self.rates.append(given(recorder, name, value))
        return self.rates[-1]

    def _number(self, recorder, name, fake, value, is_whole=False):
        with recorder.fake_mode, recorder:
            node = fake.item().node
        return torch.SymFloat(Kept(name, node, value.item(), self.decisions, is_whole))


class Numbers:
    """What optimizers supply each iteration with, and how they count. `supplied` is from the run that was captured,
    `rates` has the views of its tensors."""

    def __init__(self, supplied=(), rates=()):
        self._counts = [one.counts for one in supplied]
        self._constants = [one.constants for one in supplied]
        self._positions = {view.tensor: k for k, view in enumerate(rates)}
        for count, after in (pair for one in supplied for pair in zip(one.counts, one.after)):
            if isinstance(after, Scalar) and not after.is_known:
                raise CaptureError(
                    f"the optimizer computes {count.places[0]} from tensors, but a captured step computes it from"
                    " numbers alone: use torch.compile(model, backend='spillway'), which leaves the optimizer outside"
                )
        self._after = [[self._function(after) for after in one.after] for one in supplied]
        decisions = [decision for one in supplied for decision in one.decisions]
        distinct = {form_of(comparison): (self._function(comparison), result) for comparison, result in decisions}
        self._decisions = [*distinct.values()]

    def rates(self, optimizers):
        """Returns the present settings and counts, as tensors."""
        rates = []
        for optimizer, counts in zip(optimizers, self._counts):
            rates += [value for group in scheduled(optimizer) for value in group.values()]
            rates += _counted(optimizer, counts)
        return rates

    def constants(self, optimizers):
        """Returns the settings of each group that must not change."""
        return [
            entries_without(counts, k, settings)
            for optimizer, counts in zip(optimizers, self._counts)
            for k, settings in enumerate(constants(optimizer))
        ]

    def fit(self, optimizers, rates):
        """Returns whether the optimizers' code would do what it did in the captured run, given a function that returns
        the rates."""
        counts = [(optimizer, count) for optimizer, its in zip(optimizers, self._counts) for count in its]
        if not all(count.is_current(optimizer) for optimizer, count in counts):
            return False
        if not self._decisions:
            return True
        present = rates()
        if not all(compare(present) == result for compare, result in self._decisions):
            return False
        # Another branch may have changed what this one only reads.
        return all(
            is_same(place.value(optimizer), value)
            for optimizer, constants in zip(optimizers, self._constants)
            for place, value in constants.items()
        )

    def after(self, optimizers, rates):
        """Yields each count after an iteration: the optimizer, the place, and the number."""
        for optimizer, counts, functions in zip(optimizers, self._counts, self._after):
            for count, compute in zip(counts, functions):
                value = compute(rates)
                value = int(value) if count.is_whole and float(value).is_integer() else value
                yield from ((optimizer, place, value) for place in count.places)

    def _function(self, number):
        """Returns the function that computes a number from the rates."""
        if not isinstance(number, Scalar):
            return lambda rates: number
        function, leaves = number.compiled
        positions = [self._positions[view.tensor] for view, _ in leaves]
        return lambda rates: function(*[rates[k].item() for k in positions])


def fitting(steps):
    """Returns the keys of the steps that fit. Raises `ChangedError` if settings differ from those of all steps."""
    found, changed = [], []
    for key, step in steps.items():
        try:
            found += [key] if step.fits() else []
        except ChangedError as error:
            changed.append(error)
    if changed and len(changed) == len(steps):
        raise changed[0]
    return found


def _like(value, number):
    """Returns a number, as a tensor if it stands for a tensor."""
    return NumberTensor.of(value, number) if isinstance(value, torch.Tensor) else number


def _counted(optimizer, counts):
    """Returns the present counts of an optimizer, as tensors."""
    return [torch.tensor(count.value(optimizer), dtype=torch.float64) for count in counts]

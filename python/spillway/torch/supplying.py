"""Numbers that an iteration is supplied with: learning rates, other settings that have changed, and what optimizers
count in Python."""

import torch

from .counting import Place, constants, is_equal, plain_values
from .errors import CaptureError
from .scalars import Kept, Scalar, form_of
from .storing import is_same
from .substitutes import NumberTensor
from .swapping import given


class Supplied:
    """The numbers of an optimizer in one run on fake tensors: `rates` are their tensors, and `numbers` stand for them,
    by place: learning rates and counts."""

    def __init__(self, recorder, optimizer, counts):
        self.counts = [*counts.all]
        self.after = None  # the counts at the end of the run
        self.decisions = []  # comparisons that the run has branched on, with their results
        self.settings = _fixed_settings(optimizer, self.counts)
        self.constants = plain_values(optimizer, self.counts)  # of states, by place
        self.rates, self.numbers, self._before = [], {}, []
        for place, rate in _learning_rates(optimizer).items():
            self.numbers[place] = self._rate(recorder, optimizer, place, rate)
        for k, (count, value) in enumerate(zip(self.counts, _counted(optimizer, self.counts))):
            fake = self._given(recorder, f"count.{k}", value)
            number = self._number(recorder, str(count.places[0]), fake, value, count.is_whole)
            self._before.append(number.node)
            self.numbers.update((place, _like(place.now(optimizer), number)) for place in count.places)

    def changed(self):
        """Returns the counts that the run has changed, each with the number at the end."""
        ends = zip(self.counts, self._before, self.after or ())
        return [(count, after) for count, before, after in ends if after is not before]

    def _rate(self, recorder, optimizer, place, value):
        fake = self._given(recorder, f"lr.{place.owner}", value)
        if place.entries(optimizer).get("fused") or isinstance(place.now(optimizer), torch.Tensor):
            return fake
        return self._number(recorder, f"lr of group {place.owner}", fake, value)

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
        self._settings = [one.settings for one in supplied]
        self._constants = [one.constants for one in supplied]
        self._positions = {view.tensor: k for k, view in enumerate(rates)}
        for count, after in (pair for one in supplied for pair in one.changed()):
            if isinstance(after, Scalar) and not after.is_known:
                raise CaptureError(
                    f"the optimizer computes {count.places[0]} from tensors, but a captured step computes it from"
                    " numbers alone: use torch.compile(model, backend='spillway'), which leaves the optimizer outside"
                )
        self._after = [[(count, self._function(after)) for count, after in one.changed()] for one in supplied]
        decisions = [decision for one in supplied for decision in one.decisions]
        distinct = {form_of(comparison): (self._function(comparison), result) for comparison, result in decisions}
        self._decisions = [*distinct.values()]

    def rates(self, optimizers):
        """Returns the present settings and counts, as tensors."""
        present = []
        for optimizer, counts in zip(optimizers, self._counts):
            present += [*_learning_rates(optimizer).values(), *_counted(optimizer, counts)]
        return present

    def fit(self, optimizers):
        """Returns whether the optimizers' code would do what it did in the captured run."""
        for optimizer, counts, captured in zip(optimizers, self._counts, self._settings):
            settings = _fixed_settings(optimizer, counts)
            if captured.keys() != settings.keys() or not all(is_equal(captured[p], v) for p, v in settings.items()):
                return False
        counts = [(optimizer, count) for optimizer, its in zip(optimizers, self._counts) for count in its]
        if not all(count.is_current(optimizer) for optimizer, count in counts):
            return False
        if not self._decisions:
            return True
        present = self.rates(optimizers)
        if not all(compare(present) == result for compare, result in self._decisions):
            return False
        # Another branch may have changed what this one only reads.
        return all(
            is_same(place.value(optimizer), value)
            for optimizer, captured in zip(optimizers, self._constants)
            for place, value in captured.items()
        )

    def after(self, optimizers, rates):
        """Yields each count after an iteration: the optimizer, the place, and the number."""
        for optimizer, changed in zip(optimizers, self._after):
            for count, compute in changed:
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
    """Returns the keys of the steps that fit."""
    return [key for key, step in steps.items() if step.fits()]


def _learning_rates(optimizer):
    """Returns the learning rate of each group that has one, as a tensor, by place."""
    found = {}
    for k, group in enumerate(optimizer.param_groups):
        rate = group.get("lr", 0.0)
        if not isinstance(rate, (int, float, torch.Tensor)):
            raise CaptureError(
                f"lr of the optimizer is {rate!r}: give it a number, which may change between iterations"
            )
        if "lr" in group:
            is_tensor = isinstance(rate, torch.Tensor)
            found[Place(k, "lr")] = rate if is_tensor else torch.tensor(rate, dtype=torch.float64)
    return found


def _fixed_settings(optimizer, counts):
    """Returns the settings that a captured step has in all iterations, by place. Of a learning rate, this is whether it
    is a tensor."""
    rates = enumerate(group.get("lr") for group in optimizer.param_groups)
    return constants(counts, optimizer) | {Place(k, "lr"): isinstance(rate, torch.Tensor) for k, rate in rates}


def _like(value, number):
    """Returns a number, as a tensor if it stands for a tensor."""
    return NumberTensor.of(value, number) if isinstance(value, torch.Tensor) else number


def _counted(optimizer, counts):
    """Returns the present counts of an optimizer, as tensors."""
    return [torch.tensor(count.value(optimizer), dtype=torch.float64) for count in counts]

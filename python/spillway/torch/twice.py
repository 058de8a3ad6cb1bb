"""Compares two captures of a step, which must do the same.

What Python computes while a step is captured is a constant in all iterations. So a step is captured
again, with other random numbers of Python, after the first capture has stored what it stores.
"""

import sys
from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_flatten

from .carrying import carry, replaced_in
from .counting import refuse, values_at
from .errors import UNKNOWN_LINE, CaptureError, is_of_user, line_that_raised, quoted
from .recording import View
from .scalars import Scalar
from .storing import MISSING, described

aten = torch.ops.aten

ADVICE = (
    "a captured step computes with the same numbers of Python in all iterations. Put the number"
    " into the batch as a tensor"
)
NOT_KEPT = (
    "Python does not run in later iterations of a captured step, so that nothing more would be"
    " stored. Take what train(batch) returns, or write into a tensor in place"
)
SEED = 0x5EED


class Runs:
    """The runs of one step on fake tensors. `record` runs it once, given an earlier run or None; `stored` and
    `generators` are as they were before."""

    def __init__(self, stored, generators, record):
        self._stored, self._generators, self._record = stored, generators, record
        self._left = {}  # changes that the last run has left, by place and key

    def first(self):
        """Returns the run that is planned."""
        self.put_back()
        recorded = self._run(None)
        name = self._generators.moved()
        if name:
            line = self._blamed(lambda: self._generators.states()[name])
            raise CaptureError(f"{_where(line)}draws from {name}, but {ADVICE}, or draw with torch")
        return recorded

    def compare_again(self, first):
        """Runs the step again, as Python goes on from the first run with other random numbers.
        Raises `CaptureError` where it does something else."""
        left = self._left
        self._generators.seed(SEED)
        try:
            again = self._run(first)
        except CaptureError:
            raise
        except Exception as error:
            raise CaptureError(
                f"{_where(line_that_raised(error))}a second step fails after what the first one"
                f" has stored, with {type(error).__name__}: {error}"
            ) from error
        change = other_change(left, self._left)
        if change:
            self._refuse(*change)
        compare(first, again)

    def put_back(self):
        """Has everything hold what it held before."""
        self._stored.put_back()
        self._generators.put_back()

    def _run(self, previous):
        recorded = self._record(previous)
        while recorded.is_trial():
            if previous is not None:
                raise CaptureError("the optimizer changes other numbers in a second step than in the first one")
            self.put_back()
            recorded = self._record(previous)
        for one in recorded.optimizers:
            change, optimizer = one.counts.refused, one.optimizer
            if change:
                refuse(optimizer, change, self._blamed(lambda: values_at(optimizer, change.place)))
        self._left, replaced = left_by(self._stored, recorded.fakes.real)
        carry(recorded.recorder, recorded.fakes.replaced + replaced)
        return recorded

    def _refuse(self, one, other):
        change = one or other
        values = [MISSING if c is None else c.after for c in (one, other)]
        if any(v is MISSING for v in values):
            line = self._blamed(lambda: len(change.place.read()))
            label = change.place.label or "Python"
            raise CaptureError(f"{_where(line)}{label} gets other entries in each step: {NOT_KEPT}")
        line = self._blamed(lambda: described(change.now()))
        raise CaptureError(f"{_where(line)}{told(one, other)}")

    def _blamed(self, read):
        self.put_back()
        return blamed(read, lambda: self._record(None))


def left_by(stored, real):
    """Returns the changes that a run has left, by place and key, and the tensors that it has replaced in other places,
    which then hold what they held before. `real` returns the real tensor of a state's fake one."""
    left, replaced = {}, []
    for change in stored.changes():
        tensors = replaced_in(change, real)
        if tensors is None:
            left[id(change.place), change.key] = change
        else:
            replaced += tensors
            change.place.restore(change.key, change.before)
    return left, replaced


def other_change(left, now):
    """Returns the first change that one run has left and the next run has not left in the same way, of both runs; None
    if there is none."""
    keys = [*left, *(key for key in now if key not in left)]
    pairs = ((left.get(key), now.get(key)) for key in keys)
    return next(((one, other) for one, other in pairs if _after(one) != _after(other)), None)


def told(one, other):
    """Returns a sentence about a change that differs between two runs."""
    change = one or other
    one, other = [MISSING if c is None else c.after for c in (one, other)]
    if not (_is_short(one) and _is_short(other)):
        return f"{change.name} is another one after each step: {NOT_KEPT}"
    return (
        f"{change.name} is {one!r} after one step and {other!r} after two, but {ADVICE}, or make it a buffer that the"
        " step writes"
    )


def _after(change):
    return None if change is None else described(change.after)


def _is_short(value):
    return isinstance(value, (bool, int, float, str, type(None))) and len(repr(value)) < 80


def _where(line):
    return "" if line in (None, UNKNOWN_LINE) else f"{quoted(line)}: "


def compare(first, again):
    """Raises `CaptureError` where two recorded runs give other results, or write other values to
    states."""
    numbers = {}
    one = _Values(first, numbers)
    other = _Values(again, numbers, one)
    if one.outcome() == other.outcome():
        return
    firsts = other.first_beside(one), one.first_beside(other)
    where = _where(min(firsts, key=lambda first: first[0])[1])
    raise CaptureError(f"{where}the step differs when it is captured again, but {ADVICE}")


class _Values:
    """A number for each value that a run computes: the same for equal values of two runs."""

    def __init__(self, recorded, numbers, before=None):
        self._recorded, self._numbers = recorded, numbers
        self._recorder = recorded.recorder
        self._now = [self._first(k, before) for k in range(len(self._recorder.storages))]
        self._is_fixed = [s.kind == "temporary" for s in self._recorder.storages]
        for k in self._recorder.constants:
            self._is_fixed[k] = not self._recorder.storages[k].writes
        self._generator, self.calls = self._number("generator"), []
        for call in self._recorder.calls:
            self.calls.append((call, self._run(call)))
        self.known = {number for _, number in self.calls}

    def first_beside(self, other):
        """Returns the position and the line of the first call that another run lacks."""
        calls = enumerate(self.calls)
        mine = ((k, call.line) for k, (call, number) in calls if number not in other.known)
        return next(mine, (len(self.calls), None))

    def outcome(self):
        """Returns what an iteration leaves: results, states and the generator."""
        leaves, structure = tree_flatten(self._recorded.returned)
        results = tuple(self._result(leaf) for leaf in leaves)
        states = {
            self._owner(storage): self._now[k]
            for k, storage in enumerate(self._recorder.storages)
            if storage.kind in ("state", "given") and storage.writes
        }
        counts = [self._part(after) for one in self._recorded.optimizers for after in one.supplied.after or ()]
        return str(structure), results, states, counts, self._generator

    def left(self, k):
        """Returns the number of a tensor that the run has left to the next one: a new number, unless
        the run always leaves the same value."""
        return self._now[k] if self._is_fixed[k] else self._number(("left", k))

    def _owner(self, storage):
        """Returns what identifies a tensor of the caller in all runs."""
        return storage.value.untyped_storage()._cdata if storage.kind == "state" else storage.name

    def _first(self, k, before):
        storage = self._recorder.storages[k]
        left = self._recorder.left.get(k)
        if left is not None:
            return before.left(left)
        if storage.kind == "state":
            return self._number(self._identity(k, storage))
        return self._number((storage.kind, storage.name if storage.kind == "given" else ""))

    def _identity(self, k, storage):
        known = self._recorder.bytes_of_constants.get(k)
        if known is not None:
            return "constant", known
        return "state", self._owner(storage)

    def _run(self, call):
        """Returns the number of a call, and gives its results theirs."""
        leaves, structure = tree_flatten((call.args, call.kwargs))
        shape = tuple((v.shape, v.stride, v.dtype) if v else None for v in call.results)
        key = call.function, call.with_gradients, str(structure), tuple(map(self._part, leaves))
        draws = call.function is not None and _draws(call.function)
        number = self._number((key, shape, self._generator if draws else None))
        if draws:
            self._generator = self._number(("generator", number))
        copied = self._copied(call)
        if copied is not None:  # whether autograd copies a gradient may depend on who else has it
            source, target = copied
            self._now[target], self._is_fixed[target] = self._now[source], self._is_fixed[source]
            return self._now[source]
        is_fixed = not draws and all(self._is_fixed[k] for k in call.reads)
        for position, k in enumerate(call.writes):
            self._now[k] = self._number((number, position))
            self._is_fixed[k] = is_fixed and self._is_fixed[k]
        return number

    def _copied(self, call):
        """Returns the source and the target of a call that copies all bytes of one tensor."""
        if call.function is aten.copy_.default:
            target, source = call.args[:2]
        elif call.function is aten.clone.default:
            source, target = call.args[0], call.results[0]
        else:
            return None
        views = source, target
        if not all(isinstance(v, View) and v.tensor is not None for v in views):
            return None
        layouts = [(v.shape, v.stride, v.dtype) for v in views]
        fill = all(v.fills(self._recorder.storages[v.tensor].nbytes) for v in views)
        return (source.tensor, target.tensor) if fill and layouts[0] == layouts[1] else None

    def _part(self, leaf):
        if isinstance(leaf, View):
            value = None if leaf.tensor is None else self._now[leaf.tensor]
            return value, leaf.shape, leaf.stride, leaf.offset, leaf.dtype
        if isinstance(leaf, Scalar):
            function, leaves = leaf.compiled
            return ("number", function, *(self._part(view) for view, _ in leaves))
        return type(leaf), repr(leaf)

    def _result(self, leaf):
        if isinstance(leaf, torch.Tensor):
            return self._part(self._recorder.view(self._recorder.known(leaf)))
        if isinstance(leaf, torch.SymFloat):
            return self._part(leaf.node)
        return type(leaf), repr(leaf)

    def _number(self, value):
        return self._numbers.setdefault(value, len(self._numbers))


def _draws(function):
    return torch.Tag.nondeterministic_seeded in getattr(function, "tags", ())


def blamed(read, run):
    """Returns the line of the user's code after which `read()` first returns something else, while
    `run()` runs. Returns None if there is none."""
    found = []
    last = [None, None]  # what was read before, and the line that ran since

    def look(frame):
        try:
            value = read()
        except Exception:
            return
        if last[1] is not None and value != last[0] and not found:
            found.append(last[1])
        last[0] = value
        if is_of_user(frame.f_code.co_filename):
            last[1] = f"{frame.f_code.co_filename}:{frame.f_lineno}"

    def trace(frame, event, arg):
        if found or not is_of_user(frame.f_code.co_filename):
            return None
        look(frame)
        if event == "return":
            caller = frame.f_back
            while caller is not None and not is_of_user(caller.f_code.co_filename):
                caller = caller.f_back
            last[1] = caller and f"{caller.f_code.co_filename}:{caller.f_lineno}"
        return trace

    with _traced(trace):
        try:
            run()
        except Exception:
            pass
        look(sys._getframe())
    return found[0] if found else None


@contextmanager
def _traced(trace):
    before = sys.gettrace()
    sys.settrace(trace)
    try:
        yield
    finally:
        sys.settrace(before)

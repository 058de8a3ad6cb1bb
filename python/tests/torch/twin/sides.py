"""A training program is run twice: by eager PyTorch, and within a budget.

A program is a function of a side. What it trains by `side.capture(...)` runs eagerly on one side
and within a plan on the other, which is captured or made by the usual loop; everything else is the same
Python. The sides' losses, models, optimizers, generators and whatever the program shows by `side.show`
must have the same bits.
"""

import contextlib
import io
import random
import re
import traceback
import warnings
import zlib
from dataclasses import dataclass

import numpy
import torch
from eager import MACHINE
from torch._subclasses.fake_tensor import FakeTensor

import spillway.torch

STEPS = 5
LINE = r"(train_\w+|parts|sides)\.py:\d+"  # the call of `capture` is in this file
ROOMY, TIGHT = "64MiB", "min"  # with the first, all is in memory at once
LOOP_REFUSES = (  # why the usual loop cannot run what can be captured
    "no graph of torch.compile",  # it leaves the code out
    "create_graph=True",
    "was written between forward and backward",
    "have torch.compile leave out the function",
)


@dataclass
class Program:
    """A program, and how it ends: "same", or refused by a sentence with some words."""

    run: object
    words: tuple  # none if it is not refused
    names_line: bool
    is_short: bool

    @property
    def name(self):
        return f"{self.run.__module__}.{self.run.__name__}"

    @property
    def seed(self):
        return zlib.crc32(self.name.encode())


PROGRAMS = []


def same(run=None, short=False):
    """Marks a program that gives the same bits within a plan."""
    if run is None:
        return lambda run: same(run, short)
    PROGRAMS.append(Program(run, (), False, short))
    return run


def refused(*words, names_line=True, short=False):
    """Marks a program that is refused by a sentence with these words, which names a line of the
    program unless it is about what has changed since capture."""

    def mark(run):
        PROGRAMS.append(Program(run, words, names_line, short))
        return run

    return mark


class Side:
    """What a program does that is different in eager mode and within a plan."""

    def __init__(self):
        self.losses, self.shown, self._trained, self._models = [], {}, [], []

    def capture(self, model, loss_fn, optimizer, example, **settings):
        """Returns the function that trains with a batch."""
        self._models.append((model, optimizer))
        train = self._training(model, loss_fn, optimizer, example, settings)
        self._trained.append(train)
        return train

    def train(self, model, loss_fn, optimizer, batches, after=lambda k: None, **settings):
        """Trains with a list of batches. `after` is called after each step."""
        train = self.capture(model, loss_fn, optimizer, batches[0], **settings)
        for k, batch in enumerate(batches):
            train(batch)
            after(k)
        return train

    def show(self, **values):
        """Compares more values at the end: tensors, their nestings, or plain Python."""
        self.shown.update(values)

    def results(self):
        """Returns by name everything that must be the same."""
        for train in self._trained:
            train.sync()
        named = {f"loss {k}": loss for k, loss in enumerate(self.losses)}
        for k, (model, optimizer) in enumerate(self._models):
            named |= leaves(f"model {k}", model.state_dict())
            named |= leaves(f"attributes {k}", attributes(model))
            named |= leaves(f"optimizer {k}", optimizer.state_dict())
            named |= leaves(f"gradient flags {k}", [p.requires_grad for p in model.parameters()])
        named |= leaves("shown", {n: v() if callable(v) else v for n, v in self.shown.items()})
        named["generator"] = torch.get_rng_state()
        named["random"] = random.getstate()
        named["numpy.random"] = numpy.random.get_state()[1].tolist()
        return named


class Eager(Side):
    """Trains by PyTorch alone."""

    is_planned = False

    def _training(self, model, loss_fn, optimizer, example, settings):
        return _EagerStep(self, model, loss_fn, optimizer)


class _EagerStep:
    def __init__(self, side, model, loss_fn, optimizer):
        self._side, self._model = side, model
        self._loss_fn, self._optimizer = loss_fn, optimizer

    def __call__(self, batch):
        self._model.zero_grad()
        self._optimizer.zero_grad()
        loss = loss_of(self._loss_fn(self._model, batch))
        loss.backward()
        closure = [lambda: loss] if isinstance(self._optimizer, torch.optim.LBFGS) else []
        self._optimizer.step(*closure)
        self._side.losses.append(loss.detach().clone())
        return self._side.losses[-1].clone()

    def sync(self):
        pass

    load = close = sync


class Planned(Side):
    """Trains within a plan."""

    is_planned = True

    def __init__(self, budget):
        super().__init__()
        self._budget = budget

    def _training(self, model, loss_fn, optimizer, example, settings):
        step = spillway.torch.capture(model, loss_fn, optimizer, example, **settings)
        budget = self._budget
        if budget == TIGHT:  # the least, and enough for an op more after a change
            budget = step.min_feasible_bytes(MACHINE) + 4 * MACHINE.chunk_bytes
        plan = step.plan(budget, MACHINE, settings=dict(effort=1))
        return _PlannedStep(self, step.compile(plan, settings=dict(effort=1)))


class _PlannedStep:
    def __init__(self, side, train):
        self._side, self._train = side, train

    def __call__(self, batch):
        self._side.losses.append(loss_of(self._train(batch)).detach().clone())
        return self._side.losses[-1].clone()

    def __getattr__(self, name):
        return getattr(self._train, name)


class Looped(Side):
    """Trains by the usual loop, with a model that a backend of torch.compile compiles."""

    is_planned = False

    def __init__(self, backend):
        super().__init__()
        torch._dynamo.reset()  # what other programs have compiled
        self._backend = backend

    def _training(self, model, loss_fn, optimizer, example, settings):
        if self._backend == "spillway":
            options = dict(budget=TIGHT, machine=MACHINE, settings=dict(effort=1))
            model.compile(backend="spillway", options=options)
            spillway.torch.optimizer(optimizer)
        else:
            model.compile(backend=self._backend)
        return _EagerStep(self, model, loss_fn, optimizer)


def loss_of(returned):
    return returned["loss"] if isinstance(returned, dict) else returned


@dataclass
class Outcome:
    """How a program ended: "same", "refused", "different" or "crashed", and the details."""

    kind: str
    text: str = ""
    trace: str = ""

    @property
    def details(self):
        return f"{self.kind}: {self.text}\n{self.trace}"


def outcome(program, side):
    """Runs a program in eager mode and on a side."""
    expected = run(program, Eager())
    with ignored_output():
        try:
            found = run(program, side)
        except spillway.Error as error:
            return Outcome("refused", str(error), traceback.format_exc())
        except Exception as error:
            text = f"{type(error).__module__}.{type(error).__name__}: {error}"
            return Outcome("crashed", text, traceback.format_exc())
    differing = differences(expected, found)
    return Outcome("different", ", ".join(differing)) if differing else Outcome("same")


def run(program, side):
    """Runs a program on a side, from its seed, and returns its results."""
    random.seed(program.seed)
    numpy.random.seed(program.seed)
    torch.manual_seed(program.seed)
    with ignored_output(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        program.run(side)
        return side.results()


def check(program, budget):
    """Raises `AssertionError` if a captured program ends otherwise than it should."""
    found = outcome(program, Planned(budget))
    if not program.words:
        assert found.kind == "same", found.details
        return
    assert found.kind == "refused", found.details
    assert all(word in found.text for word in program.words), found.details
    if program.names_line:
        assert re.search(LINE, found.text), found.details


def check_loop(program):
    """Raises `AssertionError` if the usual loop has other bits than eager mode and than PyTorch's own backend, or if a
    program that can be captured is refused for a reason that is not known. A program that reads the clock has other
    bits each time."""
    found = outcome(program, Looped("spillway"))
    if found.kind == "different":
        changes = differences(run(program, Eager()), run(program, Eager()))
        looped, by_pytorch = run(program, Looped("spillway")), run(program, Looped("aot_eager"))
        assert changes or not differences(by_pytorch, looped), found.details
    elif found.kind == "refused":
        assert program.words or any(reason in found.text for reason in LOOP_REFUSES), found.details
    else:
        assert found.kind == "same", found.details


def differences(expected, found):
    """Returns the names of the results that differ."""
    return [n for n in {**expected, **found} if not is_same(expected, found, n)]


def is_same(expected, found, name):
    if name not in expected or name not in found:
        return False
    a, b = expected[name], found[name]
    if not isinstance(a, torch.Tensor) or not isinstance(b, torch.Tensor):
        return type(a) is type(b) and a == b
    if isinstance(a, FakeTensor) or isinstance(b, FakeTensor):
        return False
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if a.layout is not torch.strided:
        a, b = a.to_dense(), b.to_dense()
    as_bytes = [x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (a, b)]
    return torch.equal(*as_bytes)


def leaves(name, value):
    """Returns the leaves of a nesting by name."""
    if isinstance(value, dict):
        return {n: x for k, v in value.items() for n, x in leaves(f"{name}.{k}", v).items()}
    if isinstance(value, (list, tuple)):
        return {n: x for k, v in enumerate(value) for n, x in leaves(f"{name}.{k}", v).items()}
    is_plain = isinstance(value, (torch.Tensor, int, float, str, bool, complex, type(None)))
    return {name: value} if is_plain else {}


def attributes(model):
    """Returns what modules hold besides parameters and buffers: plain values and tensors. Of what
    the next forward pass makes anew, as a pruned weight, and of private ones, only whether it is fake."""
    found = {}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if name == "_compiled_call_impl":
                continue
            is_made_anew = {f"{name}_orig", f"{name}_v"} & {*module._parameters}
            if is_made_anew or name.startswith("_"):
                value = isinstance(value, FakeTensor)
            found[f"{path}.{name}"] = value
    return found


@contextlib.contextmanager
def ignored_output():
    with contextlib.redirect_stdout(io.StringIO()):
        yield

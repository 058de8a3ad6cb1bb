"""What is left after an error in a step: the states of the last complete iteration."""

import copy
import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch
from eager import MACHINE, same_dicts
from torch import nn
from torch.nn import functional as F

import spillway.torch
from spillway.torch import CaptureError, LostError
from spillway.torch.running import _Kernels

pytestmark = pytest.mark.short


class Words(nn.Module):
    """Writes running statistics and a buffer that it never reads before, ahead of what may fail."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.norm = nn.BatchNorm1d(8)
        self.head = nn.Linear(8, 4)
        self.register_buffer("last", torch.zeros(8))

    def forward(self, x):
        y = self.norm(self.embedding(x))
        self.last.copy_(y.detach().mean(0))
        return F.dropout(self.head(y), 0.1)


def loss_fn(model, batch):
    words, labels = batch
    return F.cross_entropy(model(words), labels)


def late_loss(model, batch):
    """Takes indices that are computed, which no check sees before the iteration."""
    words, labels = batch
    return F.cross_entropy(model(words), labels * 1)


def batch(label=None):
    labels = torch.randint(4, (6,))
    if label is not None:
        labels[2] = label
    return torch.randint(10, (6,)), labels


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def compiled(model, optimizer, loss_fn=loss_fn, budget="1MiB"):
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    return step.compile(step.plan(budget, MACHINE), machine=MACHINE)


def trained(fails, loss_fn=loss_fn, budget="1MiB", expected=None):
    """Trains twice for six steps. `fails(train)` comes after some, and must raise `expected`."""
    torch.manual_seed(5)
    model = Words()
    models = model, copy.deepcopy(model)
    optimizers = [adam(m) for m in models]
    train, undisturbed = (compiled(m, o, loss_fn, budget) for m, o in zip(models, optimizers))
    for k in range(6):
        data, state = batch(), torch.get_rng_state()
        undisturbed(data)
        torch.set_rng_state(state)
        if k in (0, 3, 4):
            with pytest.raises(expected):
                fails(train)
            assert torch.equal(torch.get_rng_state(), state)
            assert train.iterations == k
            if k == 3:
                assert train.sync() == 3
        train(data)
    assert train.sync() == undisturbed.sync() == 6
    same_dicts(models[0].state_dict(), models[1].state_dict(), "model")
    same_dicts(optimizers[0].state_dict(), optimizers[1].state_dict(), "optimizer")


@pytest.mark.parametrize("budget", ["1MiB", "min"])
def test_an_index_that_an_op_refuses_loses_nothing(budget):
    bad = batch(label=9)
    trained(lambda train: train(bad), late_loss, budget, IndexError)


def test_what_the_error_says():
    model = Words()
    train = compiled(model, adam(model), late_loss)
    train(batch())
    with pytest.raises(IndexError) as raised:
        train(batch(label=9))
    if sys.version_info >= (3, 11):
        assert "the states are those after iteration 1: sync()" in raised.value.__notes__[0]


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: batch(label=9), r"batch.1 has 9, but .*test_errors.py:\d+ takes .* from 0 to 3"),
        (lambda: batch(label=-1), "batch.1 has -1"),
        (lambda: (torch.full((6,), 10), batch()[1]), "batch.0 has 10, but .* from 0 to 9"),
    ],
)
def test_an_index_in_the_batch_is_checked_before_anything_runs(make, message, monkeypatch):
    model = Words()
    train = compiled(model, adam(model))
    train(batch(label=-100))  # which the loss ignores
    launched = []
    monkeypatch.setattr(_Kernels, "launch", lambda self, *args: launched.append(args))
    with pytest.raises(IndexError, match=message):
        train(make())
    assert not launched


def test_indices_that_are_copied_first_are_checked_too(monkeypatch):
    def shifted(model, x):
        logits = model.head(model.embedding(x[:, :-1]))
        return F.cross_entropy(logits.flatten(0, 1), x[:, 1:].reshape(-1) % 4)

    def tokens(model, x):
        return F.cross_entropy(model.embedding(x[:, 1:].reshape(-1)), x[:, :-1].reshape(-1))

    model = Words()
    x = torch.randint(4, (3, 5))
    for function, at in ((shifted, (0, 0)), (tokens, (2, 4)), (tokens, (1, 1))):
        optimizer = adam(model)
        step = spillway.torch.capture(model, function, optimizer, x)
        train = step.compile(step.plan("1MiB", MACHINE))
        train(x)
        wrong = x.clone()
        wrong[at] = 99
        with pytest.raises(IndexError, match="batch.0 has 99"):
            train(wrong)
        train(x)
        train.sync()


@pytest.mark.parametrize(
    "wrong, message",
    [
        ((torch.zeros(6), torch.zeros(6)), "batch.0 is torch.float32, but torch.int64"),
        ((3, torch.zeros(6)), "the batch is .3, tensor., but .tensor, tensor. was captured"),
        ((torch.zeros(6, dtype=torch.int64, device="meta"), batch()[1]), "batch.0 is meta, but cpu"),
    ],
)
def test_other_batches_are_refused(wrong, message):
    model = Words()
    train = compiled(model, adam(model))
    with pytest.raises(ValueError, match=message):
        train(wrong)
    train(batch())


def test_a_batch_of_another_rank_leaves_the_states():
    model = Words()
    train = compiled(model, adam(model))
    train(batch())
    with pytest.raises(CaptureError, match="running_mean should contain 3 elements not 8") as raised:
        train((torch.zeros(2, 3, dtype=torch.int64), batch()[1]))
    assert isinstance(raised.value.__cause__, RuntimeError)
    assert "self.norm(self.embedding(x))" in str(raised.value)
    train(batch())
    assert train.sync() == 2


def failing(train, number, error=MemoryError):
    """Has an op of each iteration fail."""
    launch = _Kernels._launch

    def launched(self, op, *args):
        if op == number:
            raise error("not enough")
        launch(self, op, *args)

    return launched


def test_an_op_that_fails_late_loses_what_was_not_synced(monkeypatch):
    model = Words()
    optimizer = adam(model)
    train = compiled(model, optimizer)
    for _ in range(3):
        train(batch())
    train.sync()
    at_three = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    train(batch())
    last = max(n for n, op in enumerate(train._step.operations) if op.name.startswith("addcdiv"))
    with monkeypatch.context() as patched:
        patched.setattr(_Kernels, "_launch", failing(train, last))
        with pytest.raises(MemoryError):
            train(batch())
    for call in (lambda: train(batch()), train.sync):
        with pytest.raises(LostError, match="iteration 5 failed.*not enough.* load.. begins again"):
            call()
    same_dicts(model.state_dict(), at_three[0], "model")
    train.load()
    train(batch())
    train.sync()
    assert optimizer.state[model.head.weight]["step"] == 4


def test_an_op_that_fails_late_in_the_first_iteration_loses_nothing(monkeypatch):
    model = Words()
    before = copy.deepcopy(model.state_dict())
    train = compiled(model, adam(model))
    last = len(train._step.operations) - 2
    with monkeypatch.context() as patched:
        patched.setattr(_Kernels, "_launch", failing(train, last))
        with pytest.raises(MemoryError):
            train(batch())
    assert train.sync() == 0
    same_dicts(model.state_dict(), before, "model")
    train(batch())
    assert train.sync() == 1


@pytest.fixture(autouse=True)
def interrupts():
    """Python raises at SIGINT. A shell that starts tests in the background leaves the signal ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def interrupting(times):
    """Returns a launch that sends SIGINT in the middle of an iteration."""
    launch = _Kernels._launch

    def launched(self, op, *args):
        if op == len(self._step.operations) // 2:
            for _ in range(times):
                os.kill(os.getpid(), signal.SIGINT)
        launch(self, op, *args)

    return launched


def test_an_interrupt_waits_for_the_end_of_the_iteration(monkeypatch):
    torch.manual_seed(5)
    model = Words().eval()
    models = model, copy.deepcopy(model)
    train, undisturbed = (compiled(m, adam(m)) for m in models)
    data = [batch() for _ in range(3)]
    for k, b in enumerate(data):
        state = torch.get_rng_state()
        undisturbed(b)
        torch.set_rng_state(state)
        with monkeypatch.context() as patched:
            patched.setattr(_Kernels, "_launch", interrupting(1))
            with pytest.raises(KeyboardInterrupt):
                train(b)
        assert train.iterations == k + 1
        assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert train.sync() == undisturbed.sync() == 3
    same_dicts(models[0].state_dict(), models[1].state_dict(), "model")


def test_the_second_interrupt_ends_the_iteration(monkeypatch):
    model = Words()
    train = compiled(model, adam(model), late_loss)
    train(batch())
    train.sync()
    before = copy.deepcopy(model.state_dict())
    early = _Kernels._launch

    def launched(self, op, *args):
        if self._step.operations[op].name.startswith("nll_loss_forward"):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        early(self, op, *args)

    monkeypatch.setattr(_Kernels, "_launch", launched)
    with pytest.raises(KeyboardInterrupt):
        train(batch())
    monkeypatch.undo()
    assert train.sync() == 1
    same_dicts(model.state_dict(), before, "model")


def test_the_second_interrupt_does_not_lose_what_was_written(monkeypatch):
    model = Words()
    optimizer = adam(model)
    train = compiled(model, optimizer)
    train(batch())
    launch = _Kernels._launch

    def launched(self, op, *args):
        if self._step.operations[op].name.startswith("addcdiv"):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
        launch(self, op, *args)

    monkeypatch.setattr(_Kernels, "_launch", launched)
    with pytest.raises(KeyboardInterrupt):
        train(batch())
    monkeypatch.undo()
    assert train.sync() == 2
    assert optimizer.state[model.head.weight]["step"] == 2


def test_a_handler_that_raises_waits_too():
    program = """
        import os, signal, sys, torch
        sys.path[:0] = [sys.argv[1], sys.argv[2]]
        from test_errors import Words, adam, batch, compiled, interrupting, _Kernels

        def stop(number, frame):
            raise SystemExit(train.sync() + 40)

        model = Words()
        train = compiled(model, adam(model))
        train(batch())
        signal.signal(signal.SIGINT, stop)
        _Kernels._launch = interrupting(1)
        train(batch())
    """
    tests = Path(__file__).parent
    arguments = [sys.executable, "-c", textwrap.dedent(program), tests, tests.parents[1]]
    ended = subprocess.run([*map(str, arguments)], timeout=120)
    assert ended.returncode == 42

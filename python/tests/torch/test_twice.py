"""What Python computes and stores while a step is captured: the same bits as eager PyTorch, or a
refusal."""

import functools
import inspect
import itertools
import random
from collections import deque

import numpy
import pytest
import torch
from eager import compare
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

import spillway.torch

pytestmark = pytest.mark.short
CaptureError = spillway.torch.CaptureError


def mlp():
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 3))


def batches(k):
    return torch.randn(5, 6), torch.randint(3, (5,))


def loss_fn(model, batch):
    return F.cross_entropy(model(batch[0]), batch[1])


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.3)


def random_states():
    numbers = numpy.random.get_state()[1].tobytes(), torch.get_rng_state().numpy().tobytes()
    return random.getstate(), *numbers


def refused(model, loss_fn, make=sgd):
    """Captures a step, which is refused. Returns the message."""
    optimizer, batch = make(model), batches(0)
    before = random_states()
    with pytest.raises(CaptureError) as error:
        spillway.torch.capture(model, loss_fn, optimizer, batch)
    assert not optimizer.state
    for tensor in (*model.parameters(), *model.buffers()):
        assert not isinstance(tensor, FakeTensor) and tensor.grad is None
    assert random_states() == before
    return str(error.value)


def names_line(message, function, number):
    """Returns whether a message begins with the line of a function, and that line's text."""
    lines, first = inspect.getsourcelines(function)
    return message.startswith(f"{__file__}:{first + number}: `{lines[number].strip()}`: ")


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()


class Averaging(Net):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.plain, self.pair = torch.zeros(3), (torch.zeros(3), torch.ones(3))
        self.seen = None

    def forward(self, x):
        y = self.net(x)
        mean = y.detach().mean(0)
        self.mean = 0.9 * self.mean + 0.1 * mean
        self.plain = 0.9 * self.plain + 0.1 * mean
        self.pair = (self.pair[1] + mean, self.pair[0] * 0.5)
        self.seen = mean
        return y - self.mean - self.plain + self.pair[0].square()


@pytest.mark.parametrize("budget", [None, "80%"])
def test_tensors_that_a_model_replaces_are_states(budget):
    step, train = compare(Averaging, loss_fn, sgd, batches, budget=budget)
    model = step.source.model
    assert model.mean.abs().sum() > 0 and model.plain.abs().sum() > 0 and model.seen is None
    torch.manual_seed(7)
    eager = Averaging()
    eager.load_state_dict(model.state_dict())
    eager.plain, eager.pair = model.plain.clone(), tuple(x.clone() for x in model.pair)
    # Also what has no place in `state_dict` is that of the last iteration.
    x, y = batches(0)
    assert torch.equal(train((x, y)), loss_fn(eager, (x, y)))


def test_a_queue_of_tensors_moves_on():
    class Queue(Net):
        def __init__(self):
            super().__init__()
            self.queue = deque([torch.zeros(3) for _ in range(3)], maxlen=3)

        def forward(self, x):
            y = self.net(x)
            result = y + torch.stack(list(self.queue)).sum(0)
            self.queue.append(y.detach().mean(0))
            return result

    compare(Queue, loss_fn, sgd, batches, budget="80%")


def test_old_weight_norm_replaces_its_weight():
    def make():
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(6, 8)), nn.ReLU(), nn.Linear(8, 3))

    torch.manual_seed(3)
    model = make()
    step = spillway.torch.capture(model, loss_fn, sgd(model), batches(0))
    train = step.compile(step.plan("1MiB"))
    torch.manual_seed(3)
    eager = make()
    optimizer = sgd(eager)
    for k in range(3):
        batch = batches(k)
        optimizer.zero_grad()
        loss = loss_fn(eager, batch)
        loss.backward()
        optimizer.step()
        assert torch.equal(train(batch), loss)
    assert not isinstance(model[0].weight, FakeTensor)


def test_a_buffer_that_is_replaced_with_its_gradients_is_refused():
    class Attached(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("mean", torch.zeros(3))

        def forward(self, x):
            self.mean = self.net(x).mean(0)
            return self.net(x)

    assert "model.mean is replaced by a tensor that needs gradients" in refused(Attached(), loss_fn)


def test_a_buffer_that_grows_is_refused():
    class Growing(Net):
        def __init__(self):
            super().__init__()
            self.register_buffer("rows", torch.zeros(1, 6))

        def forward(self, x):
            self.rows = torch.cat([self.rows, x])
            return self.net(x) + self.rows.mean()

    assert "model.rows is replaced by a tensor that has another shape" in refused(Growing(), loss_fn)


def test_a_view_of_a_state_is_refused():
    class Viewing(Net):
        def __init__(self):
            super().__init__()
            self.before = torch.zeros(3)

        def forward(self, x):
            y = self.net(x) + self.before
            self.before = self.net[2].bias.detach()
            return y

    assert "model.before is replaced by a view of net.2.bias" in refused(Viewing(), loss_fn)


class Counting(Net):
    def __init__(self):
        super().__init__()
        self.n = 0

    def forward(self, x):
        self.n += 1
        return self.net(x) * min(1.0, self.n / 4)


def test_a_counter_is_refused_with_its_line():
    model = Counting()
    message = refused(model, loss_fn)
    assert names_line(message, Counting.forward, 1)
    assert "model.n is 1 after one step and 2 after two" in message
    assert model.n == 0
    with pytest.raises(CaptureError, match="model.n is 1 after one step"):
        spillway.torch.capture_inference(model, batches(0)[0])


def test_a_variable_of_a_function_is_refused_with_its_line():
    beta = 1.0

    def annealed(model, batch):
        nonlocal beta
        beta *= 0.5
        return loss_fn(model, batch) * beta

    message = refused(mlp(), annealed)
    assert names_line(message, annealed, 2) and "beta is 0.5 after one step and 0.25" in message
    assert beta == 1.0


def test_what_a_function_of_autograd_counts_is_refused():
    counts = {"backward": 0}

    def counted(gradient):
        counts["backward"] += 1
        return gradient * counts["backward"]

    def hooked(model, batch):
        y = model(batch[0])
        y.register_hook(counted)
        return F.cross_entropy(y, batch[1])

    message = refused(mlp(), hooked)
    assert names_line(message, counted, 1) and "counts['backward'] is 1 after one step" in message


def test_an_attribute_of_a_class_is_refused():
    class Shared(Net):
        calls = 0

        def forward(self, x):
            Shared.calls += 1
            return self.net(x) * Shared.calls

    message = refused(Shared(), loss_fn)
    assert names_line(message, Shared.forward, 1) and "Shared.calls is 1" in message
    assert Shared.calls == 0


def test_a_list_that_grows_is_refused_with_its_line():
    seen = []

    def noting(model, batch):
        loss = loss_fn(model, batch)
        seen.append(loss.detach())
        return loss

    message = refused(mlp(), noting)
    assert names_line(message, noting, 2) and "seen gets other entries in each step" in message
    assert not seen


def draws_from_python(model, batch):
    return loss_fn(model, batch) * (2 if random.random() < 1e-9 else 1)


def draws_from_numpy(model, batch):
    share = numpy.random.beta(0.4, 0.4)
    return loss_fn(model, batch) * share


@pytest.mark.parametrize(
    ("draws", "line", "name"),
    [(draws_from_python, 1, "Python's random module"), (draws_from_numpy, 1, "numpy.random")],
)
def test_random_numbers_of_python_are_refused_with_their_line(draws, line, name):
    message = refused(mlp(), draws)
    assert names_line(message, draws, line) and f"draws from {name}" in message


def test_a_generator_of_numpy_that_is_kept_is_refused():
    generator = numpy.random.default_rng(3)
    before = generator.bit_generator.state

    def noisy(model, batch):
        return loss_fn(model, batch) * generator.random()

    assert names_line(refused(mlp(), noisy), noisy, 1)
    assert generator.bit_generator.state == before


def test_a_clock_is_refused_with_its_line():
    ticks = iter(range(100))  # whose state nobody can see

    def timed(model, batch):
        loss = loss_fn(model, batch)
        return loss * next(ticks)

    message = refused(mlp(), timed)
    assert names_line(message, timed, 2) and "the step differs when it is captured again" in message


NUMBERS = itertools.count()


class Numbered(nn.Module):
    """Asks an iterator for items when it is made and when it is copied."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(6, 3)
        self.items = iter([0.5] * 100)
        self.number, self.first = next(NUMBERS), next(self.items)

    def __deepcopy__(self, memo):
        copied = Numbered()
        copied.load_state_dict(self.state_dict())
        next(self.items)
        return copied

    def forward(self, x):
        return self.head(x)


class Scaled(Numbered):
    def forward(self, x):
        return super().forward(x) * next(self.items)


class ScaledByLambda(Numbered):
    def __init__(self):
        super().__init__()
        self.scale = lambda: next(self.items)

    def forward(self, x):
        return super().forward(x) * self.scale()


def test_an_iterator_that_a_step_does_not_ask():
    compare(Numbered, loss_fn, sgd, batches)


@pytest.mark.parametrize("make", [Scaled, ScaledByLambda])
def test_an_iterator_that_a_step_asks_is_refused_though_its_items_are_equal(make):
    message = refused(make(), loss_fn)
    assert "items of model is an iterator, whose next item a captured step would not ask" in message


def test_noise_with_a_seed_of_its_own_is_a_constant():
    def noisy(model, batch):
        noise = numpy.random.default_rng(3).normal(size=(5, 6)).astype("f4")
        return loss_fn(model, (batch[0] + torch.from_numpy(noise), batch[1]))

    compare(mlp, noisy, sgd, batches)


def test_what_is_cached_is_computed_in_each_iteration():
    class Caching(Net):
        def __init__(self):
            super().__init__()
            self.mask, self.width = None, None

        def forward(self, x):
            if self.mask is None:
                self.mask, self.width = torch.ones(6).cumsum(0), len(x)
            return self.net(x * self.mask + self.width)

    step, _ = compare(Caching, loss_fn, sgd, batches)
    model = step.source.model
    assert model.mask is None and model.width is None
    model(torch.randn(2, 6))


@functools.lru_cache
def positions(count):
    return torch.arange(count) / count


def test_a_cache_of_a_function_keeps_no_fake_tensors():
    def placed(model, batch):
        return loss_fn(model, (batch[0] + positions(6), batch[1]))

    positions.cache_clear()
    model = mlp()
    _step = spillway.torch.capture(model, placed, sgd(model), batches(0))
    assert not isinstance(positions(6), FakeTensor)
    positions.cache_clear()
    compare(mlp, placed, sgd, batches)


def test_what_the_first_step_makes_and_the_second_reads_is_refused():
    class Remembering(Net):
        def __init__(self):
            super().__init__()
            self.before = None

        def forward(self, x):
            y = self.net(x)
            result = y if self.before is None else y - self.before
            self.before = y.detach()
            return result

    message = refused(Remembering(), loss_fn)
    assert names_line(message, Remembering.forward, 2) and "differs" in message


def test_inference_that_replaces_a_buffer():
    class Moving(Averaging):
        def forward(self, x):
            y = self.net(x)
            self.mean = 0.9 * self.mean + 0.1 * y.mean(0)
            return y - self.mean

    torch.manual_seed(3)
    model, eager = Moving(), Moving()
    eager.load_state_dict(model.state_dict())
    step = spillway.torch.capture_inference(model, batches(0)[0])
    infer = step.compile(step.plan("1MiB"))
    with torch.no_grad():
        for k in range(3):
            x = batches(k)[0]
            assert torch.equal(infer(x), eager(x))
    infer.sync()
    assert torch.equal(model.mean, eager.mean)


def seeds(model, batch):
    torch.manual_seed(3)
    return loss_fn(model, batch)


def forks(model, batch):
    with torch.random.fork_rng():
        noise = torch.randn(5, 6)
    return loss_fn(model, (batch[0] + noise, batch[1]))


def repeats(model, batch):
    state = torch.get_rng_state()
    first = torch.randn(5, 6)
    torch.set_rng_state(state)
    return loss_fn(model, (batch[0] + first + torch.randn(5, 6), batch[1]))


@pytest.mark.parametrize(("seeding", "line"), [(seeds, 1), (forks, 1), (repeats, 3)])
def test_seeds_within_a_step_are_refused_with_their_line(seeding, line):
    message = refused(mlp(), seeding)
    assert names_line(message, seeding, line) and "seed it between iterations" in message
    torch.manual_seed(3)  # is not refused any more


def test_a_seed_by_the_generator_itself_is_refused():
    def seeded(model, batch):
        torch.default_generator.manual_seed(3)
        return loss_fn(model, batch)

    assert "the step sets the state of PyTorch's generator" in refused(mlp(), seeded)


class Handwritten(torch.optim.Optimizer):
    """Adam without its second half. `count` makes the step count."""

    def __init__(self, parameters, count):
        super().__init__(parameters, dict(lr=0.1))
        self.count = count

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                if not state:
                    state["step"], state["mean"] = self.count(), torch.zeros_like(p)
                state["step"] += 1
                state["mean"] = 0.9 * state["mean"] + 0.1 * p.grad
                p.sub_(group["lr"] * state["mean"] / (1 - 0.9 ** state["step"]))


def stepped(model, count):
    """Returns a hand-written optimizer after one step."""
    optimizer = Handwritten(model.parameters(), count)
    torch.manual_seed(3)
    loss_fn(model, batches(0)).backward()
    optimizer.step()
    optimizer.zero_grad()
    return optimizer


@pytest.mark.parametrize("count", [int, lambda: torch.tensor(0.0)])
def test_an_optimizer_that_replaces_its_tensors(count):
    compare(mlp, loss_fn, lambda m: stepped(m, count), batches, budget="80%")
    model = mlp()
    with pytest.raises(NotImplementedError, match="run one step without Spillway first"):
        spillway.torch.capture(model, loss_fn, Handwritten(model.parameters(), count), batches(0))


def test_an_optimizer_without_states():
    class Sign(torch.optim.Optimizer):
        def __init__(self, parameters):
            super().__init__(parameters, dict(lr=0.1))

        @torch.no_grad()
        def step(self):
            for group in self.param_groups:
                for p in group["params"]:
                    p.sub_(group["lr"] * p.grad.sign())

    compare(mlp, loss_fn, lambda m: Sign(m.parameters()), batches)


def test_an_optimizer_with_a_closure_is_refused():
    model = mlp()
    with pytest.raises(CaptureError, match="LBFGS calls a closure"):
        spillway.torch.capture(model, loss_fn, torch.optim.LBFGS(model.parameters()), batches(0))

"""Python that changes from step to step."""

import functools
import itertools
import random
import time

import numpy
import torch
from parts import classify, mlp, rows, sgd
from sides import refused, same
from torch import nn


@refused("Put the number into the batch as a tensor", short=True)
def a_counter_in_the_model(side):
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.n = mlp(), 0

        def forward(self, x):
            self.n += 1
            return self.net(x) * min(1.0, self.n / 4)

    model = Count()
    side.train(model, classify, sgd(model), rows())


@refused("Put the number into the batch as a tensor")
def a_counter_that_matters_later(side):
    class Count(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.n = mlp(), 0

        def forward(self, x):
            self.n += 1
            return self.net(x) * (0.5 if self.n > 4 else 1.0)

    model = Count()
    side.train(model, classify, sgd(model), rows(8))


@refused("Put the number into the batch as a tensor")
def a_counter_of_the_closure(side):
    n = 0

    def loss_fn(m, batch):
        nonlocal n
        n += 1
        return classify(m, batch) * (0.5 if n > 4 else 1.0)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows(8))


CALLS = [0]


@refused("Put the number into the batch as a tensor")
def a_counter_of_the_program(side):
    CALLS[0] = 0

    def loss_fn(m, batch):
        CALLS[0] += 1
        return classify(m, batch) * (0.5 if CALLS[0] > 4 else 1.0)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows(8))


@refused("is an iterator")
def a_counter_of_an_iterator(side):
    numbers = itertools.count()

    def loss_fn(m, batch):
        return classify(m, batch) * (0.5 if next(numbers) > 4 else 1.0)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows(8))


@refused("Put the number into the batch as a tensor")
def a_counter_of_an_object(side):
    class Loss:
        def __init__(self):
            self.calls = 0

        def __call__(self, m, batch):
            self.calls += 1
            return classify(m, batch) * (0.5 if self.calls > 4 else 1.0)

    model = mlp()
    side.train(model, Loss(), sgd(model), rows(8))


@refused("put what changes into the batch", names_line=False, short=True)
def a_coefficient_annealed_between_steps(side):
    now = {"weight": 1.0}

    def after(k):
        now["weight"] *= 0.5

    model = mlp()
    side.train(model, lambda m, b: classify(m, b) * now["weight"], sgd(model), rows(), after)


@same
def a_coefficient_of_the_model_annealed_between_steps(side):
    class Weighted(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.weight = mlp(), 1.0

        def forward(self, x):
            return self.net(x) * self.weight

    model = Weighted()

    def after(k):
        model.weight *= 0.5

    side.train(model, classify, sgd(model), rows(), after)


class Settings:
    weight = 1.0


@refused("put what changes into the batch", names_line=False)
def a_coefficient_of_a_class(side):
    Settings.weight = 1.0

    def after(k):
        Settings.weight *= 0.5

    model = mlp()
    side.train(model, lambda m, b: classify(m, b) * Settings.weight, sgd(model), rows(), after)


@refused("put what changes into the batch", names_line=False)
def a_schedule_looked_up_by_a_function(side):
    epoch = [0]

    def weight():
        return 1.0 / (1 + epoch[0])

    def after(k):
        epoch[0] += 1

    model = mlp()
    side.train(model, lambda m, b: classify(m, b) * weight(), sgd(model), rows(), after)


@same(short=True)
def a_coefficient_in_the_batch(side):
    data = [(*batch, torch.tensor(1.0 / (k + 1))) for k, batch in enumerate(rows())]
    model = mlp()
    side.train(model, lambda m, b: classify(m, b[:2]) * b[2], sgd(model), data)


@same
def a_tensor_kept_from_the_step_before(side):
    kept = {"out": torch.zeros(6, 4)}

    def loss_fn(m, batch):
        out = m(batch[0])
        loss = (out - kept["out"]).square().mean()
        kept["out"] = out.detach()
        return loss

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("Put the number into the batch as a tensor", short=True)
def random_numbers_of_python(side):
    model = mlp()
    side.train(model, lambda m, b: classify(m, b) * random.random(), sgd(model), rows())


@refused("Put the number into the batch as a tensor")
def layers_dropped_by_python(side):
    layers = nn.ModuleList([nn.Linear(8, 8) for _ in range(4)])

    def loss_fn(m, batch):
        x = batch[0]
        for layer in m:
            if random.random() > 0.5:
                x = x + layer(x).relu()
        return x.square().mean()

    side.train(layers, loss_fn, torch.optim.Adam(layers.parameters()), rows())


@refused("Put the number into the batch as a tensor")
def mixup_drawn_by_numpy(side):
    def loss_fn(m, batch):
        share = float(numpy.random.beta(0.4, 0.4))
        x, y = batch
        out = m(share * x + (1 - share) * x.flip(0))
        return share * nn.functional.cross_entropy(out, y)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("Python does not run in later iterations")
def noise_of_a_numpy_generator(side):
    generator = numpy.random.default_rng(3)

    def loss_fn(m, batch):
        noise = torch.from_numpy(generator.normal(size=(6, 8)).astype("f4"))
        return classify(m, (batch[0] + noise, batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def noise_of_a_numpy_generator_with_a_fixed_seed(side):
    def loss_fn(m, batch):
        noise = torch.from_numpy(numpy.random.default_rng(3).normal(size=(6, 8)).astype("f4"))
        return classify(m, (batch[0] + noise, batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("Python does not run in later iterations", names_line=False)
def a_generator_of_python(side):
    own = random.Random(5)
    model = mlp()
    side.train(model, lambda m, b: classify(m, b) * own.uniform(0.5, 1), sgd(model), rows())


@refused("Put the number into the batch as a tensor")
def time_in_the_step(side):
    start = time.perf_counter()

    def loss_fn(m, batch):
        return classify(m, batch) * (1 + 1e-3 * (time.perf_counter() - start))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def a_mask_made_once_and_cached(side):
    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self._mask = mlp(), None  # put back after the capture

        def forward(self, x):
            if self._mask is None:
                self._mask = torch.ones(8)
            return self.net(x * self._mask)

    model = Cached()
    side.train(model, classify, sgd(model), rows())


@same
def a_function_with_a_cache(side):
    @functools.lru_cache
    def scale(width):
        return torch.linspace(0.5, 1.5, width)

    model = mlp()
    side.train(model, lambda m, b: classify(m, (b[0] * scale(8), b[1])), sgd(model), rows())


@refused("Python does not run in later iterations")
def metrics_appended_in_the_step(side):
    seen = []

    def loss_fn(m, batch):
        loss = classify(m, batch)
        seen.append(loss.detach())
        return loss

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())
    side.show(seen=seen)


@refused("Python needs the value of a tensor")
def metrics_by_item(side):
    def loss_fn(m, batch):
        loss = classify(m, batch)
        print(loss.item())
        return loss

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("stand in for yours")
def metrics_by_numpy(side):
    def loss_fn(m, batch):
        out = m(batch[0])
        accuracy = (out.detach().numpy().argmax(1) == batch[1].numpy()).mean()
        return nn.functional.cross_entropy(out, batch[1]) * float(accuracy)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("Python needs the value of a tensor")
def metrics_by_tolist(side):
    def loss_fn(m, batch):
        return classify(m, batch) * sum(batch[1].tolist())

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("Python needs the value of a tensor")
def a_branch_on_the_loss(side):
    def loss_fn(m, batch):
        loss = classify(m, batch)
        return loss if loss < 1.0 else loss.clamp(max=1.0)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def a_branch_on_a_shape(side):
    def loss_fn(m, batch):
        x, y = batch
        return classify(m, (x, y)) * (2.0 if len(x) > 4 else 1.0)

    model = mlp()
    side.train(model, loss_fn, sgd(model), [*rows(2), *rows(2, 3), *rows(1)])


@refused("put what changes into the batch", names_line=False)
def a_coefficient_annealed_between_shapes(side):
    now = {"weight": 1.0}

    def after(k):
        now["weight"] *= 0.5

    model = mlp()
    data = [*rows(2), *rows(2, 3), *rows(1)]
    side.train(model, lambda m, b: classify(m, b) * now["weight"], sgd(model), data, after)


@refused("Put the number into the batch as a tensor")
def modules_that_take_turns(side):
    class Turns(nn.Module):
        def __init__(self):
            super().__init__()
            self.nets = nn.ModuleList([mlp(), mlp()])
            self.turns = itertools.cycle(self.nets)

        def forward(self, x):
            return next(self.turns)(x)

    model = Turns()
    side.train(model, classify, torch.optim.SGD(model.parameters(), lr=0.1), rows())


@refused("autocast differs", names_line=False)
def autocast_switched_on_around_the_call(side):
    def loss_fn(m, batch):
        return classify(m, (batch[0] * torch.ones(8).to(batch[0].dtype).sum(), batch[1]))

    model = mlp()
    data = rows()
    train = side.capture(model, loss_fn, sgd(model), data[0])
    for k, batch in enumerate(data):
        with torch.autocast("cpu", torch.bfloat16, enabled=k > 1):
            train(batch)

"""Tensors that the code of a step reaches beside the model: the same bits as eager PyTorch, or a
refusal."""

import inspect

import pytest
import torch
from eager import compare
from torch import nn
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


def line_of(function, number):
    return rf"{__file__}:{inspect.getsourcelines(function)[1] + number}: "


class Held:
    """Things that a script keeps for each of its models."""

    def __init__(self, make):
        self._make, self._of = make, {}

    def of(self, model):
        if id(model) not in self._of:
            self._of[id(model)] = self._make(model)
        return self._of[id(model)]

    def sgd(self, model):
        """Returns an optimizer, once the things are there."""
        self.of(model)
        return sgd(model)


def test_a_parameter_of_the_optimizer_alone_is_trained():
    held = Held(lambda model: nn.Parameter(torch.tensor(1.5)))

    def scaled(model, batch):
        return F.cross_entropy(model(batch[0]) * held.of(model).exp(), batch[1])

    def adamw(model):
        return torch.optim.AdamW([*model.parameters(), held.of(model)], lr=0.01)

    step, _ = compare(mlp, scaled, adamw, batches, budget="80%")
    assert "parameter 4 of the optimizer's group 0" in [s.name for s in step.storages]
    eager, planned = held._of.values()
    assert torch.equal(eager, planned) and eager != 1.5


def test_a_criterion_with_parameters_is_trained():
    held = Held(lambda model: nn.Bilinear(3, 3, 1))

    def scored(model, batch):
        y = model(batch[0])
        return held.of(model)(y, y).square().mean()

    def adam(model):
        torch.manual_seed(5)
        return torch.optim.Adam([*model.parameters(), *held.of(model).parameters()], lr=0.01)

    compare(mlp, scored, adam, batches, budget="80%")
    eager, planned = held._of.values()
    assert torch.equal(eager.weight, planned.weight)
    assert all(type(p) is nn.Parameter and p.grad is None for p in planned.parameters())


def test_lists_of_parameters_made_before_are_those_of_the_step():
    held = Held(lambda model: list(model.parameters()))

    def penalised(model, batch):
        return loss_fn(model, batch) + 0.1 * sum(p.square().sum() for p in held.of(model))

    def clipped(model):
        optimizer, parameters = sgd(model), list(model.parameters())

        def clip(*_):
            nn.utils.clip_grad_norm_(parameters, 0.01)

        optimizer.register_step_pre_hook(clip)
        return optimizer

    compare(mlp, penalised, clipped, batches, budget="80%")


def test_gradients_of_parameters_kept_from_before():
    held = Held(lambda model: list(model.parameters()))

    def penalised(model, batch):
        loss = loss_fn(model, batch)
        gradients = torch.autograd.grad(loss, held.of(model), create_graph=True)
        return loss + sum(g.square().sum() for g in gradients)

    compare(mlp, penalised, held.sgd, batches)


def test_tensors_that_share_memory_with_a_parameter():
    held = Held(lambda model: (model[0].weight.detach(), model[2].weight.data.t()))

    def scaled(model, batch):
        first, second = held.of(model)
        return loss_fn(model, batch) * first.abs().max() + second[1:].sum()

    compare(mlp, scaled, held.sgd, batches)


def test_writes_to_tensors_that_share_memory_with_a_parameter():
    held = Held(lambda model: model[0].weight.detach())

    def shrunk(model, batch):
        held.of(model).mul_(0.9)
        return loss_fn(model, batch)

    compare(mlp, shrunk, held.sgd, batches)


def hooked(register):
    def make():
        model = mlp()
        for parameter in model.parameters():
            register(parameter)
        return model

    return make


def compare_hooked(register):
    torch.manual_seed(7)
    models = [hooked(register)() for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    # Copies of a parameter have no hooks: `compare` copies its model.
    taken = iter(models)
    compare(lambda: Made(taken), loss_fn, sgd, batches)


class Made(nn.Module):
    """Takes the next of some models for itself and for each copy."""

    def __init__(self, models):
        super().__init__()
        self.models, self.model = models, next(models)

    def __deepcopy__(self, memo):
        return Made(self.models)

    def forward(self, x):
        return self.model(x)


def test_hooks_on_gradients_of_parameters():
    compare_hooked(lambda p: p.register_hook(lambda g: g.clamp(-1e-3, 1e-3)))


def test_hooks_after_the_accumulation_of_gradients():
    def shrink(parameter):
        parameter.grad.mul_(0.1)

    compare_hooked(lambda p: p.register_post_accumulate_grad_hook(shrink))


def test_a_hook_that_reads_its_parameter():
    compare_hooked(lambda p: p.register_hook(lambda g: g + 0.1 * p))


def test_backward_hooks_of_modules():
    def halve(module, given, taken):
        return tuple(g if g is None else 0.5 * g for g in given)

    def make():
        model = mlp()
        model[2].register_full_backward_hook(halve)
        return model

    compare(make, loss_fn, sgd, batches)


def test_a_parameter_that_nobody_trains_is_refused_with_its_line():
    scale = nn.Parameter(torch.tensor(1.5))

    def scaled(model, batch):
        return loss_fn(model, batch) * scale

    model = mlp()
    error = line_of(scaled, 1) + r"`return loss_fn\(model, batch\) \* scale`: .*neither the model nor"
    with pytest.raises(CaptureError, match=error):
        spillway.torch.capture(model, scaled, sgd(model), batches(0))
    assert scale.grad is None


def test_a_teacher_is_a_constant_without_gradients():
    torch.manual_seed(5)
    teacher = mlp()

    def distilled(model, batch):
        with torch.no_grad():
            target = teacher(batch[0])
        return F.mse_loss(model(batch[0]), target)

    def with_gradients(model, batch):
        return F.mse_loss(model(batch[0]), teacher(batch[0]))

    compare(mlp, distilled, sgd, batches)
    model = mlp()
    with pytest.raises(CaptureError, match="under torch.no_grad"):
        spillway.torch.capture(model, with_gradients, sgd(model), batches(0))
    assert all(p.grad is None for p in teacher.parameters())


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return 2 * gradient


class Doubling(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(3, 6))

    def forward(self, x):
        return F.linear(x, Doubled.apply(self.weight))


def test_functions_of_autograd_get_parameters_of_the_model():
    compare(Doubling, loss_fn, sgd, batches)
    model = mlp()
    weight = model[2].weight

    def outside(model, batch):
        return loss_fn(model, batch) + Doubled.apply(weight).sum()

    with pytest.raises(CaptureError, match="autograd.Function is given from outside of the model"):
        spillway.torch.capture(model, outside, sgd(model), batches(0))
    assert weight.grad is None


@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD])
def test_learning_rates_that_are_tensors(optimizer):
    def between(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 5, gamma=0.3).step

    make = lambda m: optimizer(m.parameters(), torch.tensor(1e-2))
    compare(mlp, loss_fn, make, batches, between, steps=12)


def test_a_learning_rate_may_become_a_tensor():
    def between(optimizer):
        rates = iter([torch.tensor(0.1), torch.tensor(0.05), 0.02, 0.01])
        return lambda: optimizer.param_groups[0].update(lr=next(rates))

    compare(mlp, loss_fn, sgd, batches, between, budget="35%", steps=4)


def test_wrapped_modules_are_refused():
    class FullyShardedDataParallel(nn.Module):
        def __init__(self, module):
            super().__init__()
            self.module = module

    FullyShardedDataParallel.__module__ = "torch.distributed.fsdp"
    model = nn.Sequential(FullyShardedDataParallel(mlp()))
    with pytest.raises(CaptureError, match="model.0 is a FullyShardedDataParallel: give capture"):
        spillway.torch.capture(model, loss_fn, sgd(model), batches(0))

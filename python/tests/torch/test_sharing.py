"""Several captured steps that share tensors: each takes over what the others have written."""

import copy

import pytest
import torch
from eager import MACHINE, same, same_dicts
from torch import nn
from torch.nn import functional as F

import spillway.torch
from spillway.torch import ChangedError

pytestmark = pytest.mark.short


class Gan(nn.Module):
    def __init__(self):
        super().__init__()
        self.generator = nn.Sequential(nn.Linear(4, 16), nn.BatchNorm1d(16), nn.Linear(16, 8))
        self.critic = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))


def critic_loss(model, batch):
    real, noise = batch
    fake = model.generator(noise).detach()
    return F.softplus(-model.critic(real)).mean() + F.softplus(model.critic(fake)).mean()


def generator_loss(model, batch):
    return F.softplus(-model.critic(model.generator(batch[1]))).mean()


def batch():
    return torch.randn(6, 8), torch.randn(6, 4)


def compiled(model, loss_fn, optimizer, budget="1MiB"):
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    return step.compile(step.plan(budget, MACHINE), machine=MACHINE)


def optimizers(model):
    parts = model.critic, model.generator
    return [torch.optim.Adam(part.parameters(), lr=0.01) for part in parts]


@pytest.mark.parametrize("budget", ["1MiB", "min"])
def test_a_gan(budget):
    torch.manual_seed(5)
    eager_model = Gan()
    model = copy.deepcopy(eager_model)
    losses = critic_loss, generator_loss
    eager, planned = optimizers(eager_model), optimizers(model)
    trains = [compiled(model, f, o, budget) for f, o in zip(losses, planned)]
    for k in range(5):
        data = batch()
        for part in (0, 1) if k != 3 else (0, 0, 1):
            eager_model.zero_grad()
            loss = losses[part](eager_model, data)
            loss.backward()
            eager[part].step()
            same(trains[part](data), loss.detach(), f"loss {k} of part {part}")
    for train in trains:
        train.sync()
    same_dicts(model.state_dict(), eager_model.state_dict(), "model")
    for a, b in zip(planned, eager):
        same_dicts(a.state_dict(), b.state_dict(), "optimizer")


def test_inference_between_the_steps():
    model = nn.Linear(8, 4)
    eager_model = copy.deepcopy(model)
    optimizer, eager = (torch.optim.SGD(m.parameters(), lr=0.1) for m in (model, eager_model))

    def loss_fn(model, batch):
        return model(batch[0]).square().mean()

    train = compiled(model, loss_fn, optimizer)
    step = spillway.torch.capture_inference(model, batch()[0])
    infer = step.compile(step.plan("1MiB", MACHINE))
    for _ in range(3):
        data = batch()
        train(data)
        eager.zero_grad()
        loss_fn(eager_model, data).backward()
        eager.step()
        with torch.no_grad():
            same(infer(data[0]), eager_model(data[0]), "result")


class Distilled(nn.Module):
    def __init__(self):
        super().__init__()
        self.student, self.teacher = nn.Linear(8, 4), nn.Linear(8, 4).requires_grad_(False)


def distillation(model, batch):
    return F.mse_loss(model.student(batch[0]), model.teacher(batch[0]))


def follow(model):
    with torch.no_grad():
        for t, s in zip(model.teacher.parameters(), model.student.parameters()):
            t.mul_(0.9).add_(s, alpha=0.1)


def test_a_teacher_that_follows_its_student():
    model = Distilled()
    eager_model = copy.deepcopy(model)
    optimizer, eager = (torch.optim.SGD(m.student.parameters(), lr=0.1) for m in (model, eager_model))
    train = compiled(model, distillation, optimizer)
    for k in range(4):
        data = batch()
        eager.zero_grad()
        loss = distillation(eager_model, data)
        loss.backward()
        eager.step()
        same(train(data), loss.detach(), f"loss {k}")
        follow(eager_model)
        train.sync()
        follow(model)
    same_dicts(model.state_dict(), eager_model.state_dict(), "model")


def test_a_teacher_that_follows_old_values_is_refused():
    model = Distilled()
    train = compiled(model, distillation, torch.optim.SGD(model.student.parameters(), lr=0.1))
    train(batch())
    follow(model)
    for call in (lambda: train(batch()), train.sync):
        with pytest.raises(ChangedError, match="teacher.weight was written while .* call sync"):
            call()


def test_what_was_written_before_another_session_takes_over_is_refused():
    model = nn.Linear(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = compiled(model, lambda m, b: m(b[0]).square().mean(), optimizer)
    train(batch())
    with torch.no_grad():
        model.weight.mul_(2)
    with pytest.raises(ChangedError, match="weight was written"):
        compiled(model, lambda m, b: m(b[0]).square().mean(), optimizer)


def test_what_a_closed_step_had_is_gone():
    model = nn.Linear(8, 4)
    before = copy.deepcopy(model.state_dict())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    trains = [compiled(model, lambda m, b: m(b[0]).square().mean(), optimizer) for _ in range(2)]
    trains[0](batch())
    trains[0].close()
    trains[1].sync()
    same_dicts(model.state_dict(), before, "model")
    trains[0](batch())
    trains[1](batch())
    assert trains[1].sync() == 1 and not torch.equal(model.weight, before["weight"])

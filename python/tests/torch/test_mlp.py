"""A perceptron with every optimizer: the same bits as eager PyTorch."""

from functools import partial

import pytest
import torch
from eager import compare
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway.torch


def mlp():
    layers = nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 5)
    return nn.Sequential(*layers)


def loss_fn(model, batch):
    return F.cross_entropy(model(batch["x"]), batch["y"])


def batches(k):
    return {"x": torch.randn(16, 20), "y": torch.randint(5, (16,))}


@pytest.mark.parametrize(
    "settings",
    [
        dict(),
        dict(momentum=0.9),
        dict(momentum=0.9, nesterov=True, weight_decay=0.01),
        dict(momentum=0.9, foreach=True),
        dict(momentum=0.9, fused=True),
        dict(momentum=0.9, maximize=True),
    ],
    ids=str,
)
def test_sgd(settings):
    compare(mlp, loss_fn, lambda m: torch.optim.SGD(m.parameters(), lr=0.1, **settings), batches)


ADAMS = [
    dict(),
    dict(foreach=True),
    dict(fused=True),
    dict(amsgrad=True),
    dict(weight_decay=0.1, maximize=True),
    dict(foreach=True, amsgrad=True, weight_decay=0.1),
    dict(fused=True, weight_decay=0.1),
]


@pytest.mark.parametrize("settings", ADAMS, ids=str)
@pytest.mark.parametrize("optimizer", [torch.optim.Adam, torch.optim.AdamW])
def test_adam(optimizer, settings):
    compare(mlp, loss_fn, lambda m: optimizer(m.parameters(), lr=0.01, **settings), batches)


@pytest.mark.parametrize("foreach", [False, True])
@pytest.mark.parametrize(
    "optimizer",
    [
        torch.optim.Adadelta,
        torch.optim.Adafactor,
        torch.optim.Adagrad,
        torch.optim.Adamax,
        torch.optim.NAdam,
        torch.optim.RMSprop,
        torch.optim.Rprop,
    ],
)
def test_other_optimizers(optimizer, foreach):
    make = lambda m: optimizer(m.parameters(), lr=0.01, foreach=foreach)
    compare(mlp, loss_fn, make, batches)


@pytest.mark.parametrize("settings", [dict(), dict(foreach=True), dict(fused=True)], ids=str)
def test_learning_rates_follow_a_schedule(settings):
    def between(optimizer):
        return torch.optim.lr_scheduler.StepLR(optimizer, 2, gamma=0.3).step

    make = lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, **settings)
    compare(mlp, loss_fn, make, batches, between)


def test_gradients_are_clipped_in_a_hook_of_the_optimizer():
    def make(model):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

        def clip(*_):
            nn.utils.clip_grad_norm_(model.parameters(), 0.5)

        optimizer.register_step_pre_hook(clip)
        return optimizer

    compare(mlp, loss_fn, make, batches)


def test_gradients_are_accumulated_in_the_loss():
    def accumulated(model, batch):
        parts = zip(batch["x"].chunk(4), batch["y"].chunk(4))
        return sum(F.cross_entropy(model(x), y) for x, y in parts) / 4

    compare(mlp, accumulated, lambda m: torch.optim.SGD(m.parameters(), lr=0.1), batches)


def in_micro_batches(model, batch):
    loss = torch.zeros(())
    for x, y in zip(batch["x"].chunk(4), batch["y"].chunk(4)):
        part = F.cross_entropy(model(x), y) / 4
        part.backward()
        loss += part.detach()
    return loss


@pytest.mark.parametrize("budget", [None, "60%"])
def test_gradients_are_accumulated_by_backward_passes_in_the_loss(budget):
    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    step, _ = compare(mlp, in_micro_batches, adamw, batches, clip_grad=0.05, budget=budget)
    step.verify()


def test_a_loss_without_a_gradient_is_refused():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def detached(model, batch):
        return loss_fn(model, batch).detach()

    with pytest.raises(spillway.torch.CaptureError, match="does not require grad"):
        spillway.torch.capture(model, detached, optimizer, batches(0))


def test_a_loss_may_take_the_batch_apart():
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def popped(model, batch):
        return F.cross_entropy(model(batch.pop("x")), batch.pop("y"))

    step = spillway.torch.capture(model, popped, optimizer, batches(0))
    assert len(step.operations[0].writes) == 2
    step.compile(step.plan("min"), strict=True)(batches(1))


def test_groups_keep_their_own_settings():
    def make(model):
        groups = [
            dict(params=model[0].parameters(), lr=0.1),
            dict(params=model[2].parameters(), weight_decay=0.0),
        ]
        return torch.optim.AdamW(groups, lr=0.01)

    compare(mlp, loss_fn, make, batches)


def test_an_optimizer_that_branches_on_its_step_count_is_refused():
    model = mlp()
    with pytest.raises(spillway.torch.CaptureError, match="test_mlp.py:.*value of a tensor"):
        spillway.torch.capture(model, loss_fn, torch.optim.ASGD(model.parameters()), batches(0))


def test_the_first_gradient_becomes_the_momentum_whatever_its_sign():
    class Dead(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(3))

    make = lambda m: torch.optim.SGD(m.parameters(), lr=0.1, momentum=0.9)
    zeros = lambda k: torch.full((3,), -0.0)
    step, _ = compare(Dead, lambda m, x: (m.weight * x).sum(), make, zeros)
    (momentum,) = [s.value for s in step.storages if s.name == "weight.momentum_buffer"]
    assert torch.signbit(momentum).all()


def test_a_tensor_that_is_made_empty_and_filled_in_parts():
    def in_parts(model, batch):
        out = torch.empty(16, 5)
        out[:8] = model(batch["x"][:8])
        out[8:] = model(batch["x"][8:])
        return F.cross_entropy(out, batch["y"])

    make = lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    compare(mlp, in_parts, make, batches, budget="50%")


def test_a_copy_within_a_tensor_reads_it():
    def shifted(model, batch):
        x = batch["x"].clone()
        x.copy_(x[:1].expand(16, 20))
        return F.cross_entropy(model(x), batch["y"])

    make = lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    model = mlp()
    step = spillway.torch.capture(model, shifted, make(model), batches(0))
    (copy,) = [op for op in step.operations if op.name == "copy_"]
    assert set(copy.writes) <= set(copy.reads)


class Checkpointed(nn.Module):
    def __init__(self, use_reentrant):
        super().__init__()
        layers = nn.Linear(20, 64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 64), nn.Dropout()
        self.first, self.rest = nn.Linear(20, 20), nn.Sequential(*layers, nn.Linear(64, 5))
        self.use_reentrant = use_reentrant

    def forward(self, x):
        return checkpoint(self.rest, self.first(x), use_reentrant=self.use_reentrant)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_are_left_to_the_plan(use_reentrant):
    sgd = lambda m: torch.optim.SGD(m.parameters(), lr=0.1)
    compare(lambda: Checkpointed(use_reentrant), loss_fn, sgd, batches, budget="50%")


clip_values = partial(nn.utils.clip_grad_value_, clip_value=1e-3)


@pytest.mark.parametrize(
    "settings",
    [
        dict(clip_grad=0.05),
        dict(clip_grad=clip_values),
        dict(clip_grad=0.05, budget="60%", host="optimizer"),
    ],
    ids=["norm", "function", "on the host"],
)
def test_gradients_are_clipped(settings):
    def adamw(model):
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    step, _ = compare(mlp, loss_fn, adamw, batches, **settings)
    step.verify()


@pytest.mark.parametrize("clip_grad", [True, 0, -1.0, float("nan"), float("inf"), "1.0"], ids=repr)
def test_a_norm_to_clip_to_is_a_positive_number(clip_grad):
    model = mlp()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(spillway.torch.CaptureError, match="clip_grad.*give the largest norm"):
        spillway.torch.capture(model, loss_fn, optimizer, batches(0), clip_grad=clip_grad)

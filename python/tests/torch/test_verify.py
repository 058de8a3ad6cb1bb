"""Steps beside eager mode."""

import copy
import random

import numpy as np
import pytest
import torch
from eager import MACHINE, same_dicts
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.nn import functional as F

import spillway.torch
from spillway.torch import CaptureError

pytestmark = pytest.mark.short


@pytest.fixture(autouse=True)
def uncounted():
    calls.count = 9


class Model(nn.Module):
    """Computes something else in its second eager forward pass, as `calls` counts them."""

    def __init__(self, changes=False):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
        self.changes = changes

    def forward(self, x):
        y = self.layers(x)
        calls.count += not isinstance(y, FakeTensor)
        return y * 2 if self.changes and calls.count == 2 else y


class Calls:
    """A count that no capture sees."""

    __slots__ = ("count",)


calls = Calls()


def loss_fn(model, batch):
    return F.cross_entropy(F.dropout(model(batch[0]), 0.2), batch[1])


def batch(rows=6):
    return torch.randn(rows, 8), torch.randint(4, (rows,))


def adam(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def all_values(model, optimizer):
    generators = random.getstate(), torch.get_rng_state(), np.random.get_state()[1].tolist()
    return copy.deepcopy((model.state_dict(), optimizer.state_dict(), generators))


def same_values(a, b):
    same_dicts(a[0], b[0], "model")
    same_dicts(a[1], b[1], "optimizer")
    assert a[2][0] == b[2][0] and torch.equal(a[2][1], b[2][1]) and a[2][2] == b[2][2]


def test_a_step_that_is_right_leaves_everything_as_it_was():
    model = Model()
    optimizer = adam(model)
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    several = [batch(), batch(3), batch()]
    before = all_values(model, optimizer)
    for p in model.parameters():
        p.grad = torch.ones_like(p)
    assert step.verify() == 3
    # The shape of the second batch needs 4 KiB more than the least memory of the first.
    assert step.verify(several, plan=step.plan("40KiB", MACHINE)) == 3
    assert step.verify((several[0] for _ in range(9)), steps=5) == 5
    same_values(all_values(model, optimizer), before)
    assert all((p.grad == 1).all() for p in model.parameters())
    with pytest.raises(ValueError, match="no batch"):
        step.verify([])


def test_training_goes_on_after_a_verification():
    model = Model()
    optimizer = adam(model)
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    train = step.compile(step.plan("1MiB", MACHINE))
    other, expected = copy.deepcopy(model), None
    undisturbed = spillway.torch.capture(other, loss_fn, adam(other), batch())
    undisturbed = undisturbed.compile(undisturbed.plan("1MiB", MACHINE))
    for k in range(4):
        data = batch()
        torch.manual_seed(k)
        expected = undisturbed(data)
        if k == 2:
            step.verify()
        torch.manual_seed(k)
        assert torch.equal(train(data), expected)
    train.sync()
    undisturbed.sync()
    same_dicts(model.state_dict(), other.state_dict(), "model")


def test_the_first_tensor_that_differs_is_named():
    model = Model(changes=True)
    optimizer = adam(model)
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    before = all_values(model, optimizer)
    calls.count = 0
    with pytest.raises(CaptureError, match="step 2 differs from eager mode: the loss is the first"):
        step.verify()
    same_values(all_values(model, optimizer), before)


def test_a_state_that_differs_is_named():
    model = Model()
    optimizer = adam(model)
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    step.optimizers[0].register_step_post_hook(lambda *_: model.layers[2].weight.data.mul_(1.5))
    with pytest.raises(CaptureError, match="step 1 differs from eager mode: layers.2.weight is the"):
        step.verify()


def test_capture_verifies():
    calls.count = 1
    model = Model(changes=True)
    with pytest.raises(CaptureError, match="differs from eager mode"):
        spillway.torch.capture(model, loss_fn, adam(model), batch(), verify=True)
    model.changes = False
    spillway.torch.capture(model, loss_fn, adam(model), batch(), verify=True)


def test_an_inference():
    model = Model().eval()
    step = spillway.torch.capture_inference(model, batch()[0])
    assert step.verify() == 3
    model.changes = True
    calls.count = 1
    with pytest.raises(CaptureError, match="step 1 .*result 0 is the first tensor that does"):
        step.verify()

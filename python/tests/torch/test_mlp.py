"""A perceptron with every optimizer: the same bits as eager PyTorch."""

import pytest
import torch
from eager import compare
from torch import nn
from torch.nn import functional as F


def mlp():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Linear(64, 32), nn.GELU(), nn.Linear(32, 5))


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

"""Models, losses and batches that many programs share."""

import torch
from sides import STEPS
from torch import nn
from torch.nn import functional as F


def mlp(width=16):
    return nn.Sequential(nn.Linear(8, width), nn.GELU(), nn.Linear(width, 4))


def rows(steps=STEPS, count=6):
    """Returns batches of vectors and classes."""
    return [(torch.randn(count, 8), torch.randint(4, (count,))) for _ in range(steps)]


def pictures(steps=STEPS, count=4, size=8):
    return [(torch.randn(count, 3, size, size), torch.randint(4, (count,))) for _ in range(steps)]


def tokens(steps=STEPS, count=3, length=10, words=20):
    return [torch.randint(1, words, (count, length)) for _ in range(steps)]


def classify(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def next_token(model, x):
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def sgd(model, **settings):
    return torch.optim.SGD(model.parameters(), **dict(lr=0.1) | settings)


def adam(model, **settings):
    return torch.optim.Adam(model.parameters(), **dict(lr=1e-2) | settings)


def adamw(model, **settings):
    return torch.optim.AdamW(model.parameters(), **dict(lr=1e-2) | settings)

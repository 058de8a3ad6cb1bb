"""Random graphs of views and writes, whose results and inputs may share memory, with and without gradients: the bits of
eager mode, also after later writes. `SPILLWAY_GRAPHS=200` draws more."""

import os
import random

import pytest
import torch
from eager import same
from test_backend import compiled
from torch import nn

pytestmark = pytest.mark.short

SEEDS = range(int(os.environ.get("SPILLWAY_GRAPHS", 6)))
CALLS = 3

VIEWS = [
    lambda x, draw: x.t() if x.dim() == 2 else x,
    lambda x, draw: x.view(-1) if x.is_contiguous() else x.transpose(0, -1),
    lambda x, draw: x[draw.randrange(x.shape[0])] if x.dim() > 1 else x[1:],
    lambda x, draw: x[::2],
    lambda x, draw: x.detach(),
    lambda x, draw: x.unsqueeze(0),
    lambda x, draw: x.expand(2, *x.shape),
    lambda x, draw: x.reshape(-1),
    lambda x, draw: x.narrow(0, 0, max(1, x.shape[0] // 2)),
]
COMPUTES = [
    torch.sin,
    lambda x: x * 2,
    lambda x: x + x.mean(),
    lambda x: x.cumsum(0),
    torch.clone,
    torch.relu,
    lambda x: x.contiguous(),
    lambda x: x.softmax(-1),
]
WRITES = [lambda x: x.add_(1), lambda x: x.mul_(0.5), lambda x: x[0].fill_(3)]
INPUTS = [
    lambda whole, k: whole[8 * k : 8 * k + 8],
    lambda whole, k: torch.randn(8, 8),
    lambda whole, k: torch.randn(8, 8).t(),
    lambda whole, k: torch.randn(8, 16)[:, ::2],
]


def may_be_written(x):
    return not x.requires_grad and all(stride > 0 or size == 1 for stride, size in zip(x.stride(), x.shape))


class Model(nn.Module):
    """Draws what it does from a seed, the same in each call."""

    def __init__(self, seed):
        super().__init__()
        self.layer, self.seed = nn.Linear(8, 8, bias=False), seed
        self.register_buffer("kept", torch.zeros(8, 8))

    def forward(self, *inputs):
        draw = random.Random(self.seed)
        known = [*inputs, self.kept]
        if draw.random() < 0.5:
            known.append(self.layer(inputs[0]))
        for _ in range(draw.randint(2, 8)):
            x, kind = draw.choice(known), draw.random()
            if kind < 0.4:
                known.append(draw.choice(VIEWS)(x, draw))
            elif kind < 0.75:
                known.append(draw.choice(COMPUTES)(x))
            elif may_be_written(x):
                draw.choice(WRITES)(x)
        return tuple(draw.choice(known[1:]) for _ in range(draw.randint(1, 3)))


def played(seed, grads, compile):
    """Returns all tensors after each of a few calls, and after writes that follow it."""
    torch.compiler.reset()
    torch.manual_seed(seed)
    draw, model, whole, found = random.Random(-seed - 1), Model(seed), torch.randn(24, 8), []
    call = compile(model)
    inputs = [draw.choice(INPUTS)(whole, k) for k in range(draw.randint(1, 3))]
    for _ in range(CALLS):
        with torch.set_grad_enabled(grads):
            results = call(*inputs)
        losses = [x.sum() for x in results if x.requires_grad]
        if losses:
            sum(losses).backward()
            found.append(model.layer.weight.grad)
            model.layer.weight.grad = None
        with torch.no_grad():
            tensors = [*inputs, *results, model.kept]
            found += [x.detach().clone() for x in tensors]
            for x in draw.sample(tensors, 2):
                if may_be_written(x):
                    x.add_(0.25)
            found += [x.detach().clone() for x in tensors]
    return found


@pytest.mark.parametrize("grads", [False, True])
@pytest.mark.parametrize("seed", SEEDS)
def test_random_graphs(seed, grads):
    try:
        expected = played(seed, grads, lambda model: model)
    except RuntimeError as error:
        pytest.skip(f"eager mode refuses it: {error}")
    planned = played(seed, grads, compiled)
    for k, (a, b) in enumerate(zip(planned, expected, strict=True)):
        same(a, b, f"tensor {k} of seed {seed}")

"""Optimizers of the package pytorch_optimizer, in a captured step and in the usual loop: the bits of eager mode, or a
refusal. `SPILLWAY_OPTIMIZERS=1` tests all of them, and not only one in 20; `SPILLWAY_OPTIMIZERS=5` one in five."""

import os

import pytest
import torch
from test_compiled_training import compiled, compiled_anew  # noqa: F401
from torch.utils._pytree import tree_leaves

import spillway.torch
from spillway.torch import CaptureError

package = pytest.importorskip("pytorch_optimizer")

pytestmark = pytest.mark.short

NAMES = sorted(package.get_supported_optimizers())[:: int(os.environ.get("SPILLWAY_OPTIMIZERS", 20))]
BATCHES = [torch.randn(8, 16, generator=torch.Generator().manual_seed(k)) for k in range(8)]


def loss_fn(model, x):
    return model(x).square().mean()


def made(name):
    """Returns a model and an optimizer that has made its states in one step."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16))
    optimizer = package.load_optimizer(name)(model.parameters(), lr=1e-2)
    steps(model, optimizer, BATCHES[:1])
    return model, optimizer


def steps(model, optimizer, batches):
    for x in batches:
        optimizer.zero_grad()
        loss_fn(model, x).backward()
        optimizer.step()
    optimizer.zero_grad()


def eager(name):
    try:
        model, optimizer = made(name)
        steps(model, optimizer, BATCHES[1:])
    except Exception as error:
        pytest.skip(f"ignored: {name} does not train the model in eager mode: {error}")
    return model, optimizer


def captured(model, optimizer):
    try:
        step = spillway.torch.capture(model, loss_fn, optimizer, BATCHES[1])
    except CaptureError as refusal:
        pytest.skip(f"refused: {refusal}")
    with step.compile(step.plan("min")) as train:
        for x in BATCHES[1:]:
            train(x)


def usual(model, optimizer):
    try:
        optimizer = spillway.torch.optimizer(optimizer)
        steps(compiled(model), optimizer, BATCHES[1:])
    except CaptureError as refusal:
        pytest.skip(f"refused: {refusal}")


@pytest.mark.parametrize("train", [captured, usual])
@pytest.mark.parametrize("name", NAMES)
def test_an_optimizer_gives_the_same_bits_or_is_refused(name, train):
    expected, its = eager(name)
    model, optimizer = made(name)
    train(model, optimizer)
    for a, b in zip(model.parameters(), expected.parameters(), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(tree_leaves(optimizer.state_dict()), tree_leaves(its.state_dict()), strict=True):
        if isinstance(b, torch.Tensor):
            assert torch.equal(a, b)
        elif isinstance(b, (bool, int, float, str, type(None))):
            assert type(a) is type(b) and (a == b or a != a)

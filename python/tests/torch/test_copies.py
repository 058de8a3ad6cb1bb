"""Copies between callers and plans of torch.compile: one op copies all small tensors."""

import pytest
import torch
from test_compiled_training import compiled_anew, rows, squares  # noqa: F401
from test_optimizer import Pair, captures  # noqa: F401
from torch import nn

from spillway.torch import joint

pytestmark = pytest.mark.short


def wide():
    """Returns a model whose matrix has nearly all bytes."""
    layers = (layer for _ in range(4) for layer in (nn.Linear(8, 8), nn.BatchNorm1d(8)))
    return nn.Sequential(*layers, nn.Linear(8, 4096), nn.Tanh(), nn.Linear(4096, 4, bias=False))


def train(pair, between=lambda model: None, steps=4):
    """Trains both models. `between` is called between the passes."""

    def use(called, model, optimizer):
        losses = []
        for _ in range(steps):
            loss = squares(called(rows()))
            between(model)
            loss.backward()
            losses.append(loss.detach())
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(losses)

    pair.both(use)
    pair.check()


def copied(step):
    """Returns the bytes of the tensors that each op copies for the caller, by name."""
    sizes = {}
    for op in step.operations:
        if op.name.startswith("take"):
            sizes[op.name] = [step.storages[t].nbytes for t in op.writes]
        elif op.name.startswith(("result", "update", "gradient", "parameter")):
            tensors = [step.storages[t] for t in op.reads]
            sizes[op.name] = [tensor.nbytes for tensor in tensors if tensor.name != "order"]
    return sizes


@pytest.mark.parametrize("budget", ["min", "100%"])
def test_one_op_copies_the_small_tensors(budget, captures):  # noqa: F811
    train(Pair(wide, budget=budget))
    sizes = copied(captures[0])
    small = [name for name in sizes if name.endswith("small)")]
    # The weights of the two last layers are large. There are 8 weights, 9 biases, and 12 buffers of the norms.
    assert sorted(small) == [
        "gradients (16 small)",
        "parameters (16 small)",
        "take buffers (12 small)",
        "take inputs (17 small)",
        "take parameters and gradients (32 small)",
        "updates (12 small)",
    ]
    assert not any(op.repeatable for op in captures[0].operations if op.name in small)


def test_small_tensors_take_a_small_part_of_the_memory(captures):  # noqa: F811
    train(Pair(lambda: nn.Sequential(*(nn.Linear(8, 8) for _ in range(8)))), steps=1)
    step = captures[0]
    given_bytes = sum(s.nbytes for s in step.storages if s.kind == "given")
    for name, sizes in copied(step).items():
        assert len(sizes) == 1 or sum(sizes) <= given_bytes / joint.SMALL_PART, name


def test_small_parameters_that_are_written_between_the_passes():
    """Their copies were made in the forward pass, as eager mode reads a bias there alone."""

    def write(model):
        with torch.no_grad():
            model[0].bias.add_(1.0)

    train(Pair(wide), write)

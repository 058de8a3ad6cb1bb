"""Ops that write their results into given memory."""

import pytest
import torch

import spillway.torch
from spillway.torch.launching import _Copying

pytestmark = pytest.mark.short

ROWS, WIDTH = 6, 4096


def sliced(x):
    return (x[:, 3:90:2] ** 2).sum() + (x[2:4] ** 2).sum()


def selected(x):
    return (x[3] ** 2).sum() + (x.T[5] ** 3).sum()


def masked(x):
    mask = torch.arange(WIDTH) % 3 == 0
    return (x.masked_fill(mask, 0.5) ** 2).sum() + (x[0].masked_fill(x > 0, torch.tensor(0.25)) ** 2).sum()


def converted(x):
    return (x.to(torch.float64).clone() ** 2).sum().to(x.dtype)


def rectified(x):
    return (torch.relu(x) ** 2).sum()


def looked_up(x):
    rows = torch.arange(6).view(2, 3)
    return (torch.nn.functional.embedding(rows, x, padding_idx=2) ** 2).sum()


class Weight(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.randn(ROWS, WIDTH))


@pytest.mark.parametrize(
    "function, loss",
    [
        ("slice_backward", sliced),
        ("select_backward", selected),
        ("masked_fill", masked),
        ("_to_copy", converted),
        ("clone", converted),
        ("relu", rectified),
        ("embedding", looked_up),
    ],
)
def test_a_result_is_made_in_its_memory(function, loss):
    """The bits are those of eager mode, and nothing is made elsewhere first."""
    model = Weight()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    step = spillway.torch.capture(model, lambda m, _: loss(m.weight), optimizer, torch.zeros(1))
    made = [op for op in step.operations if op.name.removesuffix("_1") == function]
    assert made and [op.measured.workspace_bytes for op in made] == [0] * len(made)
    assert step.verify(steps=2) == 2


@pytest.mark.parametrize("at", ["elsewhere", "in its memory"])
def test_a_result_with_other_strides_is_copied(at):
    """It may lie in the memory of the result, where both have the same address."""
    result = torch.zeros(2, 3)
    values = torch.arange(6.0).view(2, 3)

    def transposed():
        made = torch.empty(3, 2).t() if at == "elsewhere" else result.as_strided((2, 3), (1, 2))
        return made.copy_(values)

    (address,) = _Copying(transposed, [result])()
    assert (address == result.data_ptr()) == (at == "in its memory")
    assert torch.equal(result, values)

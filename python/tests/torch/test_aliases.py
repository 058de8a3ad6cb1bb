"""Graphs of `torch.compile` whose results share memory with other tensors, or that write into their inputs."""

import pytest
import torch
from eager import same
from test_backend import compiled, compiled_anew  # noqa: F401
from torch import nn
from torch.nn import functional as F

from spillway.torch import CaptureError
from spillway.torch import optimizer as joined

pytestmark = pytest.mark.short


def square():
    return torch.randn(64, 64)


def also_sine(view):
    """Returns a function that returns a view of its argument, and what is computed from this."""
    return lambda x: (view(x), x.sin())


def of_sine(*views):
    """Returns a function that returns views of what it computes."""

    def function(x):
        y = x.sin()
        return tuple(view(y) for view in views)

    return function


def check(function, make, write=lambda inputs, results: None):
    """Compares two calls with those of eager mode. After the first, `write` writes into results or inputs, which may
    share memory."""
    found = []
    for call in (function, compiled(function)):
        torch.manual_seed(7)
        inputs = make()
        with torch.no_grad():
            first = call(*inputs)
            write(inputs, first)
            second = call(*inputs)
            found.append([value.clone() for value in (*inputs, *first, *second)])
    for k, (planned, expected) in enumerate(zip(*reversed(found), strict=True)):
        same(planned, expected, f"tensor {k}")


VIEWS = {
    "whole": lambda x: x.view(-1),
    "transposed": lambda x: x.t(),
    "a row": lambda x: x[3],
    "a part of rows": lambda x: x[2:5, 1:7],
    "detached": lambda x: x.detach(),
    "the same": lambda x: x,
}


@pytest.mark.parametrize("name", VIEWS)
def test_a_result_shares_the_memory_of_an_input(name):
    check(also_sine(VIEWS[name]), lambda: [square()], lambda inputs, results: results[0].add_(1))
    check(also_sine(VIEWS[name]), lambda: [square()], lambda inputs, results: inputs[0].add_(1))


@pytest.mark.parametrize("names", [("the same", "whole", "a row"), ("transposed", "a row")])
def test_results_share_memory(names):
    check(of_sine(*map(VIEWS.get, names)), lambda: [square()], lambda inputs, results: results[0].add_(1))


def test_results_that_share_a_part_of_their_memory_are_refused():
    with torch.no_grad(), pytest.raises(CaptureError, match="two results are views that share memory"):
        compiled(of_sine(lambda x: x[1:], lambda x: x[:3]))(square())


def test_a_result_shares_the_memory_of_a_parameter():
    rows, model = torch.randn(2, 3 * 64 * 64).unbind(), nn.Linear(64, 64)
    model.weight = nn.Parameter(rows[1][64 * 64 :][: 64 * 64].view(64, 64))  # it is a part of a larger tensor
    planned = compiled(lambda x: (model.weight[2], model(x)))
    with torch.no_grad():
        row, _ = planned(square())
        assert row.data_ptr() == model.weight[2].data_ptr()
        row.fill_(3)
        x = square()
        same(planned(x)[1], model(x), "result")


def add(x, y):
    x.add_(y)
    return (y * 2).sum(0), x[1]


LAYOUTS = {
    "plain": square,
    "transposed": lambda: square().t(),
    "with gaps": lambda: torch.randn(64, 128)[:, ::2],
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_an_input_is_written(layout):
    check(add, lambda: [LAYOUTS[layout](), square()])


def test_a_result_shares_the_memory_of_an_input_that_is_written():
    check(add, lambda: [square(), square()], lambda inputs, results: results[1].add_(1))


def test_inputs_that_are_parts_of_one_tensor_are_written():
    check(add, lambda: [*torch.randn(2, 64, 64).unbind()])


class Cached(nn.Module):
    """Keeps rows of its inputs in a tensor that is no buffer, and counts its calls in one that is."""

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(64, 64)
        self.cache = torch.zeros(8, 64)
        self.register_buffer("mean", torch.zeros(64))

    def forward(self, x, more):
        y = self.first(x.add_(more))
        self.cache[1:3].copy_(x[:2] * 2)
        self.mean.add_(y.detach().mean(0))
        return (y * self.cache.sum(0)).sum(), x[1]


@pytest.mark.parametrize("joins", [False, True])
def test_training_writes_into_inputs(joins):
    found = []
    for is_planned in (False, True):
        torch.manual_seed(7)
        model, x = Cached(), square()
        call = compiled(model) if is_planned else model
        optimizer = torch.optim.AdamW(model.parameters(), fused=True)
        optimizer = joined(optimizer) if is_planned and joins else optimizer
        values = []
        for _ in range(3):
            loss, row = call(x, torch.randn(64))
            loss.backward()
            row.add_(1)
            optimizer.step()
            optimizer.zero_grad()
            values += [t.detach().clone() for t in (loss, row, x, model.cache, *model.state_dict().values())]
        found.append(values)
    for k, (planned, expected) in enumerate(zip(*reversed(found), strict=True)):
        same(planned, expected, f"tensor {k}")


class Views(nn.Module):
    """Breaks into two graphs, of which the first has no ops."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(64, 64))

    def forward(self, x):
        views = self.weight.t(), x.view(-1)
        torch._dynamo.graph_break()
        return (views[0] * views[1].view(64, 64)).sum()


@pytest.mark.parametrize("joins", [False, True])
def test_a_graph_of_views_has_no_ops(joins):
    found = []
    for is_planned in (False, True):
        torch.manual_seed(7)
        model = Views()
        call = compiled(model) if is_planned else model
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        optimizer = joined(optimizer) if is_planned and joins else optimizer
        for _ in range(3):
            optimizer.zero_grad()
            call(square()).backward()
            optimizer.step()
        found.append(model.weight.detach())
    same(*found, "weight")


@pytest.mark.parametrize("grads", [False, True])
def test_an_input_that_is_written_shares_no_memory_with_another(grads):
    model, rows = Cached(), torch.randn(66, 64)
    planned = compiled(model)
    message = "writes into l_x_, which shares memory with l_more_: pass a copy"
    with torch.set_grad_enabled(grads):
        planned(rows[:64], rows[65])
        with pytest.raises(CaptureError, match=message):
            planned(rows[:64], rows[63])


def test_a_buffer_that_is_written_shares_no_memory_with_an_input():
    model = Cached()
    with torch.no_grad(), pytest.raises(CaptureError, match="writes into l_self_buffers_mean_, which shares"):
        compiled(model)(square(), model.mean.view(-1))


def test_an_input_with_a_gradient_is_not_written():
    def writes(x):
        y = x + 1
        x.mul_(2)
        return F.relu(y).sum()

    with pytest.raises(CaptureError, match=r"`x\.mul_\(2\)`: raises RuntimeError: a leaf Variable"):
        compiled(writes)(square().requires_grad_() * 2)


def test_the_line_of_a_graph_is_named():
    def stores(x):
        y = x.sin()
        z = y.cos()
        return y.set_(z)

    with torch.no_grad(), pytest.raises(CaptureError, match=r"test_aliases.py:\d+: `aten.set_.* storage") as raised:
        compiled(stores)(square())
    assert f":{stores.__code__.co_firstlineno + 3}:" in str(raised.value)

"""Batches that are not contiguous: kernels may compute other last bits than for contiguous ones."""

import pytest
import torch
from eager import MACHINE, same
from test_backend import compiled, compiled_anew  # noqa: F401
from torch import nn
from torch.nn import functional as F

import spillway.torch
from spillway.torch.layouts import MOST_SPREAD, captured_strides, extent_of, kept_strides

pytestmark = pytest.mark.short
ROWS, COLUMNS = 40, 24
LAYOUTS = {
    "contiguous": lambda: torch.randn(ROWS, COLUMNS),
    "every second column": lambda: torch.randn(ROWS, 2 * COLUMNS)[:, ::2],
    "every second row": lambda: torch.randn(2 * ROWS, COLUMNS)[::2],
    "some columns": lambda: torch.randn(ROWS, 30)[:, 3:27],
    "a few of many columns": lambda: torch.randn(ROWS, 1000)[:, 5:29],
    "a part of each value": lambda: torch.randn(ROWS, COLUMNS, 300)[:, :, 7],
    "transposed": lambda: torch.randn(COLUMNS, ROWS).t(),
    "every second column, transposed": lambda: torch.randn(COLUMNS, 2 * ROWS).t()[::2],
    "one row": lambda: torch.randn(1, COLUMNS).expand(ROWS, COLUMNS),
    "one column": lambda: torch.randn(ROWS, 1).expand(ROWS, COLUMNS),
    "windows": lambda: torch.randn(100).unfold(0, COLUMNS, 1)[:ROWS],
    "windows, every second row": lambda: torch.randn(100).unfold(0, COLUMNS, 2)[:ROWS],
}


class Model(nn.Module):
    """Has ops whose last bits depend on the layout."""

    def __init__(self):
        super().__init__()
        self.last, self.norm = nn.Linear(COLUMNS, 8), nn.BatchNorm1d(COLUMNS)

    def forward(self, x):
        y = self.norm(x) + F.gelu(x) * x.sum(0) + x.mean(1, keepdim=True) * x.norm()
        return self.last(y).sum()


def in_a_capture(model, optimizer, batches):
    step = spillway.torch.capture(model, lambda model, x: model(x), optimizer, batches[0])
    with step.compile(step.plan("min", machine=MACHINE, settings=dict(effort=1))) as train:
        return [train(x).clone() for x in batches]


def in_a_loop(model, optimizer, batches):
    return usual(compiled(model), optimizer, batches)


def usual(model, optimizer, batches):
    losses = []
    for x in batches:
        loss = model(x)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.detach())
    return losses


@pytest.mark.parametrize("way", [in_a_capture, in_a_loop])
@pytest.mark.parametrize("name", LAYOUTS)
def test_training(name, way):
    found = []
    for train in (way, usual):
        torch.manual_seed(7)
        model = Model()
        batches = [LAYOUTS[name](), LAYOUTS[name](), LAYOUTS["contiguous"](), LAYOUTS[name]()]
        losses = train(model, torch.optim.SGD(model.parameters(), lr=0.1), batches)
        found.append([*losses, *model.state_dict().values()])
    for k, (planned, expected) in enumerate(zip(*found, strict=True)):
        same(planned, expected, f"tensor {k}")


@pytest.mark.parametrize("name", LAYOUTS)
def test_inference(name):
    torch.manual_seed(7)
    model, x = Model().eval(), LAYOUTS[name]()
    infer = compiled(model)
    with torch.no_grad():
        same(infer(x), model(x), "result")


@pytest.mark.parametrize("name", LAYOUTS)
def test_copies_have_narrow_gaps(name):
    x = LAYOUTS[name]()
    for strides in (captured_strides(x), kept_strides(x)):
        assert extent_of(x.shape, strides) <= MOST_SPREAD * x.numel()
        assert x.is_contiguous() == torch.empty_strided(x.shape, strides).is_contiguous()
    if name != "a few of many columns" and name != "a part of each value":
        assert kept_strides(x) == x.stride()


def test_gaps_of_another_width_are_no_other_shape():
    model = Model().eval()
    step = spillway.torch.capture_inference(model, LAYOUTS["some columns"]())
    infer = step.compile(step.plan("min", machine=MACHINE), max_shapes=2)
    for width in range(26, 64):
        x = torch.randn(ROWS, width)[:, 1:25]
        same(infer(x), model(x), f"result of {width} columns")
    x = LAYOUTS["every second column"]()
    same(infer(x), model(x), "result of another layout")
    with pytest.raises(ValueError, match=r"strides \(1, 40\).* would be one shape more than the 2"):
        infer(LAYOUTS["transposed"]())


def test_integers_have_one_layout():
    model = nn.Embedding(10, 4)
    step = spillway.torch.capture_inference(model, torch.zeros(4, 5, dtype=torch.long))
    infer = step.compile(step.plan("min", machine=MACHINE), max_shapes=1)
    tokens = torch.randint(10, (4, 9))[:, 2:7]
    same(infer(tokens), model(tokens), "result")


RESULTS = {
    "columns": lambda y: y[:, ::2],
    "rows": lambda y: y[::2],
    "a part of rows": lambda y: y[:, 3:20],
    "expanded": lambda y: y[:1].expand(5, 64),
    "transposed rows": lambda y: y.t()[::3],
    "permuted": lambda y: y.view(8, 8, 64).permute(2, 0, 1)[::2],
}


@pytest.mark.parametrize("name", RESULTS)
def test_results_have_the_strides_of_eager_mode(name):
    view, x = RESULTS[name], torch.randn(64, 64)
    model = nn.Linear(64, 64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    train = spillway.torch.capture(model, lambda m, x: (m(x).sum(), view(m(x))), optimizer, x)
    infer = spillway.torch.capture_inference(model, x, lambda m, x: view(m(x)))
    graph = compiled(lambda x: view(model(x)))
    planned = [one.compile(one.plan("min", machine=MACHINE)) for one in (infer, train)]
    expected = view(model(x)).detach()
    with torch.no_grad():
        results = [planned[0](x), graph(x), planned[1](x)[1]]
    for result in results:
        same(result, expected, "result")
        assert result.stride() == expected.stride()


INDICES = {
    "with gaps": lambda: torch.zeros(4, 600, dtype=torch.long)[:, :5],
    "expanded": lambda: torch.zeros(4, 1, dtype=torch.long).expand(4, 5),
    "windows": lambda: torch.zeros(8, dtype=torch.long).unfold(0, 5, 1),
    "transposed": lambda: torch.zeros(5, 4, dtype=torch.long).t(),
}


@pytest.mark.parametrize("name", INDICES)
def test_indices_are_checked_in_each_layout(name):
    model, tokens = nn.Embedding(10, 4), INDICES[name]()
    step = spillway.torch.capture_inference(model, tokens)
    infer = step.compile(step.plan("min", machine=MACHINE))
    same(infer(tokens), model(tokens), "result")
    tokens[3, 0] = 10
    with pytest.raises(IndexError, match="batch.0 has 10, but"):
        infer(tokens)


def test_memory_between_elements_is_not_read():
    strided = lambda _, x: x.as_strided((4,), (1,)) + 1
    infer = spillway.torch.capture_inference(nn.Identity(), torch.randn(8, 8).t(), strided)
    x = torch.randn(8, 8).t()
    same(infer.compile(infer.plan("min", machine=MACHINE))(x), strided(None, x), "result")
    message = r"`strided = .*`: `aten.as_strided.default` may read memory between the elements of batch.0"
    with pytest.raises(spillway.torch.CaptureError, match=message):
        spillway.torch.capture_inference(nn.Identity(), torch.randn(8, 16)[:, ::2], strided)

"""Models on the processor whose graphs of `torch.compile` run on another device."""

from unittest import mock

import pytest
import test_compiled_training
import test_optimizer
import torch
from eager import same
from on_emulated import Emulated, Late
from test_compiled_training import compiled_anew  # noqa: F401
from test_devices import Unmeasured, cuda  # noqa: F401
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils.checkpoint import checkpoint

import spillway.torch
from spillway.torch import CaptureError, backend
from spillway.torch.joint import Passes
from spillway.torch.moving import OnDevice

CUDA = torch.device("cuda", 0)


def work(x):
    """Names the processor in all ways, and makes tensors where it names none."""
    y = x.to("cpu") + torch.ones(3, device="cpu") + torch.zeros(3, device=x.device) + torch.arange(3)
    y = y.cpu() * x.to(torch.device("cpu")) + torch.tensor([1.0, 2.0, 3.0])
    y = checkpoint(lambda a: a * torch.rand(3, device="cpu"), y, use_reentrant=False)
    with torch.autocast("cpu"):
        z = x @ x.T
    return y, torch.einsum("cpu,up->cu", y.reshape(4, 3, 1), y[:1]), z, x @ x.T


def graph_of(function, *inputs):
    graphs = []
    torch.compile(function, backend=lambda graph, _: graphs.append(graph) or graph, fullgraph=True)(*inputs)
    return graphs[0]


@pytest.fixture
def autocast_of_cuda(monkeypatch):
    """Lets autocast of CUDA begin without a device."""
    monkeypatch.setattr("torch.cuda.amp.common.amp_definitely_not_available", lambda: False)
    monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda: True)


@pytest.mark.usefixtures("autocast_of_cuda")
def test_all_work_of_a_graph_moves():
    x = torch.ones(4, 3)
    graph = graph_of(work, x)
    before = graph.code
    moved = OnDevice(graph, CUDA)
    with FakeTensorMode():
        x = torch.empty(4, 3, device=CUDA)
        results = moved(x)
        with torch.autocast("cpu", torch.bfloat16):
            more = moved(x)
    assert [r.device for r in (*results, *more)] == [CUDA] * 8
    half = torch.bfloat16
    assert [r.dtype for r in results] == [torch.float32, torch.float32, half, torch.float32]
    assert [r.dtype for r in more] == [torch.float32, half, half, half], "autocast of the caller"
    assert graph.code == before, "the caller has the graph too"


@pytest.fixture(params=[Emulated, Late])
def device(request):
    """The device that a model's graphs run on, which has the processor's arithmetic."""
    device = request.param()
    with mock.patch("spillway.torch.backend.device_of", lambda tensors, given: given and device):
        yield device
    assert device.launches and not device.errors


class Scaled(torch.nn.Module):
    """Has a single number as a parameter, a buffer that it writes, and a tensor that is neither."""

    def __init__(self):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(8, 64), torch.nn.BatchNorm1d(64), torch.nn.Linear(64, 4))
        self.scale = torch.nn.Parameter(torch.tensor(2.0))
        self.shift = [torch.ones(4)]

    def forward(self, x):
        return self.layers(x) * self.scale + self.shift[0] + torch.arange(4)


@pytest.mark.short
@pytest.mark.usefixtures("compiled_anew", "device")
@pytest.mark.parametrize("make", [Scaled, test_compiled_training.large_perceptron])
@pytest.mark.parametrize("name", ["adamw", "fused", "momentum"])
def test_the_usual_loop_trains_bit_identically(make, name):
    """All that its caller has is on the processor."""
    pair = test_optimizer.Pair(make, test_optimizer.OPTIMIZERS[name], device="cpu")
    pair.train(test_compiled_training.rows(), steps=3)
    pair.check()


@pytest.mark.short
@pytest.mark.usefixtures("compiled_anew", "device")
@pytest.mark.parametrize("make", [Scaled, torch.nn.Tanh])
def test_results_without_gradients_are_on_the_processor(make):
    model = make().eval()
    planned, x = test_compiled_training.compiled(model, device="cpu"), torch.randn(6, 8)
    with torch.no_grad():
        for _ in range(2):
            same(planned(x), model(x), "result")


def test_a_graph_of_a_model_on_the_processor_is_captured_for_cuda(cuda, monkeypatch):  # noqa: F811
    """So is its optimizer's step. What the caller gets is on the processor."""
    model, x = torch.nn.Linear(4, 3), torch.empty(2, 4)
    inputs = [model.weight, model.bias, x, torch.nn.Parameter(torch.ones(()))]
    optimizer = spillway.torch.optimizer(torch.optim.AdamW([*model.parameters(), inputs[3]]))

    def grad(results, inputs, *_, **__):  # PyTorch's own needs the device
        return [torch.ones_like(x) for x in inputs[:-1]] + [None]

    monkeypatch.setattr(torch.autograd, "grad", grad)
    graph = torch.fx.symbolic_trace(lambda w, b, x, s: torch.nn.functional.linear(x, w, b) * s + torch.arange(3))
    passes = Passes(OnDevice(graph, CUDA), ["w", "b", "x", "s"], [0, 1, 3], Unmeasured(cuda), moves=True)
    step = passes.capture(inputs, optimizer)
    assert any(op.name.startswith("_foreach_") for op in step.operations), "the default on CUDA"
    handed = [v for name in ("results", "gradients") for v in step.memory(name) if v is not None]
    assert [v.device.type for v in handed] == ["cpu"] * 3
    assert all(v.device.type == "cpu" for values in optimizer.state.values() for v in values.values())
    assert step.updated_parameters == {0, 1}


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_tensors_elsewhere_are_refused(device):
    graphs = backend._Device(dict(device=device))
    with pytest.raises(CaptureError, match="gets its batches on the processor, but a tensor is on meta"):
        graphs.measurements([torch.empty(3), torch.empty(3, device="meta")])

"""What a step on another device than the processor computes where. The device is not there: tensors
on it are fake."""

from types import SimpleNamespace

import pytest
import torch
from test_workspace import allocate
from torch._subclasses.fake_tensor import FakeTensorMode

from spillway.torch import AllocationError, CaptureError
from spillway.torch.cuda import Cuda
from spillway.torch.devices import device_of
from spillway.torch.launching import bind, plain_mode
from spillway.torch.recording import Recorder
from spillway.torch.swapping import choices


class Layouts:
    """Says that real ops have the layouts of fake ones."""

    device = SimpleNamespace(torch_device=torch.device("cuda", 0))

    def layouts(self, call, storages):
        with FakeTensorMode():
            made = [torch.empty(3, device="cuda")]
        return [(tuple(t.shape), t.stride()) for t in made]


@pytest.fixture
def recorder():
    recorder = Recorder(FakeTensorMode(allow_non_fake_inputs=True), Layouts())
    with recorder.fake_mode:
        recorder.x = torch.empty(3, device="cuda")
        recorder.rate = torch.empty((), dtype=torch.float64)
        recorder.count = torch.empty(())
    for name in ("x", "rate", "count"):
        recorder.adopt(getattr(recorder, name), "state", name)
    return recorder


def run(call, tensors):
    """Runs a call on tensors of the device, and returns what its function got."""
    got = []
    call.function, call.results = lambda *args: got.extend(args), []
    with plain_mode():
        bind(call, lambda view: tensors[view.tensor])()
    return got


class OnDevice:
    """A tensor of the device, which says when it is copied to the processor."""

    def cpu(self):
        return "on the processor"


def test_a_number_on_the_processor_is_read_there_by_ops_on_the_device(recorder):
    with recorder.fake_mode, recorder:
        recorder.x * recorder.rate
        recorder.count.add_(recorder.rate)
    multiply, add = recorder.calls
    x, rate, count = (OnDevice() for _ in range(3))
    assert run(multiply, [x, rate, count]) == [x, "on the processor"]
    assert run(add, [x, rate, count]) == [count, rate]


@pytest.mark.parametrize("make", [lambda: torch.zeros(2), lambda: torch.rand(())])
def test_work_on_the_processor_is_refused_with_its_line(recorder, make):
    with recorder.fake_mode, recorder:
        torch.zeros(())
        with pytest.raises(CaptureError, match=r"test_devices.py:.* on the processor.* cuda:0"):
            make()


def test_an_optimizer_chooses_as_for_real_tensors(recorder):
    def chosen(p, **settings):
        return choices(dict(params=[p], **settings))

    unset = dict(foreach=None, fused=None, differentiable=False)
    assert chosen(recorder.x, **unset) == {"foreach": True}
    assert chosen(torch.empty(3), **unset) == {"foreach": False}
    for given in dict(foreach=False), dict(fused=True), dict(fused=False):
        assert chosen(recorder.x, **(unset | given)) == {}
    assert chosen(recorder.x) == {}, "an optimizer without that choice"


def test_a_model_on_several_devices_is_refused():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("elsewhere", torch.empty(1, device="meta"))
    with pytest.raises(CaptureError, match="the model is on cpu, meta"):
        device_of(model)


def test_an_op_that_needs_more_than_its_workspace_is_named(monkeypatch):
    entered = []

    class Pool:
        def __init__(self, *arguments):
            entered.append(arguments)

        __enter__ = __exit__ = lambda *_: None

    monkeypatch.setattr(torch.cuda, "MemPool", lambda allocator: allocator)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", Pool)
    device = Cuda.__new__(Cuda)
    device._allocator, device.torch_device = "allocator", torch.device("cuda", 0)

    def fail(outside):
        assert allocate(1 << 20) == 1 << 30 and allocate(2 << 20) is None
        raise torch.OutOfMemoryError

    operation = SimpleNamespace(
        name="mm", line="model.py:7", measured=SimpleNamespace(workspace_bytes=2 << 20)
    )
    with pytest.raises(AllocationError, match="mm .line model.py:7.* 2097152 bytes"):
        device.bound(fail, operation, 1 << 30)(None)
    assert entered == [("allocator", torch.device("cuda", 0))]
    assert allocate(1) is None

"""What a step on another device than the processor computes where. The device is not there: tensors
on it are fake."""

import threading
import time
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace

import models
import pytest
import test_mlp
import torch
from eager import MACHINE
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.optim.optimizer import _default_to_fused_or_foreach

import spillway.torch
from spillway.torch import AllocationError, CaptureError, capturing
from spillway.torch.counting import Counts
from spillway.torch.cuda import Cuda
from spillway.torch.devices import device_of, tensors_of
from spillway.torch.joint import Passes
from spillway.torch.launching import bind, plain_mode
from spillway.torch.measuring import Measured
from spillway.torch.memory import Lent, Tensors
from spillway.torch.numbers import Numbers
from spillway.torch.operations import Operation
from spillway.torch.processor import Processor
from spillway.torch.recording import Recorder, View, layout_of
from spillway.torch.supplying import Supplied
from spillway.torch.swapping import Fakes, SwappedOptimizer, initialise
from spillway.torch.updating import states_on_processor

pytestmark = pytest.mark.short


class Layouts:
    """Says that real ops have the layouts of fake ones."""

    device = SimpleNamespace(torch_device=torch.device("cuda", 0), list_calls=32, list_bytes=16 << 20)

    def layouts(self, call, storages, fakes):
        with FakeTensorMode():
            made = [torch.empty(3, device="cuda")]
        return list(map(layout_of, made))


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


class Placed:
    """Tensors in planned memory."""

    def __init__(self, tensors, numbers):
        self._tensors, self.numbers = tensors, numbers

    def __call__(self, view):
        return self._tensors[view.tensor]


def run(call, tensors, numbers):
    """Runs a call on tensors of the device, and returns what its function got."""
    got = []
    call.function, call.results = lambda *args: got.extend(args), []
    with plain_mode():
        bind(call, Placed(tensors, numbers))()
    return got


def test_a_number_on_the_processor_is_read_there(recorder):
    with recorder.fake_mode, recorder:
        recorder.x * recorder.rate
        recorder.count.add_(recorder.rate)
    multiply, add = recorder.calls
    numbers = Numbers()
    x, rate, count = torch.zeros(3), torch.tensor(0.5, dtype=torch.float64), torch.tensor(2.0)
    assert run(multiply, [x, rate, count], numbers) == [x, 0.5]
    rate.fill_(0.25)  # by others, who say so
    assert run(multiply, [x, rate, count], numbers) == [x, 0.5]
    numbers.forget()
    got = run(add, [x, rate, count], numbers)
    assert got == [2.0, 0.25] and got[0] is not count


def test_a_number_that_an_op_writes_is_known_and_in_planned_memory(recorder):
    with recorder.fake_mode, recorder:
        recorder.count.add_(1)
    (add,) = recorder.calls
    memory, numbers = torch.tensor(2.0), Numbers()
    launch = bind(add, Placed({add.writes[0]: memory}, numbers))
    with plain_mode():
        launch()
        assert memory == 3
        memory.fill_(9)  # which is not looked at again
        launch()
    assert memory == 4


def test_a_number_is_written_into_its_part_of_a_tensor():
    memory = torch.tensor([1.0, 2.0, 3.0])
    view = View(0, (), (), 1, torch.float32, is_host_number=True)
    Numbers().of(view, memory).copy_(torch.tensor(5.0))
    assert memory.tolist() == [1, 5, 3]


def test_a_number_that_ops_on_the_host_write_is_always_read_from_planned_memory(recorder):
    with recorder.fake_mode, recorder:
        recorder.x * recorder.count
    (multiply,) = recorder.calls
    x, count = torch.zeros(3), torch.tensor(2.0)
    numbers = Numbers(elsewhere={recorder.view(recorder.count).tensor})
    for value in 2, 3:
        count.fill_(value)
        assert run(multiply, [x, None, count], numbers) == [x, value]


def test_a_result_on_the_processor_is_a_number(recorder):
    """As the seed of attention with dropout is, of which PyTorch says that it is on the device."""
    host = torch.device("cpu")
    recorder.measure.layouts = lambda *_: [((), (), torch.float32, host)]
    with recorder.fake_mode, recorder:
        seed = recorder.x.sum()
        recorder.x * seed
    made, used = recorder.calls
    assert made.results[0].is_host_number and seed.device == host
    assert [v.is_host_number for v in used.args] == [False, True]


@pytest.mark.parametrize("make", [lambda: torch.zeros(2), lambda: torch.rand(())])
def test_work_on_the_processor_is_refused_with_its_line(recorder, make):
    with recorder.fake_mode, recorder:
        torch.zeros(())
        with pytest.raises(CaptureError, match=r"test_devices.py:.* on the processor.* cuda:0"):
            make()


def test_states_that_share_memory_are_not_copied_to_a_device(recorder):
    fakes = Fakes(recorder)
    whole = torch.empty(4)
    assert fakes.of(whole, "whole").device == torch.device("cuda", 0)
    assert fakes.of(torch.zeros(()), "step", stays=True).device == torch.device("cpu")
    with pytest.raises(CaptureError, match="turned shares memory"):
        fakes.of(whole.view(2, 2), "turned")
    with pytest.raises(CaptureError, match="half is part of a larger tensor"):
        fakes.of(torch.empty(4)[:2], "half")


def test_an_optimizer_chooses_as_for_real_tensors(recorder):
    optimizer = torch.optim.SGD([torch.empty(3)], lr=0.1)
    with SwappedOptimizer(optimizer, Fakes(recorder), Supplied(recorder, optimizer, Counts())):
        (fake,) = optimizer.param_groups[0]["params"]
        assert fake.device.type == "cuda" and isinstance(fake, FakeTensor)
        assert _default_to_fused_or_foreach([fake], differentiable=False) == (False, True)
        assert _default_to_fused_or_foreach([torch.empty(3)], differentiable=False) == (False, False)
    assert _default_to_fused_or_foreach([fake], differentiable=False) == (False, False)


def test_a_model_on_several_devices_is_refused():
    model = torch.nn.Linear(2, 2)
    model.register_buffer("elsewhere", torch.empty(1, device="meta"))
    with pytest.raises(CaptureError, match="no steps on cpu, meta"):
        device_of(tensors_of(model))


def test_an_op_without_a_workspace_runs_as_it_is():
    """With `strict`, it runs in a workspace without bytes."""
    device = Cuda.__new__(Cuda)
    operation = Operation("mm", [], [], None, line="model.py:7")
    run = lambda outside: None
    assert device.bound(run, operation, None, False, {}) is run
    device._pools = SimpleNamespace(run=lambda *_: SimpleNamespace(made=None, held=0, refused_bytes=1))
    with pytest.raises(AllocationError, match="mm .line model.py:7.* 0 bytes"):
        device.bound(run, operation, None, True, {})(None)


def test_a_thread_prepares_what_libraries_keep_for_it(monkeypatch):
    """cuBLAS keeps a workspace for each thread and stream. Allocated within an op, it would be planned memory."""
    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda *_: SimpleNamespace(wait_stream=lambda _: None))
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: SimpleNamespace(wait_stream=lambda _: None))
    for name in "device", "stream":
        monkeypatch.setattr(torch.cuda, name, lambda _: nullcontext())
    device = Cuda.__new__(Cuda)
    device.torch_device, device._prepared = torch.device("cuda", 0), threading.local()
    prepared = []
    device._prepare = lambda: prepared.append(threading.get_ident())

    def steps():
        for stream in 1, 2, 1, 1:
            with device.stepping(stream):
                pass

    steps()
    other = threading.Thread(target=steps)
    other.start()
    other.join()
    assert len(prepared) == 4 and len(set(prepared)) == 2


@pytest.mark.parametrize("device, length", [(Cuda.__new__(Cuda), 64), (Processor(), 64), (Processor(), 10_000)])
def test_ops_are_measured_on_numbers_that_differ(device, length):
    """A sum of equal numbers has the same bits in any order, so that its op would count as repeatable."""
    device._generator, state = torch.Generator(), torch.get_rng_state()
    numbers, places = torch.empty(length, dtype=torch.bfloat16), torch.empty(length, dtype=torch.int64)
    device.fill(numbers, 0.5)
    device.fill(places, 1)
    assert len(numbers.unique()) > 8 and numbers.min() >= 0.25 and numbers.max() <= 0.5
    assert torch.equal(places, torch.ones_like(places))
    assert torch.equal(torch.get_rng_state(), state), "no op draws from it"


def test_ops_on_the_host_are_measured_while_the_device_copies(monkeypatch):
    """The device copies in both directions until the measurement ends, and the host waits without computing."""
    copied, waited, empty = {}, [], torch.empty

    class Stream:
        def __init__(self, device):
            self.copies = copied.setdefault(len(copied), [])

        def synchronize(self):
            waited.append("stream")

    class Event:
        def __init__(self, blocking):
            assert blocking, "other events keep a processor busy"

        record = lambda self, stream: None
        synchronize = lambda self: waited.append("event")

    used = []

    @contextmanager
    def stream(one):
        used.append(one)
        yield
        used.pop()

    class Pinned(torch.Tensor):
        def copy_(self, source, non_blocking):
            assert non_blocking
            used[-1].copies.append((type(self), type(source)))

    class OnDevice(Pinned):
        pass

    def made(size, dtype, device=None, pin_memory=False):
        assert pin_memory != (device is not None)
        return empty(8, dtype=dtype).as_subclass(Pinned if pin_memory else OnDevice)

    for name, fake in dict(Stream=Stream, Event=Event, stream=stream).items():
        monkeypatch.setattr(torch.cuda, name, fake)
    monkeypatch.setattr(torch, "empty", made)
    device = Cuda.__new__(Cuda)
    device.torch_device = torch.device("cuda", 0)
    with device.copying():
        while waited.count("event") < 3:
            time.sleep(0.001)
    done = [len(copies) for copies in copied.values()]
    assert [set(copies) for copies in copied.values()] == [{(OnDevice, Pinned)}, {(Pinned, OnDevice)}]
    assert waited[-2:] == ["stream", "stream"]
    time.sleep(0.01)
    assert done == [len(copies) for copies in copied.values()], "it ends with the measurement"


def test_segments_that_grow_are_refused(monkeypatch):
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "backend:native, expandable_segments: True")
    with pytest.raises(CaptureError, match="PYTORCH_CUDA_ALLOC_CONF has expandable_segments:True"):
        device_of([], "cuda")


class Unmeasured:
    """Measures nothing, since the device is not there."""

    def __init__(self, device):
        self.device = device

    def layouts(self, call, storages, fakes):
        return [None] * 9

    def measure(self, call, storages):
        return Measured(1000, 0, draws=False, repeats=True)

    def give_back(self):
        pass


@pytest.fixture
def cuda(monkeypatch):
    """Lets steps be captured for a CUDA device."""
    device = SimpleNamespace(
        torch_device=torch.device("cuda", 0),
        random_state=lambda: torch.zeros(16),
        copied_bytes_per_s=lambda source: 10**12,
        setup_costs=lambda: None,
        refuse_group=lambda group: None,
        machine=lambda *_: MACHINE,
        list_calls=32,
        list_bytes=16 << 20,
    )
    monkeypatch.setattr("spillway.torch.capturing.device_of", lambda tensors, given: device)
    monkeypatch.setattr("spillway.torch.capturing.Measurements", Unmeasured)
    monkeypatch.setattr(Recorder, "_with_layout", lambda self, fake, layout: fake)
    return device


def captured_calls(monkeypatch, *step):
    """Captures a step for a CUDA device and returns the recorded calls."""
    recorders = []
    made = capturing.operations
    monkeypatch.setattr(
        capturing, "operations", lambda r, *more: recorders.append(r) or made(r, *more)
    )
    spillway.torch.capture(*step, device="cuda")
    return recorders[-1].calls


def host_numbers(call):
    leaves = torch.utils._pytree.tree_leaves((call.args, call.kwargs))
    return [leaf.is_host_number for leaf in leaves if isinstance(leaf, View)]


@pytest.mark.parametrize("settings", [dict(), dict(foreach=False), dict(fused=True)], ids=str)
def test_a_step_of_a_model_on_the_processor_is_captured_for_cuda(cuda, monkeypatch, settings):
    model = test_mlp.mlp()

    def backward(loss):  # PyTorch's own needs the device
        for p in model.parameters():
            p.grad = torch.zeros_like(p)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, **settings)
    calls = captured_calls(monkeypatch, model, test_mlp.loss_fn, optimizer, test_mlp.batches(0))
    foreach = any(call.name.startswith("_foreach_mul") for call in calls)
    assert foreach == (not settings), "on CUDA it is the default"
    counts = [c for c in calls if c.name.startswith(("_foreach_add_", "add_"))]
    counts = [c for c in counts if c.args[0] and host_numbers(c)[0]]
    # Each of the six parameters has one; so few bytes are one list.
    assert len(counts) == (0 if settings.get("fused") else 1 if foreach else 6)
    if settings.get("fused"):
        updates = [c for c in calls if c.name.startswith("_fused_adam_")]
        assert [len(c.args[0]) for c in updates] == [1, 1, 1, 3], "small parameters are updated together"
        # Parameters, gradients, two moments and the step counts; then the learning rate.
        assert all(host_numbers(c) == [False] * 5 * len(c.args[0]) + [True] for c in updates)
    assert all(p.device.type == "cpu" for p in model.parameters())


@pytest.mark.parametrize("name", ["gpt2", "llama", "unet", "experts"])
def test_an_inference_of_a_model_on_the_processor_is_captured_for_cuda(cuda, name):
    make, _, _, batches = models.model(name)
    model, batch = make(), batches(0)
    forward = (lambda m, x: m(x, use_cache=False).logits) if name in ("gpt2", "llama") else capturing.call
    step = spillway.torch.capture_inference(model, batch, forward, device="cuda")
    assert {s.kind for s in step.storages} == {"state", "given", "temporary", "output"}
    step.plan("min", MACHINE)


def test_a_graph_of_a_model_on_cuda_is_captured_there(cuda, monkeypatch):
    """Its results and gradients are there too. Only a single number is on the processor, and is taken from there."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.device("cuda"):
        weight, x = torch.empty(3, 4, requires_grad=True), torch.empty(3, 4)
    inputs = [weight, x, torch.tensor(2.0)]
    # PyTorch's own needs the device.
    monkeypatch.setattr(torch.autograd, "grad", lambda results, inputs, *_, **__: [torch.ones_like(x) for x in inputs])
    graph = torch.fx.symbolic_trace(lambda w, x, n: (w * x * n).sum())
    passes = Passes(graph, ["w", "x", "n"], [0], Unmeasured(cuda))
    step = passes.capture(inputs, None)
    ops = {op.name: op for op in step.operations}
    assert [name for name in ops if not name.startswith(("mul", "sum", "ones_like"))] == [
        "take w", "take x", "take n", "result.0", "backward", "gradient.0",
    ]  # fmt: skip
    for name in "results", "gradients":
        (view,) = [v for v in step._handed[name] if v is not None]
        assert not view.is_host_number
    numbers, memory = Numbers(), {}
    (tensor,) = ops["take n"].writes
    memory[tensor] = SimpleNamespace(address=(kept := torch.zeros(4, dtype=torch.uint8)).data_ptr(), bytes=4)
    ops["take n"].bind(Tensors(memory, Processor(), numbers), False)(SimpleNamespace(input=inputs.__getitem__))
    assert kept.view(torch.float32).item() == 2 and numbers.is_known(tensor)


def test_what_callers_keep_is_on_the_device_of_the_step():
    lent, view = Lent(torch.device("meta")), View(0, (4, 3), (1, 4), 0, torch.float32)
    assert (lent.tensor("result", view).device.type, lent.tensor("result", view).stride()) == ("meta", (1, 4))
    number = View(0, (), (), 0, torch.float32, is_host_number=True)
    assert lent.tensor("result", number).device.type == "cpu"


class Elsewhere(torch.Tensor):
    def cpu(self):
        return torch.ones(self.shape)


@pytest.mark.parametrize("settings", [dict(), dict(fused=False, amsgrad=True)], ids=str)
def test_states_of_parameters_that_are_elsewhere_are_on_the_processor(settings):
    """There they are as the first step would make them. States that are elsewhere move, those of others stay."""
    here, there = (torch.nn.Parameter(torch.empty(2, 3, device=d).T) for d in ("cpu", "meta"))
    optimizer = torch.optim.AdamW([here, there], **settings)
    expected = torch.optim.AdamW([torch.nn.Parameter(torch.empty(2, 3).T)], **settings)
    initialise(expected, lambda p: True)
    (values,) = expected.state.values()
    for _ in range(2):
        with states_on_processor(optimizer) as real:
            initialise(optimizer, lambda p: real.get(p) is there)
        assert optimizer.param_groups[0]["params"] == [here, there] and there.device.type == "meta"
        assert list(optimizer.state) == [there], "no other parameter gets states"
        for name, value in optimizer.state[there].items():
            assert value.device.type == "cpu" and torch.equal(value, values[name])
            assert value.stride() == values[name].stride()
    optimizer.state[there]["exp_avg"] = torch.empty(3, 2, device="meta").as_subclass(Elsewhere)
    with states_on_processor(optimizer):
        pass
    assert torch.equal(optimizer.state[there]["exp_avg"], torch.ones(3, 2))


def test_cuda_copies_are_timed_on_the_device():
    device = Cuda.__new__(Cuda)
    device.torch_device = torch.device("cpu")

    def time_ns(launch, workspace, results, is_collective):
        launch()
        return 1_000_000

    device.time_ns = time_ns
    assert device.copied_bytes_per_s(torch.device("cpu")) == (256 << 20) * 1000


def test_the_streams_of_a_caller_and_of_a_session_wait_for_each_other(monkeypatch):
    waits = []
    stream = lambda name: SimpleNamespace(name=name, wait_stream=lambda other: waits.append((name, other.name)))
    device = Cuda.__new__(Cuda)
    device.torch_device, caller = torch.device("cuda", 0), stream("caller")
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: stream("session"))
    device.lead(caller)
    device.follow(caller)
    assert waits == [("caller", "session"), ("session", "caller")]

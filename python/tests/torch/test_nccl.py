"""Steps of several processes on CUDA, without a device: which groups are refused, on which stream collectives are
launched, and training on the emulated driver, by collectives of Gloo."""

from types import SimpleNamespace
from unittest import mock

import pytest
import test_devices
import test_mlp
import test_processes
import test_sharded
import torch
from models import adamw, classify
from test_processes import even, run, wide
from test_sharded import by_units, linears, perceptron
from torch import distributed

import spillway.torch
from spillway.torch import CaptureError, ProcessError, nccl
from spillway.torch.collectives import UnderWay
from spillway.torch.common import Common
from spillway.torch.cuda import Cuda
from spillway.torch.machine import slowest
from spillway.torch.measuring import Measured
from spillway.torch.operations import Operation
from spillway.torch.workspaces import Place

DEVICE = torch.device("cuda", 0)


@pytest.fixture
def alone(tmp_path):
    """A group of one process, on Gloo."""
    distributed.init_process_group("gloo", init_method=f"file://{tmp_path}/rendezvous", rank=0, world_size=1)
    yield distributed.group.WORLD
    distributed.destroy_process_group()


def backend(name):
    return type(name, (), {})()


def group(cuda="ProcessGroupNCCL", cpu="ProcessGroupGloo", bound=None):
    """Returns a group with backends of these names."""
    backends = {"cpu": backend(cpu), "cuda": backend(cuda)}
    return SimpleNamespace(_get_backend=lambda device: backends[device.type], bound_device_id=bound)


@pytest.fixture
def processes(monkeypatch):
    """Has this process be one of two. Returns what the other one tells: its device, and what it lacks."""
    other = ["of the other", ""]
    properties = SimpleNamespace(uuid="of this one")
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(nccl, "everyones", lambda group, value: [value, tuple(other)])
    return other


@pytest.mark.short
def test_a_group_of_nccl_and_gloo_is_accepted(processes):
    nccl.refuse_group(group(), DEVICE)
    nccl.refuse_group(group(bound=DEVICE), DEVICE)


@pytest.mark.short
@pytest.mark.parametrize(
    "backends, found",
    [
        (dict(cuda="ProcessGroupGloo"), "ProcessGroupGloo for cuda"),
        (dict(cuda="ProcessGroupNCCL2"), "ProcessGroupNCCL2 for cuda"),
        (dict(cpu="ProcessGroupNCCL"), "ProcessGroupNCCL for cpu"),
    ],
)
def test_other_backends_are_refused(processes, backends, found):
    with pytest.raises(CaptureError, match=f"process_group has {found} tensors.*'cpu:gloo,cuda:nccl"):
        nccl.refuse_group(group(**backends), DEVICE)


@pytest.mark.short
def test_backends_of_real_groups_are_found(alone):
    assert [nccl.backend_name(alone, kind) for kind in ("cpu", "cuda", "xpu")] == [
        "ProcessGroupGloo", "ProcessGroupGloo", "no backend"
    ]
    device = Cuda.__new__(Cuda)
    device.torch_device = DEVICE
    model = test_mlp.mlp()
    with mock.patch("spillway.torch.capturing.device_of", lambda tensors, given: device):
        with pytest.raises(CaptureError, match="process_group has ProcessGroupGloo for cuda tensors"):
            spillway.torch.capture(
                model, test_mlp.loss_fn, adamw(model), test_mlp.batches(0), process_group=alone, device="cuda"
            )


@pytest.mark.short
def test_what_one_process_lacks_is_refused_in_all(processes, monkeypatch):
    for bound in torch.device("cuda", 1), torch.device("cpu"):
        with pytest.raises(CaptureError, match=f"process 0 .* process_group is for {bound}, but the step is on cuda:0"):
            nccl.refuse_group(group(bound=bound), DEVICE)
    world = SimpleNamespace(pg_map=[group(cuda="ProcessGroupNCCL2")])
    with monkeypatch.context() as patched:
        patched.setattr(distributed.distributed_c10d, "_world", world)
        with pytest.raises(CaptureError, match="process 0 .* another group of it has ProcessGroupNCCL2"):
            nccl.refuse_group(group(), DEVICE)
    with monkeypatch.context() as patched:
        patched.setenv(nccl.REGISTERS_ALL, "1")
        with pytest.raises(CaptureError, match=f"process 0 .* {nccl.REGISTERS_ALL} is set"):
            nccl.refuse_group(group(), DEVICE)
    processes[1] = "it lacks something"
    with pytest.raises(CaptureError, match="process 1 cannot run the step: it lacks something"):
        nccl.refuse_group(group(), DEVICE)


@pytest.mark.short
def test_two_processes_on_one_device_are_refused(processes):
    processes[0] = "of this one"
    with pytest.raises(CaptureError, match="processes 0 and 1 have the same CUDA device"):
        nccl.refuse_group(group(), DEVICE)


@pytest.mark.short
def test_a_collective_is_launched_on_the_stream_for_collectives(monkeypatch):
    current = ["the caller's"]

    class Stream:
        def __init__(self, stream):
            self._stream = stream

        def __enter__(self):
            current.append(self._stream)

        def __exit__(self, *_):
            current.pop()

    monkeypatch.setattr(torch.cuda, "ExternalStream", lambda stream, device: (stream, device))
    monkeypatch.setattr(torch.cuda, "stream", Stream)
    device = Cuda.__new__(Cuda)
    device.torch_device = DEVICE
    with device.exchanging(7, threads=1):
        assert current[-1] == (7, DEVICE)
    assert current == ["the caller's"]


def collectives_beside_ops(process):
    from on_emulated import Emulated

    device = Emulated()
    with mock.patch("spillway.torch.capturing.device_of", lambda tensors, given: device):
        test_sharded.compare(
            process, perceptron, classify, adamw, even, ["35%"], by_units(linears), clip=0.1, steps=2
        )
    kinds = {name.split()[0].split("_tensor")[0] for name in device.on_network}
    assert kinds == {"gather", "reduce_scatter", "all_reduce_"}, kinds


@pytest.mark.short
def test_sharded_training_on_a_device_has_the_same_bits(tmp_path):
    run(collectives_beside_ops, 2, tmp_path)


def collectives_among_ops(process):
    from on_emulated import Emulated

    device, streams = Emulated(), []

    def wait_for_all(under_way):
        streams.append(device.streams.now)
        real(under_way)

    real = UnderWay.wait_for_all
    with (
        mock.patch("spillway.torch.capturing.device_of", lambda tensors, given: device),
        mock.patch.object(UnderWay, "wait_for_all", wait_for_all),
    ):
        test_processes.compare(process, wide, classify, adamw, even, "50%", steps=2)
    assert not device.on_network
    assert len(streams) >= 2 and None not in streams, "a step ends on its stream after its collectives"


@pytest.mark.short
def test_averaging_on_a_device_has_the_same_bits(tmp_path):
    run(collectives_among_ops, 2, tmp_path)


cuda = test_devices.cuda


@pytest.mark.short
def test_a_sharded_step_is_captured_for_cuda(cuda, alone, monkeypatch):
    """All that a step gathers, averages and keeps is on its device."""
    model, made = test_mlp.mlp(), []

    def backward(loss):  # PyTorch's own needs the device
        for p in model.parameters():
            p.grad = torch.zeros_like(p)
            for hook in list(p._post_accumulate_grad_hooks.values()):
                hook(p)

    monkeypatch.setattr(torch.Tensor, "backward", backward)
    adopt = test_devices.Recorder.adopt
    monkeypatch.setattr(
        test_devices.Recorder,
        "adopt",
        lambda self, fake, kind, name, *more: made.append((name, fake.device)) or adopt(self, fake, kind, name, *more),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    spillway.torch.capture(
        model, test_mlp.loss_fn, optimizer, test_mlp.batches(0), process_group=alone, shard=True, device="cuda"
    )
    assert {device for name, device in made if "gathered" in name} == {DEVICE}


@pytest.mark.short
def test_the_machine_of_all_processes_is_the_slowest():
    one = spillway.Machine("one", 8, 70, 4, 50, 60, 7, 8, 9)
    other = spillway.Machine("other", 9, 60, 2, 60, 50, 8, 7, 10)
    assert slowest([one, other]).to_json() == spillway.Machine("one", 8, 60, 4, 50, 50, 8, 8, 10).to_json()


@pytest.mark.short
def test_all_processes_measure_their_devices_and_plan_for_the_slowest():
    own, other = (spillway.Machine(f"of {gib} GiB", gib << 30, 1 << 30, 4096, 10**9, 10**9) for gib in (8, 4))
    told = []

    class Device:
        torch_device, most_mappings = DEVICE, float("inf")

        def machine(self, *_):
            assert told, "ops and collectives are measured before the memory that is left"
            return own

    class Two(Common):
        group = SimpleNamespace(rank=lambda: 0)

        def __init__(self):
            self._device, self._machine, self._own_machine = Device(), None, None

        def _everyones(self, value):
            told.append(value)
            return [value, other if value is own else value]

    processes = Two()
    processes.share([], [])
    processes.share([], [])
    assert told.count(own) == 1
    assert processes.machine(Device(), 0, 0).device_bytes == 4 << 30
    figures = SimpleNamespace(host_bytes=0)
    plan = SimpleNamespace(budget_bytes=9 << 30, figures=figures, mappings=10**9, to_json=lambda: b"")
    with pytest.raises(ProcessError, match="its budget takes 9663676416 bytes, but its device has 8589934592"):
        processes.check(plan)
    plan.budget_bytes, figures.host_bytes = 8 << 30, 1 << 60
    with pytest.raises(ProcessError, match="the states outside of its budget take 1152921504606846976 bytes"):
        processes.check(plan)
    figures.host_bytes = 0
    processes.check(plan)


def test_each_process_makes_results_in_its_own_places():
    """All have the longest time and the largest workspace."""
    costs = [
        Measured(10, 4096, False, True, places=(Place(0, 1, 2 << 20),)),
        Measured(20, 2048, False, True),
    ]
    for own in range(2):

        class Two(Common):
            def __init__(self):
                self._machine, self._device = "known", None

            def _everyones(self, value):
                form, _ = value
                return [(form, [(one, True)]) for one in costs]

        op = Operation("op", [], [], None, costs[own], repeatable=True)
        Two().share([op], [])
        assert op.measured == Measured(20, 4096, False, True, costs[own].places)

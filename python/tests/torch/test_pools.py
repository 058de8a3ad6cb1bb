"""Ops that allocate on a CUDA device, on a model of PyTorch's allocator that allocates on the processor."""

import ctypes
import gc
import weakref
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from test_workspace import allocate, free

from spillway.torch.cuda import Cuda
from spillway.torch.errors import AllocationError, CaptureError
from spillway.torch.launching import _Copying
from spillway.torch.operations import Operation
from spillway.torch.pools import Pools
from spillway.torch.recording import View
from spillway.torch.workspaces import Place, Workspace

pytestmark = pytest.mark.short
MIB = 1 << 20
CPU = torch.device("cpu")


class PyTorch:
    """The part of `torch.cuda` that pools use. Segments have the sizes that PyTorch's allocator asks for."""

    def __init__(self):
        self.pool = None

    def empty(self, nbytes):
        """Returns a tensor from the pool in use."""
        return self.pool.empty(nbytes)


class Pool:
    """Without an allocator, it takes segments as PyTorch does by itself."""

    reserved_bytes = 0

    def __init__(self, allocator=None, no_split=False):
        self.no_split, self.own = no_split, [] if allocator is None else None
        self.free = []  # whether a block is for small tensors, its bytes, and its address
        self.segments = []

    def empty(self, nbytes):
        wanted = -(-nbytes // 512) * 512
        is_small = wanted <= MIB
        fitting = [block for block in self.free if block[0] == is_small and block[1] >= wanted]
        if fitting:
            _, size, address = min(fitting)
            self.free.remove((is_small, size, address))
        else:
            size = 2 * MIB if is_small else 20 * MIB if wanted < 10 * MIB else -(-wanted // (2 * MIB)) * 2 * MIB
            address = self.segment(size)
            if address is None:
                raise torch.OutOfMemoryError
            self.segments.append(address)
        if not self.no_split and size - wanted > (0 if is_small else MIB):
            self.free.append((is_small, size - wanted, address + wanted))
            size = wanted
        memory = torch.frombuffer((ctypes.c_char * nbytes).from_address(address), dtype=torch.uint8)
        weakref.finalize(memory, self.free.append, (is_small, size, address))
        return memory

    def segment(self, nbytes):
        if self.own is None:
            return allocate(nbytes)
        self.own.append(torch.empty(nbytes, dtype=torch.uint8))
        Pool.reserved_bytes += nbytes
        return self.own[-1].data_ptr()

    def __del__(self):
        Pool.reserved_bytes -= sum(map(len, self.own or ()))
        unused = {address for _, _, address in self.free}
        for address in self.segments:
            if address in unused:
                free(address)


@pytest.fixture
def pytorch(monkeypatch):
    found = PyTorch()

    @contextmanager
    def use_mem_pool(pool, device):
        assert device == CPU
        found.pool = pool
        yield
        found.pool = None

    monkeypatch.setattr(torch.cuda, "MemPool", Pool)
    monkeypatch.setattr(torch.cuda, "use_mem_pool", use_mem_pool)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: Pool.reserved_bytes)
    allocator = SimpleNamespace(allocator=lambda: "allocator")
    monkeypatch.setattr(torch.cuda.memory, "CUDAPluggableAllocator", lambda *names: allocator)
    return found


def launched(function, *sizes):
    """Returns a launch that copies what a function makes, and the memory of its results."""
    results = [None if size is None else torch.zeros(size, dtype=torch.uint8) for size in sizes]
    return partial(_Copying(function, results)), results


def filled(memory, number):
    return memory.fill_(number)


def measured(function, *sizes):
    launch, _ = launched(function, *sizes)
    return Pools(CPU).measured(launch, sizes)


def bound(pytorch, function, workspace, *sizes):
    """Returns the function that runs an op as in a session, its workspace, and the memory of its results."""
    launch, results = launched(function, *sizes)
    device = Cuda.__new__(Cuda)
    device._pools = Pools(CPU)
    views = [None if r is None else View(k, r.shape, r.stride(), 0, r.dtype) for k, r in enumerate(results)]
    costs = SimpleNamespace(places=workspace.places)
    op = Operation("op", [], [], None, costs, line="model.py:7", results=views)
    memory = {k: SimpleNamespace(address=r.data_ptr()) for k, r in enumerate(results) if r is not None}
    own = torch.zeros(workspace.nbytes, dtype=torch.uint8)
    at = SimpleNamespace(address=own.data_ptr(), bytes=workspace.nbytes) if workspace.nbytes else None
    run = device.bound(lambda outside: own is not None and launch(), op, at, False, memory)
    return run, results


def convolution(pytorch, number=7):
    """Makes a large result, uses a workspace, and makes a small result."""
    large = filled(pytorch.empty(12 * MIB), number)
    filled(pytorch.empty(3 * MIB), 1)
    return large, filled(pytorch.empty(1000), number + 1)


def test_results_are_made_where_they_are_planned(pytorch):
    op = partial(convolution, pytorch)
    found = measured(op, 12 * MIB, 1000)
    assert found == Workspace(20 * MIB, (Place(0, 0, 12 * MIB), Place(1, 2, 2 * MIB)))
    run, (large, small) = bound(pytorch, op, found, 12 * MIB, 1000)
    copied = []
    copy_, torch.Tensor.copy_ = torch.Tensor.copy_, lambda *_: copied.append(_)
    try:
        run(None)
        run(None)
    finally:
        torch.Tensor.copy_ = copy_
    assert not copied
    assert (large == 7).all() and (small == 8).all()


def test_a_result_that_is_not_wanted_stays_in_the_workspace(pytorch):
    op = partial(convolution, pytorch)
    found = measured(op, 12 * MIB, None)
    assert found == Workspace(22 * MIB, (Place(0, 0, 12 * MIB),))
    run, (large, _) = bound(pytorch, op, found, 12 * MIB, None)
    run(None)
    assert (large == 7).all()


def test_what_is_written_behind_a_result_is_found(pytorch):
    """A temporary is in the result's segment before it, and is larger."""

    def op():
        filled(pytorch.empty(12 * MIB), 3)
        return filled(pytorch.empty(11 * MIB), 7)

    found = measured(op, 11 * MIB)
    assert found == Workspace(12 * MIB)
    run, (result,) = bound(pytorch, op, found, 11 * MIB)
    run(None)
    assert (result == 7).all()


def test_results_without_a_segment_for_themselves_are_copied(pytorch):
    """Two are parts of one tensor, and one begins inside a tensor."""

    def op():
        both = filled(pytorch.empty(12 * MIB), 7)
        within = filled(pytorch.empty(12 * MIB), 8)[512:]
        small = [filled(pytorch.empty(1000), number) for number in (9, 10)]
        return both[: 6 * MIB], both[6 * MIB :], within, *small

    sizes = 6 * MIB, 6 * MIB, 12 * MIB - 512, 1000, 1000
    found = measured(op, *sizes)
    assert found == Workspace(24 * MIB, (Place(3, 2, 2 * MIB), Place(4, 3, 2 * MIB)))
    run, results = bound(pytorch, op, found, *sizes)
    run(None)
    assert [int(result[-1]) for result in results] == [7, 7, 8, 9, 10]


def test_an_op_gets_as_much_memory_as_it_wants(pytorch):
    """Once cuDNN was refused memory, it goes on with a slower algorithm."""
    was_refused = []

    def op():
        result = filled(pytorch.empty(1000), 7)
        try:
            filled(pytorch.empty(80 * MIB), 1)
        except torch.OutOfMemoryError:
            was_refused.append(None)
            filled(pytorch.empty(1 * MIB), 1)
        return result

    assert measured(op, 1000) == Workspace(80 * MIB, (Place(0, 0, 2 * MIB),))
    assert not was_refused


def test_an_op_that_allocates_more_at_times_is_refused(pytorch):
    turns = []

    def op():
        turns.append(pytorch.empty(len(turns) * 20 * MIB + 1).numel())
        return filled(pytorch.empty(1000), 7)

    with pytest.raises(CaptureError, match="does not allocate the same each time"):
        measured(op, 1000)


def test_an_op_that_keeps_memory_is_refused(pytorch):
    kept = []

    def op():
        kept.append(pytorch.empty(1000))
        return filled(pytorch.empty(1000), 7)

    with pytest.raises(CaptureError, match="keeps memory"):
        measured(op, 1000)
    run, _ = bound(pytorch, op, Workspace(4 * MIB), 1000)
    with pytest.raises(AllocationError, match="op .line model.py:7. keeps memory of its workspace"):
        run(None)


def test_an_op_that_does_with_less_is_named(pytorch):
    """It would leave other bits."""

    def op():
        try:
            pytorch.empty(30 * MIB)
        except torch.OutOfMemoryError:
            pass
        return filled(pytorch.empty(1000), 7)

    found = measured(op, 1000)
    run, _ = bound(pytorch, op, replace(found, nbytes=2 * MIB), 1000)
    with pytest.raises(AllocationError, match="op .line model.py:7. needs more than its workspace of 2097152 bytes"):
        run(None)


def test_an_op_that_allocates_in_another_order_is_named(pytorch):
    turns = []

    def op():
        first, second = (pytorch.empty(12 * MIB) for _ in range(2))
        turns.append(None)
        return filled(second if len(turns) > 5 else first, 7)

    found = measured(op, 12 * MIB)
    assert found == Workspace(12 * MIB, (Place(0, 0, 12 * MIB),)) and len(turns) == 5
    run, _ = bound(pytorch, op, found, 12 * MIB)
    with pytest.raises(AllocationError, match="op .line model.py:7. allocates its results in another order"):
        run(None)


def test_an_error_of_an_op_keeps_no_pool(pytorch):
    """If its traceback kept the pool alive, the pool would later give back segments that another pool has by then."""

    def op():
        pytorch.empty(1000)
        raise ValueError("no")

    found = []
    finish = Pool.__del__
    Pool.__del__ = lambda self: (finish(self), found.append(self.segments))
    try:
        with pytest.raises(ValueError, match="no") as error:
            Pools(CPU).run(op, torch.empty(4 * MIB).data_ptr(), 4 * MIB)
        gc.disable()
        assert len(found) == 1 and error.tb is not None
    finally:
        gc.enable()
        Pool.__del__ = finish


def test_a_time_is_that_of_a_launch_in_its_places(pytorch, monkeypatch):
    class Event:
        def __init__(self, enable_timing):
            pass

        record = synchronize = lambda self: None
        query = lambda self: False
        elapsed_time = lambda self, end: 1.0

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda cycles: None)
    op = partial(convolution, pytorch)
    found = measured(op, 12 * MIB, 1000)
    launch, results = launched(op, 12 * MIB, 1000)
    device = Cuda.__new__(Cuda)
    device.torch_device, device._pools = CPU, Pools(CPU)
    made = []
    addresses = [r.data_ptr() for r in results]
    assert device.time_ns(lambda: made.append(launch()) or made[-1], found, addresses, False) == 1_000_000
    assert made == [addresses] * 3

"""A CUDA device as the device of a model.

It and `nccl.py` are all that is CUDA's own: the rest is shared with the processor, and `tests/torch/test_cuda.py`
runs it on an emulated CUDA device. `tests/torch/on_gpu.py` needs a GPU. What the calls do is taken from PyTorch's
documentation: `torch.cuda`, "Using custom memory allocators for CUDA" and "cuBLAS workspaces" in its notes on CUDA.
"""

import ctypes
import math
import os
import threading
from contextlib import contextmanager
from itertools import pairwise
from statistics import median

import torch

from spillway import Cuda as Device
from spillway import _core

from . import nccl
from .errors import AllocationError, CaptureError

_LIBRARY = ctypes.CDLL(_core.__file__)
_LIBRARY.spillway_workspace.argtypes = ctypes.c_size_t, ctypes.c_size_t
_LIBRARY.spillway_workspace.restype = None

RANDOM_DTYPES = torch.float32, torch.float64, torch.float16, torch.bfloat16
LAUNCHES = 3
LEAST_CYCLES, MOST_CYCLES = 1_000_000, 16_000_000  # half a millisecond, and eight, at 2 GHz


class Cuda:
    """Tensors are in the device's memory, and ops run on the stream of the session."""

    # With `strict`, all that PyTorch allocates while an op runs is within its workspace, or fails.
    limits_workspaces = True
    most_mappings = math.inf  # the driver counts none

    def __init__(self, torch_device):
        refuse_expandable_segments()
        self.torch_device = torch_device
        self.session_device = Device(torch_device.index)
        self._machine = None
        # The streams with the memory that libraries keep for a thread.
        self._prepared = threading.local()
        self._generator = torch.Generator(torch_device)

    def machine(self, tensor_bytes, copied_bytes_per_s):
        """Returns the machine that plans are for, where none is given: measured once."""
        if self._machine is None:
            self.give_back()
            self._machine = self.session_device.measure()
        return self._machine

    def setup_costs(self):
        """Returns None: they are not measured."""

    def give_back(self):
        """Gives the device the memory back that PyTorch keeps unused."""
        torch.cuda.empty_cache()

    def fill(self, tensor, number):
        """Fills a tensor to measure an op with. Numbers differ, so that sums in another order do."""
        if tensor.dtype in RANDOM_DTYPES:
            tensor.uniform_(number / 2, number, generator=self._generator)
        else:
            tensor.fill_(number)

    def pages(self, nbytes):
        """Returns memory for `part`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def part(self, pages, start, nbytes):
        """Returns bytes of pages as a tensor that PyTorch cannot resize. It does not keep the pages."""
        return self._tensor(pages.data_ptr() + start, nbytes)

    def at(self, planned):
        """Returns planned memory as a tensor that PyTorch cannot resize."""
        return self._tensor(planned.address, planned.bytes)

    def _tensor(self, address, nbytes):
        storage = torch._C._construct_storage_from_data_pointer(address, self.torch_device, nbytes)
        return torch.empty(0, dtype=torch.uint8, device=self.torch_device).set_(storage)

    def time_ns(self, launch, is_collective):
        """Returns the median time of launches that are enqueued while the device is busy: on an idle device,
        events measure how long the host takes to launch."""
        cycles = MOST_CYCLES if is_collective else LEAST_CYCLES  # all processes launch it equally often
        while True:
            events = [torch.cuda.Event(enable_timing=True) for _ in range(LAUNCHES + 1)]
            torch.cuda._sleep(cycles)
            events[0].record()
            for event in events[1:]:
                launch()
                event.record()
            was_busy = not events[0].query()
            events[-1].synchronize()
            if was_busy or cycles >= MOST_CYCLES:  # or the op waits for the device
                break
            cycles *= 4
        times_ms = [start.elapsed_time(end) for start, end in pairwise(events)]
        return round(median(times_ms) * 1e6)

    def workspace_bytes(self, launch):
        """Runs a launch twice, and returns the bytes of the segments from which PyTorch allocates for it. The
        second launch uses segments that the first has left, and may need others."""
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, self.torch_device):
            launch()
            launch()
        segments = pool.snapshot()
        if any(segment["allocated_size"] for segment in segments):
            raise CaptureError("an op keeps memory that it has allocated, beyond its end")
        return sum(segment["total_size"] for segment in segments)

    def random_state(self):
        """Returns the state of the device's generator, a tensor on the processor."""
        return torch.cuda.get_rng_state(self.torch_device)

    def set_random_state(self, state):
        """Sets the state of the device's generator."""
        torch.cuda.set_rng_state(state.cpu(), self.torch_device)

    def refuse_group(self, group):
        """Raises `CaptureError`, in all processes, if the group's collectives cannot run on the device."""
        nccl.refuse_group(group, self.torch_device)

    @contextmanager
    def stepping(self, stream):
        """A step runs on the session's stream, after what the caller has enqueued and before what
        the caller enqueues next."""
        session = torch.cuda.ExternalStream(stream, self.torch_device)
        caller = torch.cuda.current_stream(self.torch_device)
        session.wait_stream(caller)
        with torch.cuda.device(self.torch_device), torch.cuda.stream(session):
            streams = self._prepared.__dict__.setdefault("streams", set())
            if stream not in streams:
                self._prepare()
                streams.add(stream)
            yield
        caller.wait_stream(session)

    def exchanging(self, stream, threads):
        """Returns a context for a collective beside other ops. It runs on the session's stream for collectives."""
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self.torch_device))

    def _prepare(self):
        """Has cuBLAS allocate the workspace that it keeps for this thread and stream, so that no op's holds
        it."""
        square = torch.ones(32, 32, device=self.torch_device)
        torch.mm(square, square)
        torch.addmm(square[0], square, square)

    def bound(self, run, operation, workspace, strict):
        """Returns the function that runs a bound op within its workspace, or None for none. Unless `strict`,
        an op without workspace runs as it is."""
        if not workspace and not strict:
            return run
        address, workspace_bytes = (workspace.address, workspace.bytes) if workspace else (0, 0)
        # A pool of its own, so that what PyTorch keeps of it is not used at other addresses.
        pool = _Pool()

        def launch(outside):
            _LIBRARY.spillway_workspace(address, workspace_bytes)
            try:
                with torch.cuda.use_mem_pool(pool.pool, self.torch_device):
                    run(outside)
                pool.refuse_what_is_kept(operation)
            except torch.OutOfMemoryError:
                raise AllocationError(
                    f"{operation.name} (line {operation.line}) needs more than its workspace of"
                    f" {workspace_bytes} bytes"
                ) from None
            finally:
                _LIBRARY.spillway_workspace(0, 0)

        return launch


def refuse_expandable_segments():
    """Raises `CaptureError` if PyTorch's allocator has segments that grow, whose bytes a workspace does not bound."""
    for name in "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF":
        if "expandable_segments:True" in os.environ.get(name, "").replace(" ", ""):
            raise CaptureError(
                f"{name} has expandable_segments:True, and the memory that an op takes cannot be bounded then:"
                " start the process without it"
            )


class _Pool:
    """A pool whose segments come from a workspace. It has an allocator of its own: an allocator knows an address
    once, and the workspaces of several ops may begin at the same."""

    def __init__(self):
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            _core.__file__, "spillway_workspace_allocate", "spillway_workspace_free"
        ).allocator()
        self.pool = torch.cuda.MemPool(self._allocator)

        self._is_checked = False

    def refuse_what_is_kept(self, operation):
        """Raises `AllocationError` if the op keeps memory of the workspace, which is another tensor's next."""
        if not self._is_checked and any(s["allocated_size"] for s in self.pool.snapshot()):
            raise AllocationError(
                f"{operation.name} (line {operation.line}) keeps memory of its workspace beyond its end: compute"
                " it outside of the step"
            )
        self._is_checked = True

    def __del__(self):
        self.pool = None  # before its allocator, which it does not keep

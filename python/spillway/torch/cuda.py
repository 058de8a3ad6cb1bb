"""A CUDA device as the device of a model.

This file has not run on a GPU yet. It is all that is CUDA's own: the rest is shared with the
processor, and `tests/torch/test_cuda.py` runs it on an emulated CUDA device. What the calls do is
taken from PyTorch's documentation: `torch.cuda`, "Using custom memory allocators for CUDA" and
"cuBLAS workspaces" in its notes on CUDA, and the CUDA array interface, version 3.
"""

import ctypes
import math
from contextlib import contextmanager

import torch

from spillway import Cuda as Device
from spillway import _core

from .errors import AllocationError, CaptureError

_LIBRARY = ctypes.CDLL(_core.__file__)
_LIBRARY.spillway_workspace.argtypes = ctypes.c_size_t, ctypes.c_size_t
_LIBRARY.spillway_workspace.restype = None


class Cuda:
    """Tensors are in the device's memory, and ops run on the stream of the session."""

    # All that PyTorch allocates while an op runs is within its workspace, or fails.
    limits_workspaces = True
    most_mappings = math.inf  # the driver counts none

    def __init__(self, torch_device):
        self.torch_device = torch_device
        self.session_device = Device(torch_device.index)
        self._machine = None
        self._prepared = None  # the last stream with the memory that libraries keep
        self._allocator = torch.cuda.memory.CUDAPluggableAllocator(
            _core.__file__, "spillway_workspace_allocate", "spillway_workspace_free"
        ).allocator()

    def machine(self, tensor_bytes, copied_bytes_per_s):
        """Returns the machine that plans are for, where none is given: measured once."""
        if self._machine is None:
            self._machine = self.session_device.measure()
        return self._machine

    def setup_costs(self):
        """Returns None: they are not measured."""

    def pages(self, nbytes):
        """Returns memory for `part`."""
        return torch.empty(nbytes, dtype=torch.uint8, device=self.torch_device)

    def part(self, pages, start, nbytes):
        """Returns bytes of pages as a tensor that PyTorch cannot resize, and that keeps the pages."""
        return self._tensor(_Bytes(pages.data_ptr() + start, nbytes, pages))

    def at(self, planned):
        """Returns planned memory as a tensor that PyTorch cannot resize."""
        return self._tensor(_Bytes(planned.address, planned.bytes, None))

    def _tensor(self, memory):
        return torch.as_tensor(memory, device=self.torch_device)

    def time_ns(self, launch, is_collective):
        """Returns the time of a launch between two events."""
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        launch()
        end.record()
        end.synchronize()
        return round(start.elapsed_time(end) * 1e6)

    def workspace_bytes(self, launch):
        """Runs a launch and returns the bytes of the segments from which PyTorch allocates for it."""
        pool = torch.cuda.MemPool()
        with torch.cuda.use_mem_pool(pool, self.torch_device):
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

    @contextmanager
    def stepping(self, stream):
        """A step runs on the session's stream, after what the caller has enqueued and before what
        the caller enqueues next."""
        session = torch.cuda.ExternalStream(stream, self.torch_device)
        caller = torch.cuda.current_stream(self.torch_device)
        session.wait_stream(caller)
        with torch.cuda.device(self.torch_device), torch.cuda.stream(session):
            if self._prepared != stream:
                self._prepare()
                self._prepared = stream
            yield
        caller.wait_stream(session)

    def _prepare(self):
        """Has cuBLAS allocate the workspace that it keeps for a stream, so that no op's holds it."""
        square = torch.ones(32, 32, device=self.torch_device)
        torch.mm(square, square)
        torch.addmm(square[0], square, square)

    def bound(self, run, operation, workspace):
        """Returns the function that runs a bound op within its workspace, or None for none."""
        address, workspace_bytes = (workspace.address, workspace.bytes) if workspace else (0, 0)

        def launch(outside):
            # A pool of its own, so that what PyTorch keeps of it is not used at other addresses.
            pool = torch.cuda.MemPool(self._allocator)
            _LIBRARY.spillway_workspace(address, workspace_bytes)
            try:
                with torch.cuda.use_mem_pool(pool, self.torch_device):
                    run(outside)
            except torch.OutOfMemoryError:
                raise AllocationError(
                    f"{operation.name} (line {operation.line}) needs more than its workspace of"
                    f" {workspace_bytes} bytes"
                ) from None
            finally:
                _LIBRARY.spillway_workspace(0, 0)

        return launch


class _Bytes:
    """Bytes of the device, in the CUDA array interface. It keeps their owner."""

    def __init__(self, address, nbytes, owner):
        self.owner = owner
        self.__cuda_array_interface__ = {
            "shape": (nbytes,),
            "typestr": "|u1",
            "data": (address, False),
            "strides": None,
            "version": 3,
        }

"""A CUDA device as the device of a model.

It and `nccl.py` are all that is CUDA's own: the rest is shared with the processor, and `tests/torch/test_cuda.py`
runs it on an emulated CUDA device. `tests/torch/on_gpu.py` needs a GPU. What the calls do is taken from PyTorch's
documentation: `torch.cuda`, "Using custom memory allocators for CUDA" and "cuBLAS workspaces" in its notes on CUDA.
"""

import math
import os
import threading
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from statistics import median

import torch

from spillway import Cuda as Device

from . import nccl
from .errors import AllocationError, CaptureError
from .pools import Pools, memory_for_pools
from .processor import RANDOM_DTYPES, beside
from .staging import Staging, may_be_staged
from .workspaces import Workspace

LAUNCHES = 3
COPY_BYTES, COPIES = 16 << 20, 16  # 5 ms at 50 GB/s
LEAST_CYCLES, MOST_CYCLES = 1_000_000, 16_000_000  # half a millisecond, and eight, at 2 GHz


class Cuda:
    """Tensors are in the device's memory, and ops run on the stream of the session."""

    runs_at_once = False
    # With `strict`, all that PyTorch allocates while an op runs is within its workspace, or fails.
    limits_workspaces = True
    most_mappings = most_mappings_at_once = math.inf  # the driver counts none
    # The processor's device explains these. A call has one block of threads for 65,536 elements, and an H100 runs 132
    # blocks at once.
    list_calls, list_bytes = 16, 128 << 20

    def __init__(self, torch_device):
        refuse_expandable_segments()
        self.torch_device = torch_device
        self.session_device = Device(torch_device.index)
        self._machine = None
        # The streams with the memory that libraries keep for a thread.
        self._prepared = threading.local()
        self._generator = torch.Generator(torch_device)
        self._pools = Pools(torch_device)
        self._staging = Staging(partial(torch.empty, dtype=torch.uint8, pin_memory=True))

    def machine(self, tensor_bytes, copied_bytes_per_s):
        """Returns the machine that plans are for, where none is given: measured once."""
        if self._machine is None:
            self.give_back()
            self._machine = self.session_device.measure()
        return self._machine

    def copied_bytes_per_s(self, source):
        """Returns the bytes of a tensor that are copied in a second from a device."""
        nbytes = COPIES * COPY_BYTES
        source, target = (torch.zeros(nbytes, dtype=torch.uint8, device=d) for d in (source, self.torch_device))
        time_ns = self.time_ns(lambda: self.copy(source, target), Workspace(0), [], is_collective=False)
        return nbytes * 10**9 // time_ns

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
        return memory_for_pools(nbytes, self.torch_device)

    def part(self, pages, start, nbytes):
        """Returns bytes of pages as a tensor that PyTorch cannot resize. It does not keep the pages."""
        return self._tensor(pages.data_ptr() + start, nbytes)

    def at(self, planned):
        """Returns planned memory as a tensor that PyTorch cannot resize."""
        return self._tensor(planned.address, planned.bytes)

    def _tensor(self, address, nbytes):
        storage = torch._C._construct_storage_from_data_pointer(address, self.torch_device, nbytes)
        return torch.empty(0, dtype=torch.uint8, device=self.torch_device).set_(storage)

    def copy(self, source, target):
        """Enqueues a copy of a tensor to another one. A tensor on the processor may be written, and has its value, when
        this returns."""
        if source.device == target.device or not may_be_staged(source, target):
            target.copy_(source)
        elif source.device.type == "cpu":
            self._staging.upload(source, target)
        else:
            self._staging.download(source, target)

    def copy_each(self, sources, targets):
        """Enqueues a copy of each tensor to another one, as `copy` does."""
        if all(source.device == target.device for source, target in zip(sources, targets)):
            torch._foreach_copy_(targets, sources)
        else:
            for source, target in zip(sources, targets):
                self.copy(source, target)

    def time_ns(self, launch, workspace, results, is_collective):
        """Returns the median time of launches that are enqueued while the device is busy: on an idle device,
        events measure how long the host takes to launch. `results` has the address of each result."""
        if workspace.places:
            memory = self.pages(workspace.nbytes)
            places = [place.at(results[place.result]) for place in workspace.places]
            launch = partial(self._pools.run, launch, memory.data_ptr(), workspace.nbytes, places)
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

    def workspace(self, launch, sizes):
        """Returns the memory that a launch allocates. `sizes` has the bytes of each result, and None for a result that
        has no memory of its own."""
        return self._pools.measured(launch, sizes)

    def copying(self):
        """Returns a context in which the device copies in both directions without pause, and uses no processor."""
        return beside(self._copy_until)

    def _copy_until(self, ends):
        on_device, on_host = (
            [torch.empty(COPY_BYTES, dtype=torch.uint8, **where) for _ in range(2)]
            for where in (dict(device=self.torch_device), dict(pin_memory=True))
        )
        pairs = [(on_device[0], on_host[0]), (on_host[1], on_device[1])]
        streams = [torch.cuda.Stream(self.torch_device) for _ in pairs]
        while not ends.is_set():
            for stream, (target, source) in zip(streams, pairs):
                with torch.cuda.stream(stream):
                    for _ in range(COPIES):
                        target.copy_(source, non_blocking=True)
                    reached = torch.cuda.Event(blocking=True)
                    reached.record(stream)
            reached.synchronize()
        for stream in streams:
            stream.synchronize()

    def random_state(self):
        """Returns the state of the device's generator, a tensor on the processor."""
        return torch.cuda.get_rng_state(self.torch_device)

    def set_random_state(self, state):
        """Sets the state of the device's generator."""
        torch.cuda.set_rng_state(state.cpu(), self.torch_device)

    def refuse_group(self, group):
        """Raises `CaptureError`, in all processes, if the group's collectives cannot run on the device."""
        nccl.refuse_group(group, self.torch_device)

    def stream(self):
        """Returns the stream on which this thread enqueues ops."""
        return torch.cuda.current_stream(self.torch_device)

    def follow(self, stream):
        """Has this thread's stream wait for what another one has so far."""
        self.stream().wait_stream(stream)

    def lead(self, stream):
        """Has another stream wait for what this thread's has so far."""
        stream.wait_stream(self.stream())

    @contextmanager
    def stepping(self, stream):
        """A step runs on the session's stream, after what the caller has enqueued and before what
        the caller enqueues next."""
        session = torch.cuda.ExternalStream(stream, self.torch_device)
        caller = self.stream()
        with torch.cuda.device(self.torch_device), torch.cuda.stream(session):
            self.follow(caller)
            streams = self._prepared.__dict__.setdefault("streams", set())
            if stream not in streams:
                self._prepare()
                streams.add(stream)
            yield
            self.lead(caller)

    def exchanging(self, stream, threads):
        """Returns a context for a collective beside other ops. It runs on the session's stream for collectives."""
        return torch.cuda.stream(torch.cuda.ExternalStream(stream, self.torch_device))

    def _prepare(self):
        """Has cuBLAS allocate the workspace that it keeps for this thread and stream, so that no op's holds
        it."""
        square = torch.ones(32, 32, device=self.torch_device)
        torch.mm(square, square)
        torch.addmm(square[0], square, square)

    def bound(self, run, operation, workspace, strict, memory):
        """Returns the function that runs a bound op within its workspace, or None for none. Unless `strict`,
        an op without workspace runs as it is."""
        address, nbytes = (workspace.address, workspace.bytes) if workspace else (0, 0)
        places = operation.places(memory)
        if not nbytes and not strict and not places:
            return run
        located = [place.at(address) for place, address in places]

        def launch(outside):
            taken = self._pools.run(partial(run, outside), address, nbytes, located)
            if taken.refused_bytes or taken.held or _is_misplaced(taken.made, places):
                raise AllocationError(f"{operation.name} (line {operation.line}) {_excess(taken, nbytes)}")

        return launch


def _is_misplaced(made, places):
    return made is not None and any(made[place.result] != address for place, address in places)


def _excess(taken, nbytes):
    if taken.refused_bytes:
        return f"needs more than its workspace of {nbytes} bytes"
    if taken.held:
        return "keeps memory of its workspace beyond its end: compute it outside of the step"
    return "allocates its results in another order than when it was measured: compute it outside of the step"


def refuse_expandable_segments():
    """Raises `CaptureError` if PyTorch's allocator has segments that grow, whose bytes a workspace does not bound."""
    for name in "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF":
        if "expandable_segments:True" in os.environ.get(name, "").replace(" ", ""):
            raise CaptureError(
                f"{name} has expandable_segments:True, and the memory that an op takes cannot be bounded then:"
                " start the process without it"
            )

"""The processor as the device of a model."""

import ctypes
import mmap
import threading
import time
from contextlib import contextmanager, nullcontext
from functools import cache

import numpy as np
import torch

from spillway import SetupCosts

from .allocations import Allocations
from .hosting import on_host
from .machine import MOST_MAPPINGS, MOST_MAPPINGS_AT_ONCE, measure_copies, memory_bytes, this_machine
from .workspaces import Workspace

COPY_BYTES = 16 << 20
RANDOM_DTYPES = torch.float32, torch.float64, torch.float16, torch.bfloat16
NUMBERS = 4099  # no multiple of an extent that a kernel has


@cache
def _numbers(most, dtype):
    """Returns numbers between half of a number and this number."""
    generator = torch.Generator().manual_seed(0)
    return torch.empty(NUMBERS, dtype=dtype).uniform_(most / 2, most, generator=generator)


class Processor:
    """Tensors are in the memory of the process, and an op has run when it returns."""

    torch_device = torch.device("cpu")
    session_device = None
    runs_at_once = True  # whether an op has run when its launch returns
    # Whether PyTorch cannot allocate more than an op's workspace while the op runs.
    limits_workspaces = False
    most_mappings, most_mappings_at_once = MOST_MAPPINGS, MOST_MAPPINGS_AT_ONCE
    # A call on lists of tensors becomes at least `list_calls` calls of at most `list_bytes` bytes, so that few bytes
    # need be resident at once.
    list_calls, list_bytes = 32, 16 << 20

    def machine(self, tensor_bytes, copied_bytes_per_s):
        """Returns the machine that plans are for, where none is given."""
        return this_machine(tensor_bytes, copied_bytes_per_s, memory_bytes())

    def copied_bytes_per_s(self, source):
        """Returns the bytes of a tensor that are copied in a second from a device."""
        return measure_copies()

    def setup_costs(self):
        """Returns what it takes to set up memory, measured."""
        return SetupCosts.measure()

    def give_back(self):
        """Does nothing: PyTorch keeps no unused memory."""

    def fill(self, tensor, number):
        """Fills a tensor to measure an op with. Numbers differ, so that other sums and orders of sums do."""
        if tensor.dtype not in RANDOM_DTYPES:
            tensor.fill_(number)
            return
        numbers = _numbers(number, tensor.dtype)
        times = len(tensor) // NUMBERS
        tensor[: times * NUMBERS].view(times, NUMBERS).copy_(numbers)
        tensor[times * NUMBERS :].copy_(numbers[: len(tensor) % NUMBERS])

    def pages(self, nbytes):
        """Returns memory for `part`."""
        return mmap.mmap(-1, nbytes)

    def part(self, pages, start, nbytes):
        """Returns bytes of pages as a tensor that PyTorch cannot resize, and that keeps the pages."""
        return torch.frombuffer(pages, dtype=torch.uint8, count=nbytes, offset=start)

    def at(self, planned):
        """Returns planned memory as a tensor that PyTorch cannot resize. It outlives the launch, as the
        next launch at that address uses it again."""
        memory = (ctypes.c_char * planned.bytes).from_address(planned.address)
        return torch.frombuffer(memory, dtype=torch.uint8)

    def copy(self, source, target):
        """Copies a tensor to another one."""
        target.copy_(source)

    def copy_each(self, sources, targets):
        """Copies each tensor to another one."""
        torch._foreach_copy_(targets, sources)

    def time_ns(self, launch, workspace, results, is_collective):
        """Returns the time of a launch."""
        # Other threads run a collective, and other processes take part in it.
        clock_ns = time.perf_counter_ns if is_collective else time.thread_time_ns
        start = clock_ns()
        launch()
        return clock_ns() - start

    def workspace(self, launch, sizes):
        """Returns the most bytes that a launch allocates at once. All its results are copied."""
        with Allocations() as allocations, allocations.of(0):
            launch()
        ((_, workspace_bytes),) = allocations.peaks()
        return Workspace(workspace_bytes)

    def copying(self):
        """Returns a context in which two threads copy memory without pause, as uploads and downloads may."""
        return beside(copy_memory, copy_memory)

    def random_state(self):
        """Returns the state of PyTorch's generator, a tensor on the processor."""
        return torch.get_rng_state()

    def set_random_state(self, state):
        """Sets the state of PyTorch's generator."""
        torch.set_rng_state(state)

    def refuse_group(self, group):
        """Does nothing: PyTorch says which group has no collectives of tensors on the processor."""

    def stream(self):
        """Returns the stream on which this thread enqueues ops, or None."""

    def follow(self, stream):
        """Has this thread's stream wait for what another one has so far."""

    def lead(self, stream):
        """Has another stream wait for what this thread's has so far."""

    def stepping(self, stream):
        """Returns a context for a step of a session. `stream` is the session's."""
        return nullcontext()

    def exchanging(self, stream, threads):
        """Returns a context for a collective beside other ops. `stream` is the session's for collectives."""
        return on_host(threads)

    def bound(self, run, operation, workspace, strict, memory):
        """Returns the function that runs a bound op within its workspace, or None for none."""
        return run


@contextmanager
def beside(*works):
    """Within it, a thread runs each work, a function of an event. A work returns once its event is set."""
    ends = threading.Event()
    threads = [threading.Thread(target=work, args=(ends,), daemon=True) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        ends.set()
        for thread in threads:
            thread.join()


def copy_memory(ends):
    """Copies memory until an event is set."""
    source, target = (np.ones(COPY_BYTES, np.uint8) for _ in range(2))
    while not ends.is_set():
        np.copyto(target, source)

"""The machine that this program runs on."""

import json
import mmap
import os
import time

import torch

from spillway import Machine

PAGE_BYTES = mmap.PAGESIZE
LEAST_CHUNK_BYTES = 64 << 10
MOST_CHUNKS = 8192
# Linux allows a process 65530 mappings. Two plans are mapped at once during a switch, and several where graphs
# share a budget.
MOST_MAPPINGS = 16384
MOST_MAPPINGS_AT_ONCE = 3 * MOST_MAPPINGS
COPIES, COPY_BYTES = 4, 64 << 20


def memory_bytes():
    """Returns the bytes of this machine's memory."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def this_machine(tensor_bytes, copied_bytes_per_s, memory_bytes):
    """Returns this machine's processor as a device: its memory, and its speed of copying.

    `tensor_bytes` is the sum of the bytes of all tensors, which decides how large chunks are.
    """
    chunk_bytes = LEAST_CHUNK_BYTES
    while chunk_bytes * MOST_CHUNKS < tensor_bytes:
        chunk_bytes *= 2
    memory, speed = memory_bytes, copied_bytes_per_s
    return Machine("cpu", memory, memory, chunk_bytes, speed, speed)


def slowest(machines):
    """Returns a machine with the least memory and speed of some machines, and their largest chunks and costs."""
    numbers = [json.loads(machine.to_json()) for machine in machines]
    least = "device_bytes", "host_bytes", "h2d_bytes_per_s", "d2h_bytes_per_s"
    most = "chunk_bytes", "transfer_latency_ns", "map_ns_per_chunk", "unmap_ns_per_chunk"
    return Machine(
        machines[0].name,
        **{name: min(its[name] for its in numbers) for name in least},
        **{name: max(its[name] for its in numbers) for name in most},
    )


def measure_copies(begin=lambda: None):
    """Returns the bytes that are copied in a second. `begin` is called just before, and may wait
    for other processes, which then copy at the same time."""
    source, target = (torch.ones(COPY_BYTES, dtype=torch.uint8) for _ in range(2))
    begin()
    start = time.perf_counter_ns()
    for _ in range(COPIES):
        target.copy_(source)
    return COPIES * COPY_BYTES * 10**9 // (time.perf_counter_ns() - start)

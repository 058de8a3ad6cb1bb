"""The machine that this program runs on."""

import os
import time

import torch

from spillway import Machine

LEAST_CHUNK_BYTES = 64 << 10
# Linux allows a process 65530 mappings; each chunk of each tensor may take one.
MOST_CHUNKS = 8192


def this_machine(tensor_bytes):
    """Returns this machine's processor as a device: its memory, and its speed of copying.

    `tensor_bytes` is the sum of the bytes of all tensors, which decides how large chunks are.
    """
    chunk_bytes = LEAST_CHUNK_BYTES
    while chunk_bytes * MOST_CHUNKS < tensor_bytes:
        chunk_bytes *= 2
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    speed = _copied_bytes_per_s(64 << 20)
    return Machine("cpu", memory, memory, chunk_bytes, speed, speed)


def _copied_bytes_per_s(nbytes):
    source, target = torch.ones(nbytes, dtype=torch.uint8), torch.ones(nbytes, dtype=torch.uint8)
    start = time.perf_counter_ns()
    target.copy_(source)
    return nbytes * 10**9 // (time.perf_counter_ns() - start)

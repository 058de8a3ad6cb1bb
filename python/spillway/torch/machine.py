"""The machine that this program runs on."""

import os
import time

import torch

from spillway import Machine

CHUNK_BYTES = 64 << 10


def this_machine():
    """Returns this machine's processor as a device: its memory, and its speed of copying."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    speed = _copied_bytes_per_s(64 << 20)
    return Machine("cpu", memory, memory, CHUNK_BYTES, speed, speed)


def _copied_bytes_per_s(nbytes):
    source, target = torch.ones(nbytes, dtype=torch.uint8), torch.ones(nbytes, dtype=torch.uint8)
    start = time.perf_counter_ns()
    target.copy_(source)
    return nbytes * 10**9 // (time.perf_counter_ns() - start)

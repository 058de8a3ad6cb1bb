"""A session without a plan, for tests of capture alone: each tensor has bytes of its own.

Temporaries begin each iteration as garbage, and repeatable ops are launched twice, so that
wrong reads, wrong writes and wrong marks show.
"""

import ctypes
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

ALIGNMENT = 256
GARBAGE = 0xA5


@contextmanager
def sessions():
    """Within it, captured steps run in such sessions; a step takes the place of its plan."""
    with (
        mock.patch("spillway.torch.running.Session", Session),
        mock.patch("spillway.torch.step.Step.host_ops", (), create=True),
    ):
        yield


class Session:
    stream = network_stream = None

    def __init__(self, step, kernels, others=(), device=None):
        assert device is None
        self.tensors, self.ops, self.kernels = step.storages, step.operations, kernels
        self.iteration = self.repeats = 0
        starts, end = [], 0
        for t in self.tensors:
            starts.append(end)
            end += -(-t.nbytes // ALIGNMENT) * ALIGNMENT
        self._memory = ctypes.create_string_buffer(end + ALIGNMENT)
        start = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        self.addresses = [start + at for at in starts]

    def close(self):
        pass

    def write_state(self, tensor, buffer):
        nbytes = self.tensors[tensor].nbytes
        assert memoryview(buffer).nbytes == nbytes
        ctypes.memmove(self.addresses[tensor], memoryview(buffer).tobytes(), nbytes)

    def read_state(self, tensor, buffer):
        memoryview(buffer).cast("B")[:] = self._bytes(tensor)

    def read_output(self, tensor, buffer):
        assert self.tensors[tensor].kind == "output"
        self.read_state(tensor, buffer)

    def step(self):
        self.iteration += 1
        for tensor in range(len(self.tensors)):
            self._forget(tensor)
        for number, op in enumerate(self.ops):
            self._launch(number, op, False)
            if op.repeatable and not set(op.reads) & set(op.writes):
                self._repeat(number, op)

    def _repeat(self, number, op):
        """Launches an op again, which must make the same bytes and touch nothing else."""
        before = {t: self._bytes(t) for t in op.writes}
        for t in op.writes:
            self._forget(t)
        self._launch(number, op, True)
        for t, value in before.items():
            assert self._bytes(t) == value, f"a repeat of {op.name} differs"
        self.repeats += 1

    def _forget(self, tensor):
        if self.tensors[tensor].kind != "state":
            ctypes.memset(self.addresses[tensor], GARBAGE, self.tensors[tensor].nbytes)

    def _launch(self, number, op, is_repeat):
        def memory(t):
            alone = is_repeat and t in op.writes and self.tensors[t].kind in ("state", "output")
            return None if alone else _Memory(self.addresses[t], self.tensors[t].nbytes)

        reads, writes = tuple(map(memory, op.reads)), tuple(map(memory, op.writes))
        self.kernels.launch(number, self.iteration, is_repeat, reads, writes, None)

    def _bytes(self, tensor):
        return ctypes.string_at(self.addresses[tensor], self.tensors[tensor].nbytes)


@dataclass(frozen=True)
class _Memory:
    """What a launch gets in place of a `MemoryRange`."""

    address: int
    bytes: int

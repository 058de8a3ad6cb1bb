"""A session without a plan, for tests of capture alone: each tensor has bytes of its own.

Temporaries begin each iteration as garbage, and repeatable ops are launched twice, so that
wrong reads, wrong writes and wrong marks show.
"""

import ctypes
import types
from dataclasses import dataclass

ALIGNMENT = 256
GARBAGE = 0xA5


@dataclass
class _Tensor:
    name: str
    nbytes: int
    kind: str
    address: int = 0


@dataclass
class _Op:
    name: str
    reads: list
    writes: list
    workspace_bytes: int
    repeatable: bool


class Graph:
    def __init__(self, name):
        self.name = name
        self.tensors = []
        self.ops = []

    def _add(self, name, nbytes, kind):
        assert nbytes > 0, name
        self.tensors.append(_Tensor(name, nbytes, kind))
        return len(self.tensors) - 1

    def state(self, name, nbytes):
        return self._add(name, nbytes, "state")

    def temporary(self, name, nbytes):
        return self._add(name, nbytes, "temporary")

    def op(self, name, time_ns, reads, writes, workspace_bytes=0, repeatable=False):
        assert time_ns > 0 and len(set(reads)) == len(reads) and len(set(writes)) == len(writes)
        written = {t for op in self.ops for t in op.writes}
        for t in reads:
            assert self.tensors[t].kind == "state" or t in written, (name, self.tensors[t].name)
        self.ops.append(_Op(name, reads, writes, workspace_bytes, repeatable))
        return len(self.ops) - 1

    def plan(self, machine, budget="35%", strategy="auto", settings=None):
        return self


class Machine:
    def __init__(self, *args, **kwargs):
        pass


class Session:
    def __init__(self, graph, kernels):
        self.graph, self.kernels, self.iteration = graph, kernels, 0
        self.repeats = 0
        end = 0
        for t in graph.tensors:
            t.address = end
            end += -(-t.nbytes // ALIGNMENT) * ALIGNMENT
        self._memory = ctypes.create_string_buffer(end + ALIGNMENT)
        start = -(-ctypes.addressof(self._memory) // ALIGNMENT) * ALIGNMENT
        for t in graph.tensors:
            t.address += start

    def write_state(self, tensor, buffer):
        t = self.graph.tensors[tensor]
        assert memoryview(buffer).nbytes == t.nbytes and not self.iteration
        ctypes.memmove(t.address, memoryview(buffer).tobytes(), t.nbytes)

    def read_state(self, tensor, buffer):
        memoryview(buffer).cast("B")[:] = self._bytes(tensor)

    def step(self):
        self.iteration += 1
        for t in self.graph.tensors:
            if t.kind == "temporary":
                ctypes.memset(t.address, GARBAGE, t.nbytes)
        for number, op in enumerate(self.graph.ops):
            self._launch(number, op, False)
            if op.repeatable and not set(op.reads) & set(op.writes):
                self._repeat(number, op)

    def _repeat(self, number, op):
        """Launches an op again, which must make the same bytes and touch nothing else."""
        before = {t: self._bytes(t) for t in op.writes}
        for t in op.writes:
            if self.graph.tensors[t].kind == "temporary":
                ctypes.memset(self.graph.tensors[t].address, GARBAGE, self.graph.tensors[t].nbytes)
        self._launch(number, op, True)
        for t, value in before.items():
            assert self._bytes(t) == value, f"a repeat of {op.name} differs"
        self.repeats += 1

    def _launch(self, number, op, is_repeat):
        def address(t):
            alone = is_repeat and t in op.writes and self.graph.tensors[t].kind != "temporary"
            return 0 if alone else self.graph.tensors[t].address

        reads, writes = [address(t) for t in op.reads], [address(t) for t in op.writes]
        self.kernels.launch(number, self.iteration, is_repeat, reads, writes, 0)

    def _bytes(self, tensor):
        t = self.graph.tensors[tensor]
        return ctypes.string_at(t.address, t.nbytes)


def package(path):
    """Returns this module as the package `spillway`, whose other parts lie at `path`."""
    module = types.ModuleType("spillway")
    module.__path__ = [str(path)]
    module.Graph, module.Machine, module.Session = Graph, Machine, Session
    return module

"""The memory that kernels get: its size, its views, and when it is refused."""

from array import array

import emulated
import pytest
from perceptron import machine

import spillway

BYTES = 4096


class Doubling:
    """Doubles a state by an input, and keeps what it is given. `with_memory` is called with the state."""

    def __init__(self, host_ns=None):
        graph = self.graph = spillway.Graph("doubling")
        self.total, self.x = graph.state("total", BYTES), graph.input("x", 8)
        graph.op("double", 1000, [self.total, self.x], [self.total], 100, host_ns=host_ns)
        self.kept, self.value = [], array("Q", [2])
        self.with_memory = lambda memory: None

    def session(self, session=spillway.Session, **settings):
        return session(self.graph.plan(machine(), 1 << 16, settings=settings), self)

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        self.kept = [*reads, *writes, workspace]
        self.with_memory(writes[0])

    def launch_on_host(self, op, iteration, reads, writes):
        self.kept = reads + writes
        self.with_memory(writes[0])

    def fill_input(self, tensor, iteration, memory):
        memory.write(self.value)
        self.filled = memory


def test_an_operand_is_a_frozen_range_of_its_tensor():
    doubling = Doubling()
    with doubling.session() as session:
        session.step()
    total, x, written, workspace = doubling.kept
    assert [m.bytes for m in doubling.kept] == [BYTES, 8, BYTES, 100]
    assert total == written != x and hash(total) == hash(written)
    assert repr(x) == f"MemoryRange(address={x.address:#x}, bytes=8)"
    with pytest.raises(AttributeError):
        total.address = 0


def test_views_of_any_format_write_to_the_memory():
    def double(memory):
        x = doubling.kept[1].view("Q")
        floats = memory.view("f")
        floats[0] += x[0]
        array("f", floats)
        memory.view()[8:12] = floats.cast("B")[:4]

    doubling = Doubling()
    doubling.with_memory = double
    with doubling.session() as session:
        session.write_state(doubling.total, array("f", [1.5] * (BYTES // 4)))
        session.step()
        total = array("f", bytes(BYTES))
        session.read_state(doubling.total, total)
    assert total == array("f", [3.5, 1.5, 3.5] + [1.5] * (BYTES // 4 - 3))


@pytest.mark.parametrize("host", ["no", "all"])
def test_memory_is_refused_when_the_call_has_returned(host):
    def keep(memory):
        views.extend([memory.view(), memory.view("f")])

    views, doubling = [], Doubling(host_ns=1000)
    doubling.with_memory = keep
    with doubling.session(host=host) as session:
        session.step()
        session.wait()
        for memory in [*doubling.kept, doubling.filled]:
            with pytest.raises(spillway.SessionError, match="has returned"):
                memory.view()
            with pytest.raises(spillway.SessionError, match="has returned"):
                memory.write(bytes(memory.bytes))
        assert len(views) == 2
        for view in views:
            with pytest.raises(ValueError, match="released"):
                view[0]


def test_memory_is_refused_when_the_call_has_raised():
    doubling = Doubling()
    doubling.with_memory = lambda memory: memory.view("no format")
    with doubling.session() as session:
        with pytest.raises(ValueError, match="format"):
            session.step()
        with pytest.raises(spillway.SessionError, match="has returned"):
            doubling.kept[0].view()


def test_a_view_that_an_array_still_uses_does_no_harm():
    doubling, arrays = Doubling(), []
    doubling.with_memory = lambda memory: arrays.append(memoryview(memory.view()))
    with doubling.session() as session:
        session.step()
        session.step()
    assert len(arrays) == 2


def test_memory_of_a_device_has_no_views_but_inputs_are_on_the_host():
    def refused(memory):
        seen.append(memory.bytes)
        with pytest.raises(spillway.SessionError, match="the memory is on the device"):
            memory.view()
        with pytest.raises(spillway.SessionError, match="the memory is on the device"):
            memory.write(bytes(BYTES))

    doubling, seen = Doubling(), []
    doubling.with_memory = refused
    with doubling.session(emulated.session) as session:
        session.step()
    assert seen == [BYTES]


@pytest.mark.parametrize("value", [bytes(7), array("Q", [1, 2]), b""])
def test_an_input_of_another_size_is_refused_by_its_name(value):
    doubling = Doubling()
    doubling.value = value
    nbytes = memoryview(value).nbytes
    with doubling.session() as session:
        with pytest.raises(spillway.SessionError, match=f'"x".* has {nbytes} bytes, not 8'):
            session.step()


def test_an_operand_of_another_size_is_refused():
    doubling = Doubling()
    doubling.with_memory = lambda memory: memory.write(bytes(BYTES - 1))
    with doubling.session() as session:
        with pytest.raises(spillway.SessionError, match="the memory has 4095 bytes, not 4096"):
            session.step()


@pytest.mark.parametrize("value", [array("Q", [7]), memoryview(bytes(range(16)))[::2]])
def test_an_input_takes_any_buffer(value):
    doubling = Doubling()
    doubling.value = value
    seen = []
    doubling.with_memory = lambda memory: seen.append(bytes(doubling.kept[1].view()))
    with doubling.session() as session:
        session.step()
    assert seen == [memoryview(value).tobytes()]


class Counting:
    """Forward ops that also count in states, and run again for the backward ops."""

    LAYERS = 6

    def __init__(self):
        graph = self.graph = spillway.Graph("counting")
        values = [graph.state("value", BYTES)]
        for n in range(self.LAYERS):
            values.append(graph.temporary(f"value {n}", BYTES))
            count = graph.state(f"count {n}", 8)
            graph.op(f"forward {n}", 1000, [values[n], count], [values[n + 1], count], repeatable=True)
        for n in reversed(range(self.LAYERS)):
            graph.op(f"backward {n}", 1000, [values[n + 1]], [])
        self.repeats = 0

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        if op < self.LAYERS:
            self.repeats += is_repeat
            assert [memory is None for memory in reads + writes] == 2 * [False, is_repeat]


def test_what_a_repeat_leaves_alone_is_none():
    counting = Counting()
    plan = counting.graph.plan(machine(), "min", "checkpoint")
    with spillway.Session(plan, counting) as session:
        session.step()
    assert counting.repeats > 0

"""Sessions: training within a budget, and what they refuse."""

import ctypes
import gc
import json
import os
import threading
import weakref

import pytest
from perceptron import Perceptron, machine, train_plainly

import spillway

ITERATIONS = 6


@pytest.fixture(scope="module")
def plain():
    return train_plainly(ITERATIONS)


@pytest.mark.parametrize("strategy", ["auto", "fit", "on-demand", "swap"])
def test_training_in_less_than_half_the_memory_is_bit_identical(plain, strategy):
    perceptron = Perceptron()
    plan = perceptron.graph.plan(machine(), budget="48%", strategy=strategy)
    weights, device_bytes = perceptron.train(plan, ITERATIONS)
    assert weights == plain
    assert 0 < device_bytes <= plan.budget_bytes
    assert plan.figures.peak_bytes <= device_bytes
    assert plan.figures.h2d_bytes > 0
    assert perceptron.iterations == set(range(1, ITERATIONS + 1))


def test_training_in_core_is_bit_identical(plain):
    perceptron = Perceptron()
    plan = perceptron.graph.plan(machine(), budget=1 << 20, strategy="in-core")
    assert perceptron.train(plan, ITERATIONS)[0] == plain


class Chain:
    """Forward ops whose results the backward ops read in reverse, one page each."""

    LAYERS, BYTES = 6, 4096
    session = spillway.Session

    def __init__(self, collectives=()):
        graph = self.graph = spillway.Graph("chain")
        self.collectives = collectives
        self.state = graph.state("state", self.BYTES)
        self.repeats = 0
        values = [self.state]
        for n in range(self.LAYERS):
            values.append(graph.temporary(f"value {n}", self.BYTES))
            costs = dict(repeatable=True, collective=n in collectives)
            graph.op(f"forward {n}", 1000, [values[n]], [values[n + 1]], **costs)
        gradient = values[-1]
        for n in reversed(range(self.LAYERS)):
            reads = list({gradient, values[n]})
            gradient = graph.temporary(f"gradient {n}", self.BYTES) if n else self.state
            graph.op(f"backward {n}", 1000, reads, [gradient])

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        assert workspace is None and len(writes) == 1
        self.repeats += is_repeat
        sums = map(sum, zip(*(ctypes.string_at(m.address, m.bytes) for m in reads)))
        made = bytes((3 * s + op) % 256 for s in sums)
        ctypes.memmove(writes[0].address, made, writes[0].bytes)

    def run(self, **how):
        with self.session(self.graph.plan(machine(), **how), self) as session:
            session.write_state(self.state, bytes(range(256)) * 16)
            for _ in range(ITERATIONS):
                session.step()
            state = bytearray(self.BYTES)
            session.read_state(self.state, state)
            return state


def test_collectives_wait_for_the_ops_that_they_follow():
    assert Chain([1, 4]).run(budget="min") == Chain().run(budget="min")


def test_repeats_are_launched_and_change_nothing():
    chain = Chain()
    in_core = chain.run(budget=1 << 20, strategy="in-core")
    assert chain.repeats == 0 and len(set(in_core)) > 1
    assert chain.run(budget="min", strategy="checkpoint") == in_core
    assert chain.repeats > 0


class Adder:
    """Adds nothing to a sum."""

    def __init__(self):
        graph = self.graph = spillway.Graph("sum")
        self.sum, number = graph.state("sum", 8), graph.temporary("number", 8)
        graph.op("make", 1000, [], [number], workspace_bytes=16)
        graph.op("add", 1000, [self.sum, number], [self.sum])
        self.launches = []

    def launch(self, *arguments):
        self.launches.append(arguments)

    def session(self):
        return spillway.Session(self.graph.plan(machine(), 1 << 16), self)


def test_a_launch_brings_operands_and_workspace():
    adder = Adder()
    session = adder.session()
    session.step()
    (make, add) = adder.launches
    assert make[:4] == (0, 1, False, ()) and [m.bytes for m in make[4]] == [8]
    assert make[5].address > 0 and make[5].bytes == 16
    assert add[:3] == (1, 1, False) and add[3] == (add[4][0], make[4][0]) and add[5] is None


@pytest.mark.parametrize("failing", ["launch", "fill_input"])
def test_what_a_callback_raises_comes_out_unchanged(failing):
    perceptron = Perceptron()
    error = LookupError("of the embedder")

    def fail(*arguments):
        raise error

    setattr(perceptron, failing, fail)
    session = spillway.Session(perceptron.graph.plan(machine(), 1 << 20), perceptron)
    with pytest.raises(LookupError) as raised:
        session.step()
    assert raised.value is error
    with pytest.raises(spillway.SessionError):
        session.step()


def test_states_are_zeros_until_they_are_written_and_keep_what_was_written():
    adder = Adder()
    for written in [bytes(8), b"12345678"]:
        session = adder.session()
        if any(written):
            session.write_state(adder.sum, written)
        for _ in range(2):
            into = bytearray(b"?" * 8)
            session.read_state(adder.sum, into)
            assert into == written
            session.step()


def test_wrong_tensors_and_buffers_are_refused_by_name():
    adder = Adder()
    session = adder.session()
    with pytest.raises(spillway.SessionError, match="sum.* 7 bytes, not 8"):
        session.write_state(adder.sum, bytes(7))
    with pytest.raises(spillway.SessionError, match="sum.* 9 bytes, not 8"):
        session.read_state(adder.sum, bytearray(9))
    with pytest.raises(spillway.SessionError, match="number.* is no state"):
        session.read_state(1, bytearray(8))
    with pytest.raises(spillway.SessionError, match='"sum" has no tensor 2'):
        session.write_state(2, bytes(8))
    with pytest.raises(TypeError):
        session.read_state(adder.sum, bytes(8))


def test_states_are_written_between_steps():
    adder = Adder()
    session = adder.session()
    for written in [b"12345678", b"abcdefgh"]:
        session.step()
        session.write_state(adder.sum, written)
        for _ in range(2):
            into = bytearray(8)
            session.read_state(adder.sum, into)
            assert into == written
            session.step()


def test_parts_of_states_are_read_and_written():
    adder = Adder()
    for has_started in [False, True]:
        session = adder.session()
        if has_started:
            session.step()
        session.write_state(adder.sum, b"12345678")
        session.write_state(adder.sum, b"xy", first_byte=3)
        for first_byte, expected in [(0, b"123xy678"), (4, b"y678"), (7, b"8")]:
            into = bytearray(len(expected))
            session.read_state(adder.sum, into, first_byte=first_byte)
            assert into == expected
        for first_byte in [7, 2**64 - 1]:
            message = f"2 bytes from byte {first_byte} on are not all in .*sum"
            with pytest.raises(spillway.SessionError, match=message):
                session.write_state(adder.sum, bytes(2), first_byte=first_byte)
            with pytest.raises(spillway.SessionError, match=message):
                session.read_state(adder.sum, bytearray(2), first_byte)


def test_states_are_saved_and_loaded(tmp_path):
    adder = Adder()
    session, path = adder.session(), tmp_path / "states.safetensors"
    session.write_state(adder.sum, b"12345678")
    session.step()
    seen = []
    session.save_states(path, progress=lambda *copied: seen.append(copied))
    assert seen == [(8, 8)]
    # The format: the size of the header, the header, and the bytes.
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header.pop("__metadata__") == {"spillway.iterations": "1"}
    assert header == {"sum": {"dtype": "U8", "shape": [8], "data_offsets": [0, 8]}}
    assert data[8 + size :] == b"12345678"

    # A session that has not started yet starts.
    other = adder.session()
    assert other.load_states(str(path)) == 1
    into = bytearray(8)
    other.read_state(adder.sum, into)
    assert into == b"12345678"
    path.write_bytes(data[:-1])
    with pytest.raises(spillway.SessionError, match="cannot read the states in .*states.safe"):
        other.load_states(path)
    with pytest.raises(spillway.SessionError, match="cannot write the states in"):
        session.save_states(tmp_path / "missing" / "states.safetensors")
    error = KeyError("stop")

    def stop(*_):
        raise error

    with pytest.raises(KeyError) as raised:
        session.save_states(path, progress=stop)
    assert raised.value is error


def test_states_are_read_into_writable_buffers_which_are_free_afterwards():
    adder = Adder()
    with adder.session() as session:
        for begin in (lambda: None, session.step):
            begin()
            session.write_state(adder.sum, b"12345678")
            with pytest.raises(TypeError, match="not writable"):
                session.read_state(adder.sum, bytes(8))
            with pytest.raises(TypeError, match="contiguous"):
                session.read_state(adder.sum, memoryview(bytearray(16))[::2])
            session.read_state(adder.sum, bytearray(), first_byte=8)
            into = bytearray(8)
            session.read_state(adder.sum, into)
            into.append(ord("9"))
            assert into == b"123456789"


def test_a_closed_session_does_nothing():
    adder = Adder()
    with adder.session() as session:
        session.step()
        assert session.iterations == 1 and session.device_bytes > 0
    session.close()
    with pytest.raises(spillway.SessionError, match="closed"):
        session.step()
    with pytest.raises(spillway.SessionError, match="closed"):
        session.read_state(adder.sum, bytearray(8))


def test_a_step_within_a_step_is_refused():
    adder = Adder()
    session = adder.session()
    adder.launch = lambda *arguments: session.step()
    session = adder.session()
    with pytest.raises(spillway.SessionError, match="in a step"):
        session.step()


def test_kernels_are_checked_before_the_first_step():
    plan = Perceptron().graph.plan(machine(), 1 << 20)

    class OnlyLaunches:
        def launch(self, *arguments):
            pass

    with pytest.raises(AttributeError, match="fill_input"):
        spillway.Session(plan, OnlyLaunches())


def test_chunks_that_are_no_pages_are_refused():
    adder = Adder()
    plan = adder.graph.plan(machine(chunk_bytes=1000), "min")
    with pytest.raises(spillway.SessionError, match="1000 bytes"):
        spillway.Session(plan, adder)


def test_a_session_that_its_kernels_hold_is_collected():
    adder = Adder()
    adder.held = adder.session()
    adder.held.step()
    gone = weakref.ref(adder)
    del adder
    gc.collect()
    assert gone() is None


def in_child(action):
    """Runs an action in a forked child; its exit status, or the signal that ended it, below 0."""
    child = os.fork()
    if child == 0:
        try:
            action()
            os._exit(0)
        except BaseException:
            os._exit(1)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_a_forked_child_forgets_a_session():
    adder = Adder()
    held = [adder.session()]
    held[0].step()
    assert in_child(held.clear) == 0
    assert in_child(lambda: held[0].close()) == 0

    def step():
        with pytest.raises(spillway.SessionError, match="the process that made it"):
            held[0].step()
        held[0].close()
        held.clear()

    assert in_child(step) == 0
    # The parent still has it.
    held[0].step()
    held[0].close()
    with pytest.raises(spillway.SessionError, match="closed"):
        held[0].step()


def test_a_graph_that_is_planned_in_another_thread_is_not_changed():
    graph = spillway.Graph("chain")
    last = graph.input("x", 4096)
    for number in range(3000):
        made = graph.temporary(f"y{number}", 16384)
        graph.op(f"f{number}", 20000, [last], [made], repeatable=True)
        last = made
    plans = []
    thread = threading.Thread(target=lambda: plans.append(graph.plan(machine(), "min")))
    thread.start()
    with pytest.raises(spillway.GraphError, match="planned in another thread"):
        while thread.is_alive():
            graph.state("late", 4096)
    thread.join()
    assert plans
    graph.state("later", 4096)

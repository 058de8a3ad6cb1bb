"""Sessions on a CUDA device, emulated: training within a budget, and what is refused."""

import ctypes

import emulated
import pytest
from perceptron import Perceptron, machine, train_plainly
from test_host import run
from test_session import Chain

import spillway

ITERATIONS = 6


@pytest.fixture(scope="module")
def plain():
    return train_plainly(ITERATIONS)


@pytest.mark.parametrize("strategy", ["auto", "fit", "on-demand", "swap"])
def test_training_in_less_than_half_the_memory_is_bit_identical(plain, strategy):
    perceptron = Perceptron()
    plan = perceptron.graph.plan(machine(), budget="48%", strategy=strategy)
    weights, device_bytes = perceptron.train(plan, ITERATIONS, emulated.session)
    assert weights == plain
    assert plan.figures.peak_bytes <= device_bytes <= plan.budget_bytes
    assert plan.figures.h2d_bytes > 0 and plan.figures.d2h_bytes > 0


def test_repeats_are_launched_and_change_nothing():
    chain = Chain()
    in_core = chain.run(budget=1 << 20, strategy="in-core")
    chain.session = emulated.session
    assert chain.run(budget="min", strategy="checkpoint") == in_core
    assert chain.repeats > 0


def test_collectives_run_on_a_stream_of_their_own():
    chain = Chain([1, 4])
    chain.session = emulated.session
    assert chain.run(budget="min") == Chain().run(budget="min")
    with emulated.session(chain.graph.plan(machine(), budget="min"), chain) as session:
        assert session.stream != session.network_stream


def test_the_driver_may_be_called_while_ops_run_on_the_host():
    """By the ops, and with the interpreter's lock: the garbage that Python collects may call it."""
    ended = run("""
        layers, codes, count = Layers("cuda"), [], ctypes.c_int()

        def counting(launch, library):
            def counted(*arguments):
                codes.append(library(emulated.library()).cuDeviceGetCount(ctypes.byref(count)))
                launch(*arguments)

            return counted

        layers.launch_on_host = counting(layers.launch_on_host, ctypes.CDLL)
        layers.launch = counting(layers.launch, ctypes.PyDLL)
        with layers.session(layers.plan()) as session:
            for _ in range(20):
                session.step()
        assert set(codes) == {0} and len(codes) > 100
    """)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_only_cuda_has_a_stream():
    plan = Chain().graph.plan(machine(), budget=1 << 20)
    assert spillway.Session(plan, Chain()).stream is None
    with emulated.session(plan, Chain()) as session:
        emulated.synchronize(session.stream)


def test_what_a_callback_raises_comes_out_unchanged():
    chain = Chain()
    error = LookupError("of the embedder")

    def fail(*arguments):
        raise error

    chain.launch = fail
    session = emulated.session(chain.graph.plan(machine(), budget=1 << 20), chain)
    with pytest.raises(LookupError) as raised:
        session.step()
    assert raised.value is error
    with pytest.raises(spillway.SessionError):
        session.step()


def test_too_small_a_device_is_refused():
    graph = spillway.Graph("large")
    graph.op("read", 1000, [graph.state("state", 1 << 40)], [])
    host = spillway.Machine("large", 1 << 41, 1 << 41, 1 << 30, 10**9, 10**9)
    session = emulated.session(graph.plan(host, strategy="in-core", budget="100%"), Chain())
    with pytest.raises(spillway.SessionError, match="hold fewer than 1024 chunks"):
        session.step()


def test_a_device_that_is_not_there_is_refused():
    with pytest.raises(spillway.DeviceError, match=r"no CUDA device 7; there is 0 \("):
        spillway.Cuda(7, emulated.library())
    with pytest.raises(spillway.DeviceError, match="no/driver.so"):
        spillway.Cuda(driver="no/driver.so")


def test_chunks_that_the_device_does_not_have_are_refused():
    plan = Chain().graph.plan(machine(chunk_bytes=512), budget=1 << 20)
    with pytest.raises(spillway.DeviceError, match="512 .* granularity of 4096"):
        spillway.Session(plan, Chain(), device=emulated.device())


def test_a_device_is_measured_for_plans():
    measured = emulated.device().measure(chunk_bytes=1 << 20)
    assert measured.chunk_bytes == 1 << 20
    assert 0 < measured.device_bytes <= 1 << 30
    Chain().graph.plan(measured, budget=1 << 25)


def test_memory_that_is_mapped_last_is_there_for_an_op():
    graph = spillway.Graph("temporary")
    value = graph.temporary("value", 4096)
    graph.op("make", 1000, [], [value])
    graph.op("use", 1000, [value], [])
    seen = []

    class Kernels:
        def launch(self, op, iteration, is_repeat, reads, writes, workspace):
            for memory in writes:
                ctypes.memset(memory.address, iteration, memory.bytes)
            seen.extend(ctypes.string_at(memory.address, memory.bytes) for memory in reads)

    with emulated.session(graph.plan(machine(), budget=1 << 20), Kernels()) as session:
        session.step()
        session.step()
    assert seen == [bytes([1]) * 4096, bytes([2]) * 4096]

"""Sessions that run ops on the host, and outputs."""

import ctypes
import gc
import subprocess
import sys
import textwrap
import threading
import traceback
import weakref
from array import array
from pathlib import Path

import emulated
import pytest

import spillway

LAYERS, WORDS, ITERATIONS = 4, 1024, 5
BYTES = 4 * WORDS
MASK = 2**32 - 1


def machine():
    return spillway.Machine("host", 1 << 20, 1 << 24, 4096, 10**9, 10**9)


def first(number):
    return array("I", [(7919 * number + 31 * i) & MASK for i in range(WORDS)])


def batch(iteration):
    return first(1000 + iteration % 3)


def product(x, w):
    return [(a * b + 12345) & MASK for a, b in zip(x, w)]


def update(w, g, m):
    m = [(3 * a + b) & MASK for a, b in zip(m, g)]
    return [(a - b) & MASK for a, b in zip(w, m)], m


def train_plainly(iterations):
    """Returns the weights after training without a plan, and the loss of each iteration."""
    weights, momenta = [first(n) for n in range(LAYERS)], [[0] * WORDS] * LAYERS
    losses = []
    for iteration in range(1, iterations + 1):
        x, gradients = batch(iteration), []
        for w in weights:
            gradients.append(product(x, w))
            x = gradients[-1]
        losses.append(sum(x) & MASK)
        updated = [update(*each) for each in zip(weights, gradients, momenta)]
        weights, momenta = [list(side) for side in zip(*updated)]
    return [array("I", w) for w in weights], losses


class Layers:
    """A graph whose updates may run on the host, and the kernels of its ops."""

    def __init__(self, device="host memory"):
        self.open = {"host memory": spillway.Session, "cuda": emulated.session}[device]
        graph = self.graph = spillway.Graph("layers")
        x = self.x = graph.input("x", BYTES)
        self.weights = [graph.state(f"weight {n}", BYTES) for n in range(LAYERS)]
        momenta = [graph.state(f"momentum {n}", BYTES) for n in range(LAYERS)]
        gradients = []
        for n, w in enumerate(self.weights):
            y = graph.temporary(f"gradient {n}", BYTES)
            graph.op(f"product {n}", 20_000, [x, w], [y])
            gradients.append(y)
            x = y
        self.loss = graph.output("loss", 4)
        graph.op("loss", 1_000, [x], [self.loss])
        for n, (w, g, m) in enumerate(zip(self.weights, gradients, momenta)):
            graph.op(f"update {n}", 5_000, [w, g, m], [w, m], host_ns=6_000)
        self.on_host = []  # op, iteration and thread of each run there

    def plan(self, host="all", budget="min"):
        return self.graph.plan(machine(), budget, settings={"host": host})

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        if op < LAYERS:
            words(writes[0])[:] = product(words(reads[0]), words(reads[1]))
        elif op == LAYERS:
            words(writes[0])[0] = sum(words(reads[0])) & MASK
        else:
            self.update(reads, writes)

    def launch_on_host(self, op, iteration, reads, writes):
        assert op > LAYERS and writes == (reads[0], reads[2])
        self.on_host.append((op, iteration, threading.get_ident()))
        self.update(reads, writes)

    def update(self, reads, writes):
        w, m = update(*map(words, reads))
        words(writes[0])[:], words(writes[1])[:] = w, m

    def fill_input(self, tensor, iteration, memory):
        assert tensor == self.x
        memory.write(batch(iteration))

    def session(self, plan, others=()):
        session = self.open(plan, self, others)
        for n, tensor in enumerate(self.weights):
            session.write_state(tensor, first(n))
        return session

    def read(self, session):
        weights = [array("I", bytes(BYTES)) for _ in self.weights]
        for tensor, into in zip(self.weights, weights):
            session.read_state(tensor, into)
        return weights


def words(memory):
    """Returns the words in memory, also in that of the emulated device."""
    return (ctypes.c_uint32 * (memory.bytes // 4)).from_address(memory.address)


def loss_of(layers, session, iteration=None):
    into = array("I", [0])
    session.read_output(layers.loss, into, iteration)
    return into[0]


@pytest.fixture(scope="module")
def plain():
    return train_plainly(ITERATIONS)


on_each_device = pytest.mark.parametrize("device", ["host memory", "cuda"])


@on_each_device
@pytest.mark.parametrize("budget", ["min", "60%", "100%"])
@pytest.mark.parametrize("host", ["all", "yes", "no"])
def test_training_with_updates_on_the_host_is_bit_identical(plain, host, budget, device):
    layers = Layers(device)
    plan = layers.plan(host, budget)
    assert host == "yes" or (plan.figures.host_ns > 0) == (host == "all")
    with layers.session(plan) as session:
        losses = []
        for _ in range(ITERATIONS):
            session.step()
            losses.append(loss_of(layers, session))
        assert (layers.read(session), losses) == plain
    runs = [(op, iteration) for op, iteration, _ in layers.on_host]
    if host == "all":
        every = range(LAYERS + 1, 2 * LAYERS + 1)
        assert sorted(runs) == sorted((op, k) for k in range(1, ITERATIONS + 1) for op in every)
    assert host != "no" or not runs
    threads = {thread for _, _, thread in layers.on_host}
    assert threading.get_ident() not in threads and len(threads) <= 1


@on_each_device
def test_the_output_of_the_step_before_is_read_while_the_last_one_runs(plain, device):
    layers = Layers(device)
    held, update_with = threading.Event(), layers.update
    with layers.session(layers.plan()) as session:
        session.step()
        session.wait()
        # From now on no update ends before it may: the second iteration cannot.
        layers.update = lambda *operands: (held.wait(60), update_with(*operands))
        session.step()
        assert loss_of(layers, session, 1) == plain[1][0]
        assert not held.is_set()
        held.set()
        assert loss_of(layers, session) == loss_of(layers, session, 2) == plain[1][1]
        session.step()
        with pytest.raises(spillway.SessionError, match="iteration 1: it holds those of .* 2 and 3"):
            loss_of(layers, session, 1)
        with pytest.raises(spillway.SessionError, match="iteration 4"):
            loss_of(layers, session, 4)


def test_only_outputs_are_read_as_such():
    layers = Layers()
    session = layers.session(layers.plan())
    with pytest.raises(spillway.SessionError, match="no outputs before the first step"):
        loss_of(layers, session)
    session.step()
    with pytest.raises(spillway.SessionError, match="weight 0.* is no output"):
        session.read_output(layers.weights[0], bytearray(BYTES))
    with pytest.raises(spillway.SessionError, match="loss.* is no state"):
        session.read_state(layers.loss, bytearray(4))
    with pytest.raises(spillway.SessionError, match="loss.* 5 bytes, not 4"):
        session.read_output(layers.loss, bytearray(5))


@on_each_device
def test_a_plan_with_ops_on_the_host_needs_kernels_for_it(device):
    layers = Layers(device)

    class OnDevice:
        launch, fill_input = layers.launch, layers.fill_input

    with pytest.raises(AttributeError, match="launch_on_host"):
        layers.open(layers.plan("all"), OnDevice())
    layers.open(layers.plan("no"), OnDevice()).close()


@on_each_device
def test_what_an_op_on_the_host_raises_comes_out_with_op_and_iteration(device):
    layers = Layers(device)
    error = LookupError("of the embedder")

    def fail(op, iteration, reads, writes):
        if (op, iteration) == (LAYERS + 2, 3):
            raise error
        layers.update(reads, writes)

    layers.launch_on_host = fail
    session = layers.session(layers.plan())
    with pytest.raises(LookupError) as raised:
        for _ in range(ITERATIONS):
            session.step()
        session.wait()
    assert raised.value is error
    assert "fail" in [frame.name for frame in traceback.extract_tb(error.__traceback__)]
    if sys.version_info >= (3, 11):
        assert error.__notes__ == ['op 6 ("update 1") has raised it on the host, in iteration 3']
    for call in (session.step, session.wait, lambda: layers.read(session)):
        with pytest.raises(spillway.SessionError):
            call()
    session.close()


@on_each_device
def test_a_session_switches_between_plans_with_and_without_ops_on_the_host(plain, device):
    layers = Layers(device)
    on_host, on_device = layers.plan("all", "100%"), layers.plan("no", "100%")
    session = layers.session(on_host, [on_device])
    for plan in (on_device, on_host, on_device, on_host):
        session.step()
        session.switch(plan)
        with pytest.raises(spillway.SessionError, match="this plan has enqueued no iteration yet"):
            loss_of(layers, session)
    session.step()
    assert layers.read(session) == plain[0]
    assert {iteration for _, iteration, _ in layers.on_host} == {1, 3, 5}


def run(script):
    """Runs a script in a process of its own, in which nothing may wait for ever."""
    imports = "import gc, sys, threading, time\nfrom test_host import *\n"
    script = imports + textwrap.dedent(script)
    command = [sys.executable, "-c", script]
    folder = Path(__file__).parent
    return subprocess.run(command, cwd=folder, timeout=60, capture_output=True, text=True)


SLOW = """
    layers = Layers({device!r})
    begun, update_with = threading.Event(), layers.update

    def slowly(*operands):
        begun.set()
        time.sleep(0.2)
        update_with(*operands)
        print("updated")

    layers.update = slowly
    session = layers.session(layers.plan(), [layers.plan("no")])
    session.step()
    begun.wait()
"""


@pytest.mark.parametrize(
    "waiting",
    [
        "session.wait()",
        "layers.read(session)",
        "loss_of(layers, session)",
        "session.write_state(layers.weights[0], first(0))",
        "session.step(); session.wait()",
        "session.switch(layers.plan('no'))",
    ],
)
@on_each_device
def test_whoever_waits_lets_ops_on_the_host_run(waiting, device):
    ended = run(SLOW.format(device=device) + f"    {waiting}\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    assert ended.stdout.count("updated") >= LAYERS


@pytest.mark.parametrize("end", ["session.close()", "del session; gc.collect()", "sys.exit()"])
@on_each_device
def test_what_runs_on_the_host_ends_before_the_session_and_python_do(end, device):
    ended = run(SLOW.format(device=device) + f"    {end}\n")
    assert (ended.returncode, ended.stderr) == (0, "")
    # What has begun ends, and the rest is left out.
    assert 1 <= ended.stdout.count("updated") < LAYERS


@on_each_device
def test_a_session_with_ops_on_the_host_that_its_kernels_hold_is_collected(device):
    layers = Layers(device)
    layers.held = layers.session(layers.plan())
    layers.held.step()
    layers.held.wait()
    gone = weakref.ref(layers)
    del layers
    gc.collect()
    assert gone() is None

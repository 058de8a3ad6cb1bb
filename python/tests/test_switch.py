"""Switches of a session between plans: other graphs, other budgets, and what is refused."""


import pytest
from perceptron import machine

import spillway

LAYERS, BYTES = 6, 8192


class Layers:
    """Each layer adds the iteration's input to its own sum, in one order or the other."""

    def __init__(self, name="forward", reverse=False, step=1):
        graph = self.graph = spillway.Graph(name)
        order = list(reversed(range(LAYERS))) if reverse else list(range(LAYERS))
        self.states = {n: graph.state(f"sum {n}", BYTES) for n in order}
        self.x = graph.input("x", 8)
        for n in order:
            graph.op(f"layer {n}", 9000, [self.states[n], self.x], [self.states[n]])
        self.step, self.filled, self.launched = step, [], 0

    def launch(self, op, iteration, is_repeat, reads, writes, workspace):
        self.launched += 1
        reads[0].view("Q")[0] += reads[1].view("Q")[0]

    def fill_input(self, tensor, iteration, memory):
        assert (tensor, memory.bytes) == (self.x, 8)
        self.filled.append(iteration)
        memory.view("Q")[0] = self.step

    def plan(self, budget):
        return self.graph.plan(machine(), budget)

    def sums(self, session):
        return [number(session, self.states[n]) for n in range(LAYERS)]


def number(session, state):
    value = bytearray(BYTES)
    session.read_state(state, value)
    return int.from_bytes(value[:8], "little")


def test_states_keep_their_names_and_iterations_go_on():
    one, two = Layers(), Layers("backward", reverse=True, step=10)
    plan, other = one.plan("50%"), two.plan("80%")
    with spillway.Session(plan, one, [other]) as session:
        session.write_state(one.states[3], (100).to_bytes(BYTES, "little"))
        for _ in range(3):
            session.step()
        copied = session.switch(other, two)
        assert copied.kept_bytes > 0 and copied.h2d_bytes > 0
        assert two.sums(session) == [3, 3, 3, 103, 3, 3]
        session.step()
        session.step()
        assert session.iterations == 5 and two.filled == [4, 5, 6]
        assert two.sums(session) == [23, 23, 23, 123, 23, 23]
        session.switch(plan, one)
        session.step()
        assert one.sums(session) == [24, 24, 24, 124, 24, 24]
        assert session.device_bytes <= other.budget_bytes


def test_a_switch_costs_what_is_predicted_and_less_than_all_states():
    layers = Layers()
    plan, other = layers.plan("60%"), layers.plan("80%")
    with spillway.Session(plan, layers, [other]) as session:
        session.step()
        copied = session.switch(other)
        assert copied == plan.switch_to(other)
        assert copied.kept_bytes > 0 and copied.d2h_bytes + copied.h2d_bytes < LAYERS * BYTES
        assert copied.time_ns >= copied.h2d_bytes  # a byte takes a nanosecond
        session.step()
        assert layers.sums(session) == [2] * LAYERS


def small_states(name, temporary_bytes, reverse=False):
    """Returns a graph whose states are smaller than a chunk."""
    graph = spillway.Graph(name)
    for n in reversed(range(LAYERS)) if reverse else range(LAYERS):
        state, value = graph.state(f"sum {n}", 700), graph.temporary(f"value {n}", temporary_bytes)
        graph.op(f"make {n}", 1000, [state], [value])
        graph.op(f"layer {n}", 1000, [state, value], [state])
    return graph


def test_an_arranged_plan_is_the_same_but_copies_less():
    one = small_states("one", 900).plan(machine(), 1 << 16)
    other = small_states("other", 500, reverse=True).plan(machine(), 1 << 16)
    arranged = other.arranged_after(one)
    assert arranged.figures.period_ns == other.figures.period_ns
    assert one.switch_to(arranged).h2d_bytes < one.switch_to(other).h2d_bytes
    with pytest.raises(spillway.SwitchError, match='"sum 5" has 8192 bytes .* 700 in the other'):
        other.arranged_after(Layers().plan("50%"))


def weights(name, bytes, time_ns):
    """Returns a graph of layers with weights that its ops only read, and results of a size."""
    graph = spillway.Graph(name)
    for n in range(2 * LAYERS):
        weight, result = graph.state(f"weight {n}", BYTES), graph.temporary(f"result {n}", bytes)
        graph.op(f"layer {n}", time_ns, [weight], [result])
    return graph


def test_a_plan_between_steps_of_another_is_never_longer_with_both_switches():
    prompt, token = (
        weights(*given).plan(machine(), LAYERS * BYTES + 8192)
        for given in [("prompt", 2000, 9000), ("token", 20, 1000)]
    )
    between = prompt.between(token)

    def there_and_back(plan):
        return plan.figures.period_ns + token.switch_to(plan).time_ns + plan.switch_to(token).time_ns

    assert there_and_back(between) <= there_and_back(prompt)
    assert between.budget_bytes == prompt.budget_bytes
    with pytest.raises(spillway.SwitchError, match="is a state of the graph"):
        prompt.between(Layers().plan("60%"))


def test_a_session_that_has_not_begun_is_started_by_a_switch():
    layers, other = Layers(), Layers("backward", reverse=True, step=10)
    with spillway.Session(layers.plan("80%"), layers) as session:
        session.write_state(layers.states[0], (7).to_bytes(BYTES, "little"))
        session.switch(other.plan("80%"), other)
        session.step()
        assert other.sums(session) == [17] + [10] * 5 and layers.launched == 0


def test_the_host_block_is_enough_for_what_other_plans_of_the_graph_offload():
    graph = spillway.Graph("chain")
    state = graph.state("state", BYTES)
    values = [graph.temporary(f"value {n}", BYTES) for n in range(8)]
    for n, value in enumerate(values):
        graph.op(f"make {n}", 1000, [values[n - 1]] if n else [state], [value])
    for n, value in reversed(list(enumerate(values))):
        graph.op(f"use {n}", 1000, [value, state], [state])
    on_device, moving = graph.plan(machine(), "100%"), graph.plan(machine(), "min", "swap")
    assert moving.figures.host_bytes > on_device.figures.host_bytes
    with spillway.Session(on_device, Launcher()) as session:
        session.step()
        session.switch(moving)
        session.step()


def refused(session, plan, message, kernels=None, error=spillway.SwitchError):
    with pytest.raises(error, match=message):
        session.switch(plan, kernels)


def test_what_is_refused_is_named_and_leaves_the_plan_as_it_was():
    layers = Layers()
    with spillway.Session(layers.plan("min"), layers) as session:
        session.step()
        refused(session, layers.plan("100%"), "bytes of device memory")
        graph = spillway.Graph("other")
        graph.op("op", 1000, [graph.state("more", 8)], [])
        message = '"more".* is a state of the graph "other" alone'
        refused(session, graph.plan(machine(), "min"), message)
        graph = spillway.Graph("smaller")
        graph.op("op", 1000, [graph.state(f"sum {n}", 4096) for n in range(LAYERS)], [])
        message = '"sum 0" has 8192 bytes in one graph and 4096'
        refused(session, graph.plan(machine(), "64KiB"), message)
        coarse = layers.graph.plan(machine(chunk_bytes=16384), "100%")
        refused(session, coarse, "chunks of 4096 bytes and the second of 16384")
        refused(session, layers.plan("min"), "fill_input", Launcher(), AttributeError)
        session.step()
        assert layers.sums(session) == [2] * LAYERS


class Launcher:
    def launch(self, *arguments):
        pass


def test_what_the_new_kernels_raise_comes_out_unchanged():
    layers, other = Layers(), Layers("backward", reverse=True)
    error = LookupError("of the embedder")

    def fail(*arguments):
        raise error

    other.fill_input = fail
    with spillway.Session(layers.plan("80%"), layers) as session:
        session.step()
        with pytest.raises(LookupError) as raised:
            session.switch(other.plan("80%"), other)
        assert raised.value is error
        with pytest.raises(spillway.SessionError):
            session.step()

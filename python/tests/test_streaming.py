"""Layers that are streamed."""

import pytest

import spillway
from spillway import streaming

KIB = 1 << 10


def machine():
    return spillway.Machine("link", 1 << 30, 1 << 30, 256, 1 << 30, 1 << 30)


def layers(**more):
    return [streaming.Layer(64 * KIB, 1000, **more) for _ in range(6)]


def test_layers_that_do_not_fit_are_streamed():
    all_there = streaming.plan(layers(), machine())
    assert (all_there.figures.h2d_bytes, all_there.budget_bytes) == (0, 1 << 30)
    half = streaming.plan(layers(), machine(), "50%")
    assert half.figures.h2d_bytes >= 3 * 64 * KIB and half.figures.peak_bytes <= half.budget_bytes
    assert half.strategy == "streaming"


def test_the_least_budget_is_enough_and_less_is_not():
    of = layers(cache_bytes=KIB, output_bytes=100)
    least = streaming.min_feasible_bytes(of, machine())
    assert streaming.plan(of, machine(), least).figures.peak_bytes <= least
    with pytest.raises(spillway.InfeasibleError) as raised:
        streaming.plan(of, machine(), least - 1)
    assert raised.value.min_feasible_bytes == least


def test_layers_on_the_host_are_counted():
    plan = streaming.plan(layers(host_ns=2000, activation_bytes=256), machine(), "30%")
    assert plan.figures.on_host == len(plan.host_ops) > 0
    with pytest.raises(spillway.GraphError, match='"one" hands'):
        streaming.plan([streaming.Layer(8, 1, host_ns=1, name="one")], machine())
    with pytest.raises(spillway.BudgetError):
        streaming.plan(layers(), machine(), 0.5)

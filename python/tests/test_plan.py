"""Graphs, machines and plans: what they give, and what they refuse."""

import copy
import json
import pickle

import pytest
from perceptron import Perceptron, machine

import spillway


@pytest.fixture
def graph():
    return Perceptron().graph


def test_a_plan_has_figures_a_bound_and_a_report(graph):
    plan = graph.plan(machine(), budget="50%", strategy="fit")
    figures = plan.figures
    assert figures.compute_ns == 6 * 60_000 + 1_000
    assert figures.period_ns >= plan.lower_bound_ns >= figures.compute_ns
    assert figures.stall_ns == figures.period_ns - figures.compute_ns - figures.repeat_ns
    assert figures.peak_bytes <= plan.budget_bytes
    assert figures.h2d_bytes > 0 and figures.d2h_bytes > 0 and figures.host_bytes > 0
    assert figures.repeat_ns == 0
    assert plan.strategy == "fit"
    assert "backward 5" in plan.report() and plan.report().startswith("<!DOCTYPE html>")
    assert plan._repr_html_().startswith("<iframe srcdoc=")
    assert "period" in plan.summary()
    plan.check()


def test_a_plan_says_what_the_work_needs_and_why_it_maps_as_it_runs():
    graph = spillway.Graph("large")
    y = graph.temporary("y", 8 << 20)
    graph.op("make", 1000, [], [y])
    large = spillway.Machine("large", 1 << 24, 1 << 24, 4096, 10**9, 10**9)
    plan = graph.plan(large, strategy="in-core")
    assert plan.in_core_peak_bytes == plan.figures.peak_bytes == 8 << 20
    assert plan.unplaced is None
    # A chunk of one byte makes too many objects.
    fine = large.with_chunk_bytes(1)
    plan = graph.plan(fine, strategy="in-core")
    assert plan.unplaced == "there are too many objects for fixed placements"
    assert graph.plan(fine, strategy="in-core", placed=False).unplaced is None


def test_a_plan_that_maps_as_it_runs_says_how_long_it_maps(graph):
    slow = spillway.Machine("slow", 1 << 20, 1 << 24, 4096, 10**9, 10**9, map_ns_per_chunk=700, unmap_ns_per_chunk=300)
    figures = graph.plan(slow, budget="50%", placed=False).figures
    assert figures.mapping_ns > 0 and figures.mapping_ns % 1000 == 0
    assert graph.plan(slow, budget="50%").figures.mapping_ns == 0


def test_a_budget_that_is_too_small_names_the_op_and_what_it_needs(graph):
    least = graph.min_feasible_bytes(machine(), "fit")
    with pytest.raises(spillway.InfeasibleError) as raised:
        graph.plan(machine(), budget=least - 1, strategy="fit")
    assert raised.value.min_feasible_bytes == least
    assert raised.value.budget_bytes == least - 1
    assert raised.value.op in str(raised.value)
    assert graph.plan(machine(), budget=least, strategy="fit").budget_bytes == least
    assert graph.plan(machine(), budget="min", strategy="fit").budget_bytes == least


def test_a_bad_graph_is_refused_by_name():
    graph = spillway.Graph("bad")
    y = graph.temporary("never written", 8)
    graph.op("use", 1, [y], [])
    for call in [graph.check, graph.to_json, lambda: graph.plan(machine())]:
        with pytest.raises(spillway.GraphError, match="never written"):
            call()


def test_an_unknown_tensor_is_refused():
    graph = spillway.Graph("bad")
    graph.op("use", 1, [7], [])
    with pytest.raises(spillway.GraphError, match="use"):
        graph.check()
    with pytest.raises(OverflowError):
        graph.op("use", 1, [-1], [])


def test_pickles_hold_the_same(graph):
    plan = graph.plan(machine(), budget="50%", strategy="fit")
    for read in [pickle.loads(pickle.dumps(plan)), copy.copy(plan), copy.deepcopy(plan)]:
        assert read.to_json() == plan.to_json()
        assert read.graph.to_json() == plan.graph.to_json() == graph.to_json()
        assert read.machine.to_json() == machine().to_json()
        assert read.setup_costs is read.setup_ns is None
    measured = plan.with_setup_costs(spillway.SetupCosts(11, 2200, 33))
    for read in [pickle.loads(pickle.dumps(measured)), copy.copy(measured)]:
        assert repr(read.setup_costs) == repr(measured.setup_costs)
        assert read.setup_ns == measured.setup_ns > 0
    promised = b'"h2d_bytes":%d' % plan.figures.h2d_bytes
    assert promised in plan.to_json()
    broken = plan.to_json().replace(promised, promised[:-1] + b"7")
    with pytest.raises(spillway.InvalidPlanError):
        pickle.loads(pickle.dumps(plan).replace(plan.to_json(), broken))


@pytest.mark.parametrize("budget", [0.5, -5, "half", [1], "-1GiB", float("nan")])
def test_wrong_budgets_are_refused_with_the_ways_that_work(graph, budget):
    with pytest.raises(spillway.BudgetError) as raised:
        graph.plan(machine(), budget=budget)
    text = str(raised.value)
    assert text.startswith(f"budget is {budget!r}".replace("'", '"')) and '"8GiB"' in text
    assert ('is "50%"' in text) == (budget == 0.5)


def test_files_hold_the_same(graph):
    on = machine()
    plan = graph.plan(on, budget="50%", strategy="fit")
    again, there = spillway.Graph.from_json(graph.to_json()), spillway.Machine.from_json(on.to_json())
    assert again.to_json() == graph.to_json() and there.to_json() == on.to_json()
    read = spillway.Plan.from_json(plan.to_json(), again, there)
    assert read.to_json() == plan.to_json() and read.figures == plan.figures


def test_files_hold_times_on_the_host_and_outputs():
    graph = spillway.Graph("step")
    w, loss = graph.state("w", 4096), graph.output("loss", 4)
    graph.op("loss", 10, [w], [loss])
    graph.op("update", 20, [w], [w], host_ns=500)
    held = json.loads(graph.to_json())
    assert [op.get("host_ns") for op in held["ops"]] == [None, 500]
    assert [tensor["kind"] for tensor in held["tensors"]] == ["state", "output"]


def test_a_plan_is_proved_when_it_is_read(graph):
    on = machine()
    json = graph.plan(on, budget="50%", strategy="fit").to_json()
    other = spillway.Graph("other")
    other.op("only", 1, [], [other.temporary("t", 8)])
    with pytest.raises(spillway.InvalidPlanError, match="other"):
        spillway.Plan.from_json(json, other, on)
    period = b'"period_ns":'
    damaged = json.replace(period, period + b" 1", 1)
    assert damaged != json
    with pytest.raises(spillway.InvalidPlanError):
        spillway.Plan.from_json(damaged, graph, on)
    for read in [spillway.Graph.from_json, spillway.Machine.from_json]:
        with pytest.raises(spillway.FormatError):
            read(b"{}")


def test_strategies_have_settings(graph):
    def period_ns(**settings):
        plan = graph.plan(machine(), budget="50%", settings=settings)
        return plan.figures.period_ns

    assert period_ns(effort=20) <= period_ns(effort=0)
    assert period_ns(effort=2, order="given", repeats=False) > 0
    assert graph.plan(machine(), "90%", "swap", {"threshold": 5}).strategy == "swap"
    for settings, named in [({"efort": 2}, "efort"), ({"order": "best"}, "order")]:
        with pytest.raises(spillway.PlanningError, match=named):
            graph.plan(machine(), settings=settings)
    with pytest.raises(spillway.PlanningError, match="no-such"):
        graph.plan(machine(), strategy="no-such")
    with pytest.raises(spillway.BudgetError, match="percentage"):
        graph.plan(machine(), budget="half")


def test_built_in_machines_are_found_by_name():
    assert spillway.Machine.builtin("v100-pcie3").device_bytes == 16 << 30
    with pytest.raises(spillway.Error, match="v100-pcie3"):
        spillway.Machine.builtin("v1000")
    with pytest.raises(spillway.FormatError):
        machine(chunk_bytes=0)


def test_a_plan_says_whether_it_leaves_a_tensor_alone():
    graph = spillway.Graph("chain")
    state = graph.state("state", 8192)
    values = [graph.temporary(f"value {n}", 8192) for n in range(4)]
    makes = [graph.op(f"make {n}", 10**6, [state], [v]) for n, v in enumerate(values)]
    uses = [graph.op(f"use {n}", 10**6, [v], []) for n, v in enumerate(values)]
    plan = graph.plan(machine(), "100%")
    assert all(map(plan.leaves_alone, values, makes, uses))
    assert not plan.leaves_alone(values[0], makes[0], uses[1])  # it is gone by then
    assert not plan.leaves_alone(values[0], uses[0], makes[0])
    assert not all(map(graph.plan(machine(), "min", "swap").leaves_alone, values, makes, uses))

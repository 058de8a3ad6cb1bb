"""The graphs of one `torch.compile` have memory at once within one budget."""

import logging

import pytest
import torch
from eager import same, same_dicts
from models import adamw
from test_compiled_training import (  # noqa: F401
    Broken,
    compare,
    compiled,
    compiled_anew,
    large_perceptron,
    perceptron,
    plans,
    rows,
    same_gradients,
    squares,
    taken_at_launches,
    twins,
)
from torch import nn

import spillway.torch
from spillway.torch.processor import Processor
from spillway.torch.running import Compiled
from spillway.torch.training import AGAIN

pytestmark = pytest.mark.short

AMPLE = 1 << 20


@pytest.fixture
def reruns(caplog):
    """Returns how many forward passes have run again since the last call."""
    caplog.set_level(logging.INFO, "spillway")

    def count():
        found = sum(record.getMessage() == AGAIN for record in caplog.records)
        caplog.clear()
        return found

    return count


@pytest.fixture
def started(monkeypatch):
    """The plans of the sessions that have begun."""
    begun, start = [], Compiled._start

    def starting(self, step, plan):
        begun.append(plan)
        start(self, step, plan)

    monkeypatch.setattr(Compiled, "_start", starting)
    return begun


def passes(model):
    loss = squares(model(rows()))
    loss.backward()
    return loss


@pytest.mark.parametrize("budget", [AMPLE, "1MiB", "100%", "min", None])
def test_graphs_have_memory_at_once(budget, plans, reruns, started, monkeypatch):  # noqa: F811
    taken = taken_at_launches(monkeypatch)
    eager, model, planned = twins(Broken, budget=budget)

    def use(times):
        for k in range(times):
            for one in (eager, planned):
                torch.manual_seed(k)
                passes(one)
            same_gradients(model, eager)
            same_dicts(model.state_dict(), eager.state_dict(), "model")

    use(1)  # captures
    reruns()
    started.clear()
    use(3)
    assert reruns() == 0 and started == []
    assert max(taken) <= sum(sorted(plan.budget_bytes for plan in plans)[:2])


def test_graphs_without_room_for_both_take_turns(plans, reruns, monkeypatch):  # noqa: F811
    compare(Broken, passes, budget="100%")
    budgets = [plan.budget_bytes for plan in plans]
    assert len(budgets) == 2
    torch.compiler.reset()
    taken, limit = taken_at_launches(monkeypatch), sum(budgets) - 4096
    compare(Broken, passes, times=3, budget=limit)
    assert reruns() >= 3
    assert max(taken) <= limit


def test_the_mappings_of_all_sessions_are_limited(reruns, started, monkeypatch):
    compare(Broken, passes, times=2, budget=AMPLE)
    reruns()
    most = sum(plan.mappings for plan in set(started)) - 1
    monkeypatch.setattr(Processor, "most_mappings_at_once", most)
    torch.compiler.reset()
    compare(Broken, passes, times=3, budget=AMPLE)
    assert reruns() >= 3


def test_training_and_evaluation_have_memory_at_once(reruns, started):
    """A model may be evaluated between its two passes."""
    eager, model, planned = twins(Broken, budget=AMPLE)
    optimizers = adamw(eager), spillway.torch.optimizer(adamw(model))
    for k in range(4):
        results = []
        for called, optimizer in zip((eager, planned), optimizers):
            torch.manual_seed(k)
            optimizer.zero_grad()
            loss = squares(called(rows()))
            with torch.no_grad():
                results.append(called(rows()))
            loss.backward()
            optimizer.step()
            with torch.no_grad():
                results.append(called(rows()))
        same(results[2], results[0], "before the step")
        same(results[3], results[1], "after the step")
        if k == 1:
            reruns()
            started.clear()
    assert reruns() == 0 and started == []
    same_dicts(model.state_dict(), eager.state_dict(), "model")
    same_dicts(optimizers[1].state_dict(), optimizers[0].state_dict(), "optimizer")


class Tied(nn.Module):
    """Uses a weight in two graphs."""

    def __init__(self):
        super().__init__()
        self.weight, self.second = nn.Linear(8, 8), nn.Linear(8, 4)

    def forward(self, x):
        h = self.weight(x)
        torch._dynamo.graph_break()
        return self.second(self.weight(h))


@pytest.mark.parametrize("budget", [AMPLE, "min", "35%"])
def test_a_weight_of_two_graphs(budget, plans):  # noqa: F811
    """Its states are in one session at a time. In chunks, each graph needs more than 35 % of its tensors' bytes."""
    eager, model, planned = twins(Tied, budget=budget)
    optimizers = adamw(eager), spillway.torch.optimizer(adamw(model))
    for k in range(4):
        for called, optimizer in zip((eager, planned), optimizers):
            torch.manual_seed(k)
            optimizer.zero_grad()
            passes(called)
            optimizer.step()
        same_dicts(model.state_dict(), eager.state_dict(), "model")
        if k == 2:
            same_dicts(optimizers[1].state_dict(), optimizers[0].state_dict(), "optimizer")


def test_shapes_of_a_model_take_turns(plans, monkeypatch):  # noqa: F811
    """Otherwise eight shapes would take eight times the memory."""
    taken = taken_at_launches(monkeypatch)

    def use(model):
        return sum(squares(model(rows(count))) for count in (6, 5, 6)).detach()

    compare(perceptron, use, times=2, budget="100%", dynamic=False)
    assert len(plans) == 2
    assert max(taken) <= max(plan.budget_bytes for plan in plans)


def test_two_models_within_one_loss(reruns, started):
    """Such as a generator and its discriminator."""
    makes = perceptron, lambda: nn.Linear(4, 1)
    sides = [twins(make, budget=AMPLE) for make in makes]
    options = dict(budget=AMPLE)
    shared = [torch.compile(model, backend="spillway", options=options) for _, model, _ in sides]
    for k in range(3):
        for models in ([s[0] for s in sides], shared):
            torch.manual_seed(k)
            squares(models[1](models[0](rows()))).backward()
        for eager, model, _ in sides:
            same_gradients(model, eager)
        if k == 0:
            reruns()
            started.clear()
    assert reruns() == 0 and started == []


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(8, 4)

    def forward(self, x):
        h = self.body(x)
        return self.first(h), self.second(h)


def test_plans_with_the_same_states(started):
    """Each result's gradients have a plan. The states are in one session, also where another waits for the step."""
    eager, model, planned = twins(Heads, budget=AMPLE)
    optimizers = adamw(eager), spillway.torch.optimizer(adamw(model))
    for k in range(6):
        for called, optimizer in zip((eager, planned), optimizers):
            torch.manual_seed(k)
            for result in (0, 1) if k % 2 else (1, 0, 0):
                squares(called(rows())[result]).backward()
            optimizer.step()
            optimizer.zero_grad()
        same_dicts(model.state_dict(), eager.state_dict(), "model")
    same_dicts(optimizers[1].state_dict(), optimizers[0].state_dict(), "optimizer")
    assert len(set(started)) > 1


def test_without_a_budget_a_plan_has_half_of_the_device_memory(plans, started):  # noqa: F811
    def with_memory(device_bytes):
        machine = spillway.Machine("test", device_bytes, 8 << 30, 4096, 10**9, 10**9)
        torch.compiler.reset()
        compare(large_perceptron, passes, budget=None, machine=machine)
        return started[-1]

    in_core_bytes = with_memory(8 << 30).budget_bytes
    half = in_core_bytes * 3 // 4 // 4096 * 4096
    plan = with_memory(2 * half)
    assert plan.budget_bytes == half and plan.figures.h2d_bytes > 0

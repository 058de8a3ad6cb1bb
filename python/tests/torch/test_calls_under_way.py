"""A graph of `torch.compile` that is called several times before its backward passes, as a critic is."""

import gc

import pytest
import torch
from eager import MACHINE, same, same_dicts
from models import adamw
from test_compiled_training import (  # noqa: F401
    compiled_anew,
    iterations,
    plans,
    rows,
    same_gradients,
    squares,
    taken_at_launches,
    twins,
)
from test_equal_models import Sides, critic, one_for_all, one_for_each
from test_equal_models import step as step_side
from test_one_budget import AMPLE, Tied, reruns, started  # noqa: F401
from torch.nn.functional import softplus

import spillway.torch
from spillway.torch.running import _Kernels
from spillway.torch.training import MOST

pytestmark = pytest.mark.short


def added(called):
    loss = softplus(-called(rows())).mean() + softplus(called(rows())).mean()
    loss.backward()
    return loss


def three(called):
    scores = [called(rows()) for _ in range(3)]
    loss = squares(scores[0] - scores[1]) + squares(scores[2])
    loss.backward()
    return loss


def first_to_last(called):
    losses = [squares(called(rows())) for _ in range(3)]
    for loss in losses:
        loss.backward()
    return sum(losses)


def last_to_first(called):
    losses = [squares(called(rows())) for _ in range(3)]
    for loss in losses[::-1]:
        loss.backward()
    return sum(losses)


def interleaved(called):
    losses = [squares(called(rows()))]
    for _ in range(3):
        losses.append(squares(called(rows())))
        losses[-2].backward()
    losses[-1].backward()
    return sum(losses)


def dropped(called):
    kept = called(rows())
    called(rows())
    loss = squares(kept) + squares(called(rows()))
    loss.backward()
    return loss


def evaluated(called):
    first = called(rows())
    with torch.no_grad():
        score = called(rows())
    loss = squares(first) + squares(called(rows()))
    loss.backward()
    return loss + score.sum()


def with_its_input(called):
    """Adds the loss of a generator, whose batch gets gradients, to that of real rows."""
    made = rows().requires_grad_()
    loss = squares(called(made)) + squares(called(rows()))
    loss.backward()
    return loss + made.grad.sum()


USES = [added, three, first_to_last, last_to_first, interleaved, dropped, evaluated, with_its_input]


def train(use, joins=True, steps=4, make=critic, after_first=lambda: None, **settings):
    """Trains a model and its twin, and compares all bits after each step."""
    eager, model, planned = twins(make, **settings)
    optimizers = adamw(eager), adamw(model)
    if joins:
        spillway.torch.optimizer(optimizers[1])
    for step in range(steps):
        results = []
        for called, optimizer in zip((eager, planned), optimizers):
            torch.manual_seed(step)
            results.append((use(called).detach(), torch.get_rng_state()))
            if step != 1:  # whose gradients are added to
                optimizer.step()
                optimizer.zero_grad()
        same(results[1][0], results[0][0], f"result {step}")
        assert torch.equal(results[1][1], results[0][1]), "the generators differ"
        same_gradients(model, eager)
        same_dicts(model.state_dict(), eager.state_dict(), "model")
        if step == 0:
            after_first()
    same_dicts(optimizers[1].state_dict(), optimizers[0].state_dict(), "optimizer")


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("use", USES)
def test_each_call_keeps_its_iteration(use, joins, reruns, started):  # noqa: F811
    train(use, joins, after_first=lambda: reruns() and started.clear(), budget=AMPLE)
    assert reruns() == 0


@pytest.mark.parametrize("budget", [AMPLE, None, "100%", "min"])
@pytest.mark.parametrize("joins", [True, False])
def test_budgets(joins, budget, reruns, started, plans):  # noqa: F811
    """A percentage, and the least, are for one plan of a model at a time."""
    train(added, joins, budget=budget)
    if budget in (AMPLE, None):
        assert reruns() == 0 and len(started) == 2
    else:
        assert reruns() == 4 and len(plans) == 1


@pytest.mark.parametrize("joins", [True, False])
def test_the_budget_bounds_all_iterations(joins, started, reruns, monkeypatch):  # noqa: F811
    taken = taken_at_launches(monkeypatch)
    train(added, joins, budget=AMPLE)
    needed = sum(plan.budget_bytes for plan in started)
    assert max(taken) <= needed
    for budget, most in ((needed, 0), (needed - 4096, 4)):
        torch.compiler.reset()
        gc.collect()
        reruns()
        started.clear()
        taken.clear()
        train(added, joins, budget=budget)
        assert reruns() == most
        assert not joins or len(started) == (2 if budget == needed else 3)
        assert max(taken) <= budget


def test_an_evaluation_gives_way(started, reruns):  # noqa: F811
    """Its session has no room beside the iterations."""
    train(added, budget=AMPLE)
    budget = sum(plan.budget_bytes for plan in started)
    torch.compiler.reset()
    train(evaluated, after_first=reruns, budget=budget)
    assert reruns() == 0


def test_calls_whose_results_get_other_gradients(reruns):  # noqa: F811
    """Each call is planned for those that came last."""

    def use(called):
        first, second = squares(called(rows())), called(rows()).sum()
        (first + second).backward()
        return first + second

    train(use, after_first=reruns, budget=AMPLE)
    assert reruns() == 3


def test_nothing_waits_that_was_planned_for_other_gradients():
    """Also where its results are kept."""
    kept = []

    def use(called):
        kept.append(called(rows()))
        loss = squares(kept[-1]) if (len(kept) - 1) % 4 < 2 else kept[-1].sum()
        loss.backward()
        return loss

    train(use, joins=False, budget=AMPLE)
    assert iterations() == 0


def test_two_backward_passes_of_two_calls(reruns):  # noqa: F811
    def use(called):
        loss = squares(called(rows())) + squares(called(rows()))
        loss.backward(retain_graph=True)
        noise = torch.rand(3)
        loss.backward()
        return loss + noise.sum()

    train(use, budget=AMPLE)
    assert reruns() == 2 * 4


def test_a_weight_of_two_graphs(reruns):  # noqa: F811
    """Only one of them has its states."""

    def use(called):
        loss = squares(called(rows()))
        loss.backward()
        return loss

    train(use, make=Tied, after_first=reruns, budget=AMPLE)
    assert reruns() == 0


def test_a_graph_has_so_many_plans(started):  # noqa: F811
    def use(called):
        losses = [squares(called(rows())) for _ in range(MOST + 2)]
        sum(losses).backward()
        return losses[0]

    train(use, budget=8 * AMPLE)
    assert len(started) == MOST


def test_dropped_results_free_their_plan(started):  # noqa: F811
    def use(called):
        called(rows())
        loss = squares(called(rows()))
        loss.backward()
        return loss

    train(use, budget=AMPLE)
    assert len(started) == 1


def test_an_error_of_the_second_call(monkeypatch, reruns):  # noqa: F811
    eager, model, planned = twins(critic, budget=AMPLE)
    first = planned(rows())

    def failing(self, *args):
        raise KeyError("an op")

    with monkeypatch.context() as patched:
        patched.setattr(_Kernels, "launch", failing)
        with pytest.raises(KeyError, match="an op"):
            planned(rows())
    assert iterations() == 1
    squares(first).backward()
    eager.load_state_dict(model.state_dict())
    for called in (eager, planned):
        called.zero_grad()
        torch.manual_seed(3)
        added(called)
    same_gradients(model, eager)
    assert reruns() == 0


@pytest.mark.usefixtures("fast_host")
def test_the_optimizer_on_the_host(reruns):  # noqa: F811
    train(added, budget=AMPLE, host="optimizer", plan=dict(host="all"))
    assert reruns() == 0


@pytest.mark.parametrize("joins", [True, False])
@pytest.mark.parametrize("make_optimizers", [one_for_all, one_for_each])
def test_equal_models(make_optimizers, joins, reruns):  # noqa: F811
    sides = Sides(make_optimizers, joins=lambda k: joins)
    sides.planned.called = compiled_with_one_budget(sides.planned.models)

    def use(side):
        loss = sum(squares(model(rows())) for model in side.called * 2)
        loss.backward()
        step_side(side)
        return loss.detach()

    sides.both(use)
    reruns()
    for seed in range(3):
        sides.both(use, seed)
    assert reruns() == 0


def compiled_with_one_budget(models):
    options = dict(budget=AMPLE, machine=MACHINE, settings=dict(effort=1))
    return [torch.compile(model, backend="spillway", options=options) for model in models]

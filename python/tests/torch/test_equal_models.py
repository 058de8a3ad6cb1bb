"""Equal models that are compiled alone share a graph of `torch.compile`, and keep their own values."""

import copy
import gc
import weakref

import pytest
import torch
from eager import same, same_dicts
from test_compiled_training import compiled, compiled_anew, plans, rows, squares, taken_at_launches, wait_for  # noqa: F401
from test_memory import memory_files
from test_several_optimizers import ActorCritic, check_usual_loop
from test_several_optimizers import twins as equal_tasks
from torch import nn

import spillway.torch
from spillway.torch.backend import _Graph

pytestmark = pytest.mark.short


def critic():
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 1))


def adamw(models):
    return torch.optim.AdamW([p for model in models for p in model.parameters()], lr=0.01, fused=True)


def one_for_all(models):
    return [adamw(models)]


def one_for_each(models):
    return [adamw([model]) for model in models]


def others_for_each(models):
    return [adamw([models[0]]), *(torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9) for m in models[1:])]


class Side:
    """Some models, what calls them, and their optimizers."""

    def __init__(self, models, called, optimizers):
        self.models, self.called, self.optimizers = models, called, optimizers


class Sides:
    """Equal models that train eagerly, and copies of them that are compiled."""

    def __init__(self, make_optimizers=one_for_each, count=2, make=critic, joins=lambda k: True):
        torch.manual_seed(7)
        models = [make() for _ in range(count)]
        copies = copy.deepcopy(models)
        self.eager = Side(models, models, make_optimizers(models))
        optimizers = [spillway.torch.optimizer(o) if joins(k) else o for k, o in enumerate(make_optimizers(copies))]
        self.planned = Side(copies, [compiled(model) for model in copies], optimizers)

    def both(self, use, seed=3):
        """Calls `use(side)` for both, and compares the tensor that it returns, models and optimizers."""
        torch.manual_seed(seed)
        expected, state = use(self.eager), torch.get_rng_state()
        torch.manual_seed(seed)
        result = use(self.planned)
        assert torch.equal(torch.get_rng_state(), state), "the generators differ"
        same(result, expected, "result")
        for k, (model, eager) in enumerate(zip(self.planned.models, self.eager.models)):
            same_dicts(model.state_dict(), eager.state_dict(), f"model {k}")
        for k, (optimizer, eager) in enumerate(zip(self.planned.optimizers, self.eager.optimizers)):
            same_dicts(optimizer.state_dict(), eager.state_dict(), f"optimizer {k}")


def step(side, set_to_none=True):
    for optimizer in side.optimizers:
        optimizer.step()
        optimizer.zero_grad(set_to_none)


def in_turn(side, steps=3):
    """Trains the models one after the other."""
    losses = []
    for model in side.called * steps:
        losses.append(squares(model(rows())))
        losses[-1].backward()
        step(side)
    return torch.stack(losses).detach()


def together(side, steps=3):
    """Trains the models with the sum of their losses."""
    losses = []
    for _ in range(steps):
        x = rows()
        losses.append(sum(squares(model(x)) for model in side.called))
        losses[-1].backward()
        step(side)
    return torch.stack(losses).detach()


def evaluated(side):
    with torch.no_grad():
        return torch.cat([model(rows()) for model in side.called])


def one_step_for_both_passes(side):
    """Adds gradients up over several passes of each model."""
    for _ in range(2):
        for model in side.called * 2:
            squares(model(rows())).backward()
        nn.utils.clip_grad_norm_([p for model in side.models for p in model.parameters()], 0.5)
        step(side, set_to_none=False)
    return squares(model(rows())).detach()


@pytest.mark.parametrize("make_optimizers", [one_for_all, one_for_each, others_for_each])
@pytest.mark.parametrize("train", [in_turn, together, one_step_for_both_passes])
def test_training(train, make_optimizers, plans, monkeypatch):  # noqa: F811
    taken = taken_at_launches(monkeypatch)
    Sides(make_optimizers).both(train)
    assert len(plans) == (2 if make_optimizers is others_for_each else 1)
    assert max(taken) <= 2 * max(plan.budget_bytes for plan in plans)


def test_other_options_have_a_budget_of_their_own(plans):  # noqa: F811
    files, sides = memory_files(), Sides()
    budgets = "100%", "min"
    sides.planned.called = [compiled(model, budget=budget) for model, budget in zip(sides.planned.models, budgets)]
    sides.both(in_turn)
    assert len(plans) == len(memory_files() - files) == 2


def test_many_models_of_one_optimizer(plans):  # noqa: F811
    sides = Sides(one_for_all, count=10)
    sides.both(together)
    sides.both(in_turn)
    assert len(plans) == 1


def test_an_optimizer_that_has_not_joined(plans):  # noqa: F811
    """Only the first model's optimizer has joined."""
    sides = Sides(joins=lambda k: k == 0)
    sides.both(in_turn)
    sides.both(together)
    assert len(plans) == 2


def test_a_target_that_follows(plans):  # noqa: F811
    """The second model is only evaluated, and follows the first one."""

    def use(side):
        model, target = side.called
        goals = []
        for _ in range(4):
            x = rows()
            with torch.no_grad():
                goals.append(target(x))
            squares(model(x) - goals[-1]).backward()
            step(side)
            with torch.no_grad():
                for its, given in zip(side.models[1].parameters(), side.models[0].parameters()):
                    its.lerp_(given, 0.1)
        return torch.stack(goals)

    Sides(lambda models: [adamw(models[:1])]).both(use)
    assert len(plans) == 2


def test_training_and_evaluation_take_turns(plans):  # noqa: F811
    sides = Sides()

    def use(side):
        results = []
        for _ in range(3):
            together(side, 1)
            for model in side.models:
                model.eval()
            results += [evaluated(side), evaluated(side)]
            for model in side.models:
                model.train()
        return torch.cat(results)

    sides.both(use)
    assert len(plans) == 2


def test_saving_and_resuming():
    sides, saved = Sides(), {}

    def save(side):
        saved[side is sides.planned] = copy.deepcopy(
            [one.state_dict() for one in (*side.models, *side.optimizers)]
        )
        return torch.zeros(1)

    def load(side):
        """Gives each model and optimizer what the other one has saved."""
        models, optimizers = saved[side is sides.planned][:2], saved[side is sides.planned][2:]
        for ones, states in ((side.models, models), (side.optimizers, optimizers)):
            for one, state in zip(ones, reversed(states)):
                one.load_state_dict(state)
        return torch.zeros(1)

    sides.both(in_turn)
    sides.both(save)
    sides.both(together)
    sides.both(load)
    sides.both(together)
    sides.both(in_turn)


def test_other_shapes_and_frozen_parameters():
    sides = Sides(one_for_all)

    def use(side):
        for count, is_frozen in ((6, False), (5, True), (6, True), (5, False)):
            for model in side.models:
                model[0].requires_grad_(not is_frozen)
            loss = sum(squares(model(rows(count))) for model in side.called)
            loss.backward()
            step(side)
        return loss.detach()

    sides.both(use)


def test_tensors_that_are_replaced():
    """An evaluation sees other memory of a parameter, and other parameters."""
    sides = Sides()

    def use(side):
        results = []
        for k in range(3):
            results.append(evaluated(side))
            for model in side.models[k:]:
                model[0].weight.data = model[0].weight.data * 2
                other = {name: value + 1 for name, value in model[4].state_dict().items()}
                model[4].load_state_dict(other, assign=k == 1)
        return torch.cat(results)

    for model in (*sides.eager.models, *sides.planned.models):
        model.eval()
    sides.both(use)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_a_write_into_one_element_is_seen(without):
    def use(side):
        results = []
        for model, called in zip(side.models, side.called):
            for _ in range(3):
                with without():
                    results.append(called(rows()))
                with torch.no_grad():
                    model[0].weight[0, 5] += 1
        return torch.cat(results)

    Sides().both(use)


def test_twin_critics_and_their_targets(plans):  # noqa: F811
    """Each of the five models of a soft actor-critic is compiled alone."""
    tasks = equal_tasks(ActorCritic)
    models = tasks[1].models
    # The last optimizer's parameter is outside of the models.
    check_usual_loop(tasks, [models["actor"], *models["critics"], *models["targets"]], joined=2)


@pytest.mark.parametrize("waits", [False, True])
def test_a_model_that_is_dropped_leaves_nothing(waits):
    """Its graph lives on, since an equal model uses it."""
    files, sides = memory_files(), Sides()
    sides.both(in_turn)
    sides.both(evaluated)
    (graph,) = (one for one in gc.get_objects() if type(one) is _Graph and one._inferences)
    assert len(graph._inferences) == 2
    states = vars(sides.planned.optimizers[0])["state"]
    dropped = [*sides.planned.models[0].state_dict(keep_vars=True).values()]
    dropped = [weakref.ref(x) for x in (*dropped, *(v for values in states.values() for v in values.values()))]
    if waits:
        sides.both(lambda side: squares(side.called[0](rows())).backward() or torch.zeros(1))
    del states
    for side in (sides.eager, sides.planned):
        del side.models[0], side.optimizers[0]
        if side.called is not side.models:
            del side.called[0]
    wait_for(lambda: gc.collect() >= 0 and not any(one() is not None for one in dropped))
    assert len(graph._inferences) == 1
    wait_for(lambda: len(memory_files() - files) == 1)  # of the equal model
    sides.both(in_turn)

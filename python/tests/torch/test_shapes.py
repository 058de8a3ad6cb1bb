"""Batches of several shapes: a plan for each, and the same bits as eager PyTorch."""

import os
from unittest import mock

import pytest
import torch
from eager import MACHINE, compare, compare_inference, planned_within, same, same_dicts
from models import adamw, classify
from test_memory import memory_files
from torch import nn

import spillway
import spillway.torch
from spillway.torch.running import _Kernels

pytestmark = pytest.mark.short


def model():
    layers = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Dropout(), nn.ReLU(), nn.Linear(64, 5)
    return nn.Sequential(*layers)


def rows(count):
    return torch.randn(count, 20), torch.randint(5, (count,))


def alternating(k):
    return rows((256, 7, 256, 100, 7)[k])


def captured(make=model, count=256):
    torch.manual_seed(7)
    trained = make()
    return trained, spillway.torch.capture(trained, classify, adamw(trained), rows(count))


def wide():
    """Has more bytes of states than of activations."""
    return nn.Sequential(nn.Linear(20, 512), nn.ReLU(), nn.Linear(512, 512), nn.Linear(512, 5))


@pytest.mark.parametrize("budget", ["90%", "35%"])
def test_training(budget):
    _, train = compare(model, classify, adamw, alternating, budget=budget)
    assert len(train._plans) == 3


def test_what_both_plans_hold_stays_on_the_device():
    _, step = captured(wide, 64)
    state_bytes = sum(s.nbytes for s in step.storages if s.kind == "state")
    plan = step.plan("8MiB", MACHINE)
    train = step.compile(plan)
    kinds = rows(64), rows(7), rows(30)
    for batch in kinds:
        train(batch)
    session = train._session
    for batch in kinds * 2:
        before = train._running
        train(batch)
        assert train._session is session
        assert train.switched == before.switch_to(train._running)
        assert session.device_bytes <= plan.budget_bytes
        assert train.switched.kept_bytes > 0.9 * state_bytes
        assert train.switched.h2d_bytes + train.switched.d2h_bytes < 0.1 * state_bytes
    for other in list(train._plans.values())[1:]:
        assert plan.switch_to(other).time_ns <= plan.switch_to(replanned(train, other)).time_ns


def replanned(train, plan):
    """Returns a plan as it was before it was laid out after the first one."""
    (shapes,) = (s for s, p in train._plans.items() if p is plan)
    return train._steps[shapes].plan(plan.budget_bytes, MACHINE)


def test_inference():
    compare_inference(model().eval(), lambda k: torch.randn((256, 9, 256)[k], 20))


def test_all_shapes_together_take_no_more_than_the_budget():
    _, step = captured()
    plan = planned_within(step, "50%")
    before, launch, taken = memory_files(), _Kernels.launch, []

    def launched(self, *args):
        launch(self, *args)
        (file,) = memory_files() - before
        taken.append(os.stat(file).st_blocks * 512)

    with mock.patch.object(_Kernels, "launch", launched):
        train = step.compile(plan, machine=MACHINE)
        for k in range(5):
            train(alternating(k))
    assert len(train._plans) == 3 and max(taken) <= plan.budget_bytes


def scaled_by(constant):
    """Returns a loss function that makes a constant of the batch's size."""

    def loss_fn(model, batch):
        x, y = batch
        return classify(model, (x * torch.tensor(constant(len(x))), y))

    return loss_fn


@pytest.mark.parametrize("constant, is_shared", [(lambda n: 0.5, True), (lambda n: 1 / n, False)])
def test_constants_that_differ_between_shapes(constant, is_shared):
    _, train = compare(model, scaled_by(constant), adamw, alternating, budget="90%")
    assert (train.switched is not None) == is_shared


def test_other_budgets():
    (trained, step), (expected, its_step) = captured(), captured()
    plans = [planned_within(step, budget) for budget in ("90%", "35%", "35%", "90%")]
    plans[2] = step.plan(plans[1].budget_bytes, MACHINE, strategy="on-demand")
    train, undisturbed = step.compile(plans[0]), its_step.compile(plans[0])
    for k, plan in enumerate(plans):
        train.use(plan)
        for batch in (rows(256), rows(7)):
            torch.manual_seed(k)
            loss = train(batch)
            assert train._session.device_bytes <= plan.budget_bytes
            torch.manual_seed(k)
            same(loss, undisturbed(batch), "loss")
    train.sync()
    undisturbed.sync()
    same_dicts(trained.state_dict(), expected.state_dict(), "model")


def test_more_shapes_than_the_maximum_are_refused():
    _, step = captured()
    train = step.compile(planned_within(step, "90%"), machine=MACHINE, max_shapes=2)
    train(rows(3))
    with pytest.raises(ValueError, match=r"\(\(4, 20\), \(4,\)\) would be one shape more than the 2"):
        train(rows(4))
    train(rows(256))
    train(rows(3))


def test_a_shape_that_needs_more_than_the_budget_leaves_the_others_as_they_were():
    (trained, step), (expected, its_step) = captured(), captured()
    train, undisturbed = (s.compile(planned_within(s, "min")) for s in (step, its_step))
    data = [rows(256) for _ in range(3)]
    for k, batch in enumerate(data):
        torch.manual_seed(k)
        loss = train(batch)
        session = train._session
        with pytest.raises(spillway.InfeasibleError):
            train(rows(2000))
        assert train._session is session
        torch.manual_seed(k)
        same(loss, undisturbed(batch), "loss")
    train.sync()
    undisturbed.sync()
    same_dicts(trained.state_dict(), expected.state_dict(), "model")


def test_values_that_are_loaded_are_those_of_all_shapes():
    trained, step = captured()
    train = step.compile(planned_within(step, "90%"), machine=MACHINE)
    train(rows(3))
    with torch.no_grad():
        trained[4].weight.zero_()
        trained[4].bias.zero_()
    train.load()
    uniform = torch.tensor(5.0).log()
    torch.testing.assert_close(train(rows(3)), uniform)
    train.load()
    torch.testing.assert_close(train(rows(256)), uniform)

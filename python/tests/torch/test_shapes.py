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


def captured():
    torch.manual_seed(7)
    trained = model()
    return trained, spillway.torch.capture(trained, classify, adamw(trained), rows(256))


@pytest.mark.parametrize("budget", ["90%", "35%"])
def test_training(budget):
    _, train = compare(model, classify, adamw, alternating, budget=budget)
    assert len(train._planned) == 3


def test_inference():
    compare_inference(model().eval(), lambda k: torch.randn((256, 9, 256)[k], 20))


def test_one_session_at_a_time_has_memory():
    _, step = captured()
    plan = planned_within(step, "50%")
    before, launch, make_plan = memory_files(), _Kernels.launch, spillway.torch.Step.plan
    taken = []

    def launched(self, *args):
        launch(self, *args)
        (file,) = memory_files() - before
        taken.append(os.stat(file).st_blocks * 512)

    def planned(self, *args, **settings):
        assert memory_files() == before, "a session has memory while another is planned"
        return make_plan(self, *args, **settings)

    with mock.patch.object(_Kernels, "launch", launched):
        with mock.patch.object(spillway.torch.Step, "plan", planned):
            train = step.compile(plan, machine=MACHINE)
            for k in range(5):
                train(alternating(k))
    assert len(train._planned) == 3 and max(taken) <= plan.budget_bytes


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
        with pytest.raises(spillway.InfeasibleError):
            train(rows(2000))
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

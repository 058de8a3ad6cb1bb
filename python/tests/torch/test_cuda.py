"""Training on a CUDA device, emulated: the same bits as eager PyTorch."""

from unittest import mock

import models
import pytest
import test_compiled_training
import test_host
import test_mlp
import test_optimizer
import torch
from eager import MACHINE, compare, same
from on_emulated import Emulated, Late
from test_compiled_training import compiled_anew  # noqa: F401

import spillway.torch


@pytest.fixture
def device():
    device = Emulated()
    with mock.patch("spillway.torch.capturing.device_of", lambda tensors, _: device):
        yield device


@pytest.mark.short
def test_a_perceptron_trains_bit_identically(device):
    def make(model):
        return torch.optim.Adam(model.parameters(), lr=0.01)

    step, train = compare(test_mlp.mlp, test_mlp.loss_fn, make, test_mlp.batches, budget="50%")
    assert device.launches >= 5 * len(step.operations)
    assert train._session.stream and train.plan.figures.h2d_bytes > 0


@pytest.mark.short
@pytest.mark.usefixtures("fast_host")
@pytest.mark.parametrize("host", ["all", "yes"])
@pytest.mark.parametrize("make", [test_host.adamw, test_host.clipping])
def test_a_model_whose_optimizer_runs_on_the_host_trains_bit_identically(device, make, host):
    how = dict(budget="60%", host="optimizer", settings=dict(host=host))
    step, train = compare(test_host.wide, test_host.reconstruct, make, test_host.vectors, **how)
    assert train._session.stream and train.plan.host_ops
    assert device.launches >= 5 * (len(step.operations) - len(train.plan.host_ops))


@pytest.mark.parametrize("name", ["lstm", "unet", "gpt2"])
def test_a_model_trains_bit_identically(device, name):
    make, loss_fn, make_optimizer, batches = models.model(name)
    step, _ = compare(make, loss_fn, make_optimizer, batches, budget="35%", steps=3)
    assert device.launches >= 3 * len(step.operations)


def test_results_of_an_evaluation_stay_on_the_device(device):
    model, make = test_mlp.mlp(), lambda model: torch.optim.Adam(model.parameters(), lr=0.01)
    batch = test_mlp.batches(0)
    step = spillway.torch.capture(model, test_mlp.loss_fn, make(model), batch)
    train = step.compile(step.plan("100%", MACHINE))
    evaluate = train.evaluate(lambda m, batch: m(batch["x"]))
    train(batch)
    session, result = train._session, evaluate(batch)
    assert train._session is session and train._step.outputs is None
    train.sync()
    same(result, model(batch["x"]).detach(), "result")


def test_results_of_an_inference_are_the_callers(device):
    model = test_mlp.mlp()
    batches = [test_mlp.batches(k)["x"] for k in range(3)]
    step = spillway.torch.capture_inference(model, batches[0], lambda m, x: (m(x), m(x).T))
    infer = step.compile(step.plan("min", MACHINE), strict=True)
    results = [infer(x) for x in batches]
    for x, (y, turned) in zip(batches, results):
        same(y, model(x).detach(), "result")
        assert turned.stride() == (1, 5)
        same(turned, y.T, "transposed result")


@pytest.fixture(params=[Emulated, Late])
def of_graphs(request):
    """The device of the graphs of `torch.compile`."""
    device = request.param()
    with mock.patch("spillway.torch.backend.device_of", lambda tensors, _: device):
        yield device
    assert device.launches and not device.errors


@pytest.mark.short
@pytest.mark.usefixtures("compiled_anew", "of_graphs")
@pytest.mark.parametrize("name", ["adamw", "fused", "momentum", "rate"])
def test_the_usual_loop_trains_bit_identically(name):
    pair = test_optimizer.Pair(test_compiled_training.large_perceptron, test_optimizer.OPTIMIZERS[name])
    pair.train(test_compiled_training.rows(), steps=4)
    pair.check()


@pytest.mark.short
@pytest.mark.usefixtures("compiled_anew", "of_graphs")
@pytest.mark.parametrize("name", ["adamw", "fused"])
def test_an_iteration_that_ends_before_the_update_leaves_the_states(name):
    """As each micro-batch but the last does."""
    pair = test_optimizer.Pair(test_compiled_training.perceptron, test_optimizer.OPTIMIZERS[name])
    x = test_compiled_training.rows()

    def accumulate(called, model, optimizer):
        for _ in range(3):
            test_compiled_training.squares(called(x)).backward()
        optimizer.step()
        optimizer.zero_grad()

    for k in range(3):
        pair.both(accumulate, seed=k)
    pair.check()

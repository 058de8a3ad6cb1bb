"""Evaluations between the iterations of a training, in its session: the same bits as eager PyTorch."""

import copy

import pytest
import torch
from eager import MACHINE, same, same_dicts
from models import classify, sgd
from torch import nn
from torch.nn import functional as F

import spillway
import spillway.torch

pytestmark = pytest.mark.short


def model():
    first = nn.Linear(20, 64), nn.BatchNorm1d(64), nn.Dropout(), nn.ReLU()
    between = [layer for _ in range(6) for layer in (nn.Linear(64, 64), nn.ReLU())]
    return nn.Sequential(*first, *between, nn.Linear(64, 5))


def rows(count):
    return torch.randn(count, 20), torch.randint(5, (count,))


def measured(model, batch):
    x, y = batch
    scores = model(x)
    return {"loss": F.cross_entropy(scores, y), "correct": (scores.argmax(1) == y).sum()}


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def trained(make_optimizer, budget, seed=7, loss_fn=classify):
    """Returns two equal models, the optimizer of the first, and the function that trains the second."""
    torch.manual_seed(seed)
    eager = model()
    planned = copy.deepcopy(eager)
    optimizers = make_optimizer(eager), make_optimizer(planned)
    step = spillway.torch.capture(planned, loss_fn, optimizers[1], rows(64))
    plan = step.plan(budget, MACHINE, settings=dict(effort=1))
    return eager, planned, optimizers[0], step.compile(plan, strict=True)


def run(eager, optimizer, batch, loss_fn=classify):
    optimizer.zero_grad()
    loss = loss_fn(eager, batch)
    loss.backward()
    optimizer.step()
    return loss.detach()


def evaluated(eager, batch, forward=measured):
    with torch.no_grad():
        return forward(eager, batch)


def compare_after_same_seed(seed, one, other):
    torch.manual_seed(seed)
    results = one()
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    same_results(results, other())
    assert torch.equal(torch.get_rng_state(), state)


def same_results(results, expected):
    results, expected = ([r] if torch.is_tensor(r) else list(r.values()) for r in (results, expected))
    for a, b in zip(results, expected, strict=True):
        same(a, b, "result")
        assert not a.requires_grad


@pytest.mark.parametrize("budget", ["100%", "60%", "min"])
@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_bits_and_session(make_optimizer, budget):
    eager, planned, optimizer, train = trained(make_optimizer, budget)
    evaluate = train.evaluate(measured)
    for k in range(6):
        batch = rows(64)
        compare_after_same_seed(k, lambda: train(batch), lambda: run(eager, optimizer, batch))
        session = train._session
        if k % 2:
            continue
        for mode in (False, True):
            eager.train(mode), planned.train(mode)
            for count in (64, 9):
                test = rows(count)
                compare_after_same_seed(k, lambda: evaluate(test), lambda: evaluated(eager, test))
                assert train._session is session
                assert train.switched is not None
        assert session.device_bytes <= train.plan.budget_bytes
    assert train.iterations == train.sync() == 6
    same_dicts(planned.state_dict(), eager.state_dict(), "model")


def test_an_evaluation_has_outputs_and_the_training_beside_it_has_none():
    eager, _, optimizer, train = trained(sgd, "100%")
    evaluate = train.evaluate(measured)
    batch = rows(64)
    compare_after_same_seed(0, lambda: train(batch), lambda: run(eager, optimizer, batch))
    kinds = {s.kind for s in train._step.storages}
    compare_after_same_seed(1, lambda: evaluate(batch), lambda: evaluated(eager, batch))
    assert "output" not in kinds
    assert [s.nbytes for s in train._step.storages if s.kind == "output"] == [4, 8]


def test_the_model_itself_by_default():
    eager, planned, _, train = trained(sgd, "100%")
    eager.eval(), planned.eval()
    x = torch.randn(3, 20)
    same_results(train.evaluate()(x), evaluated(eager, x, lambda model, x: model(x)))


def weighted(weights):
    return lambda model, batch: F.cross_entropy(model(batch[0]), batch[1], weight=weights)


@pytest.mark.parametrize("trains_with", [None, torch.ones(5)])
def test_constants_of_its_own_go_through_the_model(trains_with):
    loss_fn = classify if trains_with is None else weighted(trains_with)
    eager, _, optimizer, train = trained(adamw, "60%", loss_fn=loss_fn)
    weights = torch.arange(1.0, 6.0)
    evaluate = train.evaluate(weighted(weights))
    for k in range(3):
        batch = rows(64)
        compare_after_same_seed(
            k, lambda: train(batch), lambda: run(eager, optimizer, batch, loss_fn)
        )
        compare_after_same_seed(
            k, lambda: evaluate(batch), lambda: evaluated(eager, batch, weighted(weights))
        )


def test_several_functions_and_another_plan():
    eager, planned, optimizer, train = trained(sgd, "100%")
    total = lambda model, batch: model(batch[0]).sum()
    functions = [(train.evaluate(f), f) for f in (measured, total)]
    for budget in ("100%", "70%"):
        train.use(train._example.plan(budget, MACHINE, settings=dict(effort=1)))
        for k in range(2):
            batch = rows(64)
            compare_after_same_seed(k, lambda: train(batch), lambda: run(eager, optimizer, batch))
            for evaluate, function in functions:
                compare_after_same_seed(
                    k, lambda: evaluate(batch), lambda: evaluated(eager, batch, function)
                )
                assert train._session.device_bytes <= train.plan.budget_bytes
        train.close()
        with torch.no_grad():
            # A session that ends without sync() forgets its iterations.
            for p, q in zip(eager.state_dict().values(), planned.state_dict().values()):
                p.copy_(q)
        optimizer.state.clear()


def test_values_written_between():
    eager, planned, optimizer, train = trained(sgd, "60%")
    evaluate = train.evaluate(measured)
    batch = rows(64)
    compare_after_same_seed(0, lambda: train(batch), lambda: run(eager, optimizer, batch))
    train.sync()
    with torch.no_grad():
        for m in (eager, planned):
            m[0].weight.mul_(2)
    compare_after_same_seed(1, lambda: evaluate(batch), lambda: evaluated(eager, batch))
    compare_after_same_seed(2, lambda: train(batch), lambda: run(eager, optimizer, batch))
    with torch.no_grad():
        planned[0].weight.mul_(2)
    with pytest.raises(spillway.torch.ChangedError, match=r"0\.weight was written"):
        evaluate(batch)


@pytest.mark.parametrize("make_optimizer", [sgd, adamw])
def test_after_other_states_were_loaded(make_optimizer):
    """The evaluation, which has the states of the first capture, must not lose those of the next one. It also writes
    states, the means of batch norm."""
    eager, planned, optimizer, train = trained(make_optimizer, "min")
    (planned_optimizer,) = train._example.optimizers
    evaluate = train.evaluate(measured)
    for number in range(4):
        batch = rows(64)
        compare_after_same_seed(number, lambda: train(batch), lambda: run(eager, optimizer, batch))
        if number == 1:
            train.sync()
            for one in optimizer, planned_optimizer:
                one.load_state_dict(copy.deepcopy(one.state_dict()))
        compare_after_same_seed(number, lambda: evaluate(batch), lambda: evaluated(eager, batch))
        if number == 1:
            train.sync()
    train.sync()
    same_dicts(planned.state_dict(), eager.state_dict(), "model")
    same_dicts(planned_optimizer.state_dict(), optimizer.state_dict(), "optimizer")


def test_what_cannot_be_captured_leaves_the_training():
    eager, _, optimizer, train = trained(sgd, "60%")
    evaluate = train.evaluate(lambda model, batch: model(batch[0]).sum().item() > 0)
    batch = rows(64)
    compare_after_same_seed(0, lambda: train(batch), lambda: run(eager, optimizer, batch))
    with pytest.raises(spillway.torch.CaptureError, match="test_evaluate.py"):
        evaluate(batch)
    compare_after_same_seed(1, lambda: train(batch), lambda: run(eager, optimizer, batch))


def test_an_error_leaves_the_training():
    eager, planned, optimizer, train = trained(sgd, "60%")
    evaluate = train.evaluate(lambda model, batch: model(batch[0])[:, batch[1] * 0 + batch[1].max()])
    batch = rows(64)
    compare_after_same_seed(0, lambda: train(batch), lambda: run(eager, optimizer, batch))
    with pytest.raises(IndexError):
        evaluate((batch[0], batch[1] + 100))
    compare_after_same_seed(1, lambda: train(batch), lambda: run(eager, optimizer, batch))
    assert train.sync() == 2
    same_dicts(planned.state_dict(), eager.state_dict(), "model")


def test_shapes_of_each_function_count():
    _, _, _, train = trained(sgd, "100%")
    evaluate = train.evaluate(measured)
    for count in range(2, 10):
        evaluate(rows(count))
    with pytest.raises(ValueError, match="one shape more than the 8"):
        evaluate(rows(10))
    train(rows(65))


def test_beside_an_inference():
    torch.manual_seed(7)
    net = model().eval()
    step = spillway.torch.capture_inference(net, torch.randn(4, 20))
    infer = step.compile(step.plan("100%", MACHINE))
    batch = rows(8)
    same_results(infer.evaluate(measured)(batch), evaluated(net, batch))
    same_results(infer(batch[0][:4]), evaluated(net, batch[0][:4], lambda model, x: model(x)))

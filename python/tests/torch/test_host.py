"""The optimizer on the host: the same bits as eager PyTorch, wherever its ops run."""

import copy
import itertools
import threading
from types import SimpleNamespace

import pytest
import torch
from eager import MACHINE, compare, same_dicts
from test_errors import Words, batch, late_loss, loss_fn
from torch import nn
from torch.nn import functional as F

import spillway
import spillway.torch
from spillway.torch.hosting import settings_for
from spillway.torch.running import _Kernels

pytestmark = pytest.mark.short
ALL = dict(host="all")


def adamw(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01)


def fused(model):
    return torch.optim.AdamW(model.parameters(), lr=0.01, fused=True)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, foreach=True)


def rprop(model):
    return torch.optim.Rprop(model.parameters(), lr=0.01)


def clipping(model):
    """Clips by the total norm, which needs every gradient before the first update."""
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)

    def clip(*_):
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.05)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def two_groups(model):
    first, *others = model.parameters()
    groups = [dict(params=[first], lr=0.1), dict(params=others)]
    return torch.optim.AdamW(groups, lr=0.01, amsgrad=True)


def wide():
    return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.Dropout(0.1), nn.Linear(128, 64))


def reconstruct(model, x):
    return F.mse_loss(model(x), x)


def vectors(k):
    return torch.randn(16, 64)


OPTIMIZERS = [adamw, fused, sgd, rprop, clipping, two_groups]


@pytest.mark.parametrize("settings", [ALL, dict(host="yes")], ids=str)
@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: make.__name__)
def test_training_is_bit_identical(make, settings):
    how = dict(budget="60%", host="optimizer", settings=settings)
    step, train = compare(wide, reconstruct, make, vectors, **how)
    may = {k for k, op in enumerate(step.operations) if op.host_call is not None}
    assert may, "ops of the optimizer may run on the host"
    if settings is ALL:
        assert set(train.plan.host_ops) == may
        assert train.plan.figures.host_ns > 0 and "host ops" in train.plan.summary()


def test_a_schedule_changes_the_rate_of_an_optimizer_on_the_host():
    def between(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.5).step

    how = dict(between=between, budget="60%", host="optimizer", settings=ALL)
    compare(wide, reconstruct, adamw, vectors, **how)


def test_sums_on_the_host_take_as_many_threads_as_the_caller():
    def large():
        return nn.Linear(300, 300)

    def summing(model):
        optimizer = sgd(model)

        def divide(*_):
            for p in model.parameters():
                p.grad.div_(p.grad.sum().abs() + 1)

        optimizer.register_step_pre_hook(divide)
        return optimizer

    def between(_):
        torch.set_num_threads(1)
        counts = itertools.cycle([2, 1])
        return lambda: torch.set_num_threads(next(counts))

    how = dict(between=between, budget="100%", host="optimizer", settings=ALL)
    compare(large, reconstruct, summing, lambda k: torch.randn(16, 300), **how)


def test_ops_of_the_optimizer_alone_run_on_the_host_in_one_thread_of_their_own(monkeypatch):
    model = wide()
    step = spillway.torch.capture(model, reconstruct, adamw(model), vectors(0))
    plan = step.plan("100%", MACHINE, settings=ALL, host="optimizer")
    ran, launch = [], _Kernels._launch

    def launched(self, op, device, *args):
        ran.append((op, device is self._host, threading.get_ident()))
        launch(self, op, device, *args)

    monkeypatch.setattr(_Kernels, "_launch", launched)
    step.compile(plan)(vectors(0))
    names = [op.name.split("_")[0] for op in step.operations]
    on_host = {op for op, is_on_host, _ in ran if is_on_host}
    assert on_host == set(plan.host_ops) and len({t for _, yes, t in ran if yes}) == 1
    assert threading.get_ident() not in {t for _, yes, t in ran if yes}
    assert {"lerp", "addcmul", "addcdiv", "sqrt"} <= {names[op] for op in on_host}
    assert not {"batch", "learning rates", "addmm", "mm", "native"} & {names[op] for op in on_host}


def test_other_shapes_have_the_optimizer_on_the_host_too():
    def of_shape(k):
        return torch.randn(16 if k % 2 else 8, 64)

    step, train = compare(wide, reconstruct, fused, of_shape, budget="60%", host="optimizer")
    assert len(train._plans) == 2
    model = wide()
    step = spillway.torch.capture(model, reconstruct, fused(model), of_shape(0))
    how = dict(budget="100%", machine=MACHINE, settings=ALL)
    train = step.compile(step.plan(host="optimizer", **how), machine=MACHINE, settings=ALL)
    train(of_shape(1))
    assert all(plan.host_ops for plan in train._plans.values())
    train = step.compile(step.plan(**how), machine=MACHINE, settings=ALL)
    train(of_shape(1))
    assert not any(plan.host_ops for plan in train._plans.values())


def test_verify_takes_a_plan_with_the_optimizer_on_the_host():
    model = wide()
    step = spillway.torch.capture(model, reconstruct, adamw(model), vectors(0))
    plan = step.plan("60%", MACHINE, settings=ALL, host="optimizer")
    assert step.verify(plan=plan) == 3


def test_a_saved_plan_is_for_the_graph_that_has_times_on_the_host():
    model = wide()
    step = spillway.torch.capture(model, reconstruct, adamw(model), vectors(0))
    plan = step.plan("60%", MACHINE, settings=ALL, host="optimizer")
    saved = plan.to_json()
    again = spillway.Plan.from_json(saved, step.graph_for("optimizer"), MACHINE)
    assert again.host_ops == plan.host_ops
    with pytest.raises(spillway.InvalidPlanError, match="host"):
        spillway.Plan.from_json(saved, step.graph, MACHINE)


def hosted(model, optimizer, loss_fn=loss_fn):
    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    plan = step.plan("1MiB", MACHINE, settings=ALL, host="optimizer")
    return step.compile(plan, machine=MACHINE)


def test_a_failure_on_the_device_puts_back_what_the_host_has_written():
    torch.manual_seed(5)
    model = Words()
    models = model, copy.deepcopy(model)
    optimizers = [rprop(m) for m in models]
    train, undisturbed = (hosted(m, o, late_loss) for m, o in zip(models, optimizers))
    for k in range(4):
        data, state = batch(), torch.get_rng_state()
        undisturbed(data)
        torch.set_rng_state(state)
        if k in (0, 2):
            with pytest.raises(IndexError):
                train(batch(label=9))
            torch.set_rng_state(state)
        train(data)
    assert train.sync() == undisturbed.sync() == 4
    same_dicts(models[0].state_dict(), models[1].state_dict(), "model")
    same_dicts(optimizers[0].state_dict(), optimizers[1].state_dict(), "optimizer")


def test_an_op_that_fails_on_the_host_loses_what_was_not_synced(monkeypatch):
    model = Words()
    train = hosted(model, adamw(model))
    for _ in range(3):
        train(batch())
    train.sync()
    before = copy.deepcopy(model.state_dict())
    train(batch())
    last, launch = train.plan.host_ops[-1], _Kernels._launch

    def launched(self, op, device, *args):
        if op == last:
            raise MemoryError("not enough")
        launch(self, op, device, *args)

    with monkeypatch.context() as patched:
        patched.setattr(_Kernels, "_launch", launched)
        with pytest.raises(MemoryError, match="not enough"):
            train(batch())
    with pytest.raises(spillway.torch.LostError, match="iteration 5 failed.*not enough"):
        train(batch())
    same_dicts(model.state_dict(), before, "model")
    train.load()
    train(batch())
    train.sync()


def test_what_cannot_be_is_refused():
    model = wide()
    step = spillway.torch.capture(model, reconstruct, adamw(model), vectors(0))
    with pytest.raises(ValueError, match="host is 'all': it is 'optimizer' or None"):
        step.plan(host="all")
    with pytest.raises(ValueError, match="'fit' runs no op on the host: plan with 'auto' or"):
        step.plan(strategy="fit", host="optimizer")
    inference = spillway.torch.capture_inference(model, vectors(0))
    for ask in (inference.plan, inference.min_feasible_bytes):
        with pytest.raises(spillway.torch.CaptureError, match="no optimizer that could run"):
            ask(host="optimizer")
    torch._dynamo.reset()  # sizes that other tests have seen change
    compiled = torch.compile(model, backend="spillway", options=dict(host="optimizer"))
    with pytest.raises(Exception, match="no optimizer has joined.*spillway.torch.optimizer before the first call"):
        compiled(vectors(0))


def test_elsewhere_all_of_the_optimizer_runs_on_the_host():
    step = SimpleNamespace(device=SimpleNamespace(torch_device=torch.device("cuda", 0)))
    assert settings_for(step, "auto", dict(effort=3)) == dict(effort=3, host="all")
    assert settings_for(step, "optimizer-offload", {}) == {}
    for strategy, settings in (("auto", dict(host="yes")), ("split", {})):
        with pytest.raises(ValueError, match="so that results do not depend on the plan"):
            settings_for(step, strategy, settings)


def test_the_least_budget_may_be_smaller():
    model = wide()
    step = spillway.torch.capture(model, reconstruct, adamw(model), vectors(0))
    least = step.min_feasible_bytes(MACHINE, host="optimizer")
    assert least < step.min_feasible_bytes(MACHINE)
    step.plan(least, MACHINE, host="optimizer").check()

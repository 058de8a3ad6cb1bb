"""`GradScaler`: scaled losses, and steps that are left out, have the bits of eager mode."""

import copy

import pytest
import test_cuda
import torch
from eager import MACHINE, compiled_within, planned_within, same, same_dicts
from models import adamw, classify, sgd
from test_compiled_training import compiled_anew, plans  # noqa: F401
from test_optimizer import Pair
from test_processes import order_buckets, run
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import spillway.torch
from spillway.torch import CaptureError, ChangedError

device = test_cuda.device  # emulated
INFINITE, NO_NUMBER = 3, 5
STEPS = 7
LARGE = 2.0**127  # more than gradients can be scaled by

OPTIMIZERS = {
    "momentum": sgd,
    "adamw": adamw,
    "each": lambda model: torch.optim.AdamW(model.parameters(), foreach=False),
    "fused": lambda model: torch.optim.AdamW(model.parameters(), fused=True),
    "fused sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, fused=True),
}


def perceptron():
    return nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 5))


def batches():
    """Returns batches, of which one gives infinite gradients and another gives none that are numbers."""
    data = [(torch.randn(16, 20), torch.randint(5, (16,))) for _ in range(STEPS)]
    data[INFINITE][0][0, 0], data[NO_NUMBER][0][0, 0] = float("inf"), float("nan")
    return data


def scalers(scale):
    return [torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=2) for _ in range(2)]


def nothing(optimizer):
    """Changes nothing between two steps."""


def train_eagerly(model, loss_fn, optimizer, scaler, data, clip=None, called=None, before=nothing):
    """Trains in a usual loop. Returns losses and scales."""
    found = []
    for batch in data:
        before(optimizer)
        optimizer.zero_grad()
        loss = loss_fn(called or model, batch)
        scaler.scale(loss).backward()
        if clip is not None:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        scaler.step(optimizer)
        scaler.update()
        found += [loss.detach(), torch.tensor(scaler.get_scale())]
    return torch.stack(found)


def compare(make_optimizer, scale, clip=None, make=perceptron, loss_fn=classify, data=batches, before=nothing, **how):
    """Trains eagerly and within a plan. Returns the step, and what runs it."""
    torch.manual_seed(7)
    eager = make()
    model, data, (eager_scaler, scaler) = copy.deepcopy(eager), data(), scalers(scale)
    eager_optimizer, optimizer = make_optimizer(eager), make_optimizer(model)
    state = torch.get_rng_state()
    expected = train_eagerly(eager, loss_fn, eager_optimizer, eager_scaler, data, clip, before=before)
    torch.set_rng_state(state)
    step = spillway.torch.capture(model, loss_fn, optimizer, data[0], scaler=scaler, clip_grad=clip)
    train = compiled_within(step, "50%", **how)
    for batch, loss in zip(data, expected[::2]):
        before(optimizer)
        same(train(batch), loss, "loss")
    train.sync()
    same_dicts(model.state_dict(), eager.state_dict(), "model")
    same_dicts(optimizer.state_dict(), eager_optimizer.state_dict(), "optimizer")
    assert scaler.state_dict() == eager_scaler.state_dict()
    assert scaler.get_scale() < scale, "no step has been left out"
    return step, train


@pytest.mark.short
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step(name, clip):
    compare(OPTIMIZERS[name], 2.0**16, clip)


@pytest.mark.short
def test_settings_may_change():
    def before(optimizer):
        optimizer.param_groups[0]["weight_decay"] += 0.01

    compare(adamw, 2.0**16, before=before)


@pytest.mark.parametrize("scale", [3.0, LARGE])
@pytest.mark.parametrize("name", ["adamw", "fused"])
def test_any_scale(name, scale):
    compare(OPTIMIZERS[name], scale)


def half(model, batch):
    with torch.autocast("cpu", torch.float16):
        return classify(model, batch)


def test_autocast_to_half_precision():
    compare(adamw, 2.0**16, loss_fn=half)


def following(followers, follow):
    """Returns the function that makes an optimizer whose step also has other weights follow its own, in a
    hook."""

    def make(model):
        optimizer, weights = adamw(model), [p.detach().clone() for p in model.parameters()]
        followers.append(weights)

        @torch.no_grad()
        def hook(*_):
            for mine, its in zip(weights, model.parameters()):
                follow(mine, its)

        optimizer.register_step_post_hook(hook)
        return optimizer

    return make


def last_is_infinite():
    data = batches()
    return [*data, data[INFINITE]]


@pytest.mark.parametrize("follow", [lambda mine, its: mine.lerp_(its, 0.1), lambda mine, its: mine.copy_(its * 2)])
def test_hooks_are_left_out_with_the_step(follow):
    """What one overwrites has its value from before."""
    followers = []
    compare(following(followers, follow), 2.0**16, data=last_is_infinite)
    for one, other in zip(*followers):
        same(one, other, "follower")


def keeps_an_update(model):
    optimizer = adamw(model)

    def keep(*_):
        model.last = model[0].weight.detach() * 2

    optimizer.register_step_post_hook(keep)
    return optimizer


def with_last():
    model = perceptron()
    model.register_buffer("last", torch.zeros(64, 20))
    return model


def test_a_tensor_that_a_left_out_step_would_store_is_refused():
    with pytest.raises(CaptureError, match="a tensor that the optimizer's step makes, but a scaler may"):
        compare(keeps_an_update, 2.0**16, make=with_last)


@pytest.mark.usefixtures("fast_host")
def test_the_optimizer_on_the_host():
    _, train = compare(adamw, 2.0**16, 0.5, host="optimizer", settings=dict(host="all"))
    assert train.plan.host_ops


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize("name", ["adamw", "fused"])
def test_on_a_device(name):
    _, train = compare(OPTIMIZERS[name], 2.0**16)
    assert train._session.stream


def captured(**how):
    torch.manual_seed(7)
    model, data, (_, scaler) = perceptron(), batches(), scalers(2.0**16)
    step = spillway.torch.capture(model, classify, adamw(model), data[0], scaler=scaler, **how)
    return step, scaler, data


def test_the_scale_is_a_state():
    """It is saved and loaded between steps, and lasts through shapes and evaluations."""
    step, scaler, data = captured(verify=True)
    train = step.compile(planned_within(step, "50%"), machine=MACHINE)
    kept = scaler.state_dict()
    assert kept["scale"] == 2.0**16, "verify has kept it"
    for batch in data[:3]:
        train(batch)
    x, y = data[INFINITE]
    train((x[:7], y[:7]))
    train.evaluate(classify)(data[0])
    train.sync()
    assert scaler.state_dict() == kept | dict(scale=2.0**16, _growth_tracker=0)
    scaler.load_state_dict(kept | dict(scale=8.0, _growth_tracker=1))
    train(data[4])
    train.sync()
    assert scaler.get_scale() == 16.0


def test_a_scaler_that_is_off_changes_nothing():
    model = perceptron()
    off = torch.amp.GradScaler("cpu", enabled=False)
    step, other = (
        spillway.torch.capture(model, classify, sgd(model), batches()[0], scaler=s) for s in (off, None)
    )
    assert [op.name for op in step.operations] == [op.name for op in other.operations]


def test_what_is_refused():
    model, data = perceptron(), batches()
    how = dict(scaler=scalers(1.0)[0])
    with pytest.raises(CaptureError, match="scaler is of type float: give a torch.amp.GradScaler"):
        spillway.torch.capture(model, classify, sgd(model), data[0], scaler=2.0)

    def passes(model, batch):
        loss = classify(model, batch)
        loss.backward()
        return loss.detach()

    with pytest.raises(CaptureError, match="runs the backward passes itself, but the scaler scales"):
        spillway.torch.capture(model, passes, sgd(model), data[0], **how)
    step, scaler, data = captured()
    train = step.compile(planned_within(step, "100%"))
    train(data[0])
    scaler.set_growth_interval(5)
    with pytest.raises(ChangedError, match="the scaler has .*'growth_interval': 5.* was captured"):
        train(data[0])


def processes(process):
    torch.manual_seed(0)
    model, (eager_scaler, scaler) = perceptron(), scalers(2.0**16)
    eager, group = copy.deepcopy(model), distributed.group.WORLD
    torch.manual_seed(process)
    data = batches()
    if process:
        data[INFINITE] = data[0]  # gradients of the other process are infinite
    parallel = DistributedDataParallel(eager, broadcast_buffers=False)
    order_buckets(parallel, classify, data[0])
    state = torch.get_rng_state()
    expected = train_eagerly(eager, classify, adamw(eager), eager_scaler, data, 0.5, parallel)
    torch.set_rng_state(state)
    how = dict(process_group=group, scaler=scaler)
    step = spillway.torch.capture(model, classify, adamw(model), data[0], clip_grad=0.5, **how)
    train = step.compile(planned_within(step, "50%"))
    for batch, loss in zip(data, expected[::2]):
        same(train(batch), loss, "loss")
    train.sync()
    same_dicts(model.state_dict(), eager.state_dict(), "model")
    assert scaler.state_dict() == eager_scaler.state_dict()
    with pytest.raises(CaptureError, match="each process has only rows of them"):
        spillway.torch.capture(model, classify, adamw(model), data[0], shard=True, **how)


@pytest.mark.short
def test_several_processes(tmp_path):
    run(processes, 2, tmp_path)


@pytest.mark.short
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("scale", [2.0**16, LARGE])
def test_the_usual_loop(scale, clip):
    torch.manual_seed(7)
    pair, data = Pair(perceptron), batches()
    pair_of_scalers = scalers(scale)
    left = list(pair_of_scalers)

    def use(called, model, optimizer):
        return train_eagerly(model, classify, optimizer, left.pop(), data, clip, called)

    pair.both(use)
    pair.check()
    states = [scaler.state_dict() for scaler in pair_of_scalers]
    assert states[0] == states[1] and states[0]["scale"] < scale

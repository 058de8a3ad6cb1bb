"""`spillway.torch.optimizer`: steps of optimizers that join the plan of `torch.compile`."""

import copy
import gc
import pickle
import re
import warnings
from functools import partial

import pytest
import torch
from eager import same, same_dicts
from models import adamw, classify, images, sgd
from test_compiled_training import (
    STEPS,
    Broken,
    compiled,
    compiled_anew,  # noqa: F401
    convolutional,
    language_model,
    large_perceptron,
    next_word,
    perceptron,
    plans,  # noqa: F401
    rows,
    squares,
)
from torch import nn
from torch.utils._pytree import tree_map

import spillway.torch
from spillway.torch import CaptureError, ChangedError, Step, training
from spillway.torch.joint import Passes
from spillway.torch.pausing import Iteration

pytestmark = pytest.mark.short


def fused(model, parameters=None):
    return torch.optim.AdamW(parameters or model.parameters(), lr=1e-3, fused=True)


OPTIMIZERS = {
    "adamw": adamw,
    "fused": fused,
    "momentum": sgd,
    "sgd": lambda model: torch.optim.SGD(model.parameters(), lr=0.05),
    "amsgrad": lambda model: torch.optim.Adam(model.parameters(), lr=1e-3, amsgrad=True, foreach=True),
    "adafactor": lambda model: torch.optim.Adafactor(model.parameters()),
    "adagrad": lambda model: torch.optim.Adagrad(model.parameters()),
    "rate": lambda model: torch.optim.AdamW(model.parameters(), lr=torch.tensor(1e-3), fused=True),
}


class Pair:
    """An eager model and a planned one, each with its optimizer."""

    def __init__(self, make=perceptron, make_optimizer=fused, **settings):
        torch.manual_seed(7)
        self.eager = make()
        self.model = copy.deepcopy(self.eager)
        self.planned = compiled(self.model, **settings)
        self.eager_optimizer = make_optimizer(self.eager)
        self.optimizer = spillway.torch.optimizer(make_optimizer(self.model))

    def both(self, use, seed=0):
        """Calls `use(called, model, optimizer)` for both, and compares what it returns."""
        torch.manual_seed(seed)
        expected, state = use(self.eager, self.eager, self.eager_optimizer), torch.get_rng_state()
        torch.manual_seed(seed)
        result = use(self.planned, self.model, self.optimizer)
        assert torch.equal(torch.get_rng_state(), state), "the generators differ"
        if isinstance(expected, torch.Tensor):
            same(result, expected, "result")

    def train(self, x, steps=2):
        for k in range(steps):
            self.both(lambda called, model, optimizer: step(called, optimizer, x), seed=k)

    def loop(self, loss_fn, data):
        """Trains both on some batches, and compares all losses."""

        def use(called, model, optimizer):
            losses = []
            for batch in data:
                loss = loss_fn(called, batch)
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
                losses.append(loss.detach())
            return torch.stack(losses)

        self.both(use)

    def check(self):
        same_dicts(self.model.state_dict(), self.eager.state_dict(), "model")
        self.check_gradients()
        same_dicts(self.optimizer.state_dict(), self.eager_optimizer.state_dict(), "optimizer")

    def check_gradients(self):
        for p, q in zip(self.model.parameters(), self.eager.parameters()):
            assert (p.grad is None) == (q.grad is None)
            if p.grad is not None:
                same(p.grad, q.grad, "gradient")


def step(called, optimizer, x):
    loss = squares(called(x))
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss


@pytest.fixture
def updates(monkeypatch):
    """Counts updates, and those that go on from a backward pass."""
    counts, run = dict(all=0, joined=0), Iteration.step

    def counted(iteration, *args):
        counts["all"] += 1
        counts["joined"] += iteration.waits_for == "update"
        run(iteration, *args)

    monkeypatch.setattr(Iteration, "step", counted)
    return counts


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizers(name, plans, updates):  # noqa: F811
    pair = Pair(make_optimizer=OPTIMIZERS[name])
    x = rows()
    pair.train(x, STEPS)
    pair.check()
    (plan,) = plans
    assert updates == dict(all=STEPS, joined=STEPS)


MODELS = {
    "perceptron": (
        large_perceptron, classify, lambda k: (rows(256), torch.randint(4, (256,)))
    ),
    "gpt2": (language_model, next_word, lambda k: torch.randint(50, (8, 16))),
    "convolutional": (convolutional, classify, images),
}


@pytest.mark.parametrize("budget", ["100%", "50%", "min"])
@pytest.mark.parametrize("name", MODELS)
def test_models(name, budget, plans, updates):  # noqa: F811
    make, loss_fn, batches = MODELS[name]
    pair = Pair(make, budget=budget, fullgraph=True)
    data = [batches(k) for k in range(STEPS)]

    pair.loop(loss_fn, data)
    pair.check()
    (plan,) = plans
    assert plan.figures.peak_bytes <= plan.budget_bytes
    assert updates == dict(all=STEPS, joined=STEPS)


@pytest.mark.parametrize("name", ["fused", "momentum"])
def test_a_function_that_torch_compile_compiles_may_run_the_whole_step(name):
    """Dynamo would compile the backend's own Python code, too."""
    pair = Pair(make_optimizer=OPTIMIZERS[name])

    def use(called, model, optimizer):
        def train(x):
            squares(model(x[:4])).backward()
            return step(model, optimizer, x)

        train = train if model is pair.eager else compiled(train)
        return torch.stack([train(rows()).detach() for _ in range(4)])

    pair.both(use)
    pair.check()


@pytest.fixture
def captured():
    """The step that is captured of a perceptron and its optimizer."""
    steps, plan = [], Step.plan
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Step, "plan", lambda step, **how: steps.append(step) or plan(step, **how))
        pair = Pair()
        pair.train(rows(), 1)
        yield steps[0]


def test_states_are_within_the_plan(captured):
    states = {id(s.value) for s in captured.storages if s.kind == "state"}
    for values in vars(captured.optimizer)["state"].values():
        assert {id(v) for v in values.values()} <= states


def test_no_plan_moves_gradients_behind_the_pause_or_copies_before_it(captured):
    numbers = {s.name: k for k, s in enumerate(captured.storages)}
    step = next(op for op in captured.operations if op.name == "step")
    assert numbers["order"] in step.reads and numbers["step"] in step.writes
    for k, op in enumerate(captured.operations):
        if op.name.startswith("gradient."):
            assert numbers["order"] in op.writes and k not in captured.update_ops
        if op.name.startswith(("lr.", "take gradient.")) or op.name.endswith(" again"):
            assert op.reads == [numbers["step"]] and k in captured.update_ops


@pytest.mark.usefixtures("fast_host")
def test_the_optimizer_may_run_on_the_host(plans):  # noqa: F811
    pair, x = Pair(large_perceptron, host="optimizer", plan=dict(host="all")), rows(64)
    pair.train(x, STEPS)
    pair.check()
    (plan,) = plans
    assert plan.host_ops
    with torch.no_grad():
        pair.both(lambda called, *_: called(x))


def test_a_graph_without_parameters_has_nothing_to_run_on_the_host():
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(8, 16), nn.Linear(16, 4)

        def forward(self, x):
            y = self.first(x)
            torch._dynamo.graph_break()
            y = nn.functional.gelu(y) * 2
            torch._dynamo.graph_break()
            return self.second(y)

    pair = Pair(Parts, host="optimizer")
    pair.train(rows(), 3)
    pair.check()


class Shift(nn.Module):
    """Its backward pass has no ops: the gradient of its result is that of its parameter."""

    def __init__(self):
        super().__init__()
        self.shift = nn.Parameter(torch.zeros(6, 8))

    def forward(self, x):
        return x + self.shift


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_backward_pass_without_ops(name, updates):
    pair = Pair(Shift, OPTIMIZERS[name])
    pair.both(lambda called, model, optimizer: squares(called(torch.ones(6, 8))).backward())
    pair.check_gradients()
    pair.train(rows(), STEPS)
    pair.check()
    assert updates["joined"] == STEPS


def test_gradients_accumulate_and_are_clipped(updates):
    pair, batches = Pair(), [rows() for _ in range(3)]

    def use(called, model, optimizer):
        for _ in range(2):
            for x in batches:
                (squares(called(x)) / 3).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
            optimizer.step()
            optimizer.zero_grad(set_to_none=False)

    pair.both(use)
    pair.check()
    assert updates == dict(all=2, joined=2)


def test_hooks_closures_and_schedules():
    pair, x, calls = Pair(), rows(), []

    def use(called, model, optimizer):
        def clip(*_):
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)

        handles = [optimizer.register_step_pre_hook(clip)]
        handles.append(optimizer.register_step_post_hook(lambda *_: calls.append(model)))
        schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)

        def closure():
            optimizer.zero_grad()
            loss = squares(called(x))
            loss.backward()
            return loss

        losses = []
        for _ in range(3):
            losses.append(optimizer.step(closure).detach())
            schedule.step()
        for handle in handles:
            handle.remove()
        return torch.stack(losses)

    pair.both(use)
    pair.check()
    assert calls == [pair.eager] * 3 + [pair.model] * 3


@pytest.mark.parametrize("scale", [2.0**10, 2.0**127])
def test_a_scaler(scale):
    """The second scale is so large that gradients are infinite and steps are left out."""
    pair, x = Pair(), rows()

    def use(called, model, optimizer):
        scaler = torch.amp.GradScaler("cpu", init_scale=scale)
        for _ in range(3):
            scaler.scale(squares(called(x))).backward()
            scaler.step(optimizer)
            scaler.update()
            optimizer.zero_grad()
        return torch.tensor(scaler.get_scale())

    pair.both(use)
    pair.check()


def test_weights_and_gradients_may_be_written_at_any_time(updates):
    pair, x = Pair(), rows()

    def use(called, model, optimizer):
        for _ in range(3):
            loss = squares(called(x))
            loss.backward()
            for p in model.parameters():
                p.data.mul_(0.999)  # which no version counts
                p.grad.data.clamp_(-0.01, 0.01)
            optimizer.step()
            for p in model.parameters():
                p.data.clamp_(-0.3, 0.3)
            model[0].weight.grad = None
        return loss

    pair.both(use)
    pair.check()


@pytest.mark.parametrize("last", [None, -1])  # With fewer rows, the states are written in another graph's iteration.
def test_states_are_read_and_written_between_steps(last):
    pair, x = Pair(), rows()

    def use(called, model, optimizer):
        for k in range(4):
            loss = squares(called(x[:last] if k == 2 else x))
            if k == 1:
                sums = [v["exp_avg"].sum() for v in optimizer.state.values()]
            loss.backward()
            if k == 2:
                for values in optimizer.state.values():
                    values["exp_avg"].mul_(0.5)
            optimizer.step()
            optimizer.zero_grad()
        return torch.stack(sums)

    pair.both(use)
    pair.check()
    pair.train(x)
    pair.check()


@pytest.fixture
def captures(monkeypatch):
    """The joint steps that are captured while a test runs."""
    made, capture = [], Passes.capture

    def captured(*args):
        made.append(capture(*args))
        return made[-1]

    monkeypatch.setattr(Passes, "capture", captured)
    return made


@pytest.mark.parametrize("make_optimizer", [OPTIMIZERS["adafactor"], fused])
def test_autocast_of_the_forward_pass_leaves_the_update_alone(make_optimizer):
    pair, x = Pair(make_optimizer=make_optimizer), rows()

    def use(called, model, optimizer):
        for _ in range(3):
            with torch.autocast("cpu", torch.bfloat16):
                loss = squares(called(x))
            loss.backward()
            optimizer.step()
        return loss

    pair.both(use)
    pair.check()


def test_saving_and_resuming(captures, plans):  # noqa: F811
    pair, x = Pair(), rows()
    pair.train(x)
    saved = []

    def save(called, model, optimizer):
        saved.append(copy.deepcopy((model.state_dict(), optimizer.state_dict())))

    def load(called, model, optimizer):
        weights, states = saved[model is pair.model]
        model.load_state_dict(weights)
        optimizer.load_state_dict(states)

    pair.both(save)
    pair.train(x)
    pair.both(load)
    pair.check()
    pair.train(x)
    pair.check()
    assert len(captures) == 2  # the states are other tensors
    assert len(plans) == 1


def train_two_sets_in_turn():
    """Trains four steps, of which every second leaves a parameter without a gradient."""
    pair, x = Pair(), rows()

    def use(called, model, optimizer):
        for k in range(4):
            loss = squares(called(x))
            loss.backward()
            if k % 2:
                model[0].bias.grad = None
            optimizer.step()
            optimizer.zero_grad()

    pair.both(use)
    pair.check()


def test_other_parameters_get_gradients(updates):
    train_two_sets_in_turn()
    assert updates["all"] == 4


def test_old_plans_give_way(monkeypatch, captures):
    monkeypatch.setattr(training, "MOST", 1)
    train_two_sets_in_turn()
    assert len(captures) == 4


def test_several_steps_after_one_backward_pass(updates):
    pair, x = Pair(), rows()

    def use(called, model, optimizer):
        for _ in range(2):
            loss = squares(called(x))
            loss.backward()
            optimizer.step()
            optimizer.step()
            optimizer.zero_grad()
            optimizer.step()  # has nothing to do
        return loss

    pair.both(use)
    pair.check()
    assert updates == dict(all=4, joined=2)


def test_evaluation_and_other_shapes_between(updates):
    pair = Pair(language_model)
    long, short = torch.randint(50, (4, 12)), torch.randint(50, (2, 7))

    def use(called, model, optimizer):
        for x in (long, short, long):
            next_word(called, x).backward()
            with torch.no_grad():
                result = next_word(called, short)
            optimizer.step()
            optimizer.zero_grad()
        return result

    pair.both(use)
    pair.check()


def test_a_model_of_several_graphs(updates, caplog):
    pair, x = Pair(Broken), rows()
    with caplog.at_level("INFO", logger="spillway"):
        pair.train(x, 3)
    pair.check()
    assert updates["all"] == 6
    assert sum("fullgraph=True" in r.getMessage() for r in caplog.records) == 1  # while the second is captured


def test_two_models_with_an_optimizer_each():
    """A generator and a critic."""
    makers, x = (perceptron, lambda: nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 1))), rows()
    torch.manual_seed(7)
    eager = [make() for make in makers]
    models = copy.deepcopy(eager)
    planned = [compiled(m) for m in models]

    def train(called, optimizers):
        torch.manual_seed(3)
        (maker, critic), (ours, its) = called, optimizers
        for _ in range(3):
            its.zero_grad()
            (critic(maker(x).detach()).mean() - critic(torch.randn(6, 4)).mean()).backward()
            its.step()
            ours.zero_grad()
            critic(maker(x)).mean().neg().backward()
            ours.step()

    eager_optimizers = [fused(m) for m in eager]
    optimizers = [spillway.torch.optimizer(fused(m)) for m in models]
    train(eager, eager_optimizers)
    train(planned, optimizers)
    for k in range(2):
        same_dicts(models[k].state_dict(), eager[k].state_dict(), f"model {k}")
        same_dicts(optimizers[k].state_dict(), eager_optimizers[k].state_dict(), f"optimizer {k}")


def test_frozen_parameters_and_groups_that_are_added():
    def make_optimizer(model):
        return torch.optim.AdamW(model[3].parameters(), lr=1e-3)

    def make():
        model = perceptron()
        model[0].requires_grad_(False)
        return model

    pair, x = Pair(make, make_optimizer), rows()
    pair.train(x)
    pair.check()

    def thaw(called, model, optimizer):
        model[0].requires_grad_(True)
        optimizer.add_param_group(dict(params=list(model[0].parameters()), lr=1e-2))

    pair.both(thaw)
    pair.train(x)
    pair.check()


def test_copies_have_not_joined():
    pair, x = Pair(), rows()
    pair.train(x)
    pair.check()
    for one in (copy.deepcopy(pair.optimizer), pickle.loads(pickle.dumps(pair.optimizer))):
        assert type(one) is torch.optim.AdamW
        same_dicts(one.state_dict(), pair.optimizer.state_dict(), "optimizer")
    assert isinstance(pair.optimizer, torch.optim.AdamW)
    assert spillway.torch.optimizer(pair.optimizer) is pair.optimizer


def test_the_states_outlive_the_graphs():
    pair, x = Pair(), rows()
    pair.train(x)
    torch.compiler.reset()
    pair.planned = compiled(pair.model)
    gc.collect()
    pair.train(x)
    pair.check()


def test_an_error_of_an_op_leaves_the_states():
    def make():
        return nn.Sequential(nn.Embedding(5, 8), nn.Dropout(), nn.Linear(8, 4))

    pair, x = Pair(make), torch.randint(5, (6,))
    pair.train(x)
    with pytest.raises(IndexError):
        pair.planned(torch.full((6,), 7))
    pair.train(x)
    pair.check()


def halving(model):
    optimizer = fused(model)
    return optimizer, torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def cycling(model, is_fused=False):
    optimizer = torch.optim.AdamW(model.parameters(), fused=is_fused)
    return optimizer, torch.optim.lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=6)


@pytest.mark.parametrize("make", [halving, cycling, partial(cycling, is_fused=True)])
def test_an_optimizer_that_has_a_scheduler_joins(updates, make):
    def make_optimizer(model):
        optimizer, schedule = make(model)
        optimizer.schedule = schedule
        return optimizer

    pair, x = Pair(make_optimizer=make_optimizer), rows()

    def use(called, model, optimizer):
        for _ in range(3):
            loss = step(called, optimizer, x)
            optimizer.schedule.step()
        return loss

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pair.both(use)
    pair.check()
    assert updates["joined"] == 3


DECAYING = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=1e-2),
    "adamw-foreach": lambda p: torch.optim.AdamW(p, lr=1e-2, foreach=True),
    "adamw-rate": lambda p: torch.optim.AdamW(p, lr=torch.tensor(1e-2), foreach=False),
    "adamw-fused": lambda p: torch.optim.AdamW(p, lr=1e-2, fused=True),
    "adam": lambda p: torch.optim.Adam(p, weight_decay=0.1),
    "adam-fused": lambda p: torch.optim.Adam(p, lr=torch.tensor(1e-2), weight_decay=0.1, fused=True),
    "adam-foreach": lambda p: torch.optim.Adam(p, weight_decay=0.1, foreach=True),
    "nadam": lambda p: torch.optim.NAdam(p, weight_decay=0.1, decoupled_weight_decay=True),
    "adamax": lambda p: torch.optim.Adamax(p, weight_decay=0.1),
    "adagrad": lambda p: torch.optim.Adagrad(p, weight_decay=0.1),
    "adagrad-fused": lambda p: torch.optim.Adagrad(p, weight_decay=0.1, fused=True),
    "adadelta": lambda p: torch.optim.Adadelta(p, weight_decay=0.1),
    "rmsprop": lambda p: torch.optim.RMSprop(p, weight_decay=0.1),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, momentum=0.9, nesterov=True),
    "sgd-fused": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, momentum=0.9, fused=True),
    "sgd-foreach": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.1, foreach=True),
}


def with_decay(name):
    """Makes an optimizer whose biases do not decay."""

    def make(model):
        weights = [p for p in model.parameters() if p.dim() > 1]
        biases = [p for p in model.parameters() if p.dim() == 1]
        return DECAYING[name]([dict(params=weights), dict(params=biases, weight_decay=0)])

    return make


def scale_settings(optimizer, factor):
    """Multiplies all numbers among the settings of an optimizer, apart from learning rates and whole numbers."""
    scaled = lambda value: value * factor if isinstance(value, float) else value
    for group in optimizer.param_groups:
        for key in group.keys() - {"params", "lr", "initial_lr"}:
            group[key] = tree_map(scaled, group[key])


@pytest.mark.parametrize("make", [*OPTIMIZERS.values(), *map(with_decay, DECAYING)], ids=[*OPTIMIZERS, *DECAYING])
def test_numbers_among_the_settings_may_change(plans, updates, make):  # noqa: F811
    pair, x = Pair(make_optimizer=make), rows()

    def use(called, model, optimizer):
        for k in range(STEPS):
            scale_settings(optimizer, 1 - 0.01 * k)
            loss = step(called, optimizer, x)
        return loss

    pair.both(use)
    pair.check()
    assert len(plans) <= 2
    assert updates["joined"] == STEPS


@pytest.mark.parametrize(
    ("settings", "count"),
    [
        (dict(weight_decay=0), 2),
        (dict(momentum=0.5), 3),  # its first step makes states
        (dict(momentum=0.5, nesterov=True), 3),
    ],
)
def test_other_settings_get_another_plan(plans, settings, count):  # noqa: F811
    pair, x = Pair(make_optimizer=lambda m: torch.optim.SGD(m.parameters(), lr=0.05, weight_decay=0.1)), rows()

    def use(called, model, optimizer):
        (group,) = optimizer.param_groups
        first = {key: group[key] for key in settings}
        for present in (first, settings, first, settings):
            group.update(present)
            loss = step(called, optimizer, x)
        return loss

    pair.both(use)
    pair.check()
    assert len(plans) == count


def test_a_list_among_the_settings_may_be_written():
    pair, x = Pair(), rows()

    def use(called, model, optimizer):
        optimizer.param_groups[0]["betas"] = betas = [0.9, 0.99]
        for k in range(STEPS):
            betas[0] -= 0.1 * k
            loss = step(called, optimizer, x)
        return loss

    pair.both(use)
    pair.check()


class Branching(torch.optim.Optimizer):
    def __init__(self, parameters):
        super().__init__(parameters, dict(lr=0.1))

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad.norm() > 1:
                p.sub_(p.grad)


class Stateless(Branching):
    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(p.grad.sign() * self.param_groups[0]["lr"])


class Overwriting(Branching):
    """Keeps each gradient as it is."""

    def __init__(self, parameters):
        super().__init__(parameters)
        for p in self.param_groups[0]["params"]:
            self.state[p]["last"] = torch.zeros_like(p)

    @torch.no_grad()
    def step(self, closure=None):
        for p in self.param_groups[0]["params"]:
            if p.grad is not None:
                p.sub_(p.grad * self.param_groups[0]["lr"])
                self.state[p]["last"].copy_(p.grad)


def test_states_that_a_step_overwrites_outlive_an_iteration_that_is_abandoned():
    pair, x = Pair(make_optimizer=lambda model: Overwriting(model.parameters())), rows()
    pair.train(x)

    def use(called, model, optimizer):
        squares(called(x)).backward()
        return squares(called(x))

    pair.both(use)
    pair.check()


@pytest.mark.parametrize("name", ["adamw", "fused"])
def test_no_state_is_written_before_the_wait_for_the_update(name, monkeypatch):
    """The iteration may end there, as that of each micro-batch but the last does."""
    steps, captured = [], Passes.capture
    monkeypatch.setattr(Passes, "capture", lambda *args: steps.append(captured(*args)) or steps[-1])
    Pair(make_optimizer=OPTIMIZERS[name]).train(rows(), 1)
    update = [steps[-1].operations[k] for k in steps[-1].update_ops]
    assert update[0].name == "step"
    later = set(update[0].writes)
    for op in update[1:]:
        is_later = not later.isdisjoint(op.reads)
        assert is_later or all(steps[-1].storages[t].kind != "state" for t in op.writes), op.name
        later.update(op.writes if is_later else ())


class Failing(Branching):
    def step(self, closure=None):
        self.param_groups[0]["rate"]


def test_optimizers_of_ones_own():
    pair, x = Pair(make_optimizer=lambda model: Stateless(model.parameters())), rows()
    pair.train(x)
    pair.check()
    pair = Pair(Broken, make_optimizer=lambda model: Stateless(model.parameters()))
    squares(pair.planned(x)).backward()
    with pytest.raises(CaptureError, match="Stateless are used in several graphs"):
        pair.optimizer.step()


@pytest.mark.parametrize(
    ("make_optimizer", "message"),
    [
        (Branching, "Python needs the value of a tensor"),
        (Failing, r"test_optimizer.py:\d+: .*raises KeyError: 'rate'"),
    ],
)
def test_optimizers_that_are_refused(make_optimizer, message):
    model = perceptron()
    one = spillway.torch.optimizer(make_optimizer(model.parameters()))
    before = copy.deepcopy(one.state_dict())
    with pytest.raises(CaptureError, match=message):
        compiled(model)(rows())
    same_dicts(one.state_dict(), before, "optimizer")


class Wrapper:
    """As Accelerate wraps an optimizer."""

    def __init__(self, optimizer, scaler=None):
        self.optimizer, self.scaler = optimizer, scaler

    param_groups = property(lambda self: self.optimizer.param_groups)

    def step(self):
        self.optimizer.step()


def test_an_optimizer_that_is_wrapped_joins(updates):
    model = perceptron()
    wrapper = Wrapper(fused(model))
    assert spillway.torch.optimizer(wrapper) is wrapper
    squares(compiled(model)(rows())).backward()
    wrapper.step()
    assert updates["joined"] == 1
    with pytest.raises(CaptureError, match="Wrapper scales gradients"):
        spillway.torch.optimizer(Wrapper(fused(model), scaler=object()))


def test_what_is_refused():
    model, x = perceptron(), rows()
    with pytest.raises(CaptureError, match="LBFGS calls a closure"):
        spillway.torch.optimizer(torch.optim.LBFGS(model.parameters()))
    with pytest.raises(CaptureError, match="the optimizer is of type list"):
        spillway.torch.optimizer([fused(model)])
    replaced = fused(model)
    replaced.step = lambda: None
    with pytest.raises(CaptureError, match="the step of AdamW has been replaced"):
        spillway.torch.optimizer(replaced)
    one = spillway.torch.optimizer(fused(model))
    squares(model(x)).backward()
    with pytest.raises(CaptureError, match="parameter 0 of group 0, of shape .16, 8., has a gradient, but"):
        one.step()
    planned = compiled(model)
    squares(planned(x)).backward()
    one.step()
    dense, model[0].weight.grad = model[0].weight.grad, torch.eye(16, 8).to_sparse()
    with pytest.raises(CaptureError, match="parameter 0 of group 0, of shape .16, 8., has a sparse gradient"):
        one.step()
    model[0].weight.grad = dense
    with torch.autocast("cpu", torch.bfloat16), pytest.raises(CaptureError, match="step is planned without autocast"):
        one.step()


def test_two_optimizers_of_one_graph_are_refused():
    model = perceptron()
    ones = [spillway.torch.optimizer(fused(m)) for m in (model[0], model[3])]
    with pytest.raises(Exception, match=r"several optimizers .* \(AdamW and AdamW\)"):
        compiled(model)(rows())
    del ones


def test_tensors_of_states_that_were_kept_are_refused():
    pair, x = Pair(), rows()
    pair.train(x)
    kept = next(iter(pair.optimizer.state.values()))["exp_avg"]
    pair.train(x)
    kept.mul_(2)
    with pytest.raises(ChangedError, match="read optimizer.state again"):
        pair.train(x)


def test_a_log_tells_what_takes_long(caplog):
    with caplog.at_level("INFO", logger="spillway"):
        pair = Pair()
        pair.train(rows(), 1)
    (start, captured, _, planned) = [r.getMessage() for r in caplog.records if r.name == "spillway"]
    assert start == "capture a graph of torch.compile ..."
    assert re.fullmatch(r"capture a graph of torch.compile: [\d.]+ s, \d+ ops", captured)
    assert re.fullmatch(r"plan for min: [\d.]+ s, \d+ ms an iteration predicted", planned)

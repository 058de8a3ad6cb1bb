"""Optimizers whose step changes numbers that they keep in Python, and branches on them: the same bits as eager mode."""

import copy
import math
import random
from abc import ABC
from math import sqrt

import pytest
import torch
from eager import compare, same_dicts
from test_compiled_training import compiled, compiled_anew, perceptron, rows, squares  # noqa: F401
from test_optimizer import Pair, step
from torch.utils._pytree import tree_leaves

import spillway.torch
from spillway.torch import CaptureError

pytestmark = pytest.mark.short


def loss_fn(model, x):
    return squares(model(x))


class Own(torch.optim.Optimizer):
    """Calls `update(group, state, p)` for each parameter, with states of zeros."""

    def __init__(self, model, update, lr=1e-2, **settings):
        super().__init__(model.parameters(), dict(lr=lr, step=0, **settings))
        self.update = update
        for p in (p for group in self.param_groups for p in group["params"]):
            self.state[p] = dict(n=0, m=torch.zeros_like(p), v=torch.zeros_like(p))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] += 1
            for p in group["params"]:
                if p.grad is not None:
                    self.update(group, self.state[p], p)


def by(update, **settings):
    return lambda model: Own(model, update, **settings)


def adam(group, state, p):
    state["n"] += 1
    state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
    state["v"].mul_(0.99).addcmul_(p.grad, p.grad, value=0.01)
    correction = math.sqrt(1 - 0.99 ** state["n"]) / (1 - math.pow(0.9, group["step"]))
    correction *= min([1.0, 0.1 * sqrt(state["n"])]) * max((x for x in (1, 1)), default=2)
    p.addcdiv_(state["m"], state["v"].sqrt().add_(1e-8), value=-group["lr"] * correction)


def scheduled(group, state, p):
    """Multiplies a number of its own in each step, and one that all parameters share, often."""
    state["n"] += 2
    for _ in range(300):
        group["product"] *= 0.9999
    group["product"] *= 0.9 * (1 - 0.5 * 0.96 ** (group["step"] * 0.004))
    p.sub_(p.grad * (group["lr"] * (1 - group["product"]) / state["n"]))


def rectified(group, state, p):
    """RAdam (Liu et al., 2020), which adapts only from the sixth step on."""
    step, longest = group["step"], 2 / (1 - 0.999) - 1
    state["m"].mul_(0.9).add_(p.grad, alpha=0.1)
    state["v"].mul_(0.999).addcmul_(p.grad, p.grad, value=0.001)
    length = longest - 2 * step * 0.999**step / (1 - 0.999**step)
    if length > 5:
        r = sqrt((length - 4) * (length - 2) * longest / ((longest - 4) * (longest - 2) * length))
        p.addcdiv_(state["m"], state["v"].sqrt() + 1e-8, value=-group["lr"] * r)
    else:
        p.sub_(state["m"], alpha=group["lr"])


def sometimes(group, state, p):
    """Counts what it does, in one branch alone."""
    if group["step"] % 3 == 0:
        state["n"] += 1
        group["lr"] > 0 and p.mul_(0.5)
    p.sub_(p.grad * (0.1 + state["n"]))


def filling(group, state, p):
    p.sub_(p.grad * torch.full_like(p, group["step"]) / 100)
    p.sub_(p.grad * torch.full((1,), group["lr"]) * torch.tensor(group["lr"] * 2) / torch.tensor(3 / group["step"]))
    p.sub_(p.grad * torch.full((1,), group["step"], dtype=torch.float64).float())
    p.sub_(p.grad * torch.tensor([group["lr"], 1.0, group["step"]], dtype=torch.float32).sum())


class Decaying(torch.optim.SGD):
    def step(self, closure=None):
        for group in self.param_groups:
            group["weight_decay"] += 0.1
        super().step(closure)


OPTIMIZERS = {
    "adam": by(adam),
    "decaying": lambda model: Decaying(model.parameters(), lr=0.1),
    "scheduled": by(scheduled, product=1.0),
    "rectified": by(rectified),
    "sometimes": by(sometimes),
    "filling": by(filling),
    "radam": lambda model: torch.optim.RAdam(model.parameters()),
    "radam foreach": lambda model: torch.optim.RAdam(model.parameters(), weight_decay=0.1, foreach=True),
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_captured_step_counts_and_branches_as_eager_mode(name):
    _, train = compare(perceptron, loss_fn, OPTIMIZERS[name], lambda k: rows(), budget="60%", steps=12)
    captures = {"rectified": 2, "sometimes": 3, "radam": 2, "radam foreach": 2}
    assert len(train._captures.steps) == captures.get(name, 1)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_usual_loop_counts_and_branches_as_eager_mode(name):
    pair = Pair(make_optimizer=OPTIMIZERS[name])
    pair.train(rows(), 12)
    pair.check()


def test_an_error_of_a_number_is_raised_where_eager_mode_may_catch_it():
    def update(group, state, p):
        try:
            share = 1 / (group["step"] - 1)
        except ZeroDivisionError:
            share = 1.0
        p.sub_(p.grad * share)

    message = refusal(update)
    assert "division by zero for the present value of 'step' of group 0" in message


def test_equal_counts_are_supplied_once():
    model = perceptron()
    step = spillway.torch.capture(model, loss_fn, Own(model, adam), rows())
    names = [s.name for s in step.storages]
    assert "count.0" in names and "count.1" not in names
    model = perceptron()
    optimizer = Own(model, adam)
    optimizer.param_groups[0]["step"] = 3
    names = [s.name for s in spillway.torch.capture(model, loss_fn, optimizer, rows()).storages]
    assert "count.1" in names and "count.2" not in names


def test_numbers_that_were_equal_by_chance_come_apart():
    def update(group, state, p):
        state["n"] += p.dim()
        p.sub_(p.grad * group["lr"] / (group["step"] + state["n"]))

    def parting(group, state, p):
        state["n"] = state["n"] + 1 if p.dim() == 1 else state["n"] * 2 + 1
        update(group, state, p)

    compare(perceptron, loss_fn, by(update), lambda k: rows(), budget="60%")
    compare(perceptron, loss_fn, by(parting), lambda k: rows(), budget="60%")


def test_counts_that_are_set_between_iterations():
    def again(optimizer):
        def after():
            if optimizer.param_groups[0]["step"] == 3:
                optimizer.param_groups[0]["step"] = 0

        return after

    def update(group, state, p):
        p.sub_(p.grad * group["lr"] / group["step"])

    compare(perceptron, loss_fn, by(update), lambda k: rows(), between=again, budget="60%", steps=8)


@pytest.mark.parametrize("name", ["adam", "radam"])
def test_parameters_without_gradients_are_not_counted(name):
    pair, x = Pair(make_optimizer=OPTIMIZERS[name]), rows()

    def use(called, model, optimizer, skipped):
        squares(called(x)).backward()
        for p in skipped(model):
            p.grad = None
        optimizer.step()
        optimizer.zero_grad()

    for k in range(6):
        skipped = lambda model, k=k: [model[0].bias] if k % 3 == 1 else []
        pair.both(lambda *one, skipped=skipped: use(*one, skipped), seed=k)
    pair.check()


def test_counts_go_on_from_a_checkpoint():
    pair, x = Pair(make_optimizer=by(adam)), rows()
    pair.train(x)
    before = [one.state_dict() for one in (pair.eager_optimizer, pair.optimizer)]
    same_dicts(*before, "optimizer")
    pair.train(x)
    for one, state in zip((pair.eager_optimizer, pair.optimizer), before):
        one.load_state_dict(state)
    pair.train(x)
    pair.check()


def test_two_steps_of_an_optimizer_in_one_iteration():
    def steps(model, optimizer, x):
        for _ in range(2):
            optimizer.zero_grad()
            squares(model(x)).backward()
            optimizer.step()

    torch.manual_seed(0)
    eager, planned, x = perceptron(), perceptron(), rows()
    planned.load_state_dict(eager.state_dict())
    one, other = Own(eager, adam), Own(planned, adam)
    captured = spillway.torch.capture(planned, lambda model, x: steps(model, other, x), other, x)
    with captured.compile(captured.plan("min")) as train:
        for seed in range(3):
            torch.manual_seed(seed)
            steps(eager, one, x)
            torch.manual_seed(seed)
            train(x)
    same_dicts(planned.state_dict(), eager.state_dict(), "model")
    same_dicts(other.state_dict(), one.state_dict(), "optimizer")
    assert other.param_groups[0]["step"] == 6


def test_an_error_leaves_counts_alone():
    model = torch.nn.Sequential(torch.nn.Embedding(5, 3), torch.nn.Linear(3, 2))
    optimizer = Own(model, adam)
    captured = spillway.torch.capture(model, loss_fn, optimizer, torch.tensor([1, 2]))
    with captured.compile(captured.plan("min")) as train:
        train(torch.tensor([1, 2]))
        with pytest.raises(IndexError):
            train(torch.tensor([1, 7]))
        assert optimizer.param_groups[0]["step"] == 1


def test_steps_are_verified_beside_an_optimizer_that_counts():
    model = perceptron()
    optimizer = Own(model, rectified)
    step = spillway.torch.capture(model, loss_fn, optimizer, rows())
    assert step.verify(steps=8) == 8
    assert optimizer.param_groups[0]["step"] == 0


def refusal(update, **settings):
    model = perceptron()
    with pytest.raises(CaptureError) as caught:
        spillway.torch.capture(model, loss_fn, Own(model, update, **settings), rows())
    return str(caught.value)


def test_what_is_refused():
    def flag(group, state, p):
        group["flag"] = True

    message = refusal(flag, flag=False)
    assert message.split(": ")[1] == '`group["flag"] = True`'
    assert "Own keeps values in Python: 'flag' of group 0 is False before the step and True after it" in message

    def norm(group, state, p):
        group["norm"] = p.grad.norm().item()

    assert "'norm' of group 0 is 0.0 before the step and computed from tensors after it" in refusal(norm, norm=0.0)

    def branch(group, state, p):
        if p.grad.sum().item() * group["step"] > 3:
            p.zero_()

    assert "Python needs the value of a tensor" in refusal(branch)

    def as_int(group, state, p):
        p.sub_(p.grad * int(group["step"]))

    assert "Python needs the value of 'step' of group 0" in refusal(as_int)

    def whole(group, state, p):
        p.sub_(p.grad * (1 / torch.full((1,), group["step"])))

    assert "`aten.full.default` computes with 'step' of group 0, a whole number, and with no" in refusal(whole)

    def shape(group, state, p):
        p.sub_(torch.arange(group["lr"] * 200).sum())

    assert "Python needs the value of lr of group 0" in refusal(shape)


def test_a_scaler_that_may_leave_steps_out_is_refused():
    model = perceptron()
    with pytest.raises(CaptureError, match="'step' of group 0 of the optimizer is a number that Python changes"):
        scaler = torch.amp.GradScaler("cpu")
        spillway.torch.capture(model, loss_fn, Own(model, adam), rows(), scaler=scaler)


def test_counts_that_come_apart_between_iterations_are_captured_anew():
    def apart(optimizer):
        def after():
            group = optimizer.param_groups[0]
            if group["step"] == 2:
                group["step"] = 7
            elif group["step"] == 9:
                group["step"] = 1.5

        return after

    _, train = compare(perceptron, loss_fn, by(adam), lambda k: rows(), between=apart, budget="60%", steps=6)
    assert len(train._captures.steps) == 3


class Layered(ABC, Own):
    """Has another base than `torch.optim.Optimizer`."""


class Foreach(Own):
    """Decides by the setting `foreach` whether to round twice."""

    def __init__(self, model):
        super().__init__(model, None, foreach=None)

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * 0.1 / 0.3 if group["foreach"] is None else p.grad * (0.1 / 0.3))


class WithoutRate(Own):
    def __init__(self, model):
        super().__init__(model, lambda group, state, p: p.sub_(p.grad / group["step"]))
        del self.param_groups[0]["lr"]


class Average:
    def __init__(self, p):
        self.value = torch.zeros_like(p)


def averaged(group, state, p):
    """Has tensors in lists and in an object, and replaces one of the lists."""
    state.setdefault("list", [torch.zeros_like(p)])[0].add_(p.grad)
    state["lists"] = [state.get("lists", [p.grad])[0] + p.grad]
    p.add_(state["lists"][0], alpha=-1e-3)
    average = state.setdefault("object", Average(p))
    average.value = 0.9 * average.value + state["list"][0]
    p.sub_(average.value * group["lr"] / group["step"])


def stepped(update):
    def make(model):
        optimizer = Own(model, update)
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        optimizer.step()
        optimizer.zero_grad()
        return optimizer

    return make


KINDS = {
    "layered": lambda model: Layered(model, adam),
    "foreach": Foreach,
    "without rate": WithoutRate,
    "averaged": stepped(averaged),
}


@pytest.mark.parametrize("name", KINDS)
def test_kinds_of_optimizers_of_ones_own(name):
    def update(model, optimizer):
        torch.manual_seed(3)
        for _ in range(4):
            optimizer.zero_grad()
            loss_fn(model, x).backward()
            optimizer.step()

    torch.manual_seed(0)
    x, eager = rows(), perceptron()
    planned, joined = copy.deepcopy(eager), copy.deepcopy(eager)
    update(eager, KINDS[name](eager))
    captured = spillway.torch.capture(planned, loss_fn, KINDS[name](planned), x)
    torch.manual_seed(3)
    with captured.compile(captured.plan("min")) as train:
        for _ in range(4):
            train(x)
    same_dicts(planned.state_dict(), eager.state_dict(), "model")
    optimizer = spillway.torch.optimizer(KINDS[name](joined))
    called = compiled(joined)
    torch.manual_seed(3)
    for _ in range(4):
        optimizer.zero_grad()
        loss_fn(called, x).backward()
        optimizer.step()
    same_dicts(joined.state_dict(), eager.state_dict(), "model")


class Lazy(Own):
    """Makes its states in its first step, as most optimizers do."""

    def __init__(self, model):
        super().__init__(model, adam)
        self.state.clear()
        del self.param_groups[0]["step"]

    @torch.no_grad()
    def step(self, closure=None):
        self.param_groups[0].setdefault("step", 0)
        for p in self.param_groups[0]["params"]:
            if p.grad is not None and not self.state[p]:
                self.state[p] = dict(n=0, m=torch.zeros_like(p), v=p.grad**2)
        super().step()


@pytest.mark.parametrize(
    "make_optimizer",
    [Lazy, lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, dampening=0.1)],
)
def test_the_usual_loop_makes_states_in_a_first_step_outside_of_the_plan(make_optimizer, caplog):
    caplog.set_level("INFO", "spillway")
    pair = Pair(make_optimizer=make_optimizer)
    pair.train(rows(), 1)
    assert "makes its states in a step outside of the plan" in caplog.text
    caplog.clear()
    pair.train(rows(), 4)
    pair.check()
    assert "outside of the plan" not in caplog.text and "capture a graph" in caplog.text


class Attribute(Own):
    """Counts where no state dict has it."""

    count = 0

    def step(self, closure=None):
        self.count += 1
        super().step()


class Apart(Own):
    """Has a number among the states of parameters."""

    def __init__(self, model):
        super().__init__(model, adam)
        self.state["count"] = 0


class Wrapping(torch.optim.Optimizer):
    """Passes on what it is asked for."""

    def __init__(self, model):
        self.inner = Own(model, adam)

    state = property(lambda self: self.inner.state)
    param_groups = property(lambda self: self.inner.param_groups)

    def step(self, closure=None):
        self.inner.step()

    def state_dict(self):
        return self.inner.state_dict()


class Global(Own):
    """Counts in a variable of its module."""

    def step(self, closure=None):
        global steps
        steps += 1
        for p in self.param_groups[0]["params"]:
            with torch.no_grad():
                p.sub_(p.grad / steps)


steps = 0


def queued(group, state, p):
    state.setdefault("queue", []).append(p.grad.clone())
    p.sub_(state["queue"][-1] * group["lr"])


def drawn(group, state, p):
    p.sub_(p.grad * random.random())


REFUSED = {
    "apart": (Apart, "Apart keeps 'count' among the states of its parameters"),
    "wrapping": (Wrapping, "Wrapping keeps its states and groups in another optimizer: give that one"),
    "attribute": (lambda model: Attribute(model, adam), r"optimizer\.count is 1 after one step and 2 after two"),
    "global": (lambda model: Global(model, None), "the step differs when it is captured again"),
    "queue": (stepped(queued), r"'queue' of a state.* (is another one after each step|gets other entries in each)"),
    "drawn": (by(drawn), "draws from Python's random module|the step differs when it is captured again"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_an_optimizer_keeps_elsewhere_is_refused(name):
    make, message = REFUSED[name]
    model = perceptron()
    with pytest.raises(CaptureError, match=message):
        spillway.torch.capture(model, loss_fn, make(model), rows())
    optimizer = make(model)
    before = tree_leaves(copy.deepcopy(optimizer.state_dict()))
    with pytest.raises(CaptureError, match=message):
        optimizer = spillway.torch.optimizer(optimizer)
        compiled(model)(rows())
    for now, then in zip(tree_leaves(optimizer.state_dict()), before, strict=True):
        assert torch.equal(now, then) if isinstance(now, torch.Tensor) else now == then


def branching(group, state, p):
    if p.grad.sum() > 1:
        p.zero_()


def test_a_refusal_names_a_way_that_works():
    model = perceptron()
    optimizer = Own(model, branching)
    with pytest.raises(CaptureError, match="between iterations: use torch.compile"):
        spillway.torch.capture(model, loss_fn, optimizer, rows())
    joined = spillway.torch.optimizer(optimizer)
    with pytest.raises(CaptureError, match="between iterations: leave the optimizer outside of the plan, without"):
        compiled(model)(rows())
    with pytest.raises(CaptureError, match="Own has joined the plans of torch.compile"):
        spillway.torch.capture(model, loss_fn, joined, rows())


def test_another_learning_rate_may_take_another_branch():
    def update(group, state, p):
        p.sub_(p.grad * (group["lr"] if group["lr"] < 0.5 else 0.1 / group["lr"]))

    pair = Pair(make_optimizer=by(update))
    for lr in (0.1, 1.0, 0.2, 2.0):
        for one in (pair.eager_optimizer, pair.optimizer):
            one.param_groups[0]["lr"] = lr
        pair.both(lambda called, model, optimizer: step(called, optimizer, rows()))
    pair.check()

"""Training through `torch.compile(model, backend="spillway")`: the same bits as eager PyTorch."""

import copy
import gc
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import torch
from eager import MACHINE, same, same_dicts
from models import adamw, classify, images, next_token, sgd
from test_memory import in_chunks, mapped_bytes, memory_files
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

import spillway
from spillway.torch import CaptureError, Step
from spillway.torch.backend import compile_graph
from spillway.torch.running import _Kernels

STEPS = 5


@pytest.fixture(autouse=True)
def compiled_anew():
    torch.compiler.reset()
    yield
    gc.collect()
    wait_for(lambda: not iterations())


def iterations():
    """Returns how many iterations are under way."""
    return sum(thread.name == "spillway iteration" for thread in threading.enumerate())


def wait_for(condition):
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end, "it takes too long"
        time.sleep(0.01)


@pytest.fixture
def plans(monkeypatch):
    """The plans that are made while a test runs. They run in strict mode."""
    made, plan, compile = [], Step.plan, Step.compile

    def planned(step, *args, **settings):
        made.append(plan(step, *args, **settings))
        return made[-1]

    monkeypatch.setattr(Step, "plan", planned)
    monkeypatch.setattr(Step, "compile", lambda step, plan: compile(step, plan, strict=True))
    return made


def compiled(model, budget="min", machine=MACHINE, host=None, plan={}, device=None, **settings):
    options = dict(budget=budget, machine=machine, host=host, device=device, settings=dict(effort=1) | plan)
    return torch.compile(model, backend="spillway", options=options, **settings)


def perceptron():
    return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Dropout(0.3), nn.Linear(16, 4))


def twins(make, **settings):
    """Returns a model, a copy of it, and what compiles the copy."""
    torch.manual_seed(7)
    eager = make()
    model = copy.deepcopy(eager)
    return eager, model, compiled(model, **settings)


def rows(count=6):
    return torch.randn(count, 8)


def squares(y):
    return y.pow(2).sum()


def same_gradients(model, eager):
    for (name, p), q in zip(model.named_parameters(), eager.parameters()):
        assert (p.grad is None) == (q.grad is None), name
        if p.grad is not None:
            same(p.grad, q.grad, name)
            assert p.grad.stride() == q.grad.stride()


def compare(make, use, times=2, **settings):
    """Calls `use(model)` for both twins from the same seed, some times. Compares what it returns,
    gradients, buffers and the generator."""
    eager, model, planned = twins(make, **settings)
    for k in range(times):
        torch.manual_seed(k)
        expected, state = use(eager), torch.get_rng_state()
        torch.manual_seed(k)
        result = use(planned)
        same(result, expected, f"result {k}")
        assert result.stride() == expected.stride()
        assert torch.equal(torch.get_rng_state(), state), "the generators differ"
        same_gradients(model, eager)
        same_dicts(model.state_dict(), eager.state_dict(), "model")
    return model, planned


def large_perceptron():
    layers = nn.Linear(8, 64), nn.GELU(), nn.Dropout(0.3), nn.Linear(64, 64), nn.Dropout(0.1)
    return nn.Sequential(*layers, nn.Linear(64, 4))


def language_model():
    t = pytest.importorskip("transformers")
    ends = dict(bos_token_id=0, eos_token_id=0)
    size = dict(vocab_size=50, n_layer=2, n_embd=32, n_head=2, n_positions=16)
    model = t.GPT2LMHeadModel(t.GPT2Config(use_cache=False, **size, **ends))
    return model.train()


def next_word(model, x):
    return next_token(lambda words: model(input_ids=words).logits, x)


def convolutional():
    def block(before):
        return nn.Conv2d(before, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU()

    blocks = [layer for before in (3, 8, 8, 8, 8, 8) for layer in block(before)]
    return nn.Sequential(*blocks, nn.MaxPool2d(4), nn.Flatten(), nn.Linear(512, 10))


TRAINED = {
    "perceptron": (
        large_perceptron, classify, adamw, lambda k: (rows(256), torch.randint(4, (256,)))
    ),
    "gpt2": (language_model, next_word, adamw, lambda k: torch.randint(50, (8, 16))),
    "convolutional": (convolutional, classify, sgd, images),
}
NAMES = [pytest.param(n, marks=pytest.mark.short if n == "perceptron" else ()) for n in TRAINED]


@pytest.mark.parametrize("budget", ["50%", "min"])
@pytest.mark.parametrize("name", NAMES)
def test_training(name, budget, plans, monkeypatch):
    make, loss_fn, make_optimizer, batches = TRAINED[name]
    eager, model, planned = twins(make, budget=budget, fullgraph=True)
    eager_optimizer, optimizer = make_optimizer(eager), make_optimizer(model)
    data = [batches(k) for k in range(STEPS)]

    def train(model, optimizer):
        torch.manual_seed(5)
        for batch in data:
            optimizer.zero_grad()
            loss = loss_fn(model, batch)
            loss.backward()
            optimizer.step()
            yield loss

    expected = list(train(eager, eager_optimizer))
    state = torch.get_rng_state()
    taken = taken_at_launches(monkeypatch)
    for k, loss in enumerate(train(planned, optimizer)):
        same(loss, expected[k], f"loss {k}")
    assert torch.equal(torch.get_rng_state(), state), "the generators differ"
    same_dicts(model.state_dict(), eager.state_dict(), "model")
    same_dicts(optimizer.state_dict(), eager_optimizer.state_dict(), "optimizer")
    (plan,) = plans
    assert taken == {mapped_bytes(plan)}
    assert plan.figures.peak_bytes <= mapped_bytes(plan) <= plan.budget_bytes
    if budget == "min":
        assert in_chunks(plan.figures.peak_bytes) == plan.budget_bytes


def taken_at_launches(monkeypatch):
    """Returns the set that gets the bytes of the device's memory at each launch, in all sessions."""
    gc.collect()  # sessions of other tests would close meanwhile
    before, launch, taken = memory_files(), _Kernels.launch, set()

    def watched(self, *args):
        launch(self, *args)
        taken.add(sum(file.stat().st_blocks * 512 for file in memory_files() - before))

    monkeypatch.setattr(_Kernels, "launch", watched)
    return taken


class Several(nn.Module):
    """Returns a loss and other results, with and without gradients."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout()

    def forward(self, x):
        h = self.dropout(self.first(x)).relu()
        return h.pow(2).mean(), self.second(h), h.detach(), h.argmax(1)


@pytest.mark.parametrize(
    "loss_of",
    [
        lambda r: r[0],
        lambda r: squares(r[1]),
        lambda r: r[0] + squares(r[1]),
        lambda r: r[1].sum(),  # whose gradient is one element, expanded
        lambda r: squares(r[1][::2]),
    ],
)
def test_any_results_may_get_gradients(loss_of):
    x = rows()

    def use(model):
        results = model(x)
        assert [r.requires_grad for r in results] == [True, True, False, False]
        loss_of(results).backward()
        return torch.cat([r.flatten().double() for r in results])

    compare(Several, use)


def test_other_results_get_gradients_than_before():
    x, turns = rows(), [0, 1, 0]

    def use(model):
        for k in turns:
            squares(model(x)[k]).backward()
        return model(x)[1]

    compare(Several, use)


def test_the_generator_is_handed_back_wherever_ops_leave_it(monkeypatch):
    x, launch = rows(), _Kernels.launch

    def disturbed(self, *args):
        launch(self, *args)
        torch.rand(3)

    monkeypatch.setattr(_Kernels, "launch", disturbed)

    def use(model):
        loss = squares(model(x))
        noise = torch.rand(3)
        loss.backward()
        return loss + noise.sum()

    compare(perceptron, use)


def test_two_forward_passes_before_a_backward_pass():
    x, y = rows(), rows()

    def use(model):
        loss = squares(model(x)) + model(y).sum()
        loss.backward()
        return loss

    compare(perceptron, use)


def test_two_backward_passes():
    x = rows()

    def use(model):
        loss = squares(model(x))
        noise = torch.rand(3)
        loss.backward(retain_graph=True)
        loss.backward()
        return loss + noise.sum()

    compare(perceptron, use)


def test_gradients_accumulate_and_are_clipped():
    batches = [rows() for _ in range(3)]
    eager, model, planned = twins(perceptron)
    optimizers = adamw(eager), adamw(model)
    for step in range(3):
        for called, own, optimizer in zip((eager, planned), (eager, model), optimizers):
            torch.manual_seed(step)
            optimizer.zero_grad()
            for x in batches:
                (squares(called(x)) / 3).backward()
            nn.utils.clip_grad_norm_(own.parameters(), 0.1)
            optimizer.step()
    same_dicts(model.state_dict(), eager.state_dict(), "model")


class Broken(nn.Module):
    """Takes two graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.norm, self.dropout = nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.2)
        self.second = nn.Linear(8, 4)

    def forward(self, x):
        h = self.norm(self.dropout(self.first(x)))
        torch._dynamo.graph_break()
        return self.second(self.dropout(h))


@pytest.mark.short
def test_results_and_gradients_that_are_kept_stay_as_they_are():
    eager, model, planned = twins(perceptron)
    kept = []
    for function, parameters in ((eager, eager.parameters()), (planned, model.parameters())):
        torch.manual_seed(1)
        parameters = list(parameters)
        kept.append([])
        for _ in range(3):
            result = function(rows())
            result.square().mean().backward()
            kept[-1] += [result.detach(), parameters[0].grad, parameters[1].grad.numpy()]
            for parameter in parameters:
                parameter.grad = None
    for k, pair in enumerate(zip(*kept)):
        same(*map(torch.as_tensor, pair), f"tensor {k}")


def test_no_plan_moves_results_behind_the_pause(monkeypatch):
    """What the caller has when the forward pass ends, and the pause, depend on each other."""
    steps, plan = [], Step.plan
    monkeypatch.setattr(Step, "plan", lambda step, **how: steps.append(step) or plan(step, **how))
    torch.manual_seed(7)
    compiled(nn.Sequential(Scaled(), nn.BatchNorm1d(8), nn.Dropout()))(rows())
    before = True
    for op in steps[0].operations:
        if op.name == "backward":
            (order,) = op.reads
            before = False
        if op.name.startswith(("result", "update", "generator's end")):
            assert before and steps[0].storages[op.writes[0]].name == "order"
    assert not before and steps[0].storages[order].name == "order"


def test_two_models_in_one_loss():
    generator, discriminator = (twins(make) for make in (perceptron, lambda: nn.Linear(4, 1)))
    x = rows()
    for g, d in ((generator[0], discriminator[0]), (generator[2], discriminator[2])):
        torch.manual_seed(5)
        d(g(x)).mean().backward()
    for eager, model, _ in (generator, discriminator):
        same_gradients(model, eager)


def test_inputs_get_gradients():
    x = rows()

    def use(model):
        given = x.clone().requires_grad_()
        squares(model(given * 2)).backward()
        return given.grad

    compare(perceptron, use)


class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(8))

    def forward(self, x):
        return x * self.scale


@pytest.mark.parametrize("layout", [lambda x: x.expand(5, 6, 8), lambda x: x.t().contiguous().t()])
def test_inputs_keep_their_layout(layout):
    x = layout(rows())

    def use(model):
        y = model(x)
        squares(y).backward()
        return y

    compare(Scaled, use)


def test_shapes_have_plans_of_their_own(plans):
    def use(model):
        for count in (5, 6, 7, 5):
            loss = squares(model(rows(count)))
            loss.backward()
        return loss

    _, planned = compare(perceptron, use)
    assert len(plans) == 4  # of a graph for the first shape alone, and of one for all others
    with pytest.raises(ValueError, match=r"a batch of \(15, 8\) would be one shape more than the 8"):
        for count in range(10, 20):
            planned(rows(count))


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x):
        y = self.linear(x)
        return y, y.view(-1), y[1:], x.t(), self.linear.weight.view(-1), x, y.detach()[0]


def test_results_that_are_views():
    x = rows()

    def use(model):
        given = x.clone()
        results = model(given)
        assert [r.requires_grad for r in results] == [True] * 3 + [False, True, False, False]
        y, flat, part, transposed, weight, _, detached = results
        (squares(y) + squares(flat) + weight.sum()).backward()
        with torch.no_grad():
            y.add_(1)
            transposed.mul_(2)
        return torch.cat([r.detach().flatten() for r in (*results, given)])

    compare(Views, use)


class Halves(Views):
    def forward(self, x):
        return self.linear(x).chunk(2, 1)


def test_results_that_are_parts_of_one_tensor():
    x = rows()

    def use(model):
        mean, spread = model(x)
        assert mean.stride() == (8, 1)
        (mean * spread.exp()).sum().backward()
        return mean

    compare(Halves, use)


def test_buffers_and_weights_that_the_forward_pass_updates():
    def make():
        return nn.Sequential(nn.Embedding(9, 4, max_norm=0.5), nn.Linear(4, 8), nn.BatchNorm1d(8))

    def use(model):
        words = torch.randint(9, (6,))
        squares(model(words)).backward()
        return model(words)

    compare(make, use)


def test_constants():
    lasting = torch.rand(8)
    weight = torch.randn(8, requires_grad=True)

    def scaled(x):
        return squares(x * weight * torch.tensor([1.0, 2.0] * 4) + lasting)

    planned, x = compiled(scaled), rows()
    for _ in range(2):
        gradients = [torch.autograd.grad(f(x), weight)[0] for f in (planned, scaled)]
        same(*gradients, "gradient")
        with torch.no_grad():
            lasting.mul_(2)
            weight.mul_(2)


def test_autocast_of_the_forward_pass():
    x = rows()

    def use(model):
        with torch.autocast("cpu", torch.bfloat16):
            y = model(x)
        assert y.dtype == torch.bfloat16
        squares(y).backward()
        return y

    compare(perceptron, use)


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = perceptron()

    def forward(self, x):
        return checkpoint(self.layers, x, use_reentrant=False)


def test_checkpoints_are_left_to_the_plan():
    x = rows()

    def use(model):
        squares(model(x)).backward()
        return model(x)

    compare(Checkpointed, use)


class Noise(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, gradient):
        return gradient + torch.randn_like(gradient)


class Noisy(Several):
    def forward(self, x):
        return self.dropout(Noise.apply(self.dropout(self.first(x))))


def test_random_numbers_of_the_backward_pass():
    x = rows()

    def use(model):
        y = model(x)
        noise = torch.rand(2)
        squares(y).backward()
        return noise

    compare(Noisy, use)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x, w: (lambda y: (y[1:], y[:3]))(x * w), "two results are views that share memory"),
        (lambda x, w: (x * w, x.view(torch.int32)), "result 1 shares the memory of input 0"),
    ],
)
def test_what_is_refused(function, message):
    weight = torch.ones(8, requires_grad=True)
    planned = compiled(lambda x: function(x, weight))
    with pytest.raises(CaptureError, match=f"{message}.*use spillway.torch.capture"):
        planned(rows())


@pytest.mark.parametrize("specializes", [False, True])
def test_a_number_of_python_that_changes_names_the_setting_that_it_needs(specializes):
    eager, model, planned = twins(perceptron)
    x = rows()
    with torch._dynamo.config.patch(specialize_float=specializes):
        for rate in (0.1, 0.4, 0.2):
            eager[2].p = model[2].p = rate
            if rate != 0.1 and not specializes:
                with pytest.raises(CaptureError, match=r"specialize_float = True.*torch.compiler.disable"):
                    planned(x)
                continue
            for called in (eager, planned):
                torch.manual_seed(1)
                squares(called(x)).backward()
            same_gradients(model, eager)


def test_gradients_of_gradients_are_refused():
    _, model, planned = twins(perceptron)
    loss = squares(planned(rows()))
    with pytest.raises(CaptureError, match="create_graph=True.*use spillway.torch.capture"):
        torch.autograd.grad(loss, model[0].weight, create_graph=True)


def test_autocast_of_the_backward_pass_is_refused():
    _, _, planned = twins(perceptron)
    with torch.autocast("cpu", torch.bfloat16):
        loss = squares(planned(rows()))
        with pytest.raises(CaptureError, match="outside of it, or use spillway.torch.capture"):
            loss.backward()


def test_a_weight_that_is_written_before_the_backward_pass_needs_it_is_refused():
    _, model, planned = twins(perceptron)
    first, _second = planned(rows()), planned(rows())
    with torch.no_grad():
        model[3].weight.mul_(2)
    with pytest.raises(CaptureError, match="between forward and backward.*spillway.torch.capture"):
        squares(first).backward()
    squares(planned(rows())).backward()


def test_forward_passes_without_backward_passes_leave_nothing():
    eager, model, planned = twins(perceptron)
    x, files = rows(), memory_files()
    for _ in range(3):
        planned(x)
    wait_for(lambda: not iterations() and memory_files() == files)
    torch.manual_seed(3)
    squares(eager(x)).backward()
    torch.manual_seed(3)
    kept, dropped = planned(x), planned(x)
    assert iterations() == 1
    del dropped
    squares(kept).backward()
    same_gradients(model, eager)


def test_an_error_between_the_passes():
    eager, model, planned = twins(perceptron)
    x = rows()
    with pytest.raises(RuntimeError, match="size mismatch"):
        planned(x) @ torch.ones(9)
    for called in (eager, planned):
        torch.manual_seed(3)
        squares(called(x)).backward()
    same_gradients(model, eager)


def test_an_error_of_an_op_ends_the_iteration(monkeypatch):
    eager, model, planned = twins(perceptron)
    x, launch = rows(), _Kernels.launch

    def failing(self, op, *args):
        if op == len(self._step.operations) - 1:
            raise KeyError("the last op")
        launch(self, op, *args)

    with monkeypatch.context() as patched:
        patched.setattr(_Kernels, "launch", failing)
        with pytest.raises(KeyError, match="the last op"):
            squares(planned(x)).backward()
    for called in (eager, planned):
        torch.manual_seed(3)
        squares(called(x)).backward()
    same_gradients(model, eager)


def test_threads():
    def make():
        return nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4))

    eager, model, planned = twins(make)
    x = rows()

    def train():
        torch.set_num_threads(1)
        squares(planned(x)).backward()

    threads = [threading.Thread(target=train) for _ in range(4)]
    train()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(5):
        squares(eager(x)).backward()
    same_gradients(model, eager)


def test_as_many_threads_compute_as_the_caller_has(monkeypatch):
    _, _, planned = twins(perceptron)
    launch, counts = _Kernels.launch, []

    def counted(self, *args):
        counts.append(torch.get_num_threads())
        launch(self, *args)

    monkeypatch.setattr(_Kernels, "launch", counted)
    for count in (3, 2):
        torch.set_num_threads(count)
        loss = squares(planned(rows()))
        assert set(counts) == {count}
        counts.clear()
    torch.set_num_threads(1)
    loss.backward()
    assert set(counts) == {1}


def test_python_ends_while_an_iteration_waits():
    program = """
import torch, spillway
machine = spillway.Machine("test", 8 << 30, 8 << 30, 4096, 10**9, 10**9)
options = dict(budget="min", machine=machine)
planned = torch.compile(torch.nn.Linear(8, 4), backend="spillway", options=options)
kept = planned(torch.randn(3, 8))
raise SystemExit(7)
"""
    package = Path(spillway.__file__).parents[1]
    ended = subprocess.run([sys.executable, "-c", program], cwd=package, timeout=120)
    assert ended.returncode == 7


@pytest.mark.short
def test_one_graph_serves_whichever_inputs_require_gradients():
    torch.manual_seed(7)
    x, w, b = torch.randn(6, 8), torch.randn(4, 8), torch.zeros(4, requires_grad=True)
    graph = torch.fx.symbolic_trace(lambda x, w, b: (torch.tanh(F.linear(x, w, b)),))
    run = compile_graph(graph, [x, w, b], options=dict(budget="min", machine=MACHINE))
    for is_trained in (False, True, False):
        w.requires_grad_(is_trained)
        wanted = (w, b) if is_trained else (b,)
        gradients = [torch.autograd.grad(squares(f(x, w, b)[0]), wanted) for f in (run, graph)]
        for gradient, expected in zip(*gradients):
            same(gradient, expected, "gradient")

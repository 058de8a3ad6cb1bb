"""`torch.compile(model, backend="spillway")` without gradients."""

import copy

import models
import pytest
import torch
from eager import MACHINE, same, same_dicts
from torch import nn
from torch.nn import functional as F

from spillway.torch import capturing

pytestmark = pytest.mark.short


@pytest.fixture(autouse=True)
def compiled_anew():
    torch.compiler.reset()


def compiled(model, budget="min", **settings):
    options = dict(budget=budget, machine=MACHINE, settings=dict(effort=1))
    return torch.compile(model, backend="spillway", options=options, **settings)


def perceptron():
    torch.manual_seed(7)
    return nn.Sequential(nn.Linear(8, 64), nn.GELU(), nn.Linear(64, 64), nn.Linear(64, 4))


@pytest.fixture
def captured(monkeypatch):
    """The steps that the backend captures while a test runs."""
    steps, capture = [], capturing.Inference.capture

    def captured(source, batch):
        steps.append(capture(source, batch))
        return steps[-1]

    monkeypatch.setattr(capturing.Inference, "capture", captured)
    return steps


@pytest.mark.parametrize("name", ["gpt2", "unet", "mobilenet_v3_small", "experts"])
def test_models(name, captured):
    make, _, _, batches = models.model(name)
    torch.manual_seed(7)
    model = make().eval()
    planned = compiled(model, fullgraph=True)
    for k in range(3):
        x = batches(k)
        x = x[0] if isinstance(x, tuple) else x
        with torch.no_grad():
            a, b = planned(x), model(x)
        same(*(getattr(y, "logits", y) for y in (a, b)), f"result {k}")
    (step,) = captured
    states = {s.value.data_ptr() for s in step.storages if s.kind == "state"}
    assert {p.data_ptr() for p in model.parameters()} <= states


def test_each_shape_has_a_plan(captured):
    model = perceptron()
    planned = compiled(model, dynamic=False)
    for rows in (3, 5, 3):
        x = torch.randn(rows, 8)
        with torch.no_grad():
            same(planned(x), model(x), "result")
    assert len(captured) == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(budget=4096), "the budget of 4.00 KiB .* is too small: op"),
        (dict(bugdet="8GiB"), "'bugdet' is no option of spillway, perhaps 'budget': they are budget, machine"),
    ],
)
def test_options_are_those_of_a_plan(options, message):
    planned = torch.compile(perceptron(), backend="spillway", options=options)
    with torch.no_grad(), pytest.raises(Exception, match=message):
        planned(torch.randn(3, 8))


def test_shapes_that_vary(captured):
    model = perceptron()
    planned = compiled(model)
    with torch.no_grad():
        for rows in (3, 5, 7, 5):
            x = torch.randn(rows, 8)
            same(planned(x), model(x), "result")
        assert len(captured) == 3
        with pytest.raises(ValueError, match=r"a batch of \(18, 8\) would be one shape more than the 8"):
            for rows in range(12, 20):
                planned(torch.randn(rows, 8))


def test_frozen_models_need_no_gradients():
    model = perceptron().requires_grad_(False)
    x = torch.randn(3, 8)
    same(compiled(model)(x), model(x), "result")


def test_inference_mode():
    model, x = perceptron(), torch.randn(3, 8)
    planned = compiled(model)
    with torch.inference_mode():
        same(planned(x), model(x), "result")
        same(planned(x + 1), model(x + 1), "result")


def test_weights_that_are_made_in_inference_mode():
    with torch.inference_mode():
        model, x = nn.Linear(8, 8), torch.randn(3, 8)
        planned = compiled(model)
        for _ in range(2):
            same(planned(x), model(x), "result")
            model.weight.mul_(2)


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_constants(without):
    lasting = torch.rand(8)

    def scaled(x):
        return x * torch.tensor([1.0, 2.0] * 4) + lasting

    planned, x = compiled(scaled), torch.randn(3, 8)
    with without():
        for _ in range(2):
            same(planned(x), scaled(x), "result")
            lasting.mul_(2)


def test_autocast():
    model, x = perceptron(), torch.randn(3, 8)
    planned = compiled(model)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        y = planned(x)
        assert y.dtype == torch.bfloat16
        same(y, model(x), "result")


def test_weights_that_are_trained_between_calls_are_taken_over(captured):
    model = perceptron()
    planned = compiled(model)
    x = torch.randn(3, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(3):
        with torch.no_grad():
            same(planned(x), model(x), "result")
        F.mse_loss(model(x), torch.ones(3, 4)).backward()
        optimizer.step()
    assert len(captured) == 1
    model[2].weight = nn.Parameter(torch.randn(64, 64))
    with torch.no_grad():
        same(planned(x), model(x), "result")
        same(planned(x), model(x), "result")


@pytest.mark.parametrize("without", [torch.no_grad, torch.inference_mode])
def test_statistics_are_updated_in_the_model(without):
    norms = lambda: (nn.BatchNorm1d(4), nn.InstanceNorm1d(4, track_running_stats=True))
    make = lambda: nn.Sequential(nn.Linear(8, 16), *norms())
    model, expected = make(), make()
    expected.load_state_dict(model.state_dict())
    planned = compiled(model)
    for _ in range(3):
        x = torch.randn(6, 4, 8)
        with without():
            same(planned(x), expected(x), "result")
        same_dicts(model.state_dict(), expected.state_dict(), "model")


@pytest.mark.parametrize("of", ["weight", "batch", "neither"])
def test_ops_are_chosen_as_tensors_require_gradients(of, captured):
    """PyTorch has a product of matrices for tensors of which one requires gradients, and else one of batches."""
    torch.manual_seed(7)
    model = nn.Linear(5, 16, bias=False).requires_grad_(of == "weight")
    planned, x = compiled(model), torch.randn(2, 4, 5)
    with torch.no_grad():
        for shape in ((2, 4, 5), (1, 4, 5)):
            x = torch.randn(shape, requires_grad=of == "batch").transpose(0, 1)
            same(planned(x), model(x), f"result of {shape}")
    x = torch.randn(2, 4, 5)
    with torch.no_grad():
        for grads in (False, True):
            same(planned(x.requires_grad_(grads)), model(x), "result")
            model.requires_grad_(grads)
            same(planned(x), model(x), "result with another weight")
    assert {op.name.split("_")[0] for step in captured for op in step.operations} & {"mm", "bmm"}


def test_generation_with_a_cache_of_one_size(captured):
    transformers = pytest.importorskip("transformers")
    sizes = dict(hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4, vocab_size=60)
    torch.manual_seed(7)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, pad_token_id=0)).eval()
    planned = copy.deepcopy(model)
    model.compile(backend="eager")  # transformers computes otherwise if it is compiled
    planned.compile(backend="spillway", options=dict(budget="min", machine=MACHINE, settings=dict(effort=1)))
    how = dict(max_new_tokens=12, do_sample=False, eos_token_id=None, cache_implementation="static")
    counts = []
    for _ in range(3):
        tokens = torch.randint(60, (2, 7))
        results = [
            one.generate(tokens, return_dict_in_generate=True, output_logits=True, **how) for one in (planned, model)
        ]
        for k, (a, b) in enumerate(zip(*(result.logits for result in results), strict=True)):
            same(a, b, f"logits {k}")
        counts.append(len(captured))
    assert counts[0] == 2, "a prompt and a token"
    assert counts[2] == counts[1], "the masks of a first prompt are others"

"""Inference within a budget: the same bits as eager PyTorch without gradients."""

import inspect

import models
import pytest
import torch
from eager import compare_inference, planned_within, same, same_dicts
from torch import nn
from torch.utils._pytree import tree_leaves

import spillway.torch

pytestmark = pytest.mark.short

def test_all_results_of_a_language_model():
    make, _, _, batches = models.model("gpt2")
    model = make().eval()
    forward = lambda m, x: m(input_ids=x, use_cache=False, output_hidden_states=True)
    _, result = compare_inference(model, batches, forward)
    assert result.logits.shape == (2, 12, 50) and len(result.hidden_states) == 3


class Nested(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(4, 4))

    def forward(self, batch):
        y = batch["x"] @ self.weight
        return {"views": (y, y[1:, ::2], y.t()), "weight": self.weight, "given": batch["x"],
                "none": None, "number": 3, "empty": y[:0], "one": y[0].expand(3, 4)}


def test_results_may_be_nested_views_states_and_constants():
    _, result = compare_inference(Nested(), lambda k: {"x": torch.randn(5, 4)}, budget=None)
    assert result["none"] is None and result["number"] == 3
    compare_inference(Nested(), lambda k: {"x": torch.randn(5, 4)})


def test_results_may_have_no_elements():
    parts = lambda model, x: (*x.split([2, 0, 3]), model(x)[:0])
    compare_inference(nn.Linear(4, 4), lambda k: torch.randn(5, 4), parts, budget="min")


def test_results_may_be_undefined():
    model = nn.Linear(4, 4)
    step = spillway.torch.capture_inference(model, torch.randn(5, 4), lambda m, x: (m(x), torch.empty(3)))
    x = torch.randn(5, 4)
    result, undefined = step.compile(step.plan("min"))(x)
    assert torch.equal(result, model(x).detach()) and undefined.shape == (3,)


def test_an_op_may_take_only_probabilities():
    entropy = lambda model, batch: nn.functional.binary_cross_entropy(*batch)
    compare_inference(nn.Identity(), lambda k: (torch.rand(1), torch.rand(1)), entropy, budget="min")


class Wide(nn.Module):
    """Layers of which all, or parts, are returned."""

    def __init__(self, count=6):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(count))

    def forward(self, x):
        hidden = [x]
        for layer in self.layers:
            hidden.append(layer(hidden[-1]).relu())
        return hidden


RETURNED = {
    "whole": (lambda m, x: m(x)[-1], 1),
    "all": (lambda m, x: tuple(m(x)[1:]), 6),
    "most": (lambda m, x: m(x)[-1][:-1].t(), 1),
    "a small part": (lambda m, x: m(x)[-1][:, -1], 1 / 64),
    "twice": (lambda m, x: (m(x)[-1], m(x)[-1].t(), m(x)[-1][0]), 2 + 1 / 512),
    "one of it": (lambda m, x: (y := m(x)[-1], y.t(), y[0].expand(9, 64)), 1),
    "the batch and a weight": (lambda m, x: (x, m.layers[0].weight, m(x)[-1]), 2 + 1 / 8),
}


@pytest.mark.parametrize("budget", ["min", "60%", "100%"])
@pytest.mark.parametrize("forward, times", RETURNED.values(), ids=RETURNED)
def test_results_are_outputs_whose_downloads_are_planned(forward, times, budget):
    torch.manual_seed(7)
    make = lambda k: torch.randn(512, 64)
    model = Wide()
    step, _ = compare_inference(model, make, forward, budget)
    plan = planned_within(step, budget)
    results_bytes = sum(s.nbytes for s in step.storages if s.kind == "output")
    assert results_bytes == times * 512 * 64 * 4
    # Below 100 %, measured times decide whether a temporary leaves the device too.
    downloads_bytes = plan.figures.d2h_bytes
    assert downloads_bytes == results_bytes or (budget != "100%" and downloads_bytes > results_bytes)
    infer = step.compile(plan)
    with torch.inference_mode():
        x = make(0)
        for result, expected in zip(tree_leaves(infer(x)), tree_leaves(forward(model, x)), strict=True):
            same(result, expected, "result")
    assert infer._session.device_bytes <= plan.budget_bytes


def test_ops_that_make_results_are_not_repeated():
    forward = lambda m, x: (m(x), sum(m(x)[1:]))
    step, _ = compare_inference(Wide(12), lambda k: torch.randn(64, 64), forward, "min")
    kinds = lambda op: {step.storages[tensor].kind for tensor in op.writes}
    assert not [op for op in step.operations if op.repeatable and "output" in kinds(op)]


def test_results_have_the_strides_of_eager_mode():
    forward = lambda m, x: (m(x)[-1].t(), m(x)[-1].view(8, 8, 64).permute(2, 0, 1))
    _, results = compare_inference(Wide(), lambda k: torch.randn(64, 64), forward)
    assert [r.stride() for r in results] == [(1, 64), (1, 512, 64)]


def test_results_are_the_callers():
    model = nn.Linear(4, 4)
    step = spillway.torch.capture_inference(model, torch.randn(2, 4))
    infer = step.compile(planned_within(step, "50%"))
    first = infer(torch.ones(2, 4))
    kept = first.clone()
    infer(torch.zeros(2, 4))
    same(first, kept, "result")


def test_statistics_that_a_model_updates_are_written_back():
    torch.manual_seed(7)
    make = lambda: nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16))
    model, expected = make(), make()
    expected.load_state_dict(model.state_dict())
    step = spillway.torch.capture_inference(model, torch.randn(6, 8))
    infer = step.compile(planned_within(step, "35%"), strict=True)
    for _ in range(3):
        x = torch.randn(6, 8)
        with torch.no_grad():
            same(infer(x), expected(x), "result")
    assert not model[1].num_batches_tracked
    infer.sync()
    same_dicts(model.state_dict(), expected.state_dict(), "model")


def test_dropout_draws_what_eager_mode_draws():
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout())
    state = torch.get_rng_state()
    compare_inference(model, lambda k: torch.randn(6, 8))
    assert not torch.equal(torch.get_rng_state(), state)


def test_a_model_without_a_batch():
    class Constant(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(4))

        def forward(self):
            return self.weight * 2

    compare_inference(Constant(), lambda k: (), lambda model, batch: model(*batch))


def test_loaded_weights_are_taken_over():
    model = nn.Linear(4, 4)
    step = spillway.torch.capture_inference(model, torch.randn(2, 4))
    infer = step.compile(planned_within(step, "50%"))
    x = torch.randn(2, 4)
    assert infer(x).any()
    model.load_state_dict({name: torch.zeros_like(t) for name, t in model.state_dict().items()})
    assert not infer(x).any()


def branches(model, x):
    y = model(x)
    return y if y.sum() > 0 else -y


def reads(model, x):
    return model(x), model.weight.sum().item()


@pytest.mark.parametrize("refused", [branches, reads])
def test_what_depends_on_values_is_refused_with_its_line(refused):
    line = inspect.getsourcelines(refused)[1] + (2 if refused is branches else 1)
    with pytest.raises(spillway.torch.CaptureError, match=rf"test_inference\.py:{line}: "):
        spillway.torch.capture_inference(nn.Linear(4, 4), torch.randn(2, 4), refused)


def test_a_number_is_no_result():
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(()))
    with pytest.raises(spillway.torch.CaptureError, match="returns a number"):
        spillway.torch.capture_inference(model, (), lambda m, _: m.weight.item())

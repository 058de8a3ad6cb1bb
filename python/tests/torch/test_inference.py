"""Inference within a budget: the same bits as eager PyTorch without gradients."""

import inspect

import models
import pytest
import torch
from eager import compare_inference, planned_within, same, same_dicts
from torch import nn

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

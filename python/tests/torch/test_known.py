"""Python may use whole numbers that a step computes from shapes and constants alone."""

import pytest
import torch
from eager import compare
from torch import nn

import spillway.torch
from spillway.torch import CaptureError

pytestmark = pytest.mark.short


def model():
    return nn.Linear(6, 4)


def batches(k):
    return torch.randn(5, 6, generator=torch.Generator().manual_seed(k))


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.1)


def loss_with(condition):
    """Returns a loss that Python makes ten times as large if a condition holds for the batch."""

    def loss_fn(model, x):
        loss = model(x).square().mean()
        return 10 * loss if condition(x) else loss

    return loss_fn


def positions(x):
    return torch.arange(x.shape[0], device=x.device)


CONDITIONS = {
    "a sum of positions": lambda x: positions(x).sum().item() == 10,
    "a part": lambda x: (positions(x)[1:3] == 2).any(),
    "packed sequences": lambda x: not (positions(x).unsqueeze(0).expand(2, -1).diff(dim=-1) != 1).cumsum(-1).any(),
    "a transposed result": lambda x: (torch.arange(6).view(2, 3).t() + 1)[2, 0].item() == 3,
    "a constant": lambda x: torch.full((2, 2), 3).sum() > 11,
    "one index": lambda x: torch.ones(4, dtype=torch.bool)[torch.arange(2)].all(),
    "a written number": lambda x: positions(x).clone().tolist()[-1] == 4,
}


@pytest.mark.parametrize("condition", CONDITIONS.values(), ids=CONDITIONS)
def test_a_step_may_branch_on_what_it_computes_of_shapes(condition):
    step, _ = compare(model, loss_with(condition), sgd, batches)
    factors = [op for op in step.operations if op.name.startswith("mul")]
    assert factors, "the condition holds"


def in_place(x):
    numbers = positions(x)
    numbers += (x[:, 0] > 0).sum()
    return numbers.sum().item() > 0


def through_a_view(x):
    numbers = positions(x)
    numbers[1:2].fill_(3)
    return numbers[1].item() > 0


REFUSED = {
    "the batch": lambda x: (x > 0).sum().item() > 3,
    "the batch's positions": lambda x: (positions(x) * (x[:, 0] > 0)).sum() > 3,
    "fractions, which devices round": lambda x: (positions(x) / 3).sum() > 3,
    "random numbers": lambda x: torch.randint(5, (3,)).sum() > 3,
    "what has no value": lambda x: torch.empty(3, dtype=torch.int64).sum() > 3,
    "a tensor that was written": in_place,
    "a tensor of which a part was written": through_a_view,
    "many numbers": lambda x: torch.arange(1 << 20 | 1)[0] == 0,
}


@pytest.mark.parametrize("condition", REFUSED.values(), ids=REFUSED)
def test_other_values_are_refused(condition):
    made = model()
    with pytest.raises(CaptureError, match=r"Python needs the value of a tensor"):
        spillway.torch.capture(made, loss_with(condition), sgd(made), batches(0))


def test_transformers_leaves_out_masks_as_in_eager_mode():
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, use_cache=False))
    tokens = torch.randint(64, (2, 32))

    def attentions(function):
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], record_shapes=True) as seen:
            function()
        found = [e for e in seen.events() if e.name == "aten::scaled_dot_product_attention"]
        assert found
        return [bool(e.input_shapes[3]) for e in found]

    def forward(model, x):
        return model(input_ids=x).logits

    step = spillway.torch.capture_inference(llama, tokens, forward)
    names = [op.name for op in step.operations]
    assert attentions(lambda: forward(llama, tokens)) == [False, False]
    assert any("scaled_dot_product" in name for name in names)
    made = [name for name in names if name.startswith(("bitwise_and", "le", "where"))]
    assert not made, "an op makes a mask"
    assert transformers.masking_utils.is_tracing.__module__ == "transformers.utils.import_utils"


def test_masks_of_a_batch_are_not_looked_at():
    transformers = pytest.importorskip("transformers")
    sizes = dict(vocab_size=64, hidden_size=32, intermediate_size=48, num_hidden_layers=1, num_attention_heads=2)
    llama = transformers.LlamaForCausalLM(transformers.LlamaConfig(**sizes, use_cache=False))
    batch = torch.randint(64, (2, 16)), torch.ones(2, 16, dtype=torch.int64)

    def forward(model, batch):
        return model(input_ids=batch[0], attention_mask=batch[1]).logits

    step = spillway.torch.capture_inference(llama, batch, forward)
    with step.compile(step.plan("100%")) as run, torch.no_grad():
        for last in (1, 0):
            batch[1][0, -1] = last
            assert torch.equal(run(batch), forward(llama, batch))

"""Models with random ops, buffers, tied and frozen weights: the same bits as eager PyTorch."""

import dataclasses
from functools import partial

import models
import pytest
import torch
from eager import compare, compare_inference
from models import adamw, classify, tokens
from torch import nn
from torch.nn import functional as F

import spillway.torch
from spillway.torch.measuring import Measurements


@pytest.fixture(params=[None, "50%", "35%", "25%"])
def budget(request):
    return request.param


def vectors(k):
    return torch.randn(16, 20), torch.randint(5, (16,))


def test_dropout_draws_what_eager_mode_draws(budget):
    def make():
        layers = nn.Linear(20, 32), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(), nn.Linear(32, 5)
        return nn.Sequential(*layers)

    step, train = compare(make, classify, adamw, vectors, budget=budget)
    random = [op for op in step.operations if op.measured.draws]
    assert len(random) == 2 and all(op.repeatable for op in random)
    if budget is None:
        assert train._session.repeats > 0


def test_random_tensors(budget):
    def noisy(model, batch):
        x, y = batch
        x = x + torch.randn_like(x) * torch.rand(16, 1) + torch.normal(0.0, 1.0, (20,))
        return F.cross_entropy(model(x[torch.randperm(16)]), y)

    compare(lambda: nn.Linear(20, 5), noisy, adamw, vectors, budget=budget)


def test_batch_norm_updates_its_statistics_once(budget):
    def make():
        return nn.Sequential(nn.Linear(20, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Linear(32, 5))

    step, _ = compare(make, classify, adamw, vectors, budget=budget)
    (norm,) = [op for op in step.operations if op.name == "native_batch_norm"]
    assert norm.repeatable


@pytest.mark.short
def test_an_out_variant_that_computes_something_else_is_not_used():
    """With transposed input, that of `native_batch_norm` does."""

    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.head = nn.BatchNorm1d(20), nn.Linear(20, 5)

        def forward(self, x):
            return self.head(self.norm(x.transpose(1, 2)).mean(2))

    batches = lambda k: (torch.randn(16, 6, 20), torch.randint(5, (16,)))
    step, _ = compare(Model, classify, adamw, batches)
    copying = [op.name for op in step.operations if op.measured.copies]
    assert copying == ["native_batch_norm"]


def test_frozen_and_unused_weights():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(20, 32), nn.Linear(32, 5)
            self.unused = nn.Linear(3, 3)
            self.first.requires_grad_(False)

        def forward(self, x):
            return self.second(self.first(x).relu())

    step, _ = compare(Model, classify, adamw, vectors)
    frozen = [s for s in step.storages if s.name == "first.weight"]
    assert [s.writes for s in frozen] == [0]


def test_constants_of_the_loss_are_states():
    weight = torch.rand(5)

    def weighted(model, batch):
        return F.cross_entropy(model(batch[0]), batch[1], weight=weight)

    compare(lambda: nn.Linear(20, 5), weighted, adamw, vectors)


def test_transformer_with_dropout_and_attention(budget):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 32)
            layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.1, batch_first=True)
            self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(32, 50, bias=False)
            self.head.weight = self.embedding.weight

        def forward(self, x):
            return self.head(self.encoder(self.embedding(x)))

    def loss_fn(model, x):
        return F.cross_entropy(model(x).flatten(0, 1), x.flatten())

    compare(Model, loss_fn, adamw, tokens, budget=budget)


def test_autocast(budget):
    def mixed(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return classify(model, batch)

    def make():
        return nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5))

    compare(make, mixed, adamw, vectors, budget=budget)


@pytest.mark.short
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.RMSNorm, partial(nn.GroupNorm, 4)])
def test_statistics_of_a_norm_under_autocast(norm):
    """They have 32 bits, but 16 bits for fake tensors."""

    def make():
        torch.manual_seed(7)
        return nn.Sequential(nn.Linear(16, 16), norm(16), nn.Linear(16, 4))

    def loss_fn(model, x):
        with torch.autocast("cpu", torch.bfloat16):
            return model(x).float().square().mean()

    compare(make, loss_fn, adamw, lambda k: torch.randn(8, 16))


@pytest.mark.parametrize("name", models.TEN)
def test_ten_models_are_trained(name, budget):
    make, loss_fn, optimizer, batches = models.model(name)
    compare(make, loss_fn, optimizer, batches, budget=budget)


def predict(model, batch):
    x = batch[0] if isinstance(batch, tuple) else batch
    if not hasattr(model, "config"):
        return model(x)
    labels = dict(labels=x) if model.config.is_encoder_decoder else {}
    return model(**{model.main_input_name: x}, **labels).logits


@pytest.mark.parametrize("name", models.TEN)
def test_ten_models_infer(name, budget):
    make, _, _, batches = models.model(name)
    torch.manual_seed(7)
    model = make().eval()
    step, _ = compare_inference(model, batches, predict, budget)
    states = [s for s in step.storages if s.kind == "state"]
    assert not any(s.writes for s in states)
    assert {id(p) for p in model.parameters()} <= {id(s.value) for s in states}


def test_an_op_with_undefined_bytes_is_not_repeated(monkeypatch):
    measure = Measurements.measure

    def lucky(self, call, storages):
        return dataclasses.replace(measure(self, call, storages), repeats=True)

    monkeypatch.setattr(Measurements, "measure", lucky)
    make, loss_fn, optimizer, batches = models.model("lstm")
    model = make()
    step = spillway.torch.capture(model, loss_fn, optimizer(model), batches(0))
    layers = [op for op in step.operations if op.name.startswith("mkldnn_rnn_layer")]
    repeatable = [op.repeatable for op in layers if "backward" not in op.name]
    assert repeatable == [False] * 5

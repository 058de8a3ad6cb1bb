"""Models with random ops, buffers, tied and frozen weights: the same bits as eager PyTorch."""

import pytest
import torch
from eager import compare
from torch import nn
from torch.nn import functional as F


@pytest.fixture(params=[None, "50%", "35%", "25%"])
def budget(request):
    return request.param


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def classify(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def vectors(k):
    return torch.randn(16, 20), torch.randint(5, (16,))


def images(k):
    return torch.randn(2, 3, 32, 32), torch.randint(10, (2,))


def tokens(k):
    return torch.randint(50, (2, 12))


def test_dropout_draws_what_eager_mode_draws(budget):
    def make():
        return nn.Sequential(nn.Linear(20, 32), nn.Dropout(0.3), nn.ReLU(), nn.Dropout(), nn.Linear(32, 5))

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


def test_lstm(budget):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(50, 16)
            self.lstm = nn.LSTM(16, 24, num_layers=2, dropout=0.2, batch_first=True)
            self.head = nn.Linear(24, 50)

        def forward(self, x):
            return self.head(self.lstm(self.embedding(x))[0])

    def loss_fn(model, x):
        return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())

    compare(Model, loss_fn, adamw, tokens, budget=budget)


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

    compare(Model, lambda m, x: F.cross_entropy(m(x).flatten(0, 1), x.flatten()), adamw, tokens, budget=budget)


def test_autocast(budget):
    def mixed(model, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return classify(model, batch)

    compare(lambda: nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 5)), mixed, adamw, vectors, budget=budget)


def test_gpt2(budget):
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=50, n_positions=16)

    def loss_fn(model, x):
        return model(input_ids=x, labels=x).loss

    compare(lambda: transformers.GPT2LMHeadModel(config).train(), loss_fn, adamw, tokens, budget=budget)


def test_resnet(budget):
    torchvision = pytest.importorskip("torchvision")
    compare(lambda: torchvision.models.resnet18(num_classes=10), classify, sgd, images, budget=budget)

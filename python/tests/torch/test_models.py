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


def published(name):
    """Returns the function that makes a small model of a package, its loss, and its batches."""
    transformers = pytest.importorskip("transformers")
    models = pytest.importorskip("torchvision").models

    def words(model, x):
        return model(input_ids=x, labels=x).loss

    def pictures(model, batch):
        return model(pixel_values=batch[0], labels=batch[1]).loss

    def language(model, config, **settings):
        return lambda: model(config(vocab_size=50, **settings)).train(), words, tokens

    small = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    t = transformers
    if name == "gpt2":
        size = dict(n_layer=2, n_embd=32, n_head=2, n_positions=16)
        return language(t.GPT2LMHeadModel, t.GPT2Config, **size)
    if name == "llama":
        return language(t.LlamaForCausalLM, t.LlamaConfig, num_key_value_heads=1, **small)
    if name == "bert":
        return language(t.BertForMaskedLM, t.BertConfig, **small)
    if name == "t5":
        size = dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
        ids = dict(decoder_start_token_id=0, pad_token_id=0)
        return language(t.T5ForConditionalGeneration, t.T5Config, **size, **ids)
    if name == "vit":
        config = t.ViTConfig(image_size=32, patch_size=8, num_labels=10, **small)
        return lambda: t.ViTForImageClassification(config).train(), pictures, images
    return lambda: getattr(models, name)(num_classes=10), classify, images


@pytest.mark.parametrize(
    "name", ["gpt2", "llama", "bert", "t5", "vit", "resnet18", "resnet50", "mobilenet_v3_small"]
)
def test_published_models(name, budget):
    make, loss_fn, batches = published(name)
    optimizer = sgd if name.startswith("resnet") else adamw
    compare(make, loss_fn, optimizer, batches, budget=budget)

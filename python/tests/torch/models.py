"""Small models, each with its loss and its batches."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

SHORT = [pytest.param(name, marks=pytest.mark.short) for name in ("gpt2", "unet", "lstm")]
TEN = [*SHORT, "llama", "bert", "t5", "vit", "resnet50", "mobilenet_v3_small", "experts"]


def adamw(model):
    return torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)


def sgd(model):
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def classify(model, batch):
    x, y = batch
    return F.cross_entropy(model(x), y)


def next_token(model, x):
    return F.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())


def images(k):
    return torch.randn(2, 3, 32, 32), torch.randint(10, (2,))


def tokens(k):
    return torch.randint(50, (2, 12))


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 24, num_layers=5, dropout=0.2, batch_first=True)
        self.head = nn.Linear(24, 50)

    def forward(self, x):
        return self.head(self.lstm(self.embedding(x))[0])


class UNet(nn.Module):
    """Halves the picture twice and doubles it again, with a connection across at each size."""

    def __init__(self):
        super().__init__()

        def block(before, after):
            def layer(before):
                convolution = nn.Conv2d(before, after, 3, padding=1)
                return nn.Sequential(convolution, nn.GroupNorm(4, after), nn.SiLU())

            return nn.Sequential(layer(before), layer(after), layer(after))

        self.down = nn.ModuleList([block(3, 8), block(8, 16)])
        self.middle = block(16, 32)
        self.grow = nn.ModuleList(
            [nn.ConvTranspose2d(32, 16, 2, stride=2), nn.ConvTranspose2d(16, 8, 2, stride=2)]
        )
        self.up = nn.ModuleList([block(32, 16), block(16, 8)])
        self.head = nn.Conv2d(8, 3, 1)

    def forward(self, x):
        across = []
        for block in self.down:
            across.append(block(x))
            x = F.max_pool2d(across[-1], 2)
        x = self.middle(x)
        for grow, block in zip(self.grow, self.up):
            x = block(torch.cat([grow(x), across.pop()], dim=1))
        return self.head(x)


def denoise(model, pictures):
    return F.mse_loss(model(pictures + 0.1 * torch.randn_like(pictures)), pictures)


class Experts(nn.Module):
    """Four experts behind a router. Each takes the six tokens that it scores highest, so that
    shapes do not depend on values."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.router = nn.Linear(16, 4, bias=False)
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)
        )
        self.head = nn.Linear(16, 50)

    def forward(self, x):
        x = self.embedding(x)
        tokens = x.flatten(0, 1)
        gates, taken = self.router(tokens).softmax(dim=1).topk(6, dim=0)
        out = tokens
        for k, expert in enumerate(self.experts):
            result = gates[:, k, None] * expert(tokens[taken[:, k]])
            out = out.index_add(0, taken[:, k], result)
        return self.head(out).view(*x.shape[:2], -1)


def model(name):
    """Returns the function that makes a model, its loss, the maker of its optimizer, and its
    batches."""
    if name == "lstm":
        return Recurrent, next_token, adamw, tokens
    if name == "unet":
        return UNet, denoise, adamw, lambda k: images(k)[0]
    if name == "experts":
        return Experts, next_token, adamw, tokens
    if name.startswith(("resnet", "mobilenet")):
        models = pytest.importorskip("torchvision").models
        optimizer = sgd if name.startswith("resnet") else adamw
        return lambda: getattr(models, name)(num_classes=10), classify, optimizer, images
    return transformer(name)


def transformer(name):
    t = pytest.importorskip("transformers")

    def words(model, x):
        return model(input_ids=x, labels=x).loss

    def pictures(model, batch):
        return model(pixel_values=batch[0], labels=batch[1]).loss

    def language(model, config, **settings):
        return lambda: model(config(vocab_size=50, **settings)).train(), words, adamw, tokens

    small = dict(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    if name == "gpt2":
        ends = dict(bos_token_id=0, eos_token_id=0)
        size = dict(n_layer=2, n_embd=32, n_head=2, n_positions=16)
        return language(t.GPT2LMHeadModel, t.GPT2Config, **size, **ends)
    if name == "llama":
        return language(t.LlamaForCausalLM, t.LlamaConfig, num_key_value_heads=1, **small)
    if name == "bert":
        return language(t.BertForMaskedLM, t.BertConfig, **small)
    if name == "t5":
        size = dict(d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2)
        ids = dict(decoder_start_token_id=0, pad_token_id=0)
        return language(t.T5ForConditionalGeneration, t.T5Config, **size, **ids)
    config = t.ViTConfig(image_size=32, patch_size=8, num_labels=10, **small)
    return lambda: t.ViTForImageClassification(config).train(), pictures, adamw, images

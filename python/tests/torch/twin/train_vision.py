"""Vision."""

import pytest
import torch
from parts import adamw, classify, mlp, pictures, sgd
from sides import refused, same
from torch import nn
from torch.nn import functional as F


def net(*layers):
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LazyLinear(4))


def made(model):
    """Returns a model with lazy layers, once it has its weights."""
    model.eval()
    model(torch.zeros(1, 3, 8, 8))
    return model.train()


@same(short=True)
def convolutions_with_batch_norm_and_dropout(side):
    layers = nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout2d(0.2), nn.Conv2d(8, 8, 3)
    model = made(net(*layers))
    side.train(model, classify, sgd(model, momentum=0.9, weight_decay=1e-3), pictures())


@same
def residual_blocks(side):
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.norm = nn.GroupNorm(2, 8)

        def forward(self, x):
            return F.relu(x + self.b(F.relu(self.norm(self.a(x)), inplace=True)), inplace=True)

    model = made(net(nn.Conv2d(3, 8, 1), Block(), Block()))
    side.train(model, classify, adamw(model), pictures())


@same
def depthwise_convolutions_in_channels_last(side):
    layers = nn.Conv2d(3, 8, 3, stride=2), nn.Hardswish(), nn.Conv2d(8, 8, 3, groups=8), nn.Hardswish()
    model = made(net(*layers)).to(memory_format=torch.channels_last)
    data = [(x.contiguous(memory_format=torch.channels_last), y) for x, y in pictures()]
    side.train(model, classify, adamw(model), data)


@refused("Python needs the value of a tensor", names_line=False)
def batch_norm_with_cumulative_momentum(side):
    model = made(net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8, momentum=None)))
    side.train(model, classify, sgd(model), pictures())


@same
def batch_norm_that_is_frozen(side):
    model = made(net(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8)))
    model[1].eval()
    side.train(model, classify, sgd(model), pictures())


@same
def instance_norm_with_running_statistics(side):
    model = made(net(nn.Conv2d(3, 8, 3), nn.InstanceNorm2d(8, affine=True, track_running_stats=True)))
    side.train(model, classify, adamw(model), pictures())


@same
def a_vision_transformer(side):
    class Patches(nn.Module):
        def __init__(self):
            super().__init__()
            self.cut = nn.Conv2d(3, 16, 4, stride=4)
            self.first = nn.Parameter(torch.zeros(1, 1, 16))
            self.where = nn.Parameter(torch.randn(1, 5, 16) * 0.02)
            layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, norm_first=True)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
            self.head = nn.Linear(16, 4)

        def forward(self, x):
            x = self.cut(x).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1) + self.where
            return self.head(self.layers(x)[:, 0])

    model = Patches()
    side.train(model, classify, adamw(model), pictures())


@same
def segmentation(side):
    model = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), nn.PixelShuffle(2), nn.Upsample(scale_factor=1.0),
        nn.ConvTranspose2d(4, 4, 3, padding=1),
    )  # fmt: skip
    data = [(x, torch.randint(4, (4, 8, 8))) for x, _ in pictures()]
    side.train(model, lambda m, b: F.cross_entropy(m(b[0]), b[1], label_smoothing=0.1), adamw(model), data)


@same
def pooling_with_indices_and_interpolation(side):
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(3, 6, 3, padding=1), nn.Conv2d(6, 3, 3, padding=1)

        def forward(self, x):
            y, where = F.max_pool2d(self.a(x), 2, return_indices=True)
            y = F.max_unpool2d(y, where, 2)
            return self.b(F.interpolate(F.interpolate(y, 12, mode="bilinear"), 8, mode="bicubic"))

    model = Auto()
    side.train(model, lambda m, b: F.smooth_l1_loss(m(b[0]), b[0]), adamw(model), pictures())


@same
def a_spatial_transformer(side):
    class Warp(nn.Module):
        def __init__(self):
            super().__init__()
            self.where, self.head = nn.Linear(192, 6), nn.Linear(192, 4)

        def forward(self, x):
            theta = self.where(x.flatten(1)).view(-1, 2, 3)
            grid = F.affine_grid(theta, x.shape, align_corners=False)
            return self.head(F.grid_sample(x, grid, align_corners=False).flatten(1))

    model = Warp()
    side.train(model, classify, adamw(model), pictures())


@same
def mixup_drawn_by_pytorch(side):
    def loss_fn(m, batch):
        x, y = batch
        share = torch.distributions.Beta(0.4, 0.4, validate_args=False).sample()
        order = torch.randperm(len(x))
        out = m(share * x + (1 - share) * x[order])
        return share * F.cross_entropy(out, y) + (1 - share) * F.cross_entropy(out, y[order])

    model = made(net(nn.Conv2d(3, 8, 3), nn.ReLU()))
    side.train(model, loss_fn, adamw(model), pictures())


@same
def pictures_cut_by_assignment(side):
    def loss_fn(m, batch):
        x = batch[0].clone()
        x[:, :, 2:5, 1:4] = 0
        x[:, 0] *= 0.5
        return F.cross_entropy(m(x), batch[1])

    model = made(net(nn.Conv2d(3, 8, 3), nn.ReLU()))
    side.train(model, loss_fn, adamw(model), pictures())


@refused("depends on data")
def hard_examples_selected_by_a_mask(side):
    def loss_fn(m, batch):
        losses = F.cross_entropy(m(batch[0]), batch[1], reduction="none")
        return losses[losses > losses.mean()].mean()

    model = made(net(nn.Conv2d(3, 8, 3), nn.ReLU()))
    side.train(model, loss_fn, adamw(model), pictures())


@same
def hard_examples_selected_by_topk(side):
    def loss_fn(m, batch):
        return F.cross_entropy(m(batch[0]), batch[1], reduction="none").topk(2).values.mean()

    model = made(net(nn.Conv2d(3, 8, 3), nn.ReLU()))
    side.train(model, loss_fn, adamw(model), pictures())


@same
def focal_and_dice_losses(side):
    def loss_fn(m, batch):
        p = m(batch[0]).sigmoid()
        y = F.one_hot(batch[1], 4).float()
        focal = F.binary_cross_entropy(p, y, reduction="none") * (1 - torch.where(y > 0, p, 1 - p)) ** 2
        dice = 1 - (2 * (p * y).sum() + 1) / (p.sum() + y.sum() + 1)
        return focal.mean() + dice

    model = made(net(nn.Conv2d(3, 8, 3), nn.ReLU()))
    side.train(model, loss_fn, adamw(model), pictures())


@same
def a_torchvision_model(side):
    models = pytest.importorskip("torchvision").models
    model = models.shufflenet_v2_x0_5(num_classes=4)
    data = pictures(3, 2, 32)
    side.train(model, classify, sgd(model, momentum=0.9, nesterov=True), data)


@same
def contrastive_pairs(side):
    def loss_fn(m, batch):
        a, b = (F.normalize(m(x), dim=1) for x in batch)
        logits = a @ b.T / 0.1
        labels = torch.arange(len(a))
        return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2

    model = mlp()
    side.train(model, loss_fn, adamw(model), [(torch.randn(6, 8), torch.randn(6, 8)) for _ in range(5)])

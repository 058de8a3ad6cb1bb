"""Generative models."""

import copy

import torch
from parts import adam, adamw, mlp
from sides import refused, same
from torch import nn
from torch.nn import functional as F


def points(steps=5):
    return [torch.randn(8, 8) for _ in range(steps)]


class Denoiser(nn.Module):
    def __init__(self):
        super().__init__()
        self.time, self.net = nn.Embedding(10, 8), nn.Sequential(nn.Linear(8, 16), nn.SiLU(), nn.Linear(16, 8))
        self.register_buffer("kept", torch.linspace(0.99, 0.1, 10))

    def forward(self, x, t):
        return self.net(x + self.time(t))


def denoise(m, x):
    t, noise = torch.randint(10, (len(x),)), torch.randn_like(x)
    kept = m.kept[t, None]
    return F.mse_loss(m(kept.sqrt() * x + (1 - kept).sqrt() * noise, t), noise)


@same(short=True)
def diffusion(side):
    model = Denoiser()
    side.train(model, denoise, adamw(model), points())


@same
def diffusion_with_averaged_weights(side):
    model = Denoiser()
    average = torch.optim.swa_utils.AveragedModel(model, avg_fn=lambda a, p, n: 0.9 * a + 0.1 * p)
    train = side.capture(model, denoise, adamw(model), points()[0])
    for x in points():
        train(x)
        train.sync()
        average.update_parameters(model)
    side.show(average=average.state_dict())


@same
def flow_matching(side):
    def loss_fn(m, x):
        t, start = torch.rand(len(x), 1), torch.randn_like(x)
        return F.mse_loss(m((1 - t) * start + t * x), (x - start)[:, :4])

    model = mlp()
    side.train(model, loss_fn, adam(model), points())


@same
def a_variational_autoencoder(side):
    class Auto(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 8), nn.Linear(4, 8)

    def loss_fn(m, x):
        mean, spread = m.encoder(x).chunk(2, -1)
        z = torch.distributions.Normal(mean, F.softplus(spread), validate_args=False).rsample()
        divergence = -0.5 * (1 + spread - mean.square() - spread.exp()).mean()
        return F.mse_loss(m.decoder(z), x) + 0.1 * divergence

    model = Auto()
    side.train(model, loss_fn, adam(model), points())


@same
def score_matching_with_gradients_of_gradients(side):
    def loss_fn(m, x):
        x = x.clone().requires_grad_()
        (score,) = torch.autograd.grad(m(x).sum(), x, create_graph=True)
        return (score - x).square().mean()

    model = mlp()
    side.train(model, loss_fn, adam(model), points())


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.g = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 8))
        self.d = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1))


def judge(m, batch):
    x, z = batch
    return F.softplus(-m.d(x)).mean() + F.softplus(m.d(m.g(z).detach())).mean()


def deceive(m, batch):
    return F.softplus(-m.d(m.g(batch[1]))).mean()


def noisy_points():
    return [(x, torch.randn(8, 4)) for x in points()]


@same(short=True)
def two_captures_that_share_a_model(side):
    model, data = Pair(), noisy_points()
    judged = side.capture(model, judge, adam(model.d), data[0])
    deceived = side.capture(model, deceive, adam(model.g), data[0])
    for batch in data:
        judged(batch)
        deceived(batch)


@same
def two_captures_that_hand_over_by_sync_and_load(side):
    model, data = Pair(), noisy_points()
    judged = side.capture(model, judge, adam(model.d), data[0])
    deceived = side.capture(model, deceive, adam(model.g), data[0])
    for batch in data:
        judged(batch)
        judged.sync()
        deceived.load()
        deceived(batch)
        deceived.sync()
        judged.load()


@refused("that neither the model nor the optimizer has")
def two_models_each_a_constant_of_the_other(side):
    pair, data = Pair(), noisy_points()
    judged = side.capture(pair.d, lambda d, b: judge(pair, b), adam(pair.d), data[0])
    deceived = side.capture(pair.g, lambda g, b: deceive(pair, b), adam(pair.g), data[0])
    for batch in data:
        judged(batch)
        deceived(batch)


@same
def a_gradient_penalty(side):
    def loss_fn(m, batch):
        x, z = batch
        made = m.g(z).detach()
        share = torch.rand(len(x), 1)
        between = (share * x + (1 - share) * made).requires_grad_()
        (g,) = torch.autograd.grad(m.d(between).sum(), between, create_graph=True)
        return m.d(made).mean() - m.d(x).mean() + 10 * (g.norm(dim=1) - 1).square().mean()

    model = Pair()
    side.train(model, loss_fn, adam(model.d), noisy_points())


@same
def quantised_codes_with_averaged_counts(side):
    class Codes(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.decoder = nn.Linear(8, 4), nn.Linear(4, 8)
            self.register_buffer("codes", torch.randn(6, 4))
            self.register_buffer("counts", torch.ones(6))

        def forward(self, x):
            z = self.encoder(x)
            taken = torch.cdist(z, self.codes).argmin(1)
            hot = F.one_hot(taken, 6).float()
            with torch.no_grad():
                self.counts.mul_(0.9).add_(hot.sum(0), alpha=0.1)
                sums = hot.T @ z
                self.codes.lerp_(sums / self.counts.clamp(min=1e-3)[:, None], 0.1)
            q = z + (self.codes[taken] - z).detach()
            return self.decoder(q)

    model = Codes()
    side.train(model, lambda m, x: F.mse_loss(m(x), x), adam(model), points())


@same
def a_normalising_flow(side):
    class Coupling(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = nn.Linear(4, 8)

        def forward(self, x):
            a, b = x.chunk(2, 1)
            scale, shift = self.net(a).chunk(2, 1)
            return torch.cat([b * scale.tanh().exp() + shift, a], 1), scale.tanh().sum(1)

    model = nn.ModuleList([Coupling() for _ in range(3)])

    def loss_fn(m, x):
        total = 0
        for layer in m:
            x, log_det = layer(x)
            total = total + log_det
        return (0.5 * x.square().sum(1) - total).mean()

    side.train(model, loss_fn, adam(model), points())


@same
def a_copy_that_is_a_teacher_updated_between_steps(side):
    model = mlp()
    teacher = copy.deepcopy(model).requires_grad_(False)

    def loss_fn(m, x):
        return F.mse_loss(m(x), teacher(x + 0.1))

    train = side.capture(model, loss_fn, adam(model), points()[0])
    for x in points():
        train(x)
        train.sync()
        for mine, its in zip(teacher.parameters(), model.parameters()):
            mine.lerp_(its.detach(), 0.1)
    side.show(teacher=teacher.state_dict())

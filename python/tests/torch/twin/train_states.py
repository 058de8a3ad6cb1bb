"""Buffers, parametrizations, precisions, and other states of models."""

import torch
from parts import adam, adamw, classify, mlp, pictures, rows, sgd
from sides import refused, same
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations, prune


class Averaged(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = mlp()
        self.register_buffer("mean", torch.zeros(4))


@same(short=True)
def a_buffer_written_in_place(side):
    class Model(Averaged):
        def forward(self, x):
            y = self.net(x)
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            return y - self.mean.clone()

    model = Model()
    side.train(model, classify, sgd(model), rows())


@same(short=True)
def a_buffer_assigned(side):
    class Model(Averaged):
        def forward(self, x):
            y = self.net(x)
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return y - self.mean

    model = Model()
    side.train(model, classify, sgd(model), rows())


@same
def a_plain_tensor_attribute_assigned(side):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.mean = mlp(), torch.zeros(4)

        def forward(self, x):
            y = self.net(x)
            self.mean = 0.9 * self.mean + 0.1 * y.detach().mean(0)
            return y - self.mean

    model = Model()
    side.train(model, classify, sgd(model), rows())


@same
def a_plain_tensor_attribute_written_in_place(side):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.mean = mlp(), torch.zeros(4)

        def forward(self, x):
            y = self.net(x)
            self.mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
            return y - self.mean.clone()

    model = Model()
    side.train(model, classify, sgd(model), rows())


@same
def a_tensor_of_the_closure_written_in_place(side):
    model, mean = mlp(), torch.zeros(4)

    def loss_fn(m, batch):
        y = m(batch[0])
        mean.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return F.cross_entropy(y - mean.clone(), batch[1])

    side.train(model, loss_fn, sgd(model), rows())
    side.show(mean=mean)


@same
def a_loss_scaled_by_a_buffer(side):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("steps", torch.zeros((), dtype=torch.long))

        def forward(self, x):
            self.steps += 1
            return self.net(x) * torch.clamp(self.steps / 4, max=1.0)

    model = Model()
    side.train(model, classify, sgd(model), rows())


@same
def spectral_norm(side):
    model = nn.Sequential(parametrizations.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4))
    side.train(model, classify, sgd(model), rows())


@refused("store it with .detach()", names_line=False)
def spectral_norm_by_hooks(side):
    model = nn.Sequential(nn.utils.spectral_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4))
    side.train(model, classify, sgd(model), rows())


@same
def weight_norm_by_hooks(side):
    model = nn.Sequential(nn.utils.weight_norm(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4))
    side.train(model, classify, sgd(model), rows())


@same
def orthogonal_weights(side):
    model = nn.Sequential(parametrizations.orthogonal(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 4))
    side.train(model, classify, sgd(model), rows())


@same
def pruned_weights(side):
    model = mlp()
    prune.l1_unstructured(model[0], "weight", 0.5)
    side.train(model, classify, sgd(model), rows())


@refused("call sync() before you", names_line=False)
def weights_pruned_after_capture(side):
    model = mlp()

    def after(k):
        if k == 1:
            prune.l1_unstructured(model[0], "weight", 0.5)

    side.train(model, classify, sgd(model), rows(), after)


@same
def tied_weights_of_an_autoencoder(side):
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight, self.bias = nn.Parameter(torch.randn(4, 8)), nn.Parameter(torch.zeros(4))

        def forward(self, x):
            return F.linear(F.linear(x, self.weight, self.bias).relu(), self.weight.T)

    model = Tied()
    side.train(model, lambda m, b: F.mse_loss(m(b[0]), b[0]), adam(model), rows())


@same
def parameters_that_are_views_of_one_tensor(side):
    model = mlp()
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    at = 0
    for p in model.parameters():
        p.data = flat[at : at + p.numel()].view_as(p)
        at += p.numel()
    side.train(model, classify, sgd(model, momentum=0.9), rows())


@same
def parameters_of_several_types(side):
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8).bfloat16(), nn.Linear(8, 4).double()
            self.gain = nn.Parameter(torch.ones(()))
            self.nothing = nn.Parameter(torch.zeros(0, 3))
            self.register_buffer("mask", torch.rand(8) > 0.5)

        def forward(self, x):
            h = self.a(x.bfloat16()) * self.mask
            return self.b(h.double()) * self.gain + self.nothing.sum()

    model = Mixed()
    side.train(model, classify, sgd(model), rows())


@same
def transposed_parameters(side):
    model = mlp()
    model[0].weight = nn.Parameter(torch.randn(8, 16).T)
    side.train(model, classify, adam(model), rows())


@same(short=True)
def autocast_to_bfloat16(side):
    def loss_fn(m, batch):
        with torch.autocast("cpu", torch.bfloat16):
            return classify(m, batch)

    model = mlp()
    side.train(model, loss_fn, adamw(model), rows())


@same
def dropout_of_every_kind(side):
    layers = nn.Conv2d(3, 8, 3), nn.Dropout2d(0.2), nn.SELU(), nn.AlphaDropout(0.1), nn.FeatureAlphaDropout(0.1)
    model = nn.Sequential(*layers, nn.RReLU(), nn.Flatten(), nn.Linear(288, 4))
    side.train(model, classify, sgd(model), pictures())


@refused("seed it between iterations")
def a_seed_set_in_the_step(side):
    def loss_fn(m, batch):
        torch.manual_seed(3)
        return classify(m, (batch[0] + torch.randn(6, 8), batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("fork")
def a_generator_forked_in_the_step(side):
    def loss_fn(m, batch):
        with torch.random.fork_rng():
            noise = torch.randn(6, 8)
        return classify(m, (batch[0] + noise + torch.randn(6, 8), batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("draws from a generator")
def a_seed_read_in_the_step(side):
    def loss_fn(m, batch):
        noise = torch.empty(6, 8).normal_(generator=torch.Generator().manual_seed(torch.initial_seed() + 1))
        return classify(m, (batch[0] + noise, batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def seeds_between_steps(side):
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4))
    side.train(model, classify, sgd(model), rows(), lambda k: torch.manual_seed(k))


@same
def rngs_used_between_steps(side):
    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.Linear(16, 4))
    side.train(model, classify, sgd(model), rows(), lambda k: torch.randn(3))


@same
def fake_quantisation(side):
    def loss_fn(m, batch):
        weight = torch.fake_quantize_per_tensor_affine(m[0].weight, 0.05, 0, -128, 127)
        return F.cross_entropy(m[2](m[1](F.linear(batch[0], weight, m[0].bias))), batch[1])

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def lists_of_parameters(side):
    class Lists(nn.Module):
        def __init__(self):
            super().__init__()
            self.weights = nn.ParameterList([torch.randn(8, 8) for _ in range(2)])
            self.heads = {"a": nn.Linear(8, 4)}  # not registered
            self.last = nn.Linear(8, 4)

        def forward(self, x):
            for w in self.weights:
                x = (x @ w).tanh()
            return self.last(x)

    model = Lists()
    side.train(model, classify, sgd(model), rows())


@same
def a_module_in_a_plain_list_trained_by_the_optimizer(side):
    class Hidden(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers, self.head = [nn.Linear(8, 8)], nn.Linear(8, 4)

        def forward(self, x):
            return self.head(self.layers[0](x).relu())

    model = Hidden()
    optimizer = torch.optim.SGD([*model.parameters(), *model.layers[0].parameters()], lr=0.1)
    side.train(model, classify, optimizer, rows())
    side.show(hidden=model.layers[0].state_dict())


@refused("that neither the model nor the optimizer has")
def a_module_in_a_plain_list_that_is_not_trained(side):
    hidden = [nn.Linear(8, 8)]

    def loss_fn(m, batch):
        return classify(m, (hidden[0](batch[0]), batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())
    side.show(hidden=hidden[0].state_dict(), gradient=hidden[0].weight.grad is None)

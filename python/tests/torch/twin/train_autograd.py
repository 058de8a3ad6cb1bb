"""Autograd, `torch.func`, in-place ops, checkpoints."""

import torch
from parts import adam, adamw, classify, mlp, rows, sgd
from sides import refused, same
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint, checkpoint_sequential


@same
def activation_checkpoints(side):
    def loss_fn(m, batch):
        x = checkpoint(lambda x: m[1](m[0](x)), batch[0], use_reentrant=False)
        return F.cross_entropy(m[2](x), batch[1])

    model = mlp()
    side.train(model, loss_fn, adamw(model), rows())


@same
def reentrant_activation_checkpoints_with_dropout(side):
    def loss_fn(m, batch):
        x = batch[0].clone().requires_grad_()
        return F.cross_entropy(checkpoint_sequential(m, 2, x, use_reentrant=True), batch[1])

    model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(), nn.ReLU(), nn.Linear(16, 4))
    side.train(model, loss_fn, adamw(model), rows())


class Round(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.round()

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * (x.abs() < 1)


@same(short=True)
def a_function_with_a_backward_of_its_own(side):
    model = mlp()
    side.train(model, lambda m, b: F.cross_entropy(m[2](Round.apply(m[0](b[0]))), b[1]), sgd(model), rows())


@same
def a_reversed_gradient(side):
    class Reverse(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, weight):
            ctx.weight = weight
            return x.view_as(x)

        @staticmethod
        def backward(ctx, g):
            return -ctx.weight * g, None

    model = mlp()
    side.train(model, lambda m, b: F.cross_entropy(m[2](Reverse.apply(m[0](b[0]), 0.3)), b[1]), sgd(model), rows())


@same
def calls_by_functional_call(side):
    def loss_fn(m, batch):
        scaled = {n: p * 0.9 for n, p in m.named_parameters()}
        return F.cross_entropy(torch.func.functional_call(m, scaled, (batch[0],)), batch[1])

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def gradients_of_each_example_by_vmap(side):
    def loss_fn(m, batch):
        parameters = dict(m.named_parameters())

        def one(parameters, x, y):
            return F.cross_entropy(torch.func.functional_call(m, parameters, (x[None],)), y[None])

        each = torch.func.vmap(torch.func.grad(one), (None, 0, 0))(parameters, *batch)
        norm = sum(g.flatten(1).square().sum(1) for g in each.values()).sqrt()
        return (norm.detach().clamp(max=1) * F.cross_entropy(m(batch[0]), batch[1], reduction="none")).mean()

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def a_step_inside_the_step(side):
    def loss_fn(m, batch):
        x, y = batch
        inner = classify(m, (x[:3], y[:3]))
        parameters = dict(m.named_parameters())
        gradients = torch.autograd.grad(inner, parameters.values(), create_graph=True)
        moved = {n: p - 0.1 * g for (n, p), g in zip(parameters.items(), gradients)}
        return F.cross_entropy(torch.func.functional_call(m, moved, (x[3:],)), y[3:])

    model = mlp()
    side.train(model, loss_fn, adam(model), rows())


@refused("cannot be measured")
def jacobian_vector_products(side):
    def loss_fn(m, batch):
        out, tangent = torch.func.jvp(m, (batch[0],), (torch.ones_like(batch[0]),))
        return F.cross_entropy(out, batch[1]) + tangent.square().mean()

    model = mlp()
    side.train(model, loss_fn, adam(model), rows())


@same
def adversarial_examples(side):
    def loss_fn(m, batch):
        x = batch[0].clone().requires_grad_()
        (g,) = torch.autograd.grad(classify(m, (x, batch[1])), x)
        return classify(m, (x.detach() + 0.1 * g.sign(), batch[1]))

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def adversarial_weights(side):
    def loss_fn(m, batch):
        weight = m[0].weight
        (g,) = torch.autograd.grad(classify(m, batch), weight)
        moved = weight + 0.05 * g / g.norm()
        return F.cross_entropy(m[2](m[1](F.linear(batch[0], moved, m[0].bias))), batch[1])

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("write into a copy")
def a_batch_written_in_place(side):
    def loss_fn(m, batch):
        batch[0].mul_(0.5)
        return classify(m, batch)

    model, data = mlp(), rows(2)
    side.train(model, loss_fn, sgd(model), [data[0], data[1], data[0], data[1]])
    side.show(data=data)


@refused("pass it by `.detach()`", names_line=False)
def gradients_of_the_batch_kept(side):
    data = [(x.requires_grad_(), y) for x, y in rows()]
    model = mlp()
    side.train(model, classify, sgd(model), data)
    side.show(gradients=lambda: [x.grad for x, _ in data])


@same
def in_place_ops_on_activations(side):
    def loss_fn(m, batch):
        x = m[0](batch[0])
        x[:, ::2] *= 0.5
        x.add_(1).relu_()
        y = torch.empty(6, 16)
        torch.mul(x.detach(), 2, out=y)
        return F.cross_entropy(m[2](x + y), batch[1])

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def einsum_and_strange_views(side):
    def loss_fn(m, batch):
        x = m[0](batch[0])
        y = torch.einsum("bi,bj->ij", x, x).diagonal().as_strided((4, 4), (4, 1))
        z = x.unfold(1, 4, 2).flip(2).permute(2, 0, 1).reshape(4, -1)[..., None].squeeze(-1)
        return y.square().mean() + z.roll(1, 0).tril().sum() * 0.01 + m[2](x).logsumexp(1).mean()

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def linear_algebra(side):
    def loss_fn(m, batch):
        x = m[0](batch[0])
        gram = x.T @ x + 5 * torch.eye(16)
        return torch.linalg.slogdet(gram)[1] + torch.linalg.solve(gram, x.T).square().mean() + m[2](x).norm()

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def sorting_and_counting(side):
    def loss_fn(m, batch):
        x = m(batch[0])
        ranks = x.argsort(1).argsort(1)
        return (x.sort(1).values.cumsum(1) * ranks).mean() + x.median(1).values.mean() + x.kthvalue(2, 1).values.sum()

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@same
def parameters_without_gradients_in_some_steps(side):
    class Parts(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.unused = mlp(), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    model = Parts()
    side.train(model, classify, adamw(model), rows())


@same
def a_loss_of_one_element_with_a_shape(side):
    model = mlp()
    side.train(model, lambda m, b: classify(m, b).view(1), sgd(model), rows())


@same
def a_loss_in_a_dictionary(side):
    model = mlp()
    side.train(model, lambda m, b: dict(loss=classify(m, b)), sgd(model), rows())


@same
def a_number_in_the_batch(side):
    model = mlp()
    data = [(*batch, 0.5 + k) for k, batch in enumerate(rows())]
    side.train(model, lambda m, b: classify(m, b[:2]) * b[2], sgd(model), data)


@same
def a_model_that_torch_compile_made(side):
    model = mlp()
    compiled = torch.compile(model, backend="eager")
    side.train(model, lambda m, b: classify(compiled, b), sgd(model), rows(3))

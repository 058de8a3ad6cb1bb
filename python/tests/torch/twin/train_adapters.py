"""Adapters, experts, teachers, and several tasks."""

import copy

import pytest
import torch
from parts import adamw, classify, mlp, rows, sgd
from sides import refused, same
from torch import nn
from torch.nn import functional as F
from torch.nn.utils import parametrize


class LowRank(nn.Module):
    def __init__(self, linear, rank=2):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.a = nn.Parameter(torch.randn(rank, linear.in_features) * 0.1)
        self.b = nn.Parameter(torch.zeros(linear.out_features, rank))
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return self.linear(x) + self.dropout(x) @ self.a.T @ self.b.T


@same(short=True)
def low_rank_adapters(side):
    model = mlp()
    model[0], model[2] = LowRank(model[0]), LowRank(model[2])
    side.train(model, classify, adamw(model), rows())


@same
def low_rank_adapters_by_parametrization(side):
    class Delta(nn.Module):
        def __init__(self, weight):
            super().__init__()
            self.a = nn.Parameter(torch.randn(2, weight.shape[1]))
            self.b = nn.Parameter(torch.zeros(weight.shape[0], 2))

        def forward(self, weight):
            return weight + self.b @ self.a

    model = mlp().requires_grad_(False)
    parametrize.register_parametrization(model[0], "weight", Delta(model[0].weight))
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad])
    side.train(model, classify, optimizer, rows())


@same
def learned_prompts_before_a_frozen_model(side):
    class Prompted(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True).requires_grad_(False)
            self.prompt = nn.Parameter(torch.randn(1, 3, 8))
            self.head = nn.Linear(8, 4)

        def forward(self, x):
            x = torch.cat([self.prompt.expand(len(x), -1, -1), x[:, None]], 1)
            return self.head(self.body(x)[:, 0])

    model = Prompted()
    optimizer = torch.optim.Adam([model.prompt, *model.head.parameters()])
    side.train(model, classify, optimizer, rows())


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.router = nn.Linear(8, 3)
        self.experts = nn.ModuleList([mlp() for _ in range(3)])

    def balance(self, gates):
        return 3 * (gates.mean(0) * (gates / gates.max(1, keepdim=True).values).floor().mean(0)).sum()


@same
def experts_weighted_by_gates(side):
    def loss_fn(m, batch):
        gates = m.router(batch[0]).softmax(1)
        out = sum(gates[:, k, None] * expert(batch[0]) for k, expert in enumerate(m.experts))
        return F.cross_entropy(out, batch[1]) + 0.01 * m.balance(gates)

    model = Experts()
    side.train(model, loss_fn, adamw(model), rows())


@same
def experts_with_a_capacity(side):
    def loss_fn(m, batch):
        x, y = batch
        gates, taken = m.router(x).softmax(1).topk(2, dim=0)
        out = torch.zeros(len(x), 4)
        for k, expert in enumerate(m.experts):
            out = out.index_add(0, taken[:, k], gates[:, k, None] * expert(x[taken[:, k]]))
        return F.cross_entropy(out, y)

    model = Experts()
    side.train(model, loss_fn, adamw(model), rows())


@refused("depends on data")
def experts_that_select_their_rows(side):
    def loss_fn(m, batch):
        x, y = batch
        taken = m.router(x).argmax(1)
        out = torch.zeros(len(x), 4)
        for k, expert in enumerate(m.experts):
            (its,) = torch.where(taken == k)
            out[its] = expert(x[its])
        return F.cross_entropy(out, y)

    model = Experts()
    side.train(model, loss_fn, adamw(model), rows())


@same(short=True)
def a_frozen_teacher(side):
    model, teacher = mlp(), mlp(32).eval().requires_grad_(False)

    def loss_fn(m, batch):
        soft = F.softmax(teacher(batch[0]) / 2, 1)
        return F.kl_div(F.log_softmax(m(batch[0]) / 2, 1), soft, reduction="batchmean")

    side.train(model, loss_fn, adamw(model), rows())


@same
def a_teacher_that_the_model_owns_averaged_in_the_step(side):
    class Twin(nn.Module):
        def __init__(self):
            super().__init__()
            self.student = mlp()
            self.teacher = copy.deepcopy(self.student).requires_grad_(False)

        def forward(self, x):
            with torch.no_grad():
                for its, mine in zip(self.teacher.parameters(), self.student.parameters()):
                    its.mul_(0.9).add_(mine, alpha=0.1)
            return F.mse_loss(self.student(x), self.teacher(x + 0.1))

    model = Twin()
    optimizer = torch.optim.SGD(model.student.parameters(), lr=0.1)
    side.train(model, lambda m, b: m(b[0]), optimizer, rows())


@same(short=True)
def a_criterion_with_a_temperature(side):
    model, temperature = mlp(), nn.Parameter(torch.tensor(1.0))
    optimizer = torch.optim.AdamW([*model.parameters(), temperature], lr=1e-2)

    def loss_fn(m, batch):
        return F.cross_entropy(m(batch[0]) * temperature.exp(), batch[1])

    side.train(model, loss_fn, optimizer, rows())
    side.show(temperature=temperature)


@same
def a_criterion_that_is_a_module(side):
    class Center(nn.Module):
        def __init__(self):
            super().__init__()
            self.centers = nn.Parameter(torch.randn(4, 4))

        def forward(self, out, y):
            return F.cross_entropy(out, y) + (out - self.centers[y]).square().mean()

    model, criterion = mlp(), Center()
    optimizer = torch.optim.SGD([*model.parameters(), *criterion.parameters()], lr=0.1)
    side.train(model, lambda m, b: criterion(m(b[0]), b[1]), optimizer, rows())
    side.show(criterion=criterion.state_dict())


@same
def a_penalty_over_a_list_made_before(side):
    model = mlp()
    parameters = list(model.parameters())

    def loss_fn(m, batch):
        return classify(m, batch) + 0.1 * sum(p.square().sum() for p in parameters)

    side.train(model, loss_fn, sgd(model), rows())


@same
def a_penalty_towards_the_first_weights(side):
    model = mlp()
    first = {n: p.detach().clone() for n, p in model.named_parameters()}

    def loss_fn(m, batch):
        drift = sum((p - first[n]).square().sum() for n, p in m.named_parameters())
        return classify(m, batch) + drift

    side.train(model, loss_fn, sgd(model), rows())


@same
def the_loss_uses_the_model_of_the_closure(side):
    model = mlp()
    side.train(model, lambda _, b: classify(model, b), sgd(model), rows())


@same
def several_tasks_with_learned_weights(side):
    class Tasks(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.heads = nn.Linear(8, 8), nn.ModuleDict(dict(a=nn.Linear(8, 4), b=nn.Linear(8, 1)))
            self.log_vars = nn.ParameterDict(dict(a=nn.Parameter(torch.zeros(())), b=nn.Parameter(torch.zeros(()))))

        def forward(self, x):
            h = self.body(x).relu()
            return {k: head(h) for k, head in self.heads.items()}

    def loss_fn(m, batch):
        out = m(batch[0])
        losses = dict(a=F.cross_entropy(out["a"], batch[1]), b=out["b"].square().mean())
        return sum((-m.log_vars[k]).exp() * v + m.log_vars[k] for k, v in losses.items())

    model = Tasks()
    side.train(model, loss_fn, adamw(model), rows())


@refused("Python needs the value of a tensor")
def gradients_projected_between_tasks(side):
    def loss_fn(m, batch):
        out = m(batch[0])
        a, b = F.cross_entropy(out, batch[1]), out.square().mean()
        ga = torch.cat([g.flatten() for g in torch.autograd.grad(a, m.parameters(), retain_graph=True)])
        gb = torch.cat([g.flatten() for g in torch.autograd.grad(b, m.parameters(), retain_graph=True)])
        return a + (b if ga @ gb > 0 else 0)

    model = mlp()
    side.train(model, loss_fn, adamw(model), rows())


@same
def a_model_of_another_package(side):
    timm = pytest.importorskip("timm", reason="ignored: timm cannot be had")
    size = dict(img_size=8, patch_size=4, embed_dim=16, depth=1, num_heads=2, num_classes=4)
    model = timm.models.VisionTransformer(**size)
    data = [(torch.randn(2, 3, 8, 8), torch.randint(4, (2,))) for _ in range(3)]
    side.train(model, classify, adamw(model), data)


@refused("Python needs the value of a tensor")
def stochastic_depth_by_python(side):
    def loss_fn(m, batch):
        keep = torch.rand(()).item() < 0.5
        return classify(m, batch) * (2.0 if keep else 1.0)

    model = mlp()
    side.train(model, loss_fn, sgd(model), rows())


@refused("Python needs the value of a tensor")
def a_queue_of_keys_with_a_pointer(side):
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("queue", torch.randn(4, 12))
            self.register_buffer("pointer", torch.zeros(1, dtype=torch.long))

        def forward(self, x):
            q = F.normalize(self.net(x), dim=1)
            loss = (q @ self.queue.clone()).logsumexp(1).mean()
            at = int(self.pointer)
            self.queue[:, at : at + len(x)] = q.detach().T
            self.pointer[0] = (at + len(x)) % 12
            return loss

    model = Queue()
    side.train(model, lambda m, b: m(b[0]), sgd(model), rows())


@same
def a_queue_of_keys_that_is_rolled(side):
    class Queue(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("queue", torch.randn(12, 4))

        def forward(self, x):
            q = F.normalize(self.net(x), dim=1)
            loss = (q @ self.queue.T.clone()).logsumexp(1).mean()
            self.queue.copy_(torch.cat([q.detach(), self.queue[:-6]]))
            return loss

    model = Queue()
    side.train(model, lambda m, b: m(b[0]), sgd(model), rows())

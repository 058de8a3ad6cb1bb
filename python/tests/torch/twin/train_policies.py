"""Reinforcement learning."""

import copy
import random

import torch
from parts import adam, mlp
from sides import refused, same
from torch import nn
from torch.distributions import Categorical, Normal
from torch.nn import functional as F


def moves(steps=5):
    return [
        dict(
            state=torch.randn(6, 8), action=torch.randint(4, (6,)), reward=torch.randn(6),
            next=torch.randn(6, 8), done=torch.rand(6) < 0.2, old=-torch.rand(6),
        )
        for _ in range(steps)
    ]  # fmt: skip


@same(short=True)
def proximal_policies(side):
    def loss_fn(m, b):
        policy = Categorical(logits=m(b["state"]), validate_args=False)
        ratio = (policy.log_prob(b["action"]) - b["old"]).exp()
        gain = torch.min(ratio * b["reward"], ratio.clamp(0.8, 1.2) * b["reward"])
        return -gain.mean() - 0.01 * policy.entropy().mean()

    model = mlp()
    side.train(model, loss_fn, adam(model), moves())


@refused("Python needs the value of a tensor")
def distributions_that_check_their_arguments(side):
    def loss_fn(m, b):
        return -Categorical(logits=m(b["state"]), validate_args=True).log_prob(b["action"]).mean()

    model = mlp()
    side.train(model, loss_fn, adam(model), moves())


def q_loss(m, target, b):
    value = m(b["state"]).gather(1, b["action"][:, None])[:, 0]
    with torch.no_grad():
        best = target(b["next"]).max(1).values
    return F.smooth_l1_loss(value, b["reward"] + 0.9 * best * ~b["done"])


@same
def q_learning_with_a_target_in_the_model(side):
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = mlp()
            self.target = copy.deepcopy(self.q).requires_grad_(False)

    model = Both()
    optimizer = torch.optim.Adam(model.q.parameters())

    def after(k):
        if k % 2:
            train.sync()
            model.target.load_state_dict(model.q.state_dict())
            train.load()

    data = moves()
    train = side.capture(model, lambda m, b: q_loss(m.q, m.target, b), optimizer, data[0])
    for k, batch in enumerate(data):
        train(batch)
        after(k)


@same
def q_learning_with_a_target_beside_the_model(side):
    model = mlp()
    target = copy.deepcopy(model).requires_grad_(False)
    data = moves()
    train = side.capture(model, lambda m, b: q_loss(m, target, b), adam(model), data[0])
    for k, batch in enumerate(data):
        train(batch)
        if k % 2:
            train.sync()
            target.load_state_dict(model.state_dict())


@same
def a_replay_buffer_outside_of_the_step(side):
    model = mlp()
    target = copy.deepcopy(model).requires_grad_(False)
    memory = moves(10)
    train = side.capture(model, lambda m, b: q_loss(m, target, b), adam(model), memory[0])
    for _ in range(5):
        train(random.choice(memory))


@same
def soft_actor_with_a_learned_entropy_weight(side):
    model, log_alpha = nn.Linear(8, 4), nn.Parameter(torch.zeros(()))
    critic = nn.Linear(10, 1).requires_grad_(False)
    optimizer = torch.optim.Adam([*model.parameters(), log_alpha], lr=1e-2)

    def loss_fn(m, b):
        mean, spread = m(b["state"]).chunk(2, 1)
        policy = Normal(mean, spread.clamp(-5, 2).exp(), validate_args=False)
        action = policy.rsample()
        logp = policy.log_prob(action).sum(1)
        value = critic(torch.cat([b["state"], action.tanh()], 1))[:, 0]
        return (log_alpha.exp().detach() * logp - value).mean() - (log_alpha * (logp + 2).detach()).mean()

    side.train(model, loss_fn, optimizer, moves())
    side.show(log_alpha=log_alpha)


@same
def actions_sampled_in_the_step(side):
    def loss_fn(m, b):
        policy = Categorical(logits=m(b["state"]), validate_args=False)
        action = policy.sample()
        return -(policy.log_prob(action) * b["reward"]).mean()

    model = mlp()
    side.train(model, loss_fn, adam(model), moves())


@same
def advantages_by_a_loop_over_time(side):
    def loss_fn(m, b):
        values = m(b["state"])[:, 0]
        total, out = torch.zeros(()), []
        for t in reversed(range(len(values))):
            total = b["reward"][t] + 0.9 * total * ~b["done"][t]
            out.append(total)
        return F.mse_loss(values, torch.stack(out[::-1]))

    model = mlp()
    side.train(model, loss_fn, adam(model), moves())


@same
def gumbel_softmax(side):
    def loss_fn(m, b):
        return (F.gumbel_softmax(m(b["state"]), hard=True) * b["reward"][:, None]).sum()

    model = mlp()
    side.train(model, loss_fn, adam(model), moves())


@same
def running_normalisation_of_rewards(side):
    class Normalised(nn.Module):
        def __init__(self):
            super().__init__()
            self.net = mlp()
            self.register_buffer("mean", torch.zeros(()))
            self.register_buffer("count", torch.zeros((), dtype=torch.long))

        def forward(self, x, reward):
            self.count += len(reward)
            self.mean += (reward.mean() - self.mean) * len(reward) / self.count
            return (self.net(x)[:, 0] - (reward - self.mean)).square().mean()

    model = Normalised()
    side.train(model, lambda m, b: m(b["state"], b["reward"]), adam(model), moves())

"""Random training loops, with whatever a loop may do between forward pass, backward pass and step: the bits
of eager mode. `SPILLWAY_LOOPS=100` draws more."""

import copy
import os
import random

import pytest
import torch
from test_compiled_training import compiled_anew, squares  # noqa: F401
from test_optimizer import OPTIMIZERS, Pair, scale_settings
from torch import nn

from spillway.torch import joint

pytestmark = pytest.mark.short

SEEDS = range(int(os.environ.get("SPILLWAY_LOOPS", 8)))


def model(draw):
    """Returns the maker of a model of random layers, for rows of 8 numbers."""
    seed = draw.random()

    def make():
        own, width, layers = random.Random(seed), 8, []
        for _ in range(own.randint(1, 4)):
            before, width = width, own.choice((4, 8, 16))
            layers.append(nn.Linear(before, width, bias=own.random() < 0.7))
            kinds = nn.GELU(), nn.Dropout(0.2), nn.BatchNorm1d(width), nn.LayerNorm(width)
            layers += own.sample(kinds, own.randint(1, 2))
        return nn.Sequential(*layers)

    return make


def forward(s, called, model, optimizer, draw):
    s["loss"] = squares(called(s["x"]))


def backward(s, called, model, optimizer, draw):
    forward(s, called, model, optimizer, draw)
    s["loss"].backward(retain_graph=draw.random() < 0.2)


def several(s, called, model, optimizer, draw):
    losses = [squares(called(s["x"])) for _ in range(draw.randint(2, 3))]
    draw.shuffle(losses)
    for loss in losses:
        loss.backward()


def step(s, called, model, optimizer, draw):
    optimizer.step()


def train(s, called, model, optimizer, draw):
    optimizer.zero_grad(set_to_none=draw.random() < 0.7)
    backward(s, called, model, optimizer, draw)
    optimizer.step()


def use_a_closure(s, called, model, optimizer, draw):
    def closure():
        backward(s, called, model, optimizer, draw)
        return s["loss"]

    optimizer.step(closure)


def call_uncompiled(s, called, model, optimizer, draw):
    backward(s, model, model, optimizer, draw)


def autocast(s, called, model, optimizer, draw):
    with torch.autocast("cpu", torch.bfloat16):
        forward(s, called, model, optimizer, draw)
    s["loss"].backward()


def ask_for_the_gradient_of_the_batch(s, called, model, optimizer, draw):
    x = s["x"].clone().requires_grad_()
    squares(called(x)).backward()
    s["seen"].append(x.grad)


def evaluate(s, called, model, optimizer, draw):
    with draw.choice((torch.no_grad, torch.inference_mode))():
        result = called(s["x"])
    s["seen"].append(result.clone())


def change_the_mode(s, called, model, optimizer, draw):
    model.train(not model.training)


def another_shape(s, called, model, optimizer, draw):
    s["x"] = torch.randn(draw.choice((4, 6)), 8)


def read_states(s, called, model, optimizer, draw):
    s["seen"] += [v.clone() for values in optimizer.state.values() for v in values.values()]


def write_states(s, called, model, optimizer, draw):
    for state in (v for values in optimizer.state.values() for v in values.values()):
        if state.dim() > 0:
            state.mul_(0.5)


def write_buffers(s, called, model, optimizer, draw):
    for buffer in model.buffers():
        if buffer.is_floating_point():
            buffer.mul_(0.9)


def write_weights(s, called, model, optimizer, draw):
    for p in model.parameters():
        p.data.mul_(0.99)


def write_gradients(s, called, model, optimizer, draw):
    nn.utils.clip_grad_norm_(model.parameters(), 0.5)


def give_gradients(s, called, model, optimizer, draw):
    for p in (p for p in model.parameters() if p.requires_grad):
        p.grad = torch.full_like(p, 0.01)


def hook_a_gradient(s, called, model, optimizer, draw):
    if "hook" in s:
        s.pop("hook").remove()
    else:
        s["hook"] = next(model.parameters()).register_hook(lambda gradient: gradient * 0.5)


def freeze(s, called, model, optimizer, draw):
    for p in [*model.parameters()][1:]:
        p.requires_grad_(draw.random() < 0.7)


def drop_a_gradient(s, called, model, optimizer, draw):
    draw.choice(list(model.parameters())).grad = None


def change_the_rate(s, called, model, optimizer, draw):
    for group in optimizer.param_groups:
        if not isinstance(group["lr"], torch.Tensor):
            group["lr"] *= 0.9


def change_the_settings(s, called, model, optimizer, draw):
    scale_settings(optimizer, 0.97)
    for group in optimizer.param_groups:
        group["weight_decay"] = draw.choice((0, 0.01, 0.1))


def save(s, called, model, optimizer, draw):
    s["saved"] = copy.deepcopy((model.state_dict(), optimizer.state_dict()))


def load(s, called, model, optimizer, draw):
    if "saved" in s:
        model.load_state_dict(s["saved"][0])
        optimizer.load_state_dict(s["saved"][1])


EVENTS = {
    train: 8, backward: 3, several: 2, step: 2, forward: 1, evaluate: 1, another_shape: 1, read_states: 1,
    write_weights: 1, write_gradients: 1, drop_a_gradient: 1, change_the_rate: 1, save: 1, load: 1,
    use_a_closure: 1, call_uncompiled: 1, autocast: 1, ask_for_the_gradient_of_the_batch: 1, change_the_mode: 1,
    write_states: 1, write_buffers: 1, give_gradients: 1, hook_a_gradient: 1, freeze: 1, change_the_settings: 1,
}  # fmt: skip


@pytest.mark.parametrize("seed", SEEDS)
def test_random_loops(seed, monkeypatch):
    draw = random.Random(seed)
    if seed % 2:  # one op copies all that is small, although that is most of such models
        monkeypatch.setattr(joint, "SMALL_PART", 1)
    budget = draw.choice(("min", "64KiB", "1MiB"))
    pair = Pair(model(draw), OPTIMIZERS[draw.choice(list(OPTIMIZERS))], budget=budget)
    # Before the first step an eager optimizer has no states, but a captured one does.
    events = [train, *draw.choices(list(EVENTS), list(EVENTS.values()), k=20)]
    print(f"seed {seed}: {budget}, {[e.__name__ for e in events]}")

    def use(called, model, optimizer):
        own = random.Random(seed)
        s = dict(x=torch.randn(6, 8), seen=[])
        for event in events:
            event(s, called, model, optimizer, own)
        return torch.cat([t.detach().double().flatten() for t in (*s["seen"], torch.zeros(1))])

    pair.both(use, seed)
    pair.check()

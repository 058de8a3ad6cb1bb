"""Random loops around a captured step, with what a program may do between its iterations: the bits of eager mode.
`SPILLWAY_LOOPS=100` draws more."""

import copy
import random

import pytest
import torch
from eager import MACHINE, same, same_dicts
from test_optimizer import OPTIMIZERS
from test_random_loops import (
    SEEDS,
    another_shape,
    change_the_mode,
    change_the_rate,
    change_the_settings,
    freeze,
    hook_a_gradient,
    load,
    model,
    read_states,
    save,
    squares,
    write_buffers,
    write_states,
    write_weights,
)

import spillway.torch

pytestmark = pytest.mark.short

HOW = dict(machine=MACHINE, settings=dict(effort=1))
BUDGETS = 2, 100  # times the least memory


class Eager:
    def __init__(self, model, optimizer, x):
        self.model, self.optimizer, self.s = model, optimizer, dict(x=x, seen=[])

    def train(self, draw):
        loss = squares(self.model(self.s["x"]))
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.s["seen"].append(loss.detach())

    def evaluate(self, draw):
        with torch.no_grad():
            self.s["seen"].append(self.model(self.s["x"]))

    def sync(self, draw):
        """The model and the optimizer have the values."""

    begin_again = sync

    def use_another_budget(self, draw):
        draw.choice(BUDGETS)


class Planned(Eager):
    def __init__(self, model, optimizer, x, budget):
        super().__init__(model, optimizer, x)
        self.step = spillway.torch.capture(model, lambda model, x: squares(model(x)), optimizer, x)
        self.compiled = self.step.compile(self._plan(budget), max_shapes=30, **HOW)
        self.evaluation = self.compiled.evaluate()

    def _plan(self, budget):
        return self.step.plan(budget * self.step.min_feasible_bytes(MACHINE), **HOW)

    def train(self, draw):
        self.s["seen"].append(self.compiled(self.s["x"]))

    def evaluate(self, draw):
        self.s["seen"].append(self.evaluation(self.s["x"]))

    def sync(self, draw):
        self.compiled.sync()

    def begin_again(self, draw):
        self.compiled.sync()
        self.compiled.close()
        self.compiled.load()

    def use_another_budget(self, draw):
        self.compiled.use(self._plan(draw.choice(BUDGETS)))


def freely(event):
    """Returns what runs an event of the usual loop that neither reads nor writes values of the session."""
    return lambda side, draw: event(side.s, side.model, side.model, side.optimizer, draw)


def after_sync(event):
    def run(side, draw):
        side.sync(draw)
        freely(event)(side, draw)

    return run


EVENTS = {
    "train": (lambda side, draw: side.train(draw), 8),
    "evaluate": (lambda side, draw: side.evaluate(draw), 3),
    "use another budget": (lambda side, draw: side.use_another_budget(draw), 1),
    "begin again": (lambda side, draw: side.begin_again(draw), 1),
    "sync": (lambda side, draw: side.sync(draw), 1),
} | {
    event.__name__: (how(event), 1)
    for how, events in {
        freely: (another_shape, change_the_mode, change_the_rate, change_the_settings, freeze, hook_a_gradient),
        after_sync: (read_states, write_states, write_buffers, write_weights, save, load),
    }.items()
    for event in events
}


@pytest.mark.parametrize("seed", SEEDS)
def test_random_steps(seed):
    draw = random.Random(seed)
    budget, make_optimizer = draw.choice(BUDGETS), OPTIMIZERS[draw.choice(list(OPTIMIZERS))]
    weights = [weight for _, weight in EVENTS.values()]
    # Before the first step an eager optimizer has no states, but a captured one does.
    events = ["train", *draw.choices(list(EVENTS), weights, k=20)]
    print(f"seed {seed}: {budget}, {events}")
    torch.manual_seed(seed)
    one, x = model(draw)(), torch.randn(6, 8)
    other = copy.deepcopy(one)
    eager, planned = Eager(one, make_optimizer(one), x), Planned(other, make_optimizer(other), x, budget)
    for side in eager, planned:
        torch.manual_seed(seed)
        own = random.Random(seed)
        for name in events:
            EVENTS[name][0](side, own)
    planned.sync(draw)
    for k, (a, b) in enumerate(zip(planned.s["seen"], eager.s["seen"], strict=True)):
        same(a, b, f"value {k}")
    same_dicts(other.state_dict(), one.state_dict(), "model")
    same_dicts(planned.optimizer.state_dict(), eager.optimizer.state_dict(), "optimizer")

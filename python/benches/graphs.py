"""CPU time of models whose graphs share a budget, over that of eager mode:
`OMP_NUM_THREADS=1 python3 python/benches/graphs.py`. `docs/research/pytorch.md` shows the rows."""

import copy
from functools import partial

import torch
from beside_eager import print_row
from torch import nn

import spillway.torch

STEPS = 9
WIDTH, ROWS = 1024, 512
# Each graph needs less than 110 MiB in-core, and two of them more.
BUDGETS = "1GiB", "110MiB"


def layers(count=6):
    return nn.Sequential(*(nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU()) for _ in range(count)))


class Broken(nn.Module):
    """Takes two graphs."""

    def __init__(self):
        super().__init__()
        self.first, self.second = layers(), layers()

    def forward(self, x):
        h = self.first(x)
        torch._dynamo.graph_break()
        return self.second(h)


def graphs(called, x):
    called[0](x).square().mean().backward()


def turns(called, x):
    for one in called:
        one(x).square().mean().backward()


def sums(called, x):
    sum(one(x).square().mean() for one in called).backward()


def critic(called, x):
    (called[0](x).square().mean() + called[0](x + 1).square().mean()).backward()


def evaluates(called, x):
    graphs(called, x)
    with torch.no_grad():
        called[0](x)


CASES = {
    "a model of two graphs": ([Broken], graphs),
    "two equal models, in turn": ([layers] * 2, turns),
    "two equal models, in one loss": ([layers] * 2, sums),
    "a model, called twice in one loss": ([layers], critic),
    "a model, evaluated after each step": ([layers], evaluates),
}


def step(use, called, optimizer, x):
    """Trains one step."""
    use(called, x)
    optimizer.step()
    optimizer.zero_grad()


def main():
    torch.set_num_threads(1)
    for name, (makes, use) in CASES.items():
        torch.manual_seed(0)
        eager, x = [make() for make in makes], torch.randn(ROWS, WIDTH)
        sides = {"eager": eager} | {budget: copy.deepcopy(eager) for budget in BUDGETS}
        optimizers = {
            k: torch.optim.AdamW([p for m in models for p in m.parameters()], fused=True) for k, models in sides.items()
        }
        called = dict(sides)
        for budget in BUDGETS:
            spillway.torch.optimizer(optimizers[budget])
            options = {"budget": budget}
            called[budget] = [torch.compile(model, backend="spillway", options=options) for model in sides[budget]]
        print_row(name, STEPS, {k: partial(step, use, called[k], optimizers[k], x) for k in sides})


if __name__ == "__main__":
    main()

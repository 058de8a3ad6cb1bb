"""Steps with batches of two shapes in turn: `OMP_NUM_THREADS=1 python3 python/benches/shapes.py`.
`docs/research/pytorch.md` shows the times."""

import time
from statistics import median
from types import SimpleNamespace

import torch
from torch import nn

import spillway.torch

WIDTH, STEPS = 2048, 8


def rows(count):
    return torch.randn(count, WIDTH), torch.randint(5, (count,))


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def main():
    torch.set_num_threads(1)
    for budget in ("100%", "60%"):
        layers = [layer for _ in range(5) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
        model = nn.Sequential(*layers, nn.Linear(WIDTH, 5))
        optimizer = torch.optim.AdamW(model.parameters())
        step = spillway.torch.capture(model, loss_fn, optimizer, rows(8))
        train = step.compile(step.plan(budget))
        train(rows(8)), train(rows(3))

        def times(counts, before=lambda: None):
            taken = []
            for k in range(STEPS):
                batch = rows(counts[k % 2])
                before()
                start = time.perf_counter()
                train(batch)
                taken.append(time.perf_counter() - start)
            return f"{median(taken):.2f} s"

        def restart():
            train._started = SimpleNamespace(budget_bytes=1 << 62)  # no plan's budget is as large

        same, switched = times((3, 3)), times((8, 3))
        print(f"{budget}: {same}, switched {switched} ({train.switched})")
        print(f"{budget}: through the model {times((8, 3), restart)}")


if __name__ == "__main__":
    main()

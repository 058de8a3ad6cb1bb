"""Steps of two processes whose collectives are waited for at once, and steps that go on meanwhile:
`OMP_NUM_THREADS=1 python3 python/benches/collectives.py`. `docs/research/pytorch.md` shows the rows."""

import tempfile
import time
from statistics import median

import torch
from torch import distributed, nn

import spillway.torch
from spillway.torch.collectives import UnderWay

WIDTH, ROWS, STEPS = 1024, 64, 22
BUDGETS, LINKS_MB_S = ("150%", "50%"), (None, 200, 100)


def main(process, file):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=process, world_size=2)
    torch.manual_seed(0)
    layers = [layer for _ in range(16) for layer in (nn.Linear(WIDTH, WIDTH), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(WIDTH, 10))
    batch = torch.randn(ROWS, WIDTH), torch.randint(10, (ROWS,))
    group, optimizer = distributed.group.WORLD, torch.optim.SGD(model.parameters(), lr=0.01)
    step = spillway.torch.capture(model, loss_fn, optimizer, batch, process_group=group)
    ops = step.operations
    starts = {k for k, op in enumerate(ops) if any(wait.start is op for wait in ops)}
    for budget in BUDGETS:
        train = step.compile(step.plan(budget))
        moving = train._kernels._waits_at_once
        for link in LINKS_MB_S:
            emulate(link)
            times = {"at once": [], "meanwhile": []}
            for _ in range(STEPS):
                for name, waiting in (("at once", starts), ("meanwhile", moving)):
                    train._kernels._waits_at_once = waiting
                    distributed.barrier()
                    start = time.perf_counter()
                    train(batch)
                    times[name].append(1e3 * (time.perf_counter() - start))
            if not process:
                row = " | ".join(f"{median(t[2:]):.0f} ms" for t in times.values())
                print(f"| {budget} ({len(moving)} of {len(starts)} moved) | {link} MB/s | {row} |")
    distributed.destroy_process_group()


def loss_fn(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def emulate(link):
    """Has each wait end no sooner than a link of so many MB/s would take for the bytes so far."""
    ends, free = {}, [0.0]

    def start(self, number, tensor):
        if link:
            free[0] = max(free[0], time.perf_counter()) + tensor.nbytes / (link * 1e6)
            ends[number] = free[0]
        started(self, number, tensor)

    def wait(self, number):
        waited(self, number)
        time.sleep(max(0, ends.pop(number, 0) - time.perf_counter()))

    UnderWay.start, UnderWay.wait = start, wait


started, waited = UnderWay.start, UnderWay.wait
if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.spawn(main, (f"{folder}/rendezvous",), nprocs=2)

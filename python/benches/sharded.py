"""A Llama trained by several processes: `fully_shard`, with and without CPU offloading, and one plan.

    OMP_NUM_THREADS=1 python3 python/benches/sharded.py 2

`docs/research/pytorch.md` shows the rows. Each row has processes of its own.
"""

import sys
import tempfile
import time
from statistics import median

import torch
import transformers
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, OffloadPolicy, fully_shard

import spillway
import spillway.torch
from spillway.torch.allocations import Allocations
from spillway.torch.estimating import launched

LAYERS, WIDTH, BATCH, LENGTH, WARM, STEPS = 4, 512, 2, 128, 2, 9
MIB = 1 << 20
SLOW_BYTES_PER_S = 20 * 10**6


def main(process, count, file, row):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=process, world_size=count
    )
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=WIDTH,
        intermediate_size=4 * WIDTH,
        num_hidden_layers=LAYERS,
        num_attention_heads=WIDTH // 64,
    )
    model = transformers.LlamaForCausalLM(config).train()
    torch.manual_seed(process)
    batch = torch.randint(256, (BATCH, LENGTH))
    kind, option = row
    prepare = eager if kind == "fully_shard" else planned
    step, device_bytes, again = prepare(model, batch, option)
    times = []
    for _ in range(WARM + STEPS):
        distributed.barrier()
        start = time.perf_counter()
        step()
        times.append(time.perf_counter() - start)
    longest = torch.tensor([median(times[WARM:]), float(device_bytes())], dtype=torch.float64)
    distributed.all_reduce(longest, distributed.ReduceOp.MAX)
    if not process:
        figures = f"{longest[1] / MIB:.1f} MiB | {1e3 * longest[0]:.0f} ms | {again}"
        print(f"| {count} | {kind} {option} | {figures} |", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def loss_fn(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def eager(model, batch, option):
    """Returns a step of `fully_shard`, what it has in memory at most, but for offloaded states, and how
    often it gathers again."""
    offloads = option == "with CPU offloading"
    policy = CPUOffloadPolicy(pin_memory=False) if offloads else OffloadPolicy()
    how = dict(mesh=init_device_mesh("cpu", (distributed.get_world_size(),)), offload_policy=policy)
    for layer in model.model.layers:
        fully_shard(layer, **how)
    fully_shard(model, **how)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def step():
        optimizer.zero_grad()
        loss_fn(model, batch).backward()
        optimizer.step()

    def device_bytes():
        optimizer.zero_grad()
        with Allocations() as allocations, allocations.of(0):
            step()
        ((_, most),) = allocations.peaks()
        return most + (0 if offloads else state_bytes(model, optimizer))

    return step, device_bytes, LAYERS


def state_bytes(model, optimizer):
    states = (t for values in optimizer.state.values() for t in values.values())
    local = lambda t: t.to_local() if hasattr(t, "to_local") else t
    return sum(local(t).nbytes for t in (*model.parameters(), *states))


def planned(model, batch, option):
    """Returns a step within a plan, its budget, and how often it gathers again."""
    optimizer, group = torch.optim.AdamW(model.parameters(), lr=1e-3), distributed.group.WORLD
    captured = spillway.torch.capture(
        model, loss_fn, optimizer, batch, process_group=group, shard=True
    )
    budget, _, is_slow = option.partition(", ")
    machine = None
    if is_slow:
        speed, memory = SLOW_BYTES_PER_S, 64 << 30
        machine = spillway.Machine("slow links", memory, memory, 256 << 10, speed, speed)
    plan = captured.plan(budget, machine)
    train = captured.compile(plan)
    return lambda: train(batch), lambda: plan.budget_bytes, repeats(captured, plan)


def repeats(step, plan):
    """Returns how many gathers a plan launches again."""
    gathers = [op for op in launched(plan) if step.operations[op].name.startswith("gather ")]
    return len(gathers) - len(set(gathers))


ROWS = [
    ("fully_shard", ""),
    ("fully_shard", "with CPU offloading"),
    ("Spillway", "100%"),
    ("Spillway", "50%"),
    ("Spillway", "35%"),
    ("Spillway", "15%"),
    ("Spillway", "50%, slow links"),
    ("Spillway", "35%, slow links"),
]

if __name__ == "__main__":
    count = int(sys.argv[1])
    for row in ROWS:
        with tempfile.TemporaryDirectory() as folder:
            arguments = count, f"{folder}/rendezvous", row
            torch.multiprocessing.spawn(main, arguments, nprocs=count)

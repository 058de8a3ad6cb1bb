"""Times training steps on the first CUDA device: eagerly, with checkpoints, and within plans.

    python benches/gpu.py [gpt2 | resnet50] [SECONDS]

For each way it prints the median time of a step, the most bytes that PyTorch's allocator held, and for a plan
its budget and its predicted time. It ends when SECONDS are over, with the rows that it has by then.
"""

import statistics
import sys
import time
import warnings
from collections import Counter
from contextlib import nullcontext
from functools import partial
from pathlib import Path

import torch
from torch.nn import functional as F

import spillway.torch

MIB = 1 << 20
WARM, TIMED = 3, 8


def gpt2(checkpoints=False):
    import transformers as t

    config = t.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    model = t.GPT2LMHeadModel(config).cuda().train()
    if checkpoints:
        model.gradient_checkpointing_enable(dict(use_reentrant=False))

    def loss_fn(model, x):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), x[:, 1:].flatten())

    return model, loss_fn, torch.randint(50257, (8, 1024), device="cuda")


def resnet50(checkpoints=False):
    from torchvision.models import resnet50

    model = resnet50().cuda().train()
    if checkpoints:
        return None

    def loss_fn(model, batch):
        x, y = batch
        return F.cross_entropy(model(x), y)

    return model, loss_fn, (torch.randn(128, 3, 224, 224, device="cuda"), torch.randint(1000, (128,), device="cuda"))


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def timed(step):
    """Returns the median seconds of a step, with the device idle at both ends, and those back to back."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    alone = []
    for _ in range(TIMED):
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        alone.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in range(TIMED):
        step()
    enqueued = time.perf_counter() - start
    torch.cuda.synchronize()
    return statistics.median(alone), (time.perf_counter() - start) / TIMED, enqueued / TIMED


def synchronisations(step):
    """Returns the lines that wait for the device within a step, with how often."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    lines = (f"{Path(w.filename).name}:{w.lineno}" for w in caught if "synchronizing" in str(w.message))
    return dict(Counter(lines))


def eagerly(make, checkpoints=False, saving=None):
    made = make(checkpoints)
    if made is None:
        return None
    model, loss_fn, batch = made
    optimizer = optimizer_of(model)

    def step():
        optimizer.zero_grad()
        with saving() if saving else nullcontext():
            loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()

    torch.cuda.reset_peak_memory_stats()
    seconds = timed(step)
    return seconds, torch.cuda.max_memory_allocated() / MIB


def row(*cells):
    print("| " + " | ".join(cells) + " |", flush=True)


def main(name, limit):
    torch.backends.cuda.matmul.allow_tf32 = True
    begun = time.monotonic()
    make = dict(gpt2=gpt2, resnet50=resnet50)[name]
    print(f"{name}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}\n")
    row("way", "ms a step", "back to back", "enqueued after", "MiB held", "predicted ms")
    print("|---|--:|--:|--:|--:|--:|", flush=True)
    save_on_cpu = partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
    for way, *how in ("eager",), ("checkpoints", True), ("save_on_cpu", False, save_on_cpu):
        found = eagerly(make, *how)
        if found:
            seconds, held = found
            row(way, *(f"{s * 1e3:.1f}" for s in seconds), f"{held:.0f}", "")
        torch.cuda.empty_cache()
    model, loss_fn, batch = make()
    optimizer = optimizer_of(model)
    start = time.monotonic()
    step = spillway.torch.capture(model, loss_fn, optimizer, batch)
    captured = time.monotonic() - start
    print(f"capture: {captured:.1f} s, {len(step.operations)} ops", file=sys.stderr, flush=True)
    ops_ns = sum(op.measured.time_ns for op in step.operations)
    print(f"sum of ops: {ops_ns / 1e6:.1f} ms", file=sys.stderr, flush=True)
    for budget in "100%", "70%", "50%", "35%":
        if time.monotonic() - begun > limit:
            print("the time is over", file=sys.stderr)
            break
        try:
            start = time.monotonic()
            plan = step.plan(budget)
            planned = time.monotonic() - start
            print(f"{budget}: planned in {planned:.1f} s: {plan!r}; {plan.machine!r}", file=sys.stderr, flush=True)
            start = time.monotonic()
            with step.compile(plan) as train:
                train(batch)
                torch.cuda.synchronize()
                print(f"first step after {time.monotonic() - start:.1f} s", file=sys.stderr, flush=True)
                seconds = timed(lambda: train(batch))
                device_bytes = train._session.device_bytes
                print(f"waits for the device: {synchronisations(lambda: train(batch))}", file=sys.stderr, flush=True)
            cells = (f"{s * 1e3:.1f}" for s in seconds)
            row(f"plan {budget}", *cells, f"{device_bytes / MIB:.0f}", f"{plan.figures.period_ns / 1e6:.1f}")
        except Exception as error:
            row(f"plan {budget}", *(f"{type(error).__name__}: {error}".splitlines()[0],), "", "", "", "")


if __name__ == "__main__":
    name = sys.argv[1] if len(sys.argv) > 1 else "gpt2"
    main(name, int(sys.argv[2]) if len(sys.argv) > 2 else 600)

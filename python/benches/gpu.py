"""Times training steps on the first CUDA device: eagerly, in the ways that PyTorch has to save memory, and within
plans.

    python benches/gpu.py [gpt2 | resnet50 | llama] [SECONDS]

The models are GPT-2 of 124 million parameters on 8 sequences of 1,024 tokens and a Llama of 1,100 million on 4, both
with autocast to bfloat16, and ResNet-50 on 128 pictures of 224 pixels with TF32; the optimizer is a fused AdamW. A row
has the median time of a step from an idle device to an idle device, the mean of steps back to back, how long the host
takes to enqueue a step, the device memory for tensors, how often a step waits for the device, and what the plan
predicts. No plan begins after SECONDS. Ends with status 77 and a sentence if there is no device or a package is
missing.
"""

import statistics
import sys
import time
import warnings
from contextlib import nullcontext
from functools import partial

try:
    import torch
    import torchvision
    import transformers
    from torch import distributed
    from torch.distributed.fsdp import CPUOffloadPolicy, fully_shard
    from torch.nn import functional as F

    import spillway.torch
except ImportError as error:
    print(f"not run: {error}")
    sys.exit(77)

MIB = 1 << 20
WARM, TIMED, SECONDS = 3, 12, 1.5
BUDGETS = "100%", "70%", "50%", "35%"
# Budgets, and what may run on the host.
PLANS = {name: [(budget, None) for budget in BUDGETS] for name in ("gpt2", "resnet50")}
PLANS["llama"] = [("50%", None), ("35%", "optimizer"), ("35%", None), ("25%", "optimizer")]


def gpt2(checkpoints=False):
    config = transformers.GPT2Config(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, use_cache=False)
    return language_model(transformers.GPT2LMHeadModel(config).cuda(), 8, checkpoints)


def llama(checkpoints=False, is_offloaded=False):
    sizes = dict(hidden_size=2048, intermediate_size=5632, num_hidden_layers=22, vocab_size=32_000)
    heads = dict(num_attention_heads=32, num_key_value_heads=4)
    config = transformers.LlamaConfig(**sizes, **heads, max_position_embeddings=2048, use_cache=False)
    torch.manual_seed(0)
    with torch.device("cuda"):
        model = transformers.LlamaForCausalLM(config)
    if is_offloaded:
        if not distributed.is_initialized():
            store = distributed.HashStore()
            distributed.init_process_group("cuda:nccl,cpu:gloo", store=store, rank=0, world_size=1)
        for part in *model.model.layers, model:
            fully_shard(part, offload_policy=CPUOffloadPolicy())
    return language_model(model, 4, checkpoints)


def language_model(model, sequences, checkpoints):
    model.train()
    if checkpoints:
        model.gradient_checkpointing_enable(dict(use_reentrant=False))

    def loss_fn(model, x):
        with torch.autocast("cuda", torch.bfloat16):
            logits = model(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits[:, :-1].float().flatten(0, 1), x[:, 1:].flatten())

    return model, loss_fn, torch.randint(model.config.vocab_size, (sequences, 1024), device="cuda")


def resnet50():
    model = torchvision.models.resnet50().cuda().train()
    pictures = torch.randn(128, 3, 224, 224, device="cuda")
    return model, lambda m, b: F.cross_entropy(m(b[0]), b[1]), (pictures, torch.randint(1000, (128,), device="cuda"))


save_on_cpu = partial(torch.autograd.graph.save_on_cpu, pin_memory=True)
# How a model is made, and what a forward pass is within.
WAYS = {
    "gpt2": {
        "eager": (gpt2, nullcontext),
        "checkpoints": (partial(gpt2, checkpoints=True), nullcontext),
        "save_on_cpu": (gpt2, save_on_cpu),
    },
    "resnet50": {"eager": (resnet50, nullcontext), "save_on_cpu": (resnet50, save_on_cpu)},
    "llama": {
        "eager": (llama, nullcontext),
        "checkpoints": (partial(llama, checkpoints=True), nullcontext),
        "FSDP2, states on the host": (partial(llama, is_offloaded=True), nullcontext),
        "the same, with checkpoints": (partial(llama, checkpoints=True, is_offloaded=True), nullcontext),
    },
}


def optimizer_of(model):
    return torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)


def timed(step):
    """Returns the median of single steps, the mean of steps back to back, and the median until the host has enqueued a
    single step, in milliseconds."""
    for _ in range(WARM):
        step()
    torch.cuda.synchronize()
    alone, enqueued = [], []
    while len(alone) < TIMED and sum(alone) < SECONDS:
        start = time.perf_counter()
        step()
        enqueued.append(time.perf_counter() - start)
        torch.cuda.synchronize()
        alone.append(time.perf_counter() - start)
    start = time.perf_counter()
    for _ in alone:
        step()
    torch.cuda.synchronize()
    mean = (time.perf_counter() - start) / len(alone)
    return [1e3 * seconds for seconds in (statistics.median(alone), mean, statistics.median(enqueued))]


def waits(step):
    """Returns how often PyTorch waits for the device within a step."""
    torch.cuda.set_sync_debug_mode("warn")
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        step()
    torch.cuda.set_sync_debug_mode("default")
    return sum("called a synchronizing" in str(w.message) for w in caught)


def row(way, times, nbytes, waits, predicted=""):
    cells = way, *(f"{ms:.1f}" for ms in times), f"{nbytes / MIB:.0f}", str(waits), predicted
    print(f"| {' | '.join(cells)} |", flush=True)


def print_eager(way, make, within):
    model, loss_fn, batch = make()
    optimizer = optimizer_of(model)

    def step():
        optimizer.zero_grad()
        with within():
            loss = loss_fn(model, batch)
        loss.backward()
        optimizer.step()

    torch.cuda.reset_peak_memory_stats()
    row(way, timed(step), torch.cuda.max_memory_allocated(), waits(step))


def print_planned(step, batch, budget, host):
    plan = step.plan(budget, host=host)
    with step.compile(plan) as train:
        times = timed(lambda: train(batch))
        nbytes = train._session.device_bytes
        row(named(budget, host), times, nbytes, waits(lambda: train(batch)), f"{plan.figures.period_ns / 1e6:.1f}")


def named(budget, host):
    return f"plan, {budget}" + (", optimizer on the host" if host else "")


def main(name="gpt2", seconds="600"):
    if not torch.cuda.is_available():
        print("not run: PyTorch finds no CUDA device")
        return 77
    end = time.monotonic() + float(seconds)
    torch.backends.cuda.matmul.allow_tf32 = True
    print(f"{name}, PyTorch {torch.__version__}, {torch.cuda.get_device_name()}\n")
    print("| way | ms a step | back to back | enqueued | MiB | waits | predicted ms |\n|---|--:|--:|--:|--:|--:|--:|")
    ways = WAYS[name]
    for way, how in ways.items():
        print_eager(way, *how)
        torch.cuda.empty_cache()
    model, loss_fn, batch = ways["eager"][0]()
    start = time.monotonic()
    step = spillway.torch.capture(model, loss_fn, optimizer_of(model), batch)
    places = sum(len(op.measured.places) for op in step.operations)
    said = f"captured in {time.monotonic() - start:.1f} s: {step!r}, {places} results in their places"
    print(said, file=sys.stderr)
    for budget, host in PLANS[name]:
        if time.monotonic() > end:
            print(f"| {named(budget, host)} | the time is over | | | | | |")
            continue
        try:
            print_planned(step, batch, budget, host)
        except spillway.InfeasibleError as error:
            print(f"| {named(budget, host)} | {str(error).splitlines()[0]} | | | | | |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

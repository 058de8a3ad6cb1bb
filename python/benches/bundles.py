"""Sharded steps with small parameters in bundles, and with a collective for each: steps in turn.

    OMP_NUM_THREADS=1 python3 python/benches/bundles.py 2

`docs/research/pytorch.md` shows the rows.
"""

import copy
import sys
import tempfile
import time
from statistics import median

import torch
import transformers
from torch import distributed

import spillway.torch
from spillway.torch import bundles

WARM = 3


def llama(width, layers, vocabulary):
    config = transformers.LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=max(width // 64, 1),
    )
    return transformers.LlamaForCausalLM(config).train()


def gpt2(width, layers, vocabulary):
    ends = dict(bos_token_id=0, eos_token_id=0, use_cache=False)
    size = dict(n_embd=width, n_layer=layers, n_head=1, n_positions=128)
    config = transformers.GPT2Config(vocab_size=vocabulary, **size, **ends)
    return transformers.GPT2LMHeadModel(config).train()


# The model, its width, layers and vocabulary, the tokens of a sequence, and the steps of each kind.
ROWS = [
    (llama, 32, 2, 64, 12, 150),
    (gpt2, 32, 2, 64, 12, 150),
    (gpt2, 256, 6, 256, 64, 40),
    (llama, 512, 4, 256, 128, 20),
]


def loss_fn(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def main(process, count, file):
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", init_method=f"file://{file}", rank=process, world_size=count)
    for make, width, layers, vocabulary, length, steps in ROWS:
        torch.manual_seed(0)
        model = make(width, layers, vocabulary)
        torch.manual_seed(process)
        batch = torch.randint(vocabulary, (2, length))
        ways = [prepare(copy.deepcopy(model), batch, small_bytes) for small_bytes in (0, bundles.SMALL_BYTES)]
        times = [[], []]
        for k in range(2 * (WARM + steps)):
            distributed.barrier()
            start = time.perf_counter()
            ways[k % 2][0](batch)
            times[k % 2].append(time.perf_counter() - start)
        longest = torch.tensor([median(of_one[WARM:]) for of_one in times])
        distributed.all_reduce(longest, distributed.ReduceOp.MAX)
        for train, _ in ways:
            train.close()
        if not process:
            figures = " | ".join(f"{n} | {1e3 * t:.0f} ms" for (_, n), t in zip(ways, longest.tolist()))
            print(f"| {count} | {make.__name__} of {layers} × {width} | {figures} |", flush=True)
    distributed.barrier()
    distributed.destroy_process_group()


def prepare(model, batch, small_bytes):
    """Returns what runs a step whose small parameters have so many bytes, and its collectives."""
    bundles.SMALL_BYTES, kept = small_bytes, bundles.SMALL_BYTES
    optimizer, group = torch.optim.AdamW(model.parameters(), lr=1e-3), distributed.group.WORLD
    step = spillway.torch.capture(model, loss_fn, optimizer, batch, process_group=group, shard=True)
    bundles.SMALL_BYTES = kept
    return step.compile(step.plan("100%")), sum(op.exchanges for op in step.operations)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        arguments = int(sys.argv[1]), f"{folder}/rendezvous"
        torch.multiprocessing.spawn(main, arguments, nprocs=arguments[0])

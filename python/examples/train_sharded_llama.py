"""Trains a Llama on a text file by several processes, each of which keeps a part of all states, within a
budget of memory for each.

    pip install torch transformers
    torchrun --nproc-per-node 2 train_sharded_llama.py FILE --budget 64MiB

The bytes of the file are the tokens. All processes run one plan. It says when a weight is gathered, and
whether it then stays, is gathered again, or waits in host memory. The results are those of `fully_shard`.
"""

import argparse

import torch
import transformers
from torch import distributed

import spillway.torch

MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the text to train on")
    parser.add_argument("--budget", default="50%", help="of each process: bytes, 64MiB, or a percentage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2, help="sequences of each process")
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--clip", type=float, help="the largest norm of all gradients together")
    parser.add_argument("--out", help="the file for the trained model")
    return parser.parse_args()


def loss_fn(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def main():
    args = arguments()
    distributed.init_process_group("gloo")
    process = distributed.get_rank()
    with open(args.file, "rb") as file:
        text = torch.tensor(list(file.read()))
    torch.manual_seed(process)  # other batches in each process

    def batch():
        starts = torch.randint(len(text) - args.length, (args.batch,)).tolist()
        return torch.stack([text[s : s + args.length] for s in starts])

    config = transformers.LlamaConfig(
        vocab_size=256,
        hidden_size=args.width,
        intermediate_size=4 * args.width,
        num_hidden_layers=args.layers,
        num_attention_heads=max(args.width // 64, 1),
    )
    model = transformers.LlamaForCausalLM(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    whole_bytes = 3 * sum(p.nbytes for p in model.parameters())  # with two moments

    group = distributed.group.WORLD
    step = spillway.torch.capture(
        model, loss_fn, optimizer, batch(), process_group=group, shard=True, clip_grad=args.clip
    )
    plan = step.plan(args.budget)
    own_bytes = sum(s.nbytes for s in step.storages if s.kind == "state")
    if process == 0:
        print(plan.summary())
        print(f"states: {whole_bytes / MIB:.1f} MiB, of which each process keeps {own_bytes / MIB:.1f} MiB")
        print(f"budget of each process: {plan.budget_bytes / MIB:.1f} MiB")

    with step.compile(plan) as train:
        for number in range(args.steps):
            loss = train(batch())
            distributed.all_reduce(loss)
            if process == 0:
                print(f"step {number}: loss {loss.item() / group.size():.4f}")
    if args.out:
        whole = spillway.torch.full_state_dict(model)
        if process == 0:
            torch.save(whole, args.out)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()

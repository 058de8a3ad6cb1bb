"""Trains GPT-2 on a text file with its optimizer on the host, within a budget of device memory.

    pip install torch transformers
    python train_gpt2_on_host.py FILE --budget 35%

The bytes of the file are the tokens. The states of the optimizer never come to the device, which is the
processor too, with a memory of the budget's size. The results are those of eager PyTorch, bit for bit:
some steps are compared first.
"""

import argparse

import torch
import transformers

import spillway.torch

MIB = 1 << 20


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the text to train on")
    parser.add_argument("--budget", default="35%", help="bytes, 2GiB, or a percentage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--clip", type=float, help="the largest norm of all gradients together")
    parser.add_argument("--out", default="gpt2", help="the folder for the trained model")
    return parser.parse_args()


def loss_fn(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


def bytes_on_host(step, plan):
    """Returns the bytes of states that no op on the device touches."""
    launched = set(range(len(step.operations))) - set(plan.host_ops)
    ops = [step.operations[number] for number in launched]
    touched = {tensor for op in ops for tensor in (*op.reads, *op.writes)}
    states = (s for tensor, s in enumerate(step.storages) if tensor not in touched)
    return sum(s.nbytes for s in states if s.kind == "state")


def print_memory(step, plan):
    in_core, least = step.min_feasible_bytes(strategy="in-core"), step.min_feasible_bytes(host="optimizer")
    saved = in_core - plan.budget_bytes
    print(
        f"device memory: {plan.budget_bytes / MIB:.1f} MiB, where the whole step takes"
        f" {in_core / MIB:.1f} MiB: {saved / MIB:.1f} MiB saved ({saved / in_core:.0%})"
    )
    print(f"states that stay on the host: {bytes_on_host(step, plan) / MIB:.1f} MiB")
    print(
        f"least budget: {least / MIB:.1f} MiB, and {step.min_feasible_bytes() / MIB:.1f} MiB with the optimizer"
        " on the device"
    )


def main():
    args = arguments()
    with open(args.file, "rb") as file:
        text = torch.tensor(list(file.read()))

    def batch():
        starts = torch.randint(len(text) - args.length, (args.batch,)).tolist()
        return torch.stack([text[s : s + args.length] for s in starts])

    config = transformers.GPT2Config(
        vocab_size=256, n_layer=args.layers, n_embd=args.width, n_head=max(args.width // 64, 1)
    )
    model = transformers.GPT2LMHeadModel(config).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

    step = spillway.torch.capture(model, loss_fn, optimizer, batch(), clip_grad=args.clip)
    plan = step.plan(args.budget, settings=dict(host="all"), host="optimizer")
    print(plan.summary())
    print_memory(step, plan)
    print(f"{step.verify(plan=plan)} steps have the bits of eager mode")

    train = step.compile(plan)
    for number in range(args.steps):
        print(f"step {number}: loss {train(batch()).item():.4f}")
    train.sync()
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()

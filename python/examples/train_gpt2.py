"""Trains GPT-2 on a text file, in a part of the memory that the training step needs.

    pip install torch transformers
    python train_gpt2.py FILE --budget 35%

The bytes of the file are the tokens.
"""

import argparse

import torch
import transformers

import spillway.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", help="the text to train on")
    parser.add_argument("--budget", default="35%", help="bytes, 2GiB, or a percentage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--report", help="where to write the plan's report, as HTML")
    parser.add_argument("--out", default="gpt2", help="the folder for the trained model")
    return parser.parse_args()


def loss_fn(model, tokens):
    return model(input_ids=tokens, labels=tokens).loss


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

    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    plan = step.plan(args.budget)
    print(plan.summary())
    if args.report:
        with open(args.report, "w") as file:
            file.write(plan.report())

    train = step.compile(plan)
    for number in range(args.steps):
        print(f"step {number}: loss {train(batch()).item():.4f}")
    train.sync()
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()

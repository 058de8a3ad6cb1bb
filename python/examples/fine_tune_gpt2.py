"""Trains the last layers of a GPT-2 that train_gpt2.py has written, the others being frozen.

    pip install torch transformers
    python fine_tune_gpt2.py MODEL FILE --budget 35%

Frozen weights have no gradients and no optimizer states. They leave the device and come back, but
are never written back. The bytes of the file are the tokens.
"""

import argparse

import torch
import transformers

import spillway.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the folder of the model")
    parser.add_argument("file", help="the text to train on")
    parser.add_argument("--layers", type=int, default=2, help="how many layers are trained")
    parser.add_argument("--budget", default="35%", help="bytes, 2GiB, or a percentage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--length", type=int, default=128, help="tokens of a sequence")
    parser.add_argument("--out", default="fine-tuned", help="the folder for the trained model")
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

    model = transformers.GPT2LMHeadModel.from_pretrained(args.model).train()
    model.requires_grad_(False)
    for layer in model.transformer.h[-args.layers :]:
        layer.requires_grad_(True)
    trained = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)

    step = spillway.torch.capture(model, loss_fn, optimizer, batch())
    plan = step.plan(args.budget)
    print(plan.summary())

    train = step.compile(plan)
    for number in range(args.steps):
        print(f"step {number}: loss {train(batch()).item():.4f}")
        schedule.step()
    train.sync()
    model.save_pretrained(args.out)


if __name__ == "__main__":
    main()

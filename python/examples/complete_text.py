"""Completes a text with a GPT-2 that train_gpt2.py has written, in a part of the memory that the
model needs.

    pip install torch transformers
    python complete_text.py MODEL "The text begins" --budget 50%

A plan is for one shape, so the text is padded to its full length. No token sees those after it.
"""

import argparse

import torch
import transformers

import spillway.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the folder of the model")
    parser.add_argument("text", help="how the text begins")
    parser.add_argument("--budget", default="50%", help="bytes, 2GiB, or a percentage")
    parser.add_argument("--length", type=int, default=128, help="bytes of the whole text")
    return parser.parse_args()


def scores(model, tokens):
    return model(input_ids=tokens, use_cache=False).logits


def main():
    args = arguments()
    model = transformers.GPT2LMHeadModel.from_pretrained(args.model).eval()
    begin = list(args.text.encode())
    tokens = torch.zeros(1, args.length, dtype=torch.long)
    tokens[0, : len(begin)] = torch.tensor(begin)

    step = spillway.torch.capture_inference(model, tokens, scores)
    plan = step.plan(args.budget)
    print(plan.summary())

    infer = step.compile(plan)
    for end in range(len(begin), args.length):
        tokens[0, end] = infer(tokens)[0, end - 1].argmax()
    print(bytes(tokens[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()

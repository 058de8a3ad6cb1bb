"""Completes a text with a GPT-2 that train_gpt2.py has written, in a part of the memory that the
model needs.

    pip install torch transformers
    python complete_text.py MODEL "The text begins" --budget 50%

There are two plans, one for the text and one for each further token, whose cache has one size.
"""

import argparse
import logging

import torch
import transformers


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="the folder of the model")
    parser.add_argument("text", help="how the text begins")
    parser.add_argument("--budget", default="50%", help="bytes, 2GiB, or a percentage")
    parser.add_argument("--length", type=int, default=128, help="bytes of the whole text")
    return parser.parse_args()


def main():
    args = arguments()
    logging.basicConfig(format="%(message)s")
    logging.getLogger("spillway").setLevel(logging.INFO)
    model = transformers.GPT2LMHeadModel.from_pretrained(args.model).eval()
    model.compile(backend="spillway", options={"budget": args.budget})
    tokens = torch.tensor([list(args.text.encode())])
    how = dict(cache_implementation="static", do_sample=False, eos_token_id=None, pad_token_id=0)
    whole = model.generate(tokens, attention_mask=torch.ones_like(tokens), max_length=args.length, **how)
    print(bytes(whole[0].tolist()).decode(errors="replace"))


if __name__ == "__main__":
    main()

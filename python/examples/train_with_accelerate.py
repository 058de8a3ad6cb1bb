"""Trains a perceptron by a loop with Accelerate, its optimizer included, within a budget: gradients are
accumulated over micro-batches and clipped.

    pip install torch accelerate
    python train_with_accelerate.py --budget 50%
"""

import argparse

import accelerate
import torch
from torch import nn
from torch.nn import functional as F

import spillway.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--budget", default="50%", help="bytes, 2GiB, a percentage, or none: eager mode")
    parser.add_argument("--device", default="cpu", help="where the graphs of the model run: cpu or cuda [cpu]")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--width", type=int, default=256)
    return parser.parse_args()


def main():
    args = arguments()
    accelerate.utils.set_seed(0)
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    layers = [layer for _ in range(6) for layer in (nn.Linear(args.width, args.width), nn.GELU())]
    model = nn.Sequential(*layers, nn.Linear(args.width, 10))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    if args.budget != "none":
        # In place. Accelerate's own option for torch.compile rejects the backend's name.
        model.compile(backend="spillway", options={"budget": args.budget, "device": args.device})
        optimizer = spillway.torch.optimizer(optimizer)
    pairs = [(torch.randn(args.width), k % 10) for k in range(64 * args.steps)]
    data = torch.utils.data.DataLoader(pairs, batch_size=32, shuffle=True)
    model, optimizer, data = accelerator.prepare(model, optimizer, data)
    for number, (x, y) in enumerate(data):
        with accelerator.accumulate(model):
            loss = F.cross_entropy(model(x), y)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
        print(f"step {number}: loss {loss.item()!r}")


if __name__ == "__main__":
    main()

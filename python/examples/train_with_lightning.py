"""Trains a perceptron by Lightning, its optimizer included, within a budget.

    pip install torch lightning
    python train_with_lightning.py --budget 50%
"""

import argparse

import lightning
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
    parser.add_argument("--out", default=".", help="the folder for checkpoints")
    return parser.parse_args()


class Perceptron(lightning.LightningModule):
    def __init__(self, width, budget, device):
        super().__init__()
        layers = [layer for _ in range(6) for layer in (nn.Linear(width, width), nn.GELU())]
        self.layers = nn.Sequential(*layers, nn.Linear(width, 10))
        self.budget = budget
        if budget != "none":
            self.layers.compile(backend="spillway", options={"budget": budget, "device": device})

    def training_step(self, batch, number):
        x, y = batch
        loss = F.cross_entropy(self.layers(x), y)
        print(f"step {number}: loss {loss.item()!r}")
        return loss

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3, fused=True)
        if self.budget != "none":
            optimizer = spillway.torch.optimizer(optimizer)
        return [optimizer], [torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)]


def main():
    args = arguments()
    lightning.seed_everything(0, verbose=False)
    pairs = [(torch.randn(args.width), k % 10) for k in range(32 * args.steps)]
    data = torch.utils.data.DataLoader(pairs, batch_size=32, shuffle=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        max_epochs=2,
        default_root_dir=args.out,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    trainer.fit(Perceptron(args.width, args.budget, args.device), data)


if __name__ == "__main__":
    main()

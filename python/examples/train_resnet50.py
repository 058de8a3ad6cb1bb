"""Trains ResNet-50 on pictures, in a part of the memory that the training step needs.

    pip install torch torchvision
    python train_resnet50.py FOLDER --budget 50%

The folder has one folder of pictures for each class.
"""

import argparse

import torch
import torchvision
from torch.nn import functional as F
from torchvision.transforms import v2 as transforms

import spillway.torch


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", help="the pictures")
    parser.add_argument("--budget", default="50%", help="bytes, 2GiB, or a percentage")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--pixels", type=int, default=224, help="width and height of a picture")
    parser.add_argument("--out", default="resnet50.pt", help="the file for the trained weights")
    return parser.parse_args()


def loss_fn(model, batch):
    pictures, classes = batch
    return F.cross_entropy(model(pictures), classes, label_smoothing=0.1)


def batches(args, pictures):
    """Yields batches of one shape, without end."""
    data = torch.utils.data.DataLoader(pictures, args.batch, shuffle=True, drop_last=True)
    while True:
        yield from data


def main():
    args = arguments()
    changes = transforms.Compose(
        [
            transforms.ToImage(),
            transforms.RandomResizedCrop(args.pixels),
            transforms.RandomHorizontalFlip(),
            transforms.ToDtype(torch.float32, scale=True),
        ]
    )
    pictures = torchvision.datasets.ImageFolder(args.folder, changes)
    data = batches(args, pictures)
    model = torchvision.models.resnet50(num_classes=len(pictures.classes))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, weight_decay=1e-4)

    step = spillway.torch.capture(model, loss_fn, optimizer, next(data))
    plan = step.plan(args.budget)
    print(plan.summary())

    train = step.compile(plan)
    for number in range(args.steps):
        print(f"step {number}: loss {train(next(data)).item():.4f}")
    train.sync()
    torch.save(model.state_dict(), args.out)


if __name__ == "__main__":
    main()

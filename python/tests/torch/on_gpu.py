"""Trains models on the first CUDA device, eagerly and within a plan, and compares all bits."""

import eager
import test_mlp
import torch
from torch import nn

import spillway.torch

MIB = 1 << 20


def main():
    # The generator of the step is the device's.
    torch.get_rng_state, torch.set_rng_state = torch.cuda.get_rng_state, torch.cuda.set_rng_state
    eager.MACHINE = spillway.Machine("gpu", 8 << 30, 8 << 30, 2 * MIB, 10**10, 10**10)

    def perceptron():
        return test_mlp.mlp().cuda()

    def with_dropout():
        wide = nn.Linear(20, 1024), nn.Dropout(0.3), nn.Linear(1024, 1024), nn.ReLU()
        return nn.Sequential(*wide, nn.Linear(1024, 5)).cuda()

    def batches(k):
        return {name: tensor.cuda() for name, tensor in test_mlp.batches(k).items()}

    def adam(**settings):
        return lambda model: torch.optim.Adam(model.parameters(), lr=0.01, **settings)

    def sgd(model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    for make in perceptron, with_dropout:
        for optimizer in sgd, adam(), adam(foreach=True), adam(fused=True):
            eager.compare(make, test_mlp.loss_fn, optimizer, batches, budget="50%")
    print("losses, parameters and optimizers are the same")


if __name__ == "__main__":
    main()

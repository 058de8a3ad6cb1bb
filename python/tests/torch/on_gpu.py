"""Trains models on the first CUDA device, eagerly and within a plan, and compares all bits."""

import copy

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

    for optimizer in sgd, adam(), adam(foreach=False), adam(fused=True):
        for make in perceptron, with_dropout:
            eager.compare(make, test_mlp.loss_fn, optimizer, batches, budget="50%")
        compare_from_processor(optimizer)
    print("losses, parameters and optimizers are the same")


def compare_from_processor(make_optimizer):
    """The same for a model that stays on the processor."""
    planned_model = test_mlp.mlp()
    model = copy.deepcopy(planned_model).cuda()
    optimizer, planned = make_optimizer(model), make_optimizer(planned_model)
    data = [test_mlp.batches(k) for k in range(eager.STEPS)]
    loss_fn = test_mlp.loss_fn
    step = spillway.torch.capture(planned_model, loss_fn, planned, data[0], device="cuda")
    train = eager.compiled_within(step, "50%")
    for k, batch in enumerate(data):
        optimizer.zero_grad()
        loss = loss_fn(model, {name: tensor.cuda() for name, tensor in batch.items()})
        loss.backward()
        optimizer.step()
        eager.same(train(batch), loss.detach(), f"loss {k}")
    train.sync()
    eager.same_dicts(planned_model.state_dict(), model.cpu().state_dict(), "model")


if __name__ == "__main__":
    main()

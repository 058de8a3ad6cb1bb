"""The solver for PyTorch's own partitioner, against PyTorch's."""

import runpy
from pathlib import Path

import models
import torch
from torch._functorch import config
from torch.nn import functional as F

from spillway.torch.knapsack import KnapsackSolver

BENCH = runpy.run_path(str(Path(__file__).parents[2] / "benches" / "knapsack.py"))


def loss_of_gpt2():
    make, _, _, batches = models.model("gpt2")
    torch.manual_seed(7)
    model, x = make().eval(), batches(0)

    def loss():
        logits = model(input_ids=x, use_cache=False).logits
        return F.cross_entropy(logits.flatten(0, 1), x.flatten())

    return model, loss


def test_less_runs_again_in_no_more_memory():
    _, loss = loss_of_gpt2()
    BENCH["SOLVER"].cuts = 12
    found = BENCH["partitions"](loss)
    default, ours = found["dp, measured times"], found["spillway"]
    for (peak_bytes, time_ns), (our_peak_bytes, our_time_ns) in zip(default, ours):
        assert our_peak_bytes <= peak_bytes and our_time_ns <= time_ns
    assert sum(ns for _, ns in ours) < sum(ns for _, ns in default)


def test_gradients_are_those_of_eager_mode():
    def gradients(loss):
        model.zero_grad()
        loss().backward()
        return [p.grad.clone() for p in model.parameters()]

    model, loss = loss_of_gpt2()
    expected = gradients(loss)
    tried = []

    class Counted(KnapsackSolver):
        def __call__(self, *args):
            tried.append(super().__call__(*args))
            return tried[-1]

    settings = dict(activation_memory_budget=0.1, activation_memory_budget_solver=Counted(8))
    torch.compiler.reset()
    with config.patch(**settings):
        compiled = torch.compile(loss, backend="aot_eager_decomp_partition", dynamic=False)
        torch.testing.assert_close(gradients(compiled), expected)
    ((saved, again),) = tried
    assert saved and again and not set(saved) & set(again)

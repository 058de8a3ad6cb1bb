"""What a step takes of the device's memory, as the system counts it."""

import json
import os
from pathlib import Path
from unittest import mock

import models
import pytest
from eager import MACHINE, planned_within

import spillway.torch
from spillway.torch.running import _Kernels


def memory_files():
    """Returns the files in memory that this process has open."""
    descriptors = Path("/proc/self/fd").iterdir()
    return {d for d in descriptors if d.is_symlink() and "memfd:" in os.readlink(d)}


def taken_by_training(step, plan, batches):
    """Trains for three iterations. Returns the bytes that the device's file has at each launch."""
    before, launch, taken = memory_files(), _Kernels.launch, []

    def watched(self, *args):
        launch(self, *args)
        (file,) = memory_files() - before
        taken.append(os.stat(file).st_blocks * 512)

    with mock.patch.object(_Kernels, "launch", watched):
        train = step.compile(plan, strict=True)
        for k in range(3):
            train(batches(k))
    assert len(taken) >= 3 * len(step.operations)
    return set(taken)


def captured(name):
    make, loss_fn, optimizer, batches = models.model(name)
    model = make()
    return spillway.torch.capture(model, loss_fn, optimizer(model), batches(0)), batches


def mapped_bytes(plan):
    """Returns what a plan's arena and pools take in whole chunks."""
    plan = json.loads(plan.to_json())
    pools = sum(pool["object_bytes"] * pool["count"] for pool in plan.get("pools", []))
    return in_chunks(plan.get("arena", {}).get("bytes", 0) + pools)


def in_chunks(nbytes):
    return -(-nbytes // MACHINE.chunk_bytes) * MACHINE.chunk_bytes


@pytest.mark.parametrize("name", models.SHORT)
def test_the_least_budget_is_taken_to_the_byte(name):
    step, batches = captured(name)
    least = step.min_feasible_bytes(MACHINE)
    plan = step.plan(least, MACHINE)
    taken = taken_by_training(step, plan, batches)
    assert taken == {least} == {in_chunks(plan.figures.peak_bytes)}


@pytest.mark.parametrize("budget", ["90%", "50%", "35%"])
@pytest.mark.parametrize("name", models.SHORT)
def test_what_the_plan_maps_is_taken_to_the_byte(name, budget):
    step, batches = captured(name)
    plan = planned_within(step, budget)
    taken = taken_by_training(step, plan, batches)
    assert taken == {mapped_bytes(plan)}
    assert plan.figures.peak_bytes <= mapped_bytes(plan) <= plan.budget_bytes

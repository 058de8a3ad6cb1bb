"""What a step takes of the device's memory, as the system counts it."""

import json
import os
import weakref
from pathlib import Path
from unittest import mock

import models
import pytest
import torch
from eager import MACHINE, planned_within

import spillway.torch
from spillway.torch.memory import Lent, Memory
from spillway.torch.recording import View
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


def test_without_a_budget_a_plan_takes_what_the_step_needs_or_all_of_the_device():
    step, batches = captured("gpt2")
    plan = step.plan(machine=MACHINE)
    assert plan.budget_bytes == step.graph.min_feasible_bytes(MACHINE, "in-core")
    assert plan.figures.period_ns == plan.figures.compute_ns
    assert taken_by_training(step, plan, batches) == {mapped_bytes(plan)}
    chunk_bytes = MACHINE.chunk_bytes
    device_bytes = plan.budget_bytes // 2 // chunk_bytes * chunk_bytes
    small = spillway.Machine("small", device_bytes, 8 << 30, chunk_bytes, 10**9, 10**9)
    assert step.plan(machine=small).budget_bytes == device_bytes


def test_memory_that_is_handed_out_again_does_not_double():
    made = []

    class Device:
        def pages(self, nbytes):
            made.append(weakref.ref(pages := Pages(nbytes)))
            return pages

        def part(self, pages, start, nbytes):
            assert 0 <= start and start + nbytes <= pages.nbytes and start % 64 == 0
            return pages, start

    class Pages:
        def __init__(self, nbytes):
            self.nbytes = nbytes

    def alive():
        return sum(pages.nbytes for ref in made if (pages := ref()))

    memory, mib = Memory(Device()), 1 << 20
    for needed in (1, 10, 11, 12, 40, 41, 5):
        parts = [memory.take(needed * mib // 4) for _ in range(4)]
        assert len(set(parts)) == 4, "no two overlap"
        del parts
        memory.take_back()
        assert alive() <= 1.2 * 41 * mib
    count = len(made)
    for needed in (41, 5, 41):
        for _ in range(4):
            memory.take(needed * mib // 4)
        assert alive() <= 1.2 * 41 * mib
        memory.take_back()
    assert len(made) == count, "the pages are there"


def lent_with(keep):
    """Lends memory twice. `keep` gets the first tensor, and returns what its caller keeps of it. Returns whether the
    second tensor is at the same address."""
    lent, view = Lent(torch.device("cpu")), View(0, (4, 3), (1, 4), 0, torch.float32)
    first = lent.tensor("gradient", view)
    assert (first.shape, first.stride()) == ((4, 3), (1, 4))
    kept = keep(first)  # noqa: F841
    address = first.data_ptr()
    del first
    return lent.tensor("gradient", view).data_ptr() == address


@pytest.mark.short
def test_memory_that_nobody_has_any_more_is_lent_again():
    assert lent_with(lambda tensor: None)


@pytest.mark.short
@pytest.mark.parametrize(
    "keep",
    [
        lambda tensor: tensor,
        lambda tensor: tensor[1],
        lambda tensor: tensor.numpy(),
        lambda tensor: memoryview(tensor.numpy()),
        lambda tensor: tensor.untyped_storage(),
        lambda tensor: torch.utils.dlpack.to_dlpack(tensor),
        lambda tensor: torch.nn.Parameter(tensor),
        lambda tensor: repr(tensor.share_memory_()),
        lambda tensor: repr(tensor.untyped_storage().resize_(0)),
    ],
    ids=["tensor", "view", "array", "buffer", "storage", "capsule", "parameter", "shared", "resized"],
)
def test_memory_that_somebody_may_have_is_not_lent_again(keep):
    assert not lent_with(keep)


@pytest.mark.short
def test_lent_memory_follows_the_size_of_its_tensor():
    lent = Lent(torch.device("cpu"))
    sizes = [lent.tensor("result", View(0, (n,), (1,), 0, torch.int8)).untyped_storage().nbytes() for n in (5, 9, 0)]
    assert sizes == [5, 9, 0]

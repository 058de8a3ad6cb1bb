"""Mappings of the process: counted ahead, few by default, and refused where there are too few."""

import gc
import mmap

import pytest
import torch

import spillway.torch

PAGE_BYTES = mmap.PAGESIZE


def model(width=512, depth=6):
    layers = [m for _ in range(depth) for m in (torch.nn.Linear(width, width), torch.nn.GELU())]
    return torch.nn.Sequential(*layers)


def captured():
    torch.manual_seed(0)
    net, batch = model(), torch.randn(32, 512)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    loss_fn = lambda m, x: m(x).square().mean()  # noqa: E731
    return spillway.torch.capture(net, loss_fn, optimizer, batch), batch


def of_process(file=""):
    with open("/proc/self/maps") as maps:
        return sum(file in line for line in maps)


@pytest.mark.short
def test_a_plan_counts_the_mappings_of_its_session():
    step, batch = captured()
    plan = step.plan("50%", chunk_bytes=PAGE_BYTES, settings=dict(effort=1))
    assert f"mappings  {plan.mappings:,}" in plan.summary()
    assert plan.setup_ns > 0 and "to map and first touch them takes" in plan.summary()
    before = of_process("/memfd:spillway")
    train = step.compile(plan)
    train(batch)
    made = of_process("/memfd:spillway") - before
    # A few are next to one with the chunks before or after, and the system joins them.
    assert 0.9 * plan.mappings <= made <= plan.mappings
    train.close()


@pytest.mark.short
def test_chunks_grow_until_a_plan_takes_few_mappings(monkeypatch):
    step, _ = captured()
    usual = step.plan("50%", settings=dict(effort=1))
    monkeypatch.setattr(type(step.device), "most_mappings", usual.mappings // 2)
    plan = step.plan("50%", settings=dict(effort=1))
    assert plan.machine.chunk_bytes > usual.machine.chunk_bytes
    assert plan.mappings <= usual.mappings // 2
    # A chunk that the caller has chosen stays.
    given = step.plan("50%", settings=dict(effort=1), chunk_bytes=usual.machine.chunk_bytes)
    assert given.mappings == usual.mappings


@pytest.mark.short
def test_chunk_bytes_are_whole_pages():
    step, _ = captured()
    assert step.plan("50%", chunk_bytes=2 * PAGE_BYTES).machine.chunk_bytes == 2 * PAGE_BYTES
    assert step.min_feasible_bytes(chunk_bytes=1 << 20) >= 1 << 20
    with pytest.raises(ValueError, match="chunk_bytes is 1000: not whole pages of"):
        step.plan("50%", chunk_bytes=1000)


@pytest.mark.short
def test_a_process_that_has_too_many_mappings_refuses_the_plan_before_the_first_step():
    with open("/proc/sys/vm/max_map_count") as file:
        most = int(file.read())
    if most > 1 << 17:
        pytest.skip(f"ignored: the system allows {most} mappings, which take long to make")
    step, batch = captured()
    plan = step.plan("50%", chunk_bytes=PAGE_BYTES, settings=dict(effort=1))
    gc.collect()  # sessions of other tests, which would give their mappings back meanwhile
    # Shared pages take a mapping each.
    taken = [mmap.mmap(-1, PAGE_BYTES) for _ in range(most - 4096 - of_process())]
    with pytest.raises(spillway.SessionError, match=r"larger chunks \(chunk_bytes\)"):
        step.compile(plan)
    taken.clear()
    assert torch.isfinite(step.compile(plan)(batch))

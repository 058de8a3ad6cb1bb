"""Trains or runs a model twice, eagerly and within a plan, and compares all bits."""

import copy

import in_core
import torch
from torch.utils._pytree import tree_flatten

import spillway.torch
from spillway.torch.batches import call

STEPS = 5


MACHINE = spillway.Machine("test", 8 << 30, 8 << 30, 4096, 10**9, 10**9)


def compare(
    make,
    loss_fn,
    make_optimizer,
    batches,
    between=None,
    clip_grad=None,
    budget=None,
    steps=STEPS,
    seed=7,
    **how,
):
    """Trains twice from the same seed. `make()` returns the model, `batches(k)` a batch and
    `between(optimizer)` the function called after each step. `clip_grad` is as for `capture`. Without a
    budget (a percentage), each tensor has memory of its own; `how` are further options of its plan.
    Returns the captured step, and what runs it."""
    torch.manual_seed(seed)
    eager_model = make()
    planned_model = copy.deepcopy(eager_model)
    eager = make_optimizer(eager_model)
    planned = make_optimizer(planned_model)
    data = [batches(k) for k in range(steps)]
    state = torch.get_rng_state()

    after = between(eager) if between else lambda: None
    eager_losses = losses_of(eager_model, loss_fn, eager, data, after, clip_grad)
    eager_state = torch.get_rng_state()

    torch.set_rng_state(state)
    step = spillway.torch.capture(planned_model, loss_fn, planned, data[0], clip_grad=clip_grad)
    assert torch.equal(torch.get_rng_state(), state), "capture draws random numbers"
    train = compiled_within(step, budget, **how)
    after = between(planned) if between else lambda: None
    losses = []
    for batch in data:
        with torch.no_grad():  # which must make no difference
            losses.append(train(batch))
        after()
    train.sync()
    assert budget is None or train._session.device_bytes <= train.plan.budget_bytes
    for k, (a, b) in enumerate(zip(losses, eager_losses)):
        same(a, b, f"loss {k}")
    same_dicts(planned_model.state_dict(), eager_model.state_dict(), "model")
    same_dicts(planned.state_dict(), eager.state_dict(), "optimizer")
    assert torch.equal(torch.get_rng_state(), eager_state), "the generators differ"
    return step, train


def losses_of(model, loss_fn, optimizer, data, after=lambda: None, clip_grad=None):
    """Trains eagerly, and returns the losses."""
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        if loss.requires_grad:
            loss.backward()
        clip(list(model.parameters()), clip_grad)
        optimizer.step()
        after()
        losses.append(loss.detach())
    return losses


def clip(parameters, clip_grad):
    """Clips gradients as an ordinary loop does."""
    if callable(clip_grad):
        clip_grad(parameters)
    elif clip_grad is not None:
        torch.nn.utils.clip_grad_norm_(parameters, clip_grad)


def compare_inference(model, batches, forward=call, budget="35%"):
    """Runs the model on three batches, eagerly and within a plan. Without a budget, each tensor
    has memory of its own. Returns the captured step and the last results."""
    step = spillway.torch.capture_inference(model, batches(0), forward)
    data = [batches(k) for k in range(3)]
    infer = compiled_within(step, budget)
    state = torch.get_rng_state()
    results = [infer(batch) for batch in data]
    torch.set_rng_state(state)
    for k, (batch, result) in enumerate(zip(data, results)):
        with torch.no_grad():
            expected, structure = tree_flatten(forward(model, batch))
        leaves, its_structure = tree_flatten(result)
        assert its_structure == structure and len(leaves) == len(expected)
        for a, b in zip(leaves, expected):
            if isinstance(b, torch.Tensor):
                same(a, b, f"result {k}")
                assert not a.requires_grad
            else:
                assert a == b
    return step, results[-1]


def compiled_within(step, budget, **how):
    if budget is not None:
        plan = planned_within(step, budget, **how)
        return step.compile(plan, strict=True, machine=MACHINE, settings=dict(effort=1))
    with in_core.sessions():
        return step.compile(step, strict=True)


def planned_within(step, budget, host=None, settings={}):
    """Returns a plan for a percentage, or for the least that will do where that is more."""
    # Each page of each tensor may take several of the 65530 mappings of a process.
    small = sum(s.nbytes for s in step.storages) < 16 << 20
    machine = MACHINE if small else None
    settings = dict(effort=1) | settings
    try:
        return step.plan(budget, machine, settings=settings, host=host)
    except spillway.InfeasibleError:
        return step.plan(step.min_feasible_bytes(machine), machine, settings=settings, host=host)


def same(a, b, name):
    assert a.shape == b.shape and a.dtype == b.dtype, name
    as_bytes = [x.detach().clone(memory_format=torch.contiguous_format).view(-1).view(torch.uint8) for x in (a, b)]
    assert torch.equal(*as_bytes), f"{name} differs by {(a.double() - b.double()).abs().max()}"


def same_dicts(a, b, name):
    assert a.keys() == b.keys(), name
    for key in a:
        if isinstance(a[key], dict):
            same_dicts(a[key], b[key], f"{name}.{key}")
        elif isinstance(a[key], torch.Tensor):
            same(a[key], b[key], f"{name}.{key}")
        else:
            assert a[key] == b[key], f"{name}.{key}"

"""Sharded training by several processes: the same bits as `fully_shard`, by one plan."""

import copy
from contextlib import contextmanager
from unittest import mock

import models
import pytest
import torch
from eager import MACHINE, same, same_dicts
from models import adamw, classify, sgd
from test_processes import even, order_buckets, rows, run, wide
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spillway.torch
from spillway.torch.running import _Kernels


# Its links take longer than a gather.
SLOW_LINK = spillway.Machine("slow", 8 << 30, 8 << 30, 4096, 10**5, 10**5)


def sharded(model, loss_fn, optimizer, batch, **how):
    group = distributed.group.WORLD
    return spillway.torch.capture(
        model, loss_fn, optimizer, batch, process_group=group, shard=True, **how
    )


def by_units(units):
    """Returns the function that shards a model eagerly, in units of modules and as a whole. That returns
    the model, and what has the whole values."""

    def shard(model, loss_fn, batch):
        mesh = init_device_mesh("cpu", (distributed.get_world_size(),))
        for module in units(model):
            fully_shard(module, mesh=mesh)
        fully_shard(model, mesh=mesh)
        return model, lambda: {name: _whole(value) for name, value in model.state_dict().items()}

    return shard


def by_averaging(model, loss_fn, batch):
    """Averages the gradient of each parameter alone."""
    parallel = DistributedDataParallel(model, broadcast_buffers=False, bucket_cap_mb=1e-6)
    order_buckets(parallel, loss_fn, batch)
    return parallel, model.state_dict


def _whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def train_eagerly(process, model, beside, loss_fn, make_optimizer, data, clip):
    model, values = beside(model, loss_fn, data[0])
    optimizer = make_optimizer(model)
    torch.manual_seed(10 + process)
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        losses.append(loss.detach())
    return losses, values()


def planned_within(step, budget, machine):
    """Returns a plan for a percentage, or for the least that will do where that is more."""
    try:
        return step.plan(budget, machine, settings=dict(effort=1))
    except spillway.InfeasibleError as error:
        return step.plan(error.least_bytes, machine, settings=dict(effort=1))


def compare(
    process,
    make,
    loss_fn,
    make_optimizer,
    batches,
    budgets,
    beside,
    clip=None,
    machine=MACHINE,
    steps=3,
):
    """Trains eagerly and within plans of several budgets, with other batches and random numbers in each
    process. Returns how often plans launch gathers again."""
    torch.manual_seed(5)
    model = make()
    torch.manual_seed(process)
    data = [batches(k) for k in range(steps)]
    eager = copy.deepcopy(model)
    losses, expected = train_eagerly(process, eager, beside, loss_fn, make_optimizer, data, clip)
    again = []
    for budget in budgets:
        planned = copy.deepcopy(model)
        if process:
            for parameter in planned.parameters():
                parameter.data.zero_()  # capture takes those of process 0
        optimizer = make_optimizer(planned)
        step = sharded(planned, loss_fn, optimizer, data[0], clip_grad=clip)
        plan = planned_within(step, budget, machine)
        torch.manual_seed(10 + process)
        with gathers_again() as found:
            train = step.compile(plan, strict=True, settings=dict(effort=1))
            for k, batch in enumerate(data):
                same(train(batch), losses[k], f"loss {k} at {budget}")
        again.append(found)
        train.sync()
        assert train._session.device_bytes <= plan.budget_bytes
        whole = spillway.torch.full_state_dict(planned)
        if process == 0:
            same_dicts(whole, expected, f"model at {budget}")
        else:
            assert not whole
        _keeps_its_part(planned, optimizer, model)
    return again


@contextmanager
def gathers_again():
    """Within it, sessions count the repeats of gathers, by name."""
    launch, launched = _Kernels.launch, []

    def watched(self, op, iteration, is_repeat, *addresses):
        if is_repeat and self._step.operations[op].name.startswith("gather "):
            launched.append(self._step.operations[op].name)
        launch(self, op, iteration, is_repeat, *addresses)

    with mock.patch.object(_Kernels, "launch", watched):
        yield launched


def _keeps_its_part(planned, optimizer, model):
    """Each process has a part of each parameter, and of what the optimizer keeps for it."""
    count = distributed.get_world_size()
    for own, whole in zip(planned.parameters(), model.parameters()):
        assert len(own) == -(-len(whole) // count)
        assert own.untyped_storage().nbytes() == own.nbytes
        for state in optimizer.state[own].values():
            assert state.dim() == 0 or state.shape == own.shape


def layers(llama):
    return llama.model.layers


def llama():
    """Returns a small Llama whose parameters have rows for four processes, as `models.model` does."""
    t = pytest.importorskip("transformers")
    make, loss_fn, optimizer, _ = models.model("llama")
    config = t.LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        intermediate_size=64,
    )
    return lambda: t.LlamaForCausalLM(config).train(), loss_fn, optimizer, models.tokens


def llamas(process):
    beside = by_units(layers) if distributed.get_world_size() == 2 else by_averaging
    budgets = ["100%", "50%", "35%"]
    again = compare(process, *llama(), budgets, beside)
    assert not any(again), "gathers take longer than copies"
    again = compare(process, *llama(), budgets[1:], beside, machine=SLOW_LINK)
    assert all(again), again


@pytest.mark.parametrize("count", [2, 4])
def test_llama(count, tmp_path):
    run(llamas, count, tmp_path)


def perceptron(width=8):
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))


def linears(model):
    return [module for module in model.modules() if isinstance(module, nn.Linear)]


def without_biases():
    sizes = 20, 64, 64, 8
    pairs = zip(sizes, sizes[1:])
    return nn.Sequential(*(nn.Sequential(nn.Linear(a, b, bias=False), nn.ReLU()) for a, b in pairs))


def several_models(process):
    compare(process, perceptron, classify, sgd, even, ["100%", "35%"], by_units(linears))
    compare(process, wide, classify, adamw, even, ["50%"], by_units(linears), clip=0.1)
    compare(process, *models.model("gpt2"), ["35%"], by_units(lambda m: m.transformer.h))


@pytest.mark.short
def test_two_processes(tmp_path):
    run(several_models, 2, tmp_path)


def four_processes(process):
    compare(process, without_biases, classify, adamw, even, ["100%", "35%"], by_units(linears))


def test_four_processes(tmp_path):
    run(four_processes, 4, tmp_path)


def evaluations(process):
    torch.manual_seed(0)
    model = perceptron()
    whole = copy.deepcopy(model)
    step = sharded(model, classify, adamw(model), rows(24))
    train = step.compile(planned_within(step, "50%", MACHINE))
    evaluate = train.evaluate()
    torch.manual_seed(process)
    for _ in range(2):
        train(rows(24))
        x, _ = rows(7)
        result = evaluate(x)
        train.sync()
        values = [spillway.torch.full_state_dict(model)]
        distributed.broadcast_object_list(values)
        whole.load_state_dict(values[0])
        with torch.no_grad():
            same(result, whole(x), "result")
    with pytest.raises(spillway.torch.CaptureError, match="0.weight has only the rows"):
        spillway.torch.capture_inference(model, x)


def test_evaluations(tmp_path):
    run(evaluations, 2, tmp_path)

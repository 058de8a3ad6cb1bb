"""Training by several processes: the same bits as `DistributedDataParallel`."""

import copy
from unittest import mock

import models
import pytest
import torch
from eager import MACHINE, clip, planned_within, same, same_dicts
from models import adamw, classify, sgd
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import spillway.torch
from spillway.torch.running import _Kernels

tells_reductions = pytest.mark.skipif(
    not hasattr(distributed.ReduceOp, "unbox"), reason="PyTorch 2.15 tells the reduction first"
)


def run(function, count, folder):
    """Runs a function of a process's number in so many processes, which form a group."""
    file = str(folder / "rendezvous")
    torch.multiprocessing.spawn(_run, (function, count, file), nprocs=count)


def _run(process, function, count, file):
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", init_method=f"file://{file}", rank=process, world_size=count
    )
    function(process)
    distributed.destroy_process_group()


def captured(model, loss_fn, optimizer, batch):
    group = distributed.group.WORLD
    return spillway.torch.capture(model, loss_fn, optimizer, batch, process_group=group)


def compare(process, make, loss_fn, make_optimizer, batches, budget, steps=3):
    """Trains twice, in `DistributedDataParallel` and within a plan, with other parameters, batches
    and random numbers in each process. Returns the captured step."""
    torch.manual_seed(process)
    model = make()
    planned_model = copy.deepcopy(model)
    parallel = DistributedDataParallel(model, broadcast_buffers=False)
    data = [batches(k) for k in range(steps)]
    order_buckets(parallel, loss_fn, data[0])
    eager, planned = make_optimizer(model), make_optimizer(planned_model)

    torch.manual_seed(10 + process)
    losses = eager_losses(parallel, loss_fn, eager, data)

    step = captured(planned_model, loss_fn, planned, data[0])
    plan = planned_within(step, budget)
    train = step.compile(plan, strict=True, machine=MACHINE, settings=dict(effort=1))
    torch.manual_seed(10 + process)
    for k, batch in enumerate(data):
        same(train(batch), losses[k], f"loss {k}")
    train.sync()
    assert train._session.device_bytes <= plan.budget_bytes
    same_dicts(planned_model.state_dict(), model.state_dict(), "model")
    same_dicts(planned.state_dict(), eager.state_dict(), "optimizer")
    return step


def eager_losses(model, loss_fn, optimizer, data, clip_grad=None):
    """Trains eagerly, one step for each batch. Returns the losses."""
    losses = []
    for batch in data:
        optimizer.zero_grad()
        loss = loss_fn(model, batch)
        loss.backward()
        clip(model.parameters(), clip_grad)
        optimizer.step()
        losses.append(loss.detach())
    return losses


def order_buckets(parallel, loss_fn, batch):
    """Has `DistributedDataParallel` order its buckets, as it does after the first iteration."""
    buffers = copy.deepcopy(dict(parallel.named_buffers()))
    loss_fn(parallel, batch).backward()
    for name, buffer in parallel.named_buffers():
        buffer.copy_(buffers[name])


def wide():
    """Has gradients for more than one bucket."""
    layers = [nn.Linear(20, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Dropout()]
    return nn.Sequential(*layers, nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 5))


def rows(count):
    return torch.randn(count, 20), torch.randint(5, (count,))


def clipped(model):
    optimizer = adamw(model)

    def clip(*_):
        nn.utils.clip_grad_norm_(model.parameters(), 0.1)

    optimizer.register_step_pre_hook(clip)
    return optimizer


def even(k):
    return rows(24)


def uneven(k):
    return rows((24, 7, 24)[(k + distributed.get_rank()) % 3])


def several_models(process):
    compare(process, *models.model("gpt2"), "35%")
    make, loss_fn, _, batches = models.model("unet")
    last = lambda: make().to(memory_format=torch.channels_last)
    compare(process, last, loss_fn, sgd, batches, "50%")
    step = compare(process, wide, classify, adamw, even, "50%")
    assert collectives(step) == ["all_reduce_", "all_reduce__1"]
    compare(process, wide, classify, adamw, uneven, "50%")


@pytest.mark.parametrize("count", [2, 4])
def test_models(count, tmp_path):
    run(several_models, count, tmp_path)


def collectives(step):
    """Returns the names of the collectives. Each waits for the one before it."""
    ops = [op for op in step.operations if op.name.startswith("all_reduce_")]
    assert all(set(a.writes) & set(b.reads) for a, b in zip(ops, ops[1:]))
    return [op.name for op in ops]


def shared_statistics(model, batch):
    """Has two collectives of its own; the second is that of `_functional_collectives`."""
    x, y = batch
    mean = x.mean()
    distributed.all_reduce(mean)
    highest = x.detach().amax()
    highest = distributed._functional_collectives.all_reduce(highest, "max", distributed.group.WORLD)
    return classify(model, ((x - mean / distributed.get_world_size()) / highest, y))


def collectives_of_the_users(process):
    launch, launched = _Kernels.launch, []

    def watched(self, op, iteration, is_repeat, *addresses):
        name = self._step.operations[op].name
        if name.startswith("all_reduce_"):
            assert not is_repeat
            launched.append(name)
        launch(self, op, iteration, is_repeat, *addresses)

    with mock.patch.object(_Kernels, "launch", watched):
        step = compare(process, wide, shared_statistics, adamw, even, "35%")
    assert len(collectives(step)) == 4 and launched == 3 * collectives(step)


@tells_reductions
def test_collectives_of_the_users(tmp_path):
    run(collectives_of_the_users, 2, tmp_path)


def all_kinds(model, batch):
    """Has each collective that can be captured, in the functions of both of PyTorch's modules."""
    x, y = batch
    functional, group = distributed._functional_collectives, distributed.group.WORLD
    scale, rows = x.mean(), x.new_empty(2 * len(x), *x.shape[1:])
    distributed.broadcast(scale, 1)
    distributed.all_gather_into_tensor(rows, x)
    half = torch.empty_like(x)
    distributed.reduce_scatter_tensor(half, rows)
    shift = functional.broadcast(x.std(), 0, group)
    gathered = functional.all_gather_tensor(half, 0, group)
    part = functional.reduce_scatter_tensor(gathered, "sum", 0, group)
    return classify(model, (part * scale + shift, y))


def other_kinds(process):
    step = compare(process, wide, all_kinds, adamw, even, "50%")
    kinds = "broadcast_", "all_gather_into_tensor_out", "reduce_scatter_tensor_out", "all_reduce_"
    starts = [wait.start for wait in step.operations if wait.start]
    names = [op.name for op in starts]
    assert len(names) == 8 and all(sum(n.startswith(k) for n in names) == 2 for k in kinds)
    assert not any(op.repeatable for op in starts)


@tells_reductions
def test_other_kinds_of_collectives(tmp_path):
    run(other_kinds, 2, tmp_path)


def all_starts(step, plan):
    return [n for n, op in enumerate(step.operations) if any(w.start is op for w in step.operations)]


def order_of_launches(process):
    """Copies of gradients run while the first bucket is summed, unless the plan would move it."""
    launch, launched = _Kernels.launch, []

    def watched(self, op, *arguments):
        launched.append((self._step.operations[op].name, len(self.outside.under_way._started)))
        launch(self, op, *arguments)

    with mock.patch.object(_Kernels, "launch", watched):
        compare(process, wide, classify, adamw, even, "64MiB", steps=1)
        names = [name for name, _ in launched]
        between = launched[names.index("all_reduce_") + 1 : names.index("wait for all_reduce_")]
        assert len(between) > 10 and all(under_way for _, under_way in between)
        launched.clear()
        with mock.patch.object(spillway.torch.running, "_moving_collectives", all_starts):
            compare(process, wide, classify, adamw, even, "64MiB", steps=1)
        assert launched and not any(under_way for _, under_way in launched)


def a_failure_meanwhile(process):
    """Nothing is under way any more when the memory is given back."""
    launch, outsides = _Kernels.launch, []

    def failing(self, op, *arguments):
        outsides.append(self.outside)
        if self.outside.under_way._started:
            raise LookupError("of an op")
        launch(self, op, *arguments)

    model = wide()
    step = captured(model, classify, adamw(model), rows(24))
    with mock.patch.object(_Kernels, "launch", failing):
        train = step.compile(planned_within(step, "64MiB"))
        with pytest.raises(LookupError, match="of an op"):
            train(rows(24))
    assert not outsides[-1].under_way._started
    train.load()
    train(rows(24))


def while_collectives_are_under_way(process):
    order_of_launches(process)
    a_failure_meanwhile(process)


def test_while_collectives_are_under_way(tmp_path):
    run(while_collectives_are_under_way, 2, tmp_path)


def perceptron(width=8):
    return nn.Sequential(nn.Linear(20, width), nn.ReLU(), nn.Linear(width, 5))


def summed(tensor):
    return distributed._functional_collectives.all_reduce(tensor, "sum", distributed.group.WORLD)


def other_collectives(process):
    """Each process is refused, and none waits for ever."""

    def loss_fn(model, batch):
        loss = classify(model, batch)
        if process == 1:
            summed(loss.detach())
        return loss

    model = perceptron()
    wrong = r"collective 1 process 1 is 'all_reduce \(sum\) of 1 values of torch.float32'"
    with pytest.raises(spillway.torch.CaptureError, match=wrong):
        captured(model, loss_fn, sgd(model), rows(24))
    wrapped = DistributedDataParallel(model)
    with pytest.raises(spillway.torch.CaptureError, match="give capture the module"):
        captured(wrapped, classify, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="model is a DistributedDataParallel"):
        spillway.torch.capture(wrapped, classify, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="has the parameters of the model"):
        spillway.torch.capture(model, classify, sgd(model), rows(24))
    outside = nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([*model.parameters(), outside], lr=0.1)
    with pytest.raises(spillway.torch.CaptureError, match=r"parameter 4 of .* is not the model's"):
        captured(model, classify, optimizer, rows(24))
    distributed.barrier()


def other_collectives_later(process):
    def loss_fn(model, batch):
        loss = classify(model, batch)
        if len(batch[0]) == 7:
            summed(loss.detach())
        return loss

    model = perceptron()
    step = captured(model, loss_fn, sgd(model), rows(24))
    train = step.compile(planned_within(step, "90%"), machine=MACHINE)
    if process:
        with pytest.raises(spillway.torch.CaptureError, match="with this batch is .* with the first"):
            train(rows(7))
    train(rows(24))


def gathers(model, batch):
    every = [torch.empty(5) for _ in range(distributed.get_world_size())]
    distributed.all_gather(every, model[2].bias.detach())
    return classify(model, batch) + sum(every).sum()


def has_backward(model, batch):
    loss = classify(model, batch)
    loss.backward()
    return loss.detach()


def what_is_refused(process):
    other_collectives(process)
    other_collectives_later(process)
    model = perceptron()
    with pytest.raises(spillway.torch.CaptureError, match="test_processes.py:.*only all_reduce"):
        captured(model, gathers, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="average each gradient once: return the mean"):
        captured(model, has_backward, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="needs capture.*process_group"):
        spillway.torch.capture(model, lambda m, b: summed(classify(m, b)), sgd(model), rows(24))
    with pytest.MonkeyPatch.context() as patch:
        patch.delattr(distributed.ReduceOp, "unbox", raising=False)
        with pytest.raises(spillway.torch.CaptureError, match="does not tell which reduction"):
            captured(model, shared_statistics, sgd(model), rows(24))


@pytest.mark.short
def test_two_processes(tmp_path):
    run(two_processes, 2, tmp_path)


def two_processes(process):
    compare(process, wide, classify, clipped, uneven, "50%")
    what_is_refused(process)

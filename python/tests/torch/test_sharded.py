"""Sharded training by several processes: the same bits as `fully_shard`, by one plan."""

import copy
import random
import re
import time
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from unittest import mock

import models
import pytest
import torch
from eager import MACHINE, same, same_dicts
from models import adamw, classify, sgd
from test_estimate import without_costs
from test_processes import clipped, eager_losses, even, has_backward, order_buckets, rows, run, wide
from torch import distributed, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import spillway.torch
from spillway.torch.measuring import Measurements
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
    finds = any(isinstance(module, Vectors) for module in model.modules())
    how = dict(broadcast_buffers=False, bucket_cap_mb=1e-6, find_unused_parameters=finds)
    parallel = DistributedDataParallel(model, **how)
    order_buckets(parallel, loss_fn, batch)
    return parallel, model.state_dict


def _whole(value):
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def train_eagerly(process, model, beside, loss_fn, make_optimizer, data, clip):
    model, values = beside(model, loss_fn, data[0])
    optimizer = make_optimizer(model)
    torch.manual_seed(10 + process)
    return eager_losses(model, loss_fn, optimizer, data, clip), values()


def planned_within(step, budget, machine):
    """Returns a plan for a percentage, or for the least that will do where that is more."""
    try:
        return step.plan(budget, machine, settings=dict(effort=1))
    except spillway.InfeasibleError as error:
        return step.plan(error.min_feasible_bytes, machine, settings=dict(effort=1))


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
    compare(process, *llama(), budgets, beside)
    again = compare(process, *llama(), budgets[1:], beside, machine=SLOW_LINK)
    assert any(again), "copies take longer than gathers"


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


def adamw_of_lists(model):
    """Returns an optimizer whose functions take lists of tensors, as on CUDA."""
    return torch.optim.AdamW(model.parameters(), lr=0.01, foreach=True, amsgrad=True)


def several_models(process):
    compare(process, perceptron, classify, sgd, even, ["100%", "35%"], by_units(linears))
    compare(process, wide, classify, adamw, even, ["50%"], by_units(linears), clip=0.1)
    compare(process, wide, classify, adamw_of_lists, even, ["50%"], by_units(linears))
    compare(process, *models.model("gpt2"), ["35%"], by_units(lambda m: m.transformer.h))


@pytest.mark.short
def test_two_processes(tmp_path):
    run(several_models, 2, tmp_path)


def four_processes(process):
    compare(process, without_biases, classify, adamw, even, ["100%", "35%"], by_units(linears))


def test_four_processes(tmp_path):
    run(four_processes, 4, tmp_path)


class Vectors(nn.Module):
    """Has vectors that get gradients in another order than it has them, or none."""

    def __init__(self, norms=3, width=24):
        super().__init__()
        self.unused = nn.Parameter(torch.randn(width))
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(norms))
        self.frozen = nn.Parameter(torch.randn(width), requires_grad=False)
        self.first, self.last = nn.Linear(20, width), nn.Linear(width, 8)

    def forward(self, x):
        x = self.first(x) * self.frozen
        for norm in self.norms:
            x = norm(x) + norm(x).relu()
        return self.last(x)


def vectors(process):
    """Gradients of vectors are averaged together if their bits stay the same. On four processes, gradients of
    which each process keeps five elements are averaged alone."""
    compare(process, Vectors, classify, adamw, even, ["100%", "50%"], by_averaging)
    odd = lambda: nn.Sequential(*(nn.LayerNorm(20) for _ in range(5)), nn.Linear(20, 8))
    compare(process, odd, classify, sgd, even, ["100%"], by_averaging)


@pytest.mark.parametrize("count", [2, 4])
def test_vectors(count, tmp_path):
    run(vectors, count, tmp_path)


def exchanges(make, loss_fn, make_optimizer, batches):
    model = make()
    step = sharded(model, loss_fn, make_optimizer(model), batches(0))
    return [op.name for op in step.operations if op.exchanges]


def bundles(process):
    """One gather and one reduction for all vectors, and the plan may launch that gather again."""
    found = {name: exchanges(*how) for name, how in (("llama", llama()), ("gpt2", models.model("gpt2")))}
    with mock.patch("spillway.torch.bundles.SMALL_BYTES", 0):
        alone = {name: exchanges(*how) for name, how in (("llama", llama()), ("gpt2", models.model("gpt2")))}
    counts = {name: (len(alone[name]), len(names)) for name, names in found.items()}
    assert counts == {"llama": (2 * 21, 2 * 17), "gpt2": (2 * 28, 2 * 11)}
    assert "gather model.layers.0.input_layernorm.weight and 4 more" in found["llama"]
    middle = [nn.Linear(512, 512, bias=False), nn.ReLU(), nn.Linear(512, 8, bias=False)]
    deep = lambda: nn.Sequential(nn.Linear(20, 512), *(nn.LayerNorm(512) for _ in range(4)), *middle)
    (again,) = compare(process, deep, classify, sgd, even, ["1%"], by_averaging, machine=SLOW_LINK)
    assert "gather 0.bias and 8 more" in again, again


@pytest.mark.short
def test_bundles(tmp_path):
    run(bundles, 2, tmp_path)


def limits(process):
    """Bundles have few bytes, one type and no matrices."""
    wide = nn.Sequential(*(nn.LayerNorm(4096) for _ in range(9)), nn.LayerNorm(1 << 15)).double()
    step = sharded(model := wide, lambda m, x: m[:9](x).mean(), sgd(model), torch.randn(2, 4096).double())
    gathers = [op for op in step.operations if op.name.startswith("gather ")]
    sizes = [sum(step.storages[t].nbytes for t in op.writes) for op in gathers]
    assert sizes == [256 << 10, 256 << 10, 64 << 10]
    mixed = nn.Sequential(nn.LayerNorm(16), nn.LayerNorm(16).double(), nn.Linear(16, 2, bias=False))
    both = lambda m, x: m[2](m[0](x)).mean() + m[1](x.double()).mean()
    step = sharded(mixed, both, sgd(mixed), torch.randn(2, 16))
    gathers = [op.name for op in step.operations if op.name.startswith("gather ")]
    names = ["gather 0.weight and 1 more", "gather 1.weight and 1 more", "gather 2.weight"]
    assert sorted(gathers) == names, "a matrix of which each process has one row is alone"


def test_limits_of_bundles(tmp_path):
    run(limits, 2, tmp_path)


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


def estimates(process):
    """An estimate of devices that are not there has the graph of a capture by as many processes."""
    for make, loss_fn, optimizer, batches in [(wide, classify, adamw, even), llama()]:
        model, batch = make(), batches(0)
        speeds = spillway.torch.Speeds(100, 10, 1000, network_gb_s=1)
        how = dict(speeds=speeds, devices=2, clip_grad=1.0)
        found = spillway.torch.estimate(model, loss_fn, optimizer(model), batch, **how)
        step = sharded(model, loss_fn, optimizer(model), batch, clip_grad=1.0)
        captured = without_costs(step.graph)
        assert without_costs(found.graph) == captured and any(op.get("collective") for op in captured["ops"])


def test_estimates(tmp_path):
    run(estimates, 2, tmp_path)


def refused(sentence, model=None, optimizer=None, batch=None, **how):
    model = model or perceptron()
    optimizer = optimizer or sgd(model)
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(spillway.torch.CaptureError, match=sentence):
        sharded(model, classify, optimizer, batch or rows(24), **how)
    same_dicts(model.state_dict(), before, "model")


class Scaled(nn.Module):
    """Has a parameter without a dimension, or one that it writes."""

    def __init__(self, scale, writes=False):
        super().__init__()
        self.linear, self.scale, self.writes = nn.Linear(20, 5), nn.Parameter(scale), writes

    def forward(self, x):
        if self.writes:
            with torch.no_grad():
                self.scale.clamp_(0, 1)
        return self.linear(x) * self.scale


class Normalised(torch.optim.SGD):
    """Divides each gradient by its norm."""

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                p.grad /= p.grad.norm()
        super().step()


def with_hook(model):
    model[0].weight.register_hook(lambda gradient: 2 * gradient)
    return model


def shares_memory():
    model = perceptron(20)
    model[0].bias = nn.Parameter(model[0].weight.detach()[0])
    return model


def turned():
    model = perceptron()
    model[0].weight = nn.Parameter(torch.randn(20, 8).t())
    return model


def two_passes(model, batch):
    classify(model, batch).backward()
    return classify(model, batch)


def models_and_optimizers():
    torch.manual_seed(0)
    refused("scale cannot be sharded, as it has no dimension", Scaled(torch.tensor(1.0)))
    refused("writes scale, of which each process keeps only rows", Scaled(torch.ones(5), True))
    refused("0.weight cannot be sharded, as it shares memory", shares_memory())
    refused("0.weight cannot be sharded, as it does not have its rows one after", turned())
    refused("0.weight cannot be sharded, as it has a hook", with_hook(perceptron()))
    theirs, _ = by_units(linears)(perceptron(), None, None)
    group = dict(process_group=distributed.group.WORLD)
    with pytest.raises(spillway.torch.CaptureError, match="FSDPModule: give .* before it is sharded"):
        spillway.torch.capture(theirs, classify, sgd(theirs), rows(24), **group)
    refused("clip_grad is a function", clip_grad=lambda parameters: None)
    model = perceptron()
    optimizer = Normalised(model.parameters())
    refused(r"test_sharded.py:\d+: the optimizer calls `aten.linalg_vector_norm", model, optimizer)
    model = perceptron()
    refused("the optimizer calls `aten.linalg_vector_norm", model, clipped(model))
    model = without_biases()
    refused("the optimizer calls", model, torch.optim.Muon(model.parameters()))
    model, memory = perceptron(), []
    memory.append(model[0].weight.data)
    with pytest.raises(spillway.torch.CaptureError, match="memory that 0.weight had before"):
        loss_fn = lambda m, batch: classify(m, batch) + memory[0].sum()
        sharded(model, loss_fn, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="returns 2.bias, of which each"):
        sharded(model, lambda m, batch: (classify(m, batch), m[2].bias), sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="average each gradient once"):
        sharded(model, has_backward, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="average each gradient once"):
        sharded(model, two_passes, sgd(model), rows(24))
    with pytest.raises(spillway.torch.CaptureError, match="shard=True needs.*process_group"):
        spillway.torch.capture(model, classify, sgd(model), rows(24), shard=True)
    with pytest.raises(spillway.torch.CaptureError, match="of several processes"):
        sharded(model, classify, sgd(model), rows(24), verify=True)


def processes_that_differ(process):
    """Where one process cannot go on or does something else, all are refused, and none waits for ever."""
    error, other = spillway.torch.ProcessError, 1 - process
    with pytest.raises(spillway.torch.CaptureError, match="process 1 captures .* batches of the same"):
        sharded(model := perceptron(), classify, sgd(model), rows(24 - process))

    def fails_in_one(model, batch):
        return classify(model, batch) if process else model.missing(batch)

    kind = error if process else spillway.torch.CaptureError
    with pytest.raises(kind, match="process 0 fails.*missing" if process else "missing"):
        sharded(model := perceptron(), fails_in_one, sgd(model), rows(24))
    step = sharded(model := perceptron(), classify, sgd(model), rows(24))
    with pytest.raises(error, match=f"process {other} plans with .*'{90 - other}KiB'"):
        step.plan(f"{90 - process}KiB", MACHINE)
    with pytest.raises(spillway.InfeasibleError):
        step.plan(4096, MACHINE)
    plan, least = step.plan("256KiB", MACHINE), step.plan("64KiB", MACHINE)
    with pytest.raises(error, match="process 1 has another plan than process 0"):
        step.compile(least if process else plan)
    with mock.patch("spillway.torch.common.memory_bytes", lambda: 1 << (40 - 30 * process)):
        with pytest.raises(error, match="process 1 cannot run the plan: its budget .* has 1024"):
            step.compile(plan)
    train = step.compile(plan)
    with pytest.raises(error, match=f"process {other} trains with shapes"):
        train(rows(24 - process))
    x, y = rows(24)
    with pytest.raises(IndexError if process else error):
        train((x, y + 9 * process))
    evaluate = train.evaluate(classify)
    evaluate(rows(24))
    with pytest.raises(error, match="evaluates function 0 with"):
        (evaluate if process else train)(rows(24))
    for count in (24, 7, 24):  # a shape that comes to all
        train(rows(count))
    with pytest.raises(spillway.torch.ChangedError, match=r"newer value of 0.weight: call sync\(\)"):
        spillway.torch.full_state_dict(model)
    assert train.iterations == 3


def costs_of_all(process):
    """Each op has the longest time of all processes."""
    measure = Measurements.measure

    def measured(self, call, storages):
        slow = len(call.name) % 2 == process
        return replace(measure(self, call, storages), time_ns=3000 if slow else 2000)

    with mock.patch.object(Measurements, "measure", measured):
        step = sharded(model := perceptron(), classify, sgd(model), rows(24))
    times = {op.measured.time_ns for op in step.operations if op.line}
    assert times == {3000}


@pytest.mark.short
def test_what_is_refused(tmp_path):
    run(what_is_refused, 2, tmp_path)


def what_is_refused(process):
    models_and_optimizers()
    processes_that_differ(process)
    costs_of_all(process)


def slow_at_random(process):
    """The order of the list is the order of all collectives: no plan waits for ever."""
    launch, generator = _Kernels.launch, random.Random(process)

    def slow(self, *arguments):
        time.sleep(generator.random() ** 8 / 50)
        launch(self, *arguments)

    with mock.patch.object(_Kernels, "launch", slow):
        compare(process, *llama(), ["35%"], by_units(layers), machine=SLOW_LINK)


def test_slow_at_random(tmp_path):
    run(slow_at_random, 2, tmp_path)


PAGE = Path(__file__).parents[3] / "docs" / "pytorch-sharded.md"


def programs_of_the_page(process):
    models = []
    for program in re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL):
        names = {}
        with mock.patch.object(distributed, "init_process_group"):
            exec(program, names)
        models.append(names["model"])
    theirs, ours = models
    expected = {name: _whole(value) for name, value in theirs.state_dict().items()}
    whole = spillway.torch.full_state_dict(ours)
    if not process:
        same_dicts(whole, expected, "model")


def test_the_page(tmp_path):
    run(programs_of_the_page, 2, tmp_path)


def more_models(process):
    for name in ("lstm", "experts", "t5"):
        compare(process, *models.model(name), ["50%"], by_averaging)
    make, loss_fn, _, batches = models.model("unet")
    last = lambda: make().to(memory_format=torch.channels_last)
    compare(process, last, loss_fn, sgd, batches, ["50%"], by_averaging)


def test_more_models(tmp_path):
    run(more_models, 2, tmp_path)

"""Estimates a training step or an inference on a device that is not there: least memory, times, and limits."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler

from spillway import Graph, Machine, Plan

from .arguments import optimizers_of
from .batches import flatten
from .capturing import Clip, Inference, Training
from .clipping import Clipping
from .processes import Alone
from .roofline import SPEEDS, Roofline, Speeds
from .scaling import Scaling
from .sharding import Shards, refuse_function, refuse_scaler
from .step import Host
from .swapping import kept

QUARTERS = 4


def estimate(
    model: torch.nn.Module,
    loss_fn: Callable[..., Any],
    optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None,
    example_batch: Any,
    machine: Machine | str = "rtx4090",
    *,
    speeds: Speeds | None = None,
    budgets: Iterable[int | str] | None = None,
    host: Host | None = None,
    clip_grad: Clip | None = None,
    devices: int = 1,
    scaler: GradScaler | None = None,
) -> "Estimate":
    """Estimates one step on a machine that is not there, or on several.

    The first four arguments are those of `capture`. If the optimizer is None, the step is an inference, and
    `loss_fn` returns the results. No op runs and no memory is taken, so the model and the batch may lie on
    PyTorch's device "meta".

    `machine` is a `spillway.Machine` or the name of a built-in one. An op takes 5 µs and the longer of two
    times: of its arithmetic and of its bytes, by `speeds`. `rtx4090`, `rtx5090`, `gh200` and `laptop-8gb` have
    speeds, which are their vendors': kernels attain less. Other machines need `speeds`. Workspaces count as 0.

    `budgets` are as for `Step.plan`. Without them, there is a plan for the least budget, and one for each
    quarter of the device's memory that makes the step shorter. With `host="optimizer"`, the optimizer runs on
    the host.

    With several `devices`, the step is that of `capture(..., shard=True)`: each device has a machine's memory,
    host and links to itself, a batch of its own, and 1/n of all states. Collectives run around a ring, at the
    speed of `Speeds(..., network_gb_s=...)`. Devices do not compute meanwhile.

    Raises `CaptureError` where the step cannot be captured.
    """
    machine, speeds = _known(machine, speeds)
    _refuse_devices(devices, optimizer, speeds)
    if host is not None and speeds.host_gb_s is None:
        raise ValueError("host='optimizer' needs the speed of the host's memory: Speeds(..., host_gb_s=60)")
    roofline, clipping = Roofline(speeds, devices), Clipping(clip_grad)
    if optimizer is None:
        step = _EstimatedInference(model, loss_fn, roofline).capture(example_batch)
    else:
        optimizers, scaling = optimizers_of(optimizer), Scaling(scaler)
        cut = devices, model, optimizers, roofline.device, clipping, scaling
        processes = Alone() if devices == 1 else _Devices(*cut)
        source = _EstimatedTraining(model, loss_fn, optimizers, roofline, clipping, scaling, processes)
        with kept(optimizers, always=True), scaling.kept(), _fused_on_meta():
            step = source.capture(example_batch)
    settings = {} if host is None else {"host": "all"}
    graph = step.graph_for(host)
    min_feasible_bytes = graph.min_feasible_bytes(machine, settings=settings)
    times_ns = [op.measured.time_ns for op in step.operations]
    exchanges = {k for k, op in enumerate(step.operations) if op.exchanges}
    count, unit = _items(example_batch)
    items = count * devices, unit
    parts = _parts(model, step)
    found = Estimate(graph, machine, min_feasible_bytes, items, [], times_ns, exchanges, parts)
    if budgets is not None:
        found.plans.extend(graph.plan(machine, budget, settings=settings) for budget in budgets)
        return found
    for budget_bytes in _budgets(machine, min_feasible_bytes):
        plan = graph.plan(machine, budget_bytes, settings=settings)
        if not found.plans or _is_shorter(plan, found.plans[-1]):
            found.plans.append(plan)
        if _keeps_all(plan):
            break
    return found


@dataclass(frozen=True)
class Estimate:
    """What a step takes on a machine that is not there. `str` returns a table."""

    graph: Graph
    machine: Machine
    min_feasible_bytes: int  # of device memory
    items: tuple[int, str]  # how many an iteration of all devices has, and what they are
    plans: list[Plan]  # for each budget
    times_ns: list[int]  # of each op on the device
    exchanges: set[int]  # ops by which devices exchange data
    parts: dict[str, int]  # bytes that each part of the step has; of what states are not, the most at once

    def items_per_s(self, plan: Plan) -> float:
        """Returns the rows, or tokens, of the batch in a second."""
        return self.items[0] * 1e9 / plan.figures.period_ns

    def shares(self, plan: Plan) -> dict[str, float]:
        """Returns the share of the period for which the device computes, and for which each link and the host
        are busy; with several devices, also the share for which they exchange data."""
        speeds, figures = json.loads(self.machine.to_json()), plan.figures
        elsewhere_ns = sum(self.times_ns[op] for op in plan.host_ops)
        launches = launched(plan) if self.exchanges else []
        network_ns = sum(self.times_ns[op] for op in launches if op in self.exchanges)
        busy_ns = {
            "device": figures.compute_ns + figures.repeat_ns - elsewhere_ns - network_ns,
            "upload": figures.h2d_bytes * 1e9 / speeds["h2d_bytes_per_s"],
            "download": figures.d2h_bytes * 1e9 / speeds["d2h_bytes_per_s"],
            "host": figures.host_ns,
            **({"network": network_ns} if self.exchanges else {}),
        }
        return {name: ns / figures.period_ns for name, ns in busy_ns.items()}

    def limit(self, plan: Plan) -> str:
        """Returns what is busy longest: the device, a link, the host or the network; "memory" if the device
        computes again what it had no memory to keep."""
        shares = self.shares(plan)
        most = max(shares, key=shares.__getitem__)
        return "memory" if most == "device" and plan.figures.repeat_ns else most

    def __str__(self) -> str:
        _, unit = self.items
        has_gib = f"{self.machine.name} has {_size(self.machine.device_bytes)}"
        parts = ", ".join(f"{name} {_size(nbytes)}" for name, nbytes in self.parts.items())
        lines = [parts, f"least device memory {_size(self.min_feasible_bytes)}; {has_gib}"]
        if not self.plans:
            return "\n".join(lines) + ": the step does not fit"
        columns = ["device", "upload", "download", "host", *(["network"] if self.exchanges else [])]
        widths = {name: max(len(name), 5) for name in columns} | dict(device=7, upload=7)
        busy = " ".join(f"{name:>{widths[name]}}" for name in columns)
        lines.append(
            f"{'budget':>10} {'iteration':>11} {unit + '/s':>9} {'on the host':>11} {busy}  limited by"
        )
        for plan in self.plans:
            found = self.shares(plan)
            shares = " ".join(f"{found[name]:{widths[name]}.0%}" for name in columns)
            lines.append(
                f"{_size(plan.budget_bytes):>10} {plan.figures.period_ns / 1e6:8.0f} ms"
                f" {self.items_per_s(plan):9,.0f} {_size(plan.figures.host_bytes):>11} {shares}"
                f"  {self.limit(plan)}"
            )
        return "\n".join(lines)


class _EstimatedTraining(Training):
    """A training step on a device that is not there."""

    copied_bytes_per_s = setup_costs = None
    moves_batch = True

    def __init__(self, model, loss_fn, optimizers, roofline, clipping, scaling, processes):
        self._begin_with(model, loss_fn, optimizers, None, clipping, scaling)
        self.measurements, self.processes = roofline, processes


class _EstimatedInference(Inference):
    """An inference on a device that is not there."""

    copied_bytes_per_s = setup_costs = None
    moves_batch = True

    def __init__(self, model, forward, roofline):
        self._begin_with(model, forward)
        self.measurements = roofline


@dataclass(frozen=True)
class _Group:
    """A group of devices that are not there."""

    count: int
    group_name = "devices"

    def size(self):
        return self.count

    def rank(self):
        return 0


class _Devices(Shards):
    """Devices among which a step is cut. All are alike, so this process captures it for each of them."""

    stays_cut = False

    def __init__(self, count, model, optimizers, device, clipping, scaling):
        refuse_function(clipping)
        refuse_scaler(scaling)
        super().__init__(_Group(count), model, optimizers, device)

    def together(self):
        return nullcontext([])

    def _receive(self, tensors):
        """Leaves tensors alone: all devices have the same values."""

    def _everyones(self, value):
        return [value]


@contextmanager
def _fused_on_meta():
    """Within it, optimizers with `fused=True` take parameters on PyTorch's device "meta": PyTorch knows what their
    ops return there, but a check of the devices refuses it."""
    module = import_module("torch.optim.optimizer")
    supported = module._get_fused_kernels_supported_devices
    module._get_fused_kernels_supported_devices = lambda: [*supported(), "meta"]
    try:
        yield
    finally:
        module._get_fused_kernels_supported_devices = supported


def _refuse_devices(devices, optimizer, speeds):
    if devices < 1:
        raise ValueError(f"devices is {devices}: give a number from 1 on")
    if devices > 1 and optimizer is None:
        raise ValueError("an inference is estimated for one device: leave out devices")
    if devices > 1 and (speeds.network_gb_s or 0) <= 0:
        raise ValueError("several devices need the speed of their network: Speeds(..., network_gb_s=25)")


def _parts(model, step):
    """Returns the bytes of each part of a step, by name."""
    trained = {name: tensor.requires_grad for name, tensor in model.named_parameters()}
    buffers = {name for name, _ in model.named_buffers()}
    parts = dict.fromkeys(["parameters", "frozen parameters", "buffers", "optimizer"], 0)
    for storage in step.storages:
        if storage.kind != "state":
            continue
        is_trained, is_buffer = trained.get(storage.name), storage.name in buffers
        part = {True: "parameters", False: "frozen parameters", None: "optimizer"}[is_trained]
        parts["buffers" if is_buffer else part] += storage.nbytes
    parts["gradients and activations"] = _most_beside_states(step.graph)
    return {name: nbytes for name, nbytes in parts.items() if nbytes}


def _most_beside_states(graph):
    """Returns the most bytes that inputs, temporaries and workspaces have at once, if each lives from its
    first to its last use in the given order."""
    graph = json.loads(graph.to_json())
    tensors, ops = graph["tensors"], graph["ops"]
    last = {k: at for at, op in enumerate(ops) for k in (*op["reads"], *op["writes"])}
    alive, held, most = set(), 0, 0
    for at, op in enumerate(ops):
        used = {k for k in (*op["reads"], *op["writes"]) if tensors[k]["kind"] != "state"}
        held += sum(tensors[k]["bytes"] for k in used - alive)
        most = max(most, held + op.get("workspace_bytes", 0))
        ended = {k for k in used if last[k] == at}
        held -= sum(tensors[k]["bytes"] for k in ended)
        alive = (alive | used) - ended
    return most


def launched(plan):
    """Returns the op of each launch of a plan."""
    return [step[1] for step in json.loads(plan.to_json())["steps"] if step[0] == "launch"]


def _known(machine: Machine | str, speeds: Speeds | None) -> tuple[Machine, Speeds]:
    """Returns a machine and its speeds."""
    name = machine if isinstance(machine, str) else machine.name
    if isinstance(machine, str):
        machine = Machine.builtin(machine)
    if speeds is None and name not in SPEEDS:
        raise ValueError(f"the speeds of {name} are not known: give speeds=spillway.torch.Speeds(...)")
    return machine, speeds or SPEEDS[name]


def _budgets(machine, min_feasible_bytes):
    """Returns the least budget, and quarters of the device's memory."""
    quarters = [machine.device_bytes * k // QUARTERS for k in range(1, QUARTERS + 1)]
    return [b for b in (min_feasible_bytes, *quarters) if min_feasible_bytes <= b <= machine.device_bytes]


def _is_shorter(plan, other):
    """Returns whether a plan is shorter by a thousandth or more."""
    return plan.figures.period_ns <= other.figures.period_ns * 0.999


def _keeps_all(plan):
    """Returns whether more memory is of no use."""
    figures = plan.figures
    return not figures.repeat_ns and figures.period_ns <= figures.compute_ns


def _items(batch):
    """Returns the number of tokens in a batch whose first tensor is a matrix of whole numbers, and the number
    of rows in any other batch."""
    first = next(iter(flatten(batch)[0]), None)
    if first is None or not first.dim():
        return 1, "steps"
    if first.dim() == 2 and not first.dtype.is_floating_point:
        return first.numel(), "tokens"
    return len(first), "rows"


def _size(nbytes):
    if nbytes >= 1 << 30:
        return f"{nbytes / 2**30:.2f} GiB"
    return f"{nbytes / 2**20:.1f} MiB" if nbytes >= 1 << 20 else f"{nbytes / 2**10:.1f} KiB"

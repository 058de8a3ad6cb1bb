"""Estimates what ops cost on a device that is not there, from their arithmetic and their bytes."""

from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from .collectives import ALL_REDUCE, is_collective
from .measuring import Measured, may_draw
from .processor import Processor
from .recording import View, layout_of

LAUNCH_NS = 5_000
HALVES = torch.bfloat16, torch.float16

# Each of these ops reads only some rows of its first tensor.
SELECT_ROWS = {"aten::embedding", "aten::index_select", "aten::gather", "aten::index"}


@dataclass(frozen=True)
class Speeds:
    """What a device, or the host, computes and copies in a second. Kernels attain less than vendors state:
    multiply by what yours do."""

    tflops: float  # of matrices in bfloat16 or float16
    float32_tflops: float  # of matrices in other types
    memory_gb_s: float
    host_gb_s: float | None = None  # the memory of the host, for an optimizer that runs there
    network_gb_s: float | None = None  # what a device sends to the others, and receives at the same time


# The device's figures are its vendor's: dense matrices, and nine tenths of the memory speed. The host has two
# channels of DDR5-5600, or the LPDDR5X of a Grace.
SPEEDS = {
    "rtx4090": Speeds(165, 82.6, 900, host_gb_s=90),
    "rtx5090": Speeds(209, 104.8, 1600, host_gb_s=90),
    "gh200": Speeds(989, 67, 3600, host_gb_s=512),
    "laptop-8gb": Speeds(29, 14.5, 230, host_gb_s=90),
}


class Roofline:
    """Estimates ops instead of measuring them, for a step that several devices may share."""

    def __init__(self, speeds, devices=1):
        self.device = Processor()
        self._speeds, self._devices = speeds, devices

    def layouts(self, call, storages, fakes):
        """Returns the layout of each result, as PyTorch says without running the op."""
        return list(map(layout_of, fakes))

    def measure(self, call, storages):
        """Returns the costs of a launch."""
        if call.function is None:
            return Measured(1, 0, draws=False, repeats=True)
        views = _views((call.args, call.kwargs, call.results))
        if is_collective(call):
            return Measured(self._exchange_ns(call, views), 0, draws=False, repeats=True)
        dtype = next((v.dtype for v in views if v.dtype.is_floating_point), None)
        time_ns = self._time_ns(_flops(call), _bytes(call), dtype)
        return Measured(time_ns, 0, may_draw(call), repeats=True)

    @contextmanager
    def on_host(self):
        """Within it, the result estimates ops on the host by their bytes alone."""
        yield Roofline(Speeds(inf, inf, self._speeds.host_gb_s))

    def give_back(self):
        """Does nothing: an estimate takes no memory."""

    def _exchange_ns(self, call, views):
        """Returns the time of a collective around a ring. Each device sends the largest tensor but for its own
        part; in an all-reduce, it sends twice as much."""
        turns = 2 if call.function is ALL_REDUCE else 1
        nbytes = max(view.nbytes for view in views) * (self._devices - 1) / self._devices
        return round(LAUNCH_NS + turns * nbytes / self._speeds.network_gb_s)

    def _time_ns(self, flops, nbytes, dtype):
        """Returns the longer of the times of arithmetic and bytes."""
        speeds = self._speeds
        tflops = speeds.tflops if dtype in HALVES else speeds.float32_tflops
        return round(LAUNCH_NS + max(flops / (1e3 * tflops), nbytes / speeds.memory_gb_s))


def _flops(call):
    formula = flop_registry.get(call.function._overloadpacket)
    if formula is None:
        return 0
    args, kwargs, results = tree_map(_form, (call.args, call.kwargs, call.results))
    return formula(*args, **kwargs, out_val=results[0] if len(results) == 1 else tuple(results))


def _views(values):
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, View)]


def _form(leaf):
    """Returns a tensor without memory for a view, and anything else as it is."""
    if not isinstance(leaf, View):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device="meta")


def _bytes(call):
    """Returns the bytes that a launch reads and writes."""
    given, made = _views((call.args, call.kwargs)), _views(call.results)
    if call.function._schema.name in SELECT_ROWS:
        given = given[1:] + made
    written = [v for v in given if v.tensor in call.writes]
    return sum(view.nbytes for view in (*given, *made, *written))

"""Estimates what ops cost on a device that is not there, from their arithmetic and their bytes."""

from dataclasses import dataclass
from math import prod

import torch
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map
from torch.utils.flop_counter import flop_registry

from .measuring import Measured, costs_key, may_draw
from .processor import Processor
from .recording import View

LAUNCH_NS = 5_000
HALVES = torch.bfloat16, torch.float16

# They read few of the rows of their first tensor.
SELECT_ROWS = {"aten::embedding", "aten::index_select", "aten::gather", "aten::index"}


@dataclass(frozen=True)
class Speeds:
    """What a device, or the host, computes and copies in a second. Kernels attain less than vendors state:
    multiply by what yours do."""

    tflops: float  # of matrices in bfloat16 or float16
    float32_tflops: float  # of matrices in other types
    memory_gb_s: float
    host_gb_s: float | None = None  # the memory of the host, for an optimizer that runs there


def _memory(gb_s, host_gb_s):
    return dict(memory_gb_s=gb_s, host_gb_s=host_gb_s)


# The vendors' figures for dense matrices and nine tenths of their memory speeds; for the host, two channels of
# DDR5-5600 or the LPDDR5X of a Grace.
SPEEDS = {
    "rtx4090": Speeds(165, 82.6, **_memory(900, 90)),
    "rtx5090": Speeds(209, 104.8, **_memory(1600, 90)),
    "gh200": Speeds(989, 67, **_memory(3600, 512)),
    "laptop-8gb": Speeds(29, 14.5, **_memory(230, 90)),
}


class Roofline:
    """Estimates ops instead of measuring them."""

    def __init__(self, speeds):
        self.device = Processor()
        self._speeds = speeds
        self._measured = {}

    def layouts(self, call, storages, fakes):
        """Returns the shape and the strides of each result, as PyTorch says without running the op."""
        return [
            (tuple(f.shape), tuple(f.stride())) if isinstance(f, torch.Tensor) else None for f in fakes
        ]

    def measure(self, call, storages):
        """Returns the costs of a launch."""
        key = costs_key(call)
        if key not in self._measured:
            self._measured[key] = self._estimate(call)
        return self._measured[key]

    def host_ns(self, call):
        """Returns the time of a launch on the host: that of its bytes."""
        return round(LAUNCH_NS + _bytes(call) / self._speeds.host_gb_s)

    def give_back(self):
        """Has no memory in which ops were measured."""

    def _estimate(self, call):
        if call.function is None:
            return Measured(1, 0, draws=False, repeats=True)
        views = [v for v in tree_leaves((call.args, call.kwargs, call.results)) if isinstance(v, View)]
        dtype = next((v.dtype for v in views if v.dtype.is_floating_point), None)
        flops = _flops(call)
        return Measured(self._time_ns(flops, _bytes(call), dtype), 0, may_draw(call), repeats=True)

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


def _form(leaf):
    """Returns a tensor without memory for a view, and anything else as it is."""
    if not isinstance(leaf, View):
        return leaf
    return torch.empty_strided(leaf.shape, leaf.stride, dtype=leaf.dtype, device="meta")


def _bytes(call):
    """Returns the bytes that a launch reads and writes."""
    given = [v for v in tree_flatten((call.args, call.kwargs))[0] if isinstance(v, View)]
    made = [v for v in call.results if v is not None]
    if call.function._schema.name in SELECT_ROWS:
        given = given[1:] + made
    written = [v for v in given if v.tensor in call.writes]
    return sum(prod(v.shape) * v.dtype.itemsize for v in (*given, *made, *written))

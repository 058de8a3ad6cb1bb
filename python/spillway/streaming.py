"""Weight streaming: layers in a row whose weights are more than the device holds.

    from spillway import Machine, streaming

    layers = [streaming.Layer(400 << 20, 20_000_000) for _ in range(32)]
    plan = streaming.plan(layers, Machine.builtin("a100-pcie4"), budget="75%")
"""

from ._core import Layer
from ._core import streaming_min_feasible_bytes as min_feasible_bytes
from ._core import streaming_plan as plan

__all__ = ["Layer", "min_feasible_bytes", "plan"]

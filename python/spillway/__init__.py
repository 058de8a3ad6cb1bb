"""Plans memory transfers for computations that need more memory than the device has, and runs them
within a budget.

    import spillway

    graph = spillway.Graph("step")
    x = graph.input("x", 4096)
    w = graph.state("w", 1 << 20)
    y = graph.temporary("y", 4096)
    graph.op("matmul", 20_000, reads=[x, w], writes=[y], repeatable=True)
    graph.op("update", 10_000, reads=[y, w], writes=[w])

    machine = spillway.Machine.builtin("v100-pcie3")
    plan = graph.plan(machine, budget="80%")
    print(plan.figures.period_ns, plan.lower_bound_ns)

A plan is proved safe, or it raises an exception: a subclass of `Error`, whose message names the
tensors and ops that it is about. `Session` runs a plan on host memory or on a CUDA device (`Cuda`),
with kernels of your own.
"""

import sys

if sys.version_info < (3, 10):
    raise ImportError(f"spillway needs Python 3.10 or later, and this is Python {sys.version.split()[0]}")

from ._core import (
    BudgetError,
    Cuda,
    DeviceError,
    Error,
    Figures,
    FormatError,
    Graph,
    GraphError,
    InfeasibleError,
    InvalidPlanError,
    Machine,
    MemoryRange,
    Plan,
    PlanningError,
    Session,
    SessionError,
    SetupCosts,
    SwitchError,
    SwitchFigures,
)
from .pickling import register as _register

_register()

__all__ = [
    "BudgetError",
    "Cuda",
    "DeviceError",
    "Error",
    "FormatError",
    "Graph",
    "GraphError",
    "InfeasibleError",
    "InvalidPlanError",
    "Machine",
    "MemoryRange",
    "Plan",
    "PlanningError",
    "Figures",
    "Session",
    "SessionError",
    "SetupCosts",
    "SwitchError",
    "SwitchFigures",
]

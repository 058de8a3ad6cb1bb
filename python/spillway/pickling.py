"""Pickles graphs, machines and plans, by the bytes of their files. A plan is proved again where it is
read."""

import copyreg
from typing import Any

from ._core import Graph, Machine, Plan, SetupCosts


def _graph(graph: Graph) -> tuple[Any, ...]:
    return Graph.from_json, (graph.to_json(),)


def _machine(machine: Machine) -> tuple[Any, ...]:
    return Machine.from_json, (machine.to_json(),)


def _plan(plan: Plan) -> tuple[Any, ...]:
    return _read_plan, (plan.to_json(), plan.graph, plan.machine, plan.setup_costs)


def _read_plan(json: bytes, graph: Graph, machine: Machine, costs: SetupCosts | None) -> Plan:
    plan = Plan.from_json(json, graph, machine)
    return plan if costs is None else plan.with_setup_costs(costs)


def _setup_costs(costs: SetupCosts) -> tuple[Any, ...]:
    return SetupCosts, (costs.create_ns_per_page, costs.map_ns, costs.touch_ns_per_page)


def register() -> None:
    copyreg.pickle(Graph, _graph)
    copyreg.pickle(Machine, _machine)
    copyreg.pickle(Plan, _plan)
    copyreg.pickle(SetupCosts, _setup_costs)

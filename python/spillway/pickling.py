"""Pickles graphs, machines and plans, by the bytes of their files. A plan is proved again where it is
read."""

import copyreg

from ._core import Graph, Machine, Plan


def _graph(graph):
    return Graph.from_json, (graph.to_json(),)


def _machine(machine):
    return Machine.from_json, (machine.to_json(),)


def _plan(plan):
    return Plan.from_json, (plan.to_json(), plan.graph, plan.machine)


def register():
    copyreg.pickle(Graph, _graph)
    copyreg.pickle(Machine, _machine)
    copyreg.pickle(Plan, _plan)

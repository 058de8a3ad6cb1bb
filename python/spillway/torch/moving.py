"""Moves a graph of `torch.compile` from the processor to the device of its plan."""

import copy
from contextlib import ExitStack

import torch
from torch.amp.autocast_mode import _enter_autocast
from torch.fx.node import map_aggregate

PROCESSOR = torch.device("cpu")


class OnDevice(torch.nn.Module):
    """A graph of a model on the processor, for inputs on another device. All ops run there, and autocast of the
    processor becomes autocast of the device, to the same type."""

    def __init__(self, graph, device):
        super().__init__()
        self.graph, self._device = _moved(graph, device), device

    def forward(self, *inputs):
        with ExitStack() as within:
            within.enter_context(self._device)
            if torch.is_autocast_enabled("cpu"):
                dtype = torch.get_autocast_dtype("cpu")
                within.enter_context(torch.autocast(self._device.type, dtype))
            return self.graph.forward(*inputs)


def _moved(module, device):
    """Returns a copy of a graph whose nodes name the device in place of the processor. It shares the tensors of the
    graph."""
    nodes = copy.deepcopy(module.graph)
    for node in nodes.nodes:
        _move(node, device)
    moved = torch.fx.GraphModule(module, nodes)
    for name, child in moved.named_children():
        if isinstance(child, torch.fx.GraphModule):
            setattr(moved, name, _moved(child, device))
    return moved


def _move(node, device):
    is_method = node.op == "call_method"
    if is_method and node.target == "cpu":
        node.target, node.args = "to", (*node.args, device)
    elif node.target is _enter_autocast and node.args[0] == "cpu":
        node.args = device.type, node.args[1] or torch.get_autocast_dtype("cpu"), *node.args[2:]
    else:
        is_to = is_method and node.target == "to"
        node.args = _elsewhere(node.args, device, has_names=is_to)
        node.kwargs = {name: _elsewhere(a, device, has_names=name == "device") for name, a in node.kwargs.items()}


def _elsewhere(args, device, has_names):
    """Returns arguments with a device in place of the processor. Texts name devices only if `has_names` is set."""

    def moved(arg):
        return device if arg == PROCESSOR or (has_names and arg == "cpu") else arg

    return map_aggregate(args, moved)

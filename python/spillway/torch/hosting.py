"""Ops of the optimizer that may run on the host, by PyTorch's kernels for the processor, and how long they
take there."""

from contextlib import contextmanager

import torch
from torch.utils._pytree import tree_leaves

from .launching import plain_mode

STRATEGIES = "auto", "optimizer-offload", "split"  # those that know the host


def may_run_on_host(call):
    """Returns whether a call that is neither random nor a collective may run on the host: it is one of
    PyTorch's own, made by the optimizer, and names no other device."""
    leaves = tree_leaves((call.args, call.kwargs))
    devices = (leaf.type for leaf in leaves if isinstance(leaf, torch.device))
    is_known = call.function is None or call.function.namespace == "aten"
    return call.by_optimizer and is_known and all(kind == "cpu" for kind in devices)


def host_times(step):
    """Returns the time of each op of a step on the host, and None for ops that may not run there."""
    with step.source.measurements.on_host() as measurements:
        return [
            None if op.host_call is None else measurements.measure(op.host_call, step.storages).time_ns
            for op in step.operations
        ]


def settings_for(step, strategy, settings):
    """Returns the settings for a plan that may run ops of the optimizer on the host. Elsewhere than on
    the processor all of these do, whatever the budget: their results are the processor's."""
    if strategy not in STRATEGIES:
        known = " or ".join(map(repr, STRATEGIES[:2]))
        raise ValueError(f"the strategy {strategy!r} runs no op on the host: plan with {known}")
    if step.device.torch_device.type == "cpu":
        return settings
    if strategy == "split" or settings.get("host", "all") != "all":
        raise ValueError(
            "on another device than the processor, all ops of the optimizer run on the host or none does,"
            " so that results do not depend on the plan: leave out the strategy 'split' and the setting"
            " 'host'"
        )
    return {**settings, "host": "all"} if strategy == "auto" else settings


@contextmanager
def on_host(threads):
    """Within it, ops run on the host, in a thread of the session's, and compute with as many threads as
    the caller, which some results depend on."""
    if torch.get_num_threads() != threads:
        torch.set_num_threads(threads)
    with plain_mode():
        yield

"""Chooses what PyTorch's own partitioner saves for the backward pass, for `torch.compile`.

    from torch._functorch import config
    from spillway.torch.knapsack import KnapsackSolver

    config.activation_memory_budget = 0.5
    config.activation_memory_budget_solver = KnapsackSolver()
    model = torch.compile(model)

PyTorch's solvers add up what each activation takes, as if each were saved or computed again by
itself. But a minimum cut decides what is saved in the end, and the worst moment decides how much
memory is needed. This solver begins with what PyTorch's would choose for measured times. Then it
changes the choice, has the cut made for each change, and keeps what takes less time and no more
memory at the worst moment.
"""

import random
import time
from typing import Any

import torch
from torch._functorch import partitioners
from torch._functorch._activation_checkpointing.knapsack import dp_knapsack
from torch._inductor.custom_graph_pass import CustomKnapsackSolver, get_hash_for_files
from torch.utils._pytree import tree_leaves, tree_map

CUTS = 60


class KnapsackSolver(CustomKnapsackSolver):
    """Tries `cuts` choices, which takes most of its time."""

    def __init__(self, cuts: int = CUTS) -> None:
        self.cuts = cuts
        self.times = Times()

    def __call__(
        self,
        memory: list[float],
        joint_graph: torch.fx.Graph,
        max_memory: float,
        node_info: Any,
        nodes: list[torch.fx.Node],
    ) -> tuple[list[int], list[int]]:
        """Returns the numbers of the nodes that are saved, and of those that may run again."""
        times_ns = [self.times.of(node) for node in nodes]
        first = frozenset(dp_knapsack(memory, times_ns, max_memory)[2])
        search = _Search(_Cuts(joint_graph, node_info, nodes, self.times), first)
        search.save_more(sorted(first, key=lambda k: -times_ns[k]), self.cuts // 2)
        search.exchange(len(nodes), self.cuts)
        return [k for k in range(len(nodes)) if k not in search.best], sorted(search.best)

    def uuid(self) -> Any:
        return get_hash_for_files((__file__,)), self.cuts


class _Search:
    """Changes a choice, the set of the nodes that may run again, as long as it gets better."""

    def __init__(self, cuts, first):
        self.cuts, self.best = cuts, first
        self.most_bytes, self.time_ns = cuts.costs(first)
        self.tried = 1

    def save_more(self, candidates, tries):
        """Saves each candidate, if that costs no memory at the worst moment."""
        for k in candidates:
            if self.tried == tries:
                return
            self._try(self.best - {k})

    def exchange(self, count, tries):
        """Exchanges a few of all `count` nodes by chance, the same in every run."""
        chance = random.Random(1)
        while self.tried < tries:
            few = chance.sample(range(count), min(count, chance.randint(1, 3)))
            self._try(self.best.symmetric_difference(few))

    def _try(self, choice):
        self.tried += 1
        peak_bytes, time_ns = self.cuts.costs(choice)
        is_better = (time_ns, peak_bytes) < (self.time_ns, self.most_bytes)
        if is_better and peak_bytes <= self.most_bytes:
            self.best, self.time_ns = choice, time_ns


class _Cuts:
    """What PyTorch's minimum cut makes of a choice."""

    def __init__(self, joint_graph, node_info, nodes, times):
        self.graph, self.info, self.nodes, self.times = joint_graph, node_info, nodes, times
        self.inputs = set(node_info.inputs)
        self.order = {node: k for k, node in enumerate(joint_graph.nodes)}
        given = {s for node in self.inputs for s in _storages(node)}
        self.storages = {
            node: {s: nbytes for s, nbytes in _storages(node).items() if s not in given}
            for node in joint_graph.nodes
        }

    def costs(self, choice):
        """Returns the most bytes that are held at once, and the time of what runs again."""
        options = partitioners.MinCutOptions(
            ban_if_used_far_apart=False,
            ban_if_long_fusible_chains=False,
            ban_if_materialized_backward=False,
            ban_if_not_in_allowlist=False,
            ban_if_reduction=partitioners.config.ban_recompute_reductions,
        )
        allowed = partitioners.OrderedSet(self.nodes[k] for k in sorted(choice))
        saved = partitioners.solve_min_cut(self.graph, self.info, options, allowed)[0]
        backward = self._backward(self.inputs.union(saved))
        results = self.graph.output_node().all_input_nodes
        peak_bytes = max(
            self._most_held_bytes([], self.info.required_fw_nodes, saved),
            self._most_held_bytes(saved, backward, [n for n in results if n in self.order]),
        )
        again = [n for n in backward if not self.info.is_required_bw(n)]
        return peak_bytes, sum(map(self.times.of, again))

    def _backward(self, saved):
        """Returns what the backward pass runs: each op that runs again comes just before the
        first that needs it."""
        done, steps = set(saved), []
        for node in self.graph.nodes:
            if not self.info.is_required_bw(node):
                continue
            wanted, new = [node], set()
            while wanted:
                n = wanted.pop()
                if n not in done and n not in new:
                    new.add(n)
                    wanted += n.all_input_nodes
            steps += sorted(new, key=self.order.get)
            done |= new
        return steps

    def _most_held_bytes(self, first, steps, kept):
        last = {}
        for at, node in enumerate(steps):
            for n in (node, *node.all_input_nodes):
                last |= dict.fromkeys(self.storages[n], at)
        for node in kept:
            last |= dict.fromkeys(self.storages[node], len(steps))
        held = {s: nbytes for node in first for s, nbytes in self.storages[node].items()}
        ends = [[] for _ in range(len(steps) + 1)]
        for storage, at in last.items():
            ends[at].append(storage)
        now = most = sum(held.values())
        for at, node in enumerate(steps):
            for storage, nbytes in self.storages[node].items():
                if storage not in held:
                    held[storage] = nbytes
                    now += nbytes
            most = max(most, now)
            now -= sum(held.pop(storage, 0) for storage in ends[at])
        return most


def _storages(node):
    """Returns the bytes of the storages of a node's results."""
    values = node.meta.get("val")
    values = values if isinstance(values, (tuple, list)) else [values]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


class Times:
    """Measured times of ops. Ops with the same arguments are measured once."""

    def __init__(self):
        self._known = {}

    def of(self, node):
        """Returns the time of a node in nanoseconds; 0 for views, and for what is no op."""
        if node.op != "call_function" or not isinstance(node.target, torch._ops.OpOverload):
            return 0
        if partitioners.get_default_op_list().is_view(node):
            return 0
        key = str((node.target, tree_map(_described, (node.args, node.kwargs))))
        if key not in self._known:
            self._known[key] = _measured(node)
        return self._known[key]


def _described(arg):
    value = arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg
    if isinstance(value, torch.Tensor):
        return tuple(value.shape), value.stride(), value.dtype, value.device
    return value


@torch.no_grad()
def _measured(node):
    args, kwargs = tree_map(_real, (node.args, node.kwargs))
    on_cuda = any(isinstance(arg, torch.Tensor) and arg.is_cuda for arg in tree_leaves(args))
    wait = torch.cuda.synchronize if on_cuda else lambda: None
    clock_ns = time.perf_counter_ns if on_cuda else time.thread_time_ns
    times = []
    for _ in range(3):
        wait()
        start = clock_ns()
        node.target(*args, **kwargs)
        wait()
        times.append(clock_ns() - start)
    return min(times)


def _real(arg):
    value = arg.meta.get("val") if isinstance(arg, torch.fx.Node) else arg
    if not isinstance(value, torch.Tensor):
        return value
    real = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return real.fill_(0.5 if value.dtype.is_floating_point else 0)

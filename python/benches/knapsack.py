"""Compares what solvers save and compute again when `torch.compile` trains with less memory.

    python3 benches/knapsack.py

Each solver partitions the same training step for three memory budgets. Printed are the rows of
the table in docs/research/pytorch.md: the memory of activations and gradients at the worst moment, and the CPU
time of the ops that the backward pass runs again.
"""

import copy

import torch
import torchvision
import transformers
from torch._dynamo.backends.common import aot_autograd
from torch._functorch import config, partitioners
from torch._inductor.custom_graph_pass import CustomRuntimeEstimator
from torch._inductor.decomposition import select_decomp_table
from torch.nn import functional as F
from torch.utils._mode_utils import no_dispatch

from spillway.torch.knapsack import KnapsackSolver

SOLVER = KnapsackSolver()
TIMES = SOLVER.times
BUDGETS = 0.1, 0.2, 0.3


class Measured(CustomRuntimeEstimator):
    def __call__(self, node):
        with no_dispatch():
            return float(TIMES.of(node))

    def uuid(self):
        return None


SOLVERS = {
    "dp": dict(activation_memory_budget_solver="dp"),
    "dp, measured times": dict(
        activation_memory_budget_solver="dp",
        activation_memory_budget_runtime_estimator=Measured(),
    ),
    "spillway": dict(activation_memory_budget_solver=SOLVER),
}


def language_model(model_class, config_class, **size):
    model = model_class(config_class(vocab_size=1024, use_cache=False, **size)).train()
    ids = torch.randint(1024, (4, 128))

    def loss():
        logits = model(input_ids=ids).logits
        return F.cross_entropy(logits.flatten(0, 1), ids.flatten())

    return loss


def gpt2():
    size = dict(n_layer=4, n_embd=256, n_head=4, n_positions=128)
    return language_model(transformers.GPT2LMHeadModel, transformers.GPT2Config, **size)


def llama():
    size = dict(hidden_size=256, num_hidden_layers=4, num_attention_heads=4)
    size |= dict(intermediate_size=688, max_position_embeddings=128)
    return language_model(transformers.LlamaForCausalLM, transformers.LlamaConfig, **size)


def resnet50():
    model = torchvision.models.resnet50(num_classes=10).train()
    pictures, classes = torch.randn(8, 3, 64, 64), torch.randint(10, (8,))
    return lambda: F.cross_entropy(model(pictures), classes)


def partitions(loss):
    """Returns, by solver, the memory and the time of what runs again for each budget."""
    found = {name: [] for name in SOLVERS}

    def partition(joint, inputs, **arguments):
        for name, settings in SOLVERS.items():
            for budget in BUDGETS:
                with config.patch(activation_memory_budget=budget, **settings):
                    parts = partitioners.min_cut_rematerialization_partition(
                        copy.deepcopy(joint), inputs, **arguments
                    )
                found[name].append((peak_bytes(*parts), time_again_ns(parts[1])))
        return parts

    backend = aot_autograd(
        fw_compiler=lambda graph, _: graph,
        bw_compiler=lambda graph, _: graph,
        partition_fn=partition,
        decompositions=select_decomp_table(),
    )
    torch._dynamo.reset()
    torch.compile(loss, backend=backend, dynamic=False, fullgraph=True)()
    return found


def time_again_ns(backward):
    """Returns the time of the ops of a backward pass that need no gradient."""
    of_gradients, time_ns = set(), 0
    for node in backward.graph.nodes:
        is_gradient = node.op == "placeholder" and "tangent" in node.name
        if is_gradient or any(n in of_gradients for n in node.all_input_nodes):
            of_gradients.add(node)
        else:
            time_ns += TIMES.of(node)
    return time_ns


def storages(node):
    values = node.meta.get("val")
    values = values if isinstance(values, (tuple, list)) else [values]
    tensors = [v for v in values if isinstance(v, torch.Tensor)]
    return {t.untyped_storage()._cdata: t.untyped_storage().nbytes() for t in tensors}


def peak_bytes(forward, backward):
    """Returns the most bytes of activations and gradients that are held at once."""
    inputs = forward.graph.find_nodes(op="placeholder")
    given = {s for node in inputs for s in storages(node)}
    return max(most_held_bytes(part.graph, given) for part in (forward, backward))


def most_held_bytes(graph, given):
    nodes, last = list(graph.nodes), {}
    for at, node in enumerate(nodes):
        for n in (node, *node.all_input_nodes):
            last |= dict.fromkeys(storages(n), at)
    held, most = {}, 0
    for node in graph.find_nodes(op="placeholder"):
        held |= {s: nbytes for s, nbytes in storages(node).items() if s not in given}
    for at, node in enumerate(nodes):
        held |= {s: nbytes for s, nbytes in storages(node).items() if s not in given}
        most = max(most, sum(held.values()))
        held = {s: nbytes for s, nbytes in held.items() if last[s] > at}
    return most


def show(name, found):
    for k, budget in enumerate(BUDGETS):
        cells = [f"{found[s][k][0] / 2**20:.1f} MiB, {found[s][k][1] / 1e6:.1f} ms" for s in found]
        print(f"| {name} | {budget} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    for make in (gpt2, llama, resnet50):
        torch.manual_seed(7)
        show(make.__name__, partitions(make()))

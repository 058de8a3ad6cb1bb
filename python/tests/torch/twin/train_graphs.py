"""Graph networks, and other sparse or irregular work."""

import torch
from parts import adam
from sides import refused, same
from torch import nn
from torch.nn import functional as F


def graphs(steps=5, nodes=8, edges=20):
    return [(torch.randn(nodes, 8), torch.randint(nodes, (2, edges)), torch.randint(4, (nodes,))) for _ in range(steps)]


class Layered(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.score = nn.Linear(8, 8), nn.Linear(8, 4), nn.Linear(16, 1)


@same(short=True)
def messages_summed_by_index_add(side):
    def loss_fn(m, batch):
        x, (source, target), y = batch
        h = m.a(x).relu()
        h = h + torch.zeros_like(h).index_add(0, target, h[source])
        return F.cross_entropy(m.b(h), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())


@same
def attention_over_neighbours(side):
    def loss_fn(m, batch):
        x, (source, target), y = batch
        h = m.a(x)
        score = F.leaky_relu(m.score(torch.cat([h[source], h[target]], 1)))[:, 0]
        top = torch.full((len(x),), -1e9).scatter_reduce(0, target, score, "amax")
        weight = (score - top[target]).exp()
        total = torch.zeros(len(x)).scatter_add(0, target, weight)
        weight = weight / total[target].clamp(min=1e-6)
        h = torch.zeros_like(h).index_add(0, target, weight[:, None] * h[source])
        return F.cross_entropy(m.b(h), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())


@refused("strided tensors")
def a_sparse_adjacency(side):
    where = torch.randint(8, (2, 20))
    adjacency = torch.sparse_coo_tensor(where, torch.ones(20), (8, 8)).coalesce()

    def loss_fn(m, batch):
        x, _, y = batch
        return F.cross_entropy(m.b(torch.sparse.mm(adjacency, m.a(x).relu())), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())


@same
def degrees_by_bincount_of_a_known_length(side):
    def loss_fn(m, batch):
        x, (source, target), y = batch
        degree = torch.zeros(len(x)).scatter_add(0, target, torch.ones(target.shape))
        h = m.a(x) * degree.clamp(min=1).rsqrt()[:, None]
        h = torch.zeros_like(h).index_add(0, target, h[source])
        return F.cross_entropy(m.b(h), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())


@refused("depends on data")
def degrees_by_bincount(side):
    def loss_fn(m, batch):
        x, (source, target), y = batch
        degree = torch.bincount(target, minlength=len(x)).float()
        return F.cross_entropy(m.b(m.a(x) / (1 + degree)[: len(x), None]), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())


@refused("depends on data")
def edges_without_repeats(side):
    def loss_fn(m, batch):
        x, edges, y = batch
        source, target = torch.unique(edges, dim=1)
        h = m.a(x)
        return F.cross_entropy(m.b(h.index_add(0, target, h[source])), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())


@same
def graphs_of_several_sizes(side):
    def loss_fn(m, batch):
        x, (source, target), y = batch
        h = m.a(x).relu()
        return F.cross_entropy(m.b(h.index_add(0, target, h[source])), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), [*graphs(2), *graphs(2, 6, 11), *graphs(1)])


@same
def points_and_their_nearest_neighbours(side):
    def loss_fn(m, batch):
        x, _, y = batch
        near = torch.cdist(x, x).topk(3, largest=False).indices
        h = m.a(x)[near].max(1).values
        return F.cross_entropy(m.b(h), y)

    model = Layered()
    side.train(model, loss_fn, adam(model), graphs())

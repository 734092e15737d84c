"""Recommenders and networks over graphs, on dense batches."""

from __future__ import annotations

import torch
from torch import nn

from benchmarks.zoo.entry import Builder, Entry

FIELDS = 8
ROWS = 50


class DLRM(nn.Module):
    """Dense features and bags of categories, all pairs of their products (Naumov et al. 2019)."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = nn.Sequential(nn.Linear(13, 64), nn.ReLU(), nn.Linear(64, 16), nn.ReLU())
        self.tables = nn.ModuleList(nn.EmbeddingBag(ROWS, 16, mode="sum") for _ in range(FIELDS))
        self.top = nn.Sequential(nn.Linear(16 + 36, 64), nn.ReLU(), nn.Linear(64, 1), nn.Sigmoid())
        self.register_buffer("pairs", torch.tril_indices(FIELDS + 1, FIELDS + 1, -1))

    def forward(self, dense: torch.Tensor, bags: torch.Tensor) -> torch.Tensor:
        x = self.dense(dense)
        vectors = torch.stack([x, *(table(bags[:, k]) for k, table in enumerate(self.tables))], 1)
        products = vectors @ vectors.transpose(1, 2)
        return self.top(torch.cat([x, products[:, self.pairs[0], self.pairs[1]]], 1))


class DeepFM(nn.Module):
    """A factorisation machine beside a deep network (Guo et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.factors = nn.Embedding(FIELDS * ROWS, 1), nn.Embedding(FIELDS * ROWS, 8)
        self.deep = nn.Sequential(nn.Linear(FIELDS * 8, 64), nn.ReLU(), nn.Linear(64, 1))
        self.register_buffer("offsets", torch.arange(FIELDS) * ROWS)

    def forward(self, categories: torch.Tensor) -> torch.Tensor:
        rows = categories + self.offsets
        v = self.factors(rows)
        pairs = 0.5 * (v.sum(1).square() - v.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.linear(rows).sum(1) + pairs + self.deep(v.flatten(1)))


class DeepCross(nn.Module):
    """Explicit crosses of features (Wang et al. 2021)."""

    def __init__(self) -> None:
        super().__init__()
        self.crosses = nn.ModuleList(nn.Linear(40, 40) for _ in range(3))
        self.head = nn.Linear(40, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        x = features
        for cross in self.crosses:
            x = features * cross(x) + x
        return torch.sigmoid(self.head(x))


class TwoTowers(nn.Module):
    """Users and items as unit vectors, and how alike they are."""

    def __init__(self) -> None:
        super().__init__()
        self.users, self.items = nn.Linear(30, 32), nn.Linear(20, 32)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        u, i = (nn.functional.normalize(v, dim=-1) for v in (self.users(users), self.items(items)))
        return u @ i.T / 0.07


class GraphSAGE(nn.Module):
    """Means over sampled neighbours, given by number (Hamilton et al. 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.own = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 8)])
        self.others = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 8)])

    def forward(self, nodes: torch.Tensor, neighbours: torch.Tensor) -> torch.Tensor:
        for own, others in zip(self.own, self.others, strict=True):
            nodes = torch.relu(own(nodes) + others(nodes[neighbours].mean(1)))
        return nodes


class GCN(nn.Module):
    """Messages along a list of edges, summed where they arrive (Kipf and Welling 2017)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 32), nn.Linear(32, 8)])

    def forward(self, nodes: torch.Tensor, sources: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        ones = torch.ones(sources.shape[0])
        degree = torch.zeros(nodes.shape[0]).index_add(0, targets, ones) + 1
        scale = (degree[sources] * degree[targets]).rsqrt()[:, None]
        for layer in self.layers:
            y = layer(nodes)
            nodes = torch.relu(y / degree[:, None] + torch.zeros_like(y).index_add(0, targets, y[sources] * scale))
        return nodes


class GAT(nn.Module):
    """Attention over a dense adjacency matrix (Velickovic et al. 2018)."""

    def __init__(self) -> None:
        super().__init__()
        self.project, self.source, self.target = nn.Linear(16, 32), nn.Linear(32, 1), nn.Linear(32, 1)

    def forward(self, nodes: torch.Tensor, edges: torch.Tensor) -> torch.Tensor:
        y = self.project(nodes)
        scores = nn.functional.leaky_relu(self.source(y) + self.target(y).T, 0.2)
        return nn.functional.elu(scores.masked_fill(~edges, float("-inf")).softmax(-1) @ y)


def graph_edges() -> Entry:
    return Entry(GCN().eval(), (torch.randn(30, 16), torch.randint(0, 30, (90,)), torch.randint(0, 30, (90,))))


def graph_attention() -> Entry:
    return Entry(GAT().eval(), (torch.randn(30, 16), (torch.rand(30, 30) < 0.2) | torch.eye(30, dtype=torch.bool)))


MODELS: dict[str, Builder] = {
    "recommender-DLRM": lambda: Entry(DLRM().eval(), (torch.randn(4, 13), torch.randint(0, ROWS, (4, FIELDS, 3)))),
    "recommender-DeepFM": lambda: Entry(DeepFM().eval(), (torch.randint(0, ROWS, (4, FIELDS)),)),
    "recommender-DCN": lambda: Entry(DeepCross().eval(), (torch.randn(4, 40),)),
    "recommender-two-towers": lambda: Entry(TwoTowers().eval(), (torch.randn(5, 30), torch.randn(7, 20))),
    "graph-SAGE": lambda: Entry(GraphSAGE().eval(), (torch.randn(30, 16), torch.randint(0, 30, (30, 5)))),
    "graph-GCN": graph_edges,
    "graph-GAT": graph_attention,
}

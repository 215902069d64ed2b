"""Two graph networks over windows of CAN-bus traffic: a VGAE learns what follows what, a GAT finds
the windows in which there is an attack.

Both have the same encoder, so that the GAT may begin with what the VGAE has learnt. All random
numbers (the VGAE's noise, and its pairs that are no edges) are drawn with the sample, and losses
are sums over graphs: a step stays the same however it is split into micro-batches. tasuki calls the
methods of `VGAE` and `GAT`; the spec's `params` are the arguments of their constructors.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GATConv, global_max_pool, global_mean_pool
from torch_geometric.utils import scatter

from tasuki import Hdf5Dataset

ATTACKS = ("none", "dos", "fuzzy", "spoofing")
ID_BITS = 11
FEATURES = 7
"""Of a node, beside its ID; the first says how often it occurs."""
EDGES_PER_NODE = 2
"""Of graphs that are made up: the mean of the data. Larger graphs have more, which need less."""
TYPICAL_SIZE = 50
BUDGET = 4000
"""Nodes and edges that are evaluated at once: no more than a step on a CPU has."""


class Encoder(nn.Module):
    """A state for each node that knows which IDs came before it, and how often."""

    def __init__(self, width: int, heads: int, layers: int, dropout: float) -> None:
        super().__init__()
        self.enter = nn.Linear(ID_BITS + FEATURES, width)
        self.layers = nn.ModuleList(
            GATConv(width, width // heads, heads, edge_dim=1) for _ in range(layers)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, graphs: Batch) -> Tensor:
        state = functional.elu(self.enter(graphs.x))
        for layer in self.layers:
            heard = layer(state, graphs.edge_index, graphs.edge_attr)
            state = state + self.drop(functional.elu(heard))
        return state


class AutoEncoder(nn.Module):
    """Each node gets a place; whether one follows another is told by their two places."""

    def __init__(self, encoder: Encoder, width: int, latent: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.mean = nn.Linear(width, latent)
        self.log_spread = nn.Linear(width, latent)
        self.following = nn.Linear(latent, latent)

    def forward(self, graphs: Batch) -> tuple[Tensor, Tensor]:
        state = self.encoder(graphs)
        return self.mean(state), self.log_spread(state).clamp(max=4)

    def logits(self, places: Tensor, pairs: Tensor) -> Tensor:
        before, after = pairs
        return (self.following(places)[before] * places[after]).sum(-1)


class Detector(nn.Module):
    """One number per graph: above 0 it says attack."""

    def __init__(self, encoder: Encoder, width: int) -> None:
        super().__init__()
        self.encoder = encoder
        self.judge = nn.Sequential(nn.Linear(2 * width, width), nn.ELU(), nn.Linear(width, 1))

    def forward(self, graphs: Batch) -> Tensor:
        state = self.encoder(graphs)
        pooled = [
            pool(state, graphs.batch, graphs.num_graphs)
            for pool in (global_mean_pool, global_max_pool)
        ]
        return self.judge(torch.cat(pooled, -1)).squeeze(-1)


class CanGraphs:
    """What both recipes do with data. A sample is a graph, a batch is torch_geometric's."""

    def __init__(
        self, *, width: int = 32, heads: int = 4, layers: int = 2, dropout: float = 0.0
    ) -> None:
        self.width = width
        self.encoder = (width, heads, layers, dropout)

    def build_dataset(self, source: str | list[str], split: str) -> Hdf5Dataset:
        """Graphs one after another in a file: only those asked for are read."""
        return Hdf5Dataset(source, split, transform=self.make_graph)

    def make_graph(self, sample: dict[str, Any]) -> Data:
        return to_graph(sample)

    def sample_sizes(self, dataset: Hdf5Dataset) -> NDArray[np.int64]:
        """Nodes and edges together: what memory and time go by."""
        return dataset.counts("nodes") + dataset.counts("edges")

    def sample_costs(self, dataset: Hdf5Dataset) -> dict[str, NDArray[np.int64]]:
        return {name: dataset.counts(name) for name in ("nodes", "edges")}

    def collate(self, graphs: list[Data]) -> Batch:
        return Batch.from_data_list(graphs)

    def example_batch(self, size: int | None, batch: int) -> Batch:
        """So many graphs of that many nodes and edges, without any data."""
        size = size or TYPICAL_SIZE
        num_nodes = max(2, size // (1 + EDGES_PER_NODE))
        before = np.arange(max(1, size - num_nodes)) % num_nodes
        edges = np.stack([before, (before + 1) % num_nodes, np.ones_like(before)], 1)
        nodes = np.zeros((num_nodes, 1 + FEATURES), np.float32)
        sample = {"n": num_nodes, "nodes": nodes, "edges": edges, "attack": 0}
        return self.collate([self.make_graph(sample) for _ in range(batch)])

    def in_batches(self, dataset: Hdf5Dataset, model: nn.Module) -> Iterator[Batch]:
        """All graphs in their order, as many at once as the budget allows."""
        device = next(model.parameters()).device
        ends = np.cumsum(self.sample_sizes(dataset))
        for part in np.unique(ends // BUDGET):
            wanted = np.flatnonzero(ends // BUDGET == part).tolist()
            yield self.collate(dataset.__getitems__(wanted)).to(device)


class VGAE(CanGraphs):
    """Learns without labels which message follows which."""

    def __init__(self, *, latent: int = 16, kl: float = 0.003, **encoder: Any) -> None:
        super().__init__(**encoder)
        self.latent, self.kl = latent, kl

    def build_model(self) -> AutoEncoder:
        return AutoEncoder(Encoder(*self.encoder), self.width, self.latent)

    def build_dataset(self, source: str | list[str], split: str) -> Hdf5Dataset:
        made = self.make_graph if split == "train" else self.make_same_graph
        return Hdf5Dataset(source, split, transform=made)

    def make_graph(self, sample: dict[str, Any]) -> Data:
        """With the random numbers of this pass: noise, and as many pairs as edges that are none."""
        graph = to_graph(sample)
        graph.noise = torch.randn(graph.num_nodes, self.latent)
        graph.other_index = pairs_beside_edges(graph)
        return graph

    def make_same_graph(self, sample: dict[str, Any]) -> Data:
        """With the same numbers in every evaluation: what differs is the model."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(sample["n"]))
            return self.make_graph(sample)

    def loss(self, model: nn.Module, graphs: Batch) -> tuple[Tensor, int]:
        """Each graph counts once, however large it is."""
        mean, log_spread = model(graphs)
        places = mean + graphs.noise * log_spread.exp()
        total = -0.5 * self.kl * (1 + 2 * log_spread - mean**2 - (2 * log_spread).exp()).sum(-1)
        total = per_graph(total, graphs.batch, graphs)
        for pairs, sign in ((graphs.edge_index, 1), (graphs.other_index, -1)):
            surprise = functional.softplus(-sign * model.logits(places, pairs))
            total = total + per_graph(surprise, graphs.batch[pairs[0]], graphs)
        return total.sum(), graphs.num_graphs

    def evaluate(self, model: nn.Module, dataset: Hdf5Dataset) -> dict[str, float]:
        """`auc`: how often an edge is more likely to the model than a pair that is none; 0.5 is
        chance. `by_frequency`: the same when frequent IDs are taken to follow each other."""
        found, frequent, is_edge = [], [], []
        for graphs in self.in_batches(dataset, model):
            mean, _ = model(graphs)
            for pairs, label in ((graphs.edge_index, 1), (graphs.other_index, 0)):
                found.append(model.logits(mean, pairs).cpu())
                frequent.append(graphs.x[pairs, ID_BITS].sum(0).cpu())
                is_edge.append(torch.full((pairs.shape[1],), label))
        labels = torch.cat(is_edge)
        return {
            "auc": area(torch.cat(found), labels),
            "by_frequency": area(torch.cat(frequent), labels),
        }


class GAT(CanGraphs):
    """Learns with labels in which windows there is an attack."""

    def build_model(self) -> Detector:
        return Detector(Encoder(*self.encoder), self.width)

    def sample_scores(self, dataset: Hdf5Dataset) -> NDArray[np.float64]:
        """How hard a window is, from 0 to 1 within its class: the fewer of the messages are the
        attacker's; the larger a window without any. So every step has both, as the data have."""
        is_attack = dataset.counts("attack") > 0
        injected = dataset.counts("injected") / dataset.counts("messages")
        hardness = np.where(is_attack, -injected, self.sample_sizes(dataset))
        scores = np.empty(len(hardness))
        for own in (np.flatnonzero(is_attack), np.flatnonzero(~is_attack)):
            ascending = own[np.argsort(hardness[own], kind="stable")]
            scores[ascending] = (np.arange(len(own)) + 0.5) / len(own)
        return scores

    def loss(self, model: nn.Module, graphs: Batch) -> tuple[Tensor, int]:
        wanted = (graphs.attack > 0).float()
        found = model(graphs)
        total = functional.binary_cross_entropy_with_logits(found, wanted, reduction="sum")
        return total, graphs.num_graphs

    def evaluate(self, model: nn.Module, dataset: Hdf5Dataset) -> dict[str, float]:
        """`auc`: how often a window with an attack looks worse than one without; `by_size` is that
        of taking the larger one. `accuracy` against `guess` (always the more frequent answer)."""
        batches = list(self.in_batches(dataset, model))
        found = torch.cat([model(graphs).cpu() for graphs in batches])
        attack = torch.cat([graphs.attack.cpu() for graphs in batches])
        is_attack = attack > 0
        share = float(is_attack.float().mean())
        caught = {
            f"caught_{name}": float((found[attack == number] > 0).float().mean())
            for number, name in enumerate(ATTACKS)
            if number and (attack == number).any()
        }
        return {
            "auc": area(found, is_attack),
            "by_size": area(torch.from_numpy(self.sample_sizes(dataset)), is_attack),
            "accuracy": float(((found > 0) == is_attack).float().mean()),
            "guess": max(share, 1 - share),
            "false_alarms": float((found[~is_attack] > 0).float().mean()),
            **caught,
        }


def to_graph(sample: dict[str, Any]) -> Data:
    """As stored → as a graph: IDs in bits, counts as logarithms."""
    nodes, edges = sample["nodes"], sample["edges"]
    bits = (nodes[:, :1].astype(np.int64) >> np.arange(ID_BITS)) & 1
    x = np.concatenate([2 * bits - 1, nodes[:, 1:]], 1, dtype=np.float32)
    return Data(
        x=torch.from_numpy(x),
        edge_index=torch.from_numpy(edges[:, :2].T.astype(np.int64, order="C")),
        edge_attr=torch.from_numpy(np.log1p(edges[:, 2:], dtype=np.float32)),
        attack=int(sample["attack"]),
    )


def pairs_beside_edges(graph: Data) -> Tensor:
    """As many pairs of nodes as there are edges, or fewer where most pairs are edges."""
    num, num_edges = graph.num_nodes, graph.num_edges
    is_edge = torch.zeros(num * num, dtype=torch.bool)
    is_edge[graph.edge_index[0] * num + graph.edge_index[1]] = True
    drawn = torch.randint(num * num, (2 * num_edges,))
    kept = drawn[~is_edge[drawn]][:num_edges]
    return torch.stack([kept // num, kept % num])


def per_graph(values: Tensor, graph: Tensor, graphs: Batch) -> Tensor:
    """The mean of each graph's own values."""
    return scatter(values, graph, dim_size=graphs.num_graphs, reduce="mean")


def area(found: Tensor, labels: Tensor) -> float:
    """Under the ROC curve: the share of pairs (true, false) that are in order; ties count half."""
    _, place, counts = torch.unique(found.double(), return_inverse=True, return_counts=True)
    ranks = (counts.cumsum(0) - (counts - 1) / 2)[place].double()
    positive = labels.bool()
    num = int(positive.sum())
    others = len(labels) - num
    return float((ranks[positive].sum() - num * (num + 1) / 2) / (num * others))

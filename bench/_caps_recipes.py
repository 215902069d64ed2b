"""Three examples, small, as recipes that run under random caps: matrices, tokens, graphs.

The models are those of examples/matrix_gnn and examples/token_lm; graphs have a plain network of
message passing here. Every step notes the peak of its tensors under a cap, so that caps can be
drawn between "one sample fits" and "everything fits". Imported by the runs that _caps.py makes.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from tasuki.testing.memory import Cap

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
_SCALE = 1_000_000
"""Of numbers in the generators' seeds."""


def load(example: str, name: str) -> ModuleType:
    """A module of an example; both have a `recipe`."""
    known = f"{example}_{name}"
    if known not in sys.modules:
        spec = importlib.util.spec_from_file_location(known, EXAMPLES / example / f"{name}.py")
        assert spec is not None and spec.loader is not None
        sys.modules[known] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[known])
    return sys.modules[known]


class Common:
    """An optimizer by name, and notes of the peak."""

    optimizer: str
    momentum = 0.9

    def build_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Before the first step: notes are taken after each.
        kinds: dict[str, Any] = {
            "sgd": lambda p: torch.optim.SGD(p, lr=0.02, momentum=self.momentum),
            "adamw": lambda p: torch.optim.AdamW(p, lr=0.003),
            "adam-foreach": lambda p: torch.optim.Adam(p, lr=0.003, foreach=True),
        }
        made: torch.optim.Optimizer = kinds[self.optimizer](model.parameters())
        made.register_step_post_hook(lambda *_: note_peak())
        return made


def note_peak() -> None:
    caps = [mode for mode in _get_current_dispatch_mode_stack() if isinstance(mode, Cap)]
    rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
    if caps and not rank:
        Path(os.environ["TASUKI_RUN"], "peak").write_text(str(caps[0].peak_bytes))


class Matrices(Common, load("matrix_gnn", "recipe").MatrixGNN):  # type: ignore[misc]
    """examples/matrix_gnn."""

    def __init__(self, data: str, optimizer: str) -> None:
        super().__init__(width=24, rounds=2)
        self.data, self.optimizer = data, optimizer

    def build_model(self) -> nn.Module:
        model = super().build_model()
        model.drop.p = 0.0
        return model

    def build_dataset(self, source: str, split: str) -> Any:  # noqa: ARG002
        return super().build_dataset(self.data, split)


class Tokens(Common, load("token_lm", "recipe").TokenLM):  # type: ignore[misc]
    """examples/token_lm."""

    def __init__(self, data: str, optimizer: str) -> None:  # noqa: ARG002
        super().__init__(d_model=16, layers=2, heads=2, context=64)
        self.optimizer = optimizer

    def build_dataset(self, source: str, split: str) -> list[Tensor]:  # noqa: ARG002
        """The texts of the example's generator, cut to the context."""
        generate = load("token_lm", "generate")
        shape = generate.Shape(keys=2, lines=3)
        texts = [generate.make_document(1, split, number, shape).encode() for number in range(26)]
        return [self._cut(text) for text in texts]

    def _cut(self, text: bytes) -> Tensor:
        found = [*text[: self.context + 1]]
        found += [self.end_token] * (self.context + 1 - len(found))
        return torch.tensor(found)


class Graphs(Common):
    """Message passing over graphs of very different sizes; a step may hold any of them."""

    def __init__(self, data: str, optimizer: str) -> None:  # noqa: ARG002
        self.optimizer = optimizer

    def build_model(self) -> nn.Module:
        return Passing(width=16, rounds=2)

    def build_dataset(self, source: str, split: str) -> list[dict[str, Tensor]]:  # noqa: ARG002
        return [make_graph(number) for number in range(30)]

    def sample_costs(self, dataset: list[dict[str, Tensor]]) -> dict[str, list[int]]:
        return {
            "nodes": [len(graph["x"]) for graph in dataset],
            "edges": [graph["edges"].shape[1] for graph in dataset],
        }

    def collate(self, graphs: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        """One large graph of several."""
        counts = torch.tensor([len(graph["x"]) for graph in graphs])
        starts = counts.cumsum(0) - counts
        edges = [graph["edges"] + start for graph, start in zip(graphs, starts, strict=True)]
        return {
            "x": torch.cat([graph["x"] for graph in graphs]),
            "edges": torch.cat(edges, 1),
            "graph": torch.arange(len(graphs)).repeat_interleave(counts),
            "y": torch.stack([graph["y"] for graph in graphs]),
        }

    def loss(self, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, float]:
        found = model(batch["x"], batch["edges"], batch["graph"], len(batch["y"]))
        return nn.functional.mse_loss(found, batch["y"], reduction="sum"), float(len(found))


class Passing(nn.Module):
    def __init__(self, *, width: int, rounds: int) -> None:
        super().__init__()
        self.enter, self.leave = nn.Linear(3, width), nn.Linear(width, 1)
        self.messages = nn.ModuleList(nn.Linear(2 * width, width) for _ in range(rounds))

    def forward(self, x: Tensor, edges: Tensor, graph: Tensor, count: int) -> Tensor:
        state = torch.tanh(self.enter(x))
        for layer in self.messages:
            sent = layer(torch.cat([state[edges[0]], state[edges[1]]], 1))
            heard = torch.zeros_like(state).index_add(0, edges[1], sent.to(state.dtype))
            state = torch.tanh(state + heard)
        sums = state.new_zeros(count, state.shape[1]).index_add(0, graph, state)
        return self.leave(sums).squeeze(-1).float()


def make_graph(number: int) -> dict[str, Tensor]:
    """From 3 to about 120 nodes, four edges to each."""
    generator = torch.Generator().manual_seed(_SCALE + number)
    nodes = int(3 * 40 ** float(torch.rand((), generator=generator)))
    x = torch.randn(nodes, 3, generator=generator)
    edges = torch.randint(0, nodes, (2, 4 * nodes), generator=generator)
    return {"x": x, "edges": edges, "y": x[:, 0].mean() + x[:, 1].square().mean()}

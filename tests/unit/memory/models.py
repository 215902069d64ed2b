"""Small recipes of every kind that a memory probe has to get right, and how steps are made."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tasuki.data.loader import MicroBatch
from tasuki.loop.ranks import ALONE
from tasuki.memory.fit import Fit, fit
from tasuki.memory.steps import opened
from tasuki.memory.trace import Trace
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.assemble import assemble, make_engine
from tasuki.train.footprint import count_bytes, tensors_in

STAGE: dict[str, Any] = {"name": "a", "recipe": "r:R"}


class Mlp:
    """Batch alone."""

    def __init__(self, width: int = 24) -> None:
        self.width = width

    def build_model(self) -> nn.Module:
        width = self.width
        layers = [m for _ in range(3) for m in (nn.Linear(width, width), nn.GELU())]
        return nn.Sequential(*layers, nn.Linear(width, 5))

    def batch(self, batch: int, size: int = 0) -> Any:
        return torch.zeros(batch, self.width), torch.zeros(batch, dtype=torch.int64)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        return functional.cross_entropy(model(x), y)


class Frozen(Mlp):
    """All but a small addition is frozen, as in LoRA."""

    class Added(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.base = nn.Linear(width, width).requires_grad_(False)
            self.down = nn.Linear(width, 2, bias=False)
            self.up = nn.Linear(2, width, bias=False)

        def forward(self, x):
            return self.base(x) + self.up(self.down(x))

    def build_model(self) -> nn.Module:
        blocks = [self.Added(self.width) for _ in range(3)]
        return nn.Sequential(*blocks, nn.Linear(self.width, 5).requires_grad_(False))


class Sums(Mlp):
    """A sum and its weight, with something to log."""

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, y = batch
        losses = functional.cross_entropy(model(x), y, reduction="none")
        return losses.sum(), (y >= 0).sum(), {"most": losses.detach()}


class Convolutions(Mlp):
    class Block(nn.Module):
        def __init__(self, inner: int) -> None:
            super().__init__()
            self.conv = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
            self.norm = nn.BatchNorm2d(inner)

        def forward(self, x):
            return x + functional.relu(self.norm(self.conv(x)), inplace=True)

    def __init__(self, width: int = 6) -> None:
        super().__init__(width)

    def build_model(self) -> nn.Module:
        width = self.width
        blocks = nn.Sequential(*[self.Block(width) for _ in range(3)])
        ends = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 5))
        return nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), blocks, ends)

    def batch(self, batch: int, size: int = 16) -> Any:
        return torch.zeros(batch, 3, size, size), torch.zeros(batch, dtype=torch.int64)


class Attention(nn.Module):
    def __init__(self, width: int, *, is_fused: bool, dropout: float) -> None:
        super().__init__()
        self.is_fused, self.dropout, self.heads = is_fused, dropout, 2
        self.norm, self.qkv = nn.LayerNorm(width), nn.Linear(width, 3 * width)
        self.out, self.norm_2 = nn.Linear(width, width), nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, d = x.shape
        q, k, v = (
            t.view(b, n, self.heads, d // self.heads).transpose(1, 2)
            for t in self.qkv(self.norm(x)).split(d, 2)
        )
        if self.is_fused:
            y = functional.scaled_dot_product_attention(
                q, k, v, is_causal=True, dropout_p=self.dropout
            )
        else:
            mask = torch.ones(n, n, dtype=torch.bool, device=x.device).tril()
            a = (q @ k.transpose(-2, -1)) / math.sqrt(d // self.heads)
            y = (
                functional.dropout(functional.softmax(a.masked_fill(~mask, -1e4), -1), self.dropout)
                @ v
            )
        x = x + self.out(y.transpose(1, 2).reshape(b, n, d))
        return x + functional.dropout(
            self.down(functional.gelu(self.up(self.norm_2(x)))), self.dropout
        )


class Gpt:
    """Batch and length."""

    def __init__(
        self, *, is_fused: bool = False, dropout: float = 0.0, width: int = 32, tokens: int = 64
    ) -> None:
        self.is_fused, self.dropout, self.width, self.tokens = is_fused, dropout, width, tokens

    class Model(nn.Module):
        def __init__(self, width: int, tokens: int, *, is_fused: bool, dropout: float) -> None:
            super().__init__()
            self.tokens, self.places = nn.Embedding(tokens, width), nn.Embedding(4096, width)
            blocks = [Attention(width, is_fused=is_fused, dropout=dropout) for _ in range(2)]
            self.blocks, self.norm = nn.ModuleList(blocks), nn.LayerNorm(width)
            self.head = nn.Linear(width, tokens, bias=False)
            self.head.weight = self.tokens.weight

        def forward(self, ids):
            x = self.tokens(ids) + self.places(torch.arange(ids.shape[1], device=ids.device))
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x))

    def build_model(self) -> nn.Module:
        return self.Model(self.width, self.tokens, is_fused=self.is_fused, dropout=self.dropout)

    def batch(self, batch: int, size: int) -> Any:
        return torch.zeros(batch, size, dtype=torch.int64)

    def loss(self, model: nn.Module, batch: Any) -> Any:
        return functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


class Graphs(Mlp):
    """Messages along edges, summed up at nodes; two nodes per sample, ten edges per node."""

    def batch(self, batch: int, size: int = 0) -> Any:
        num = 2 * batch
        edges = torch.zeros(2, 10 * num, dtype=torch.int64)
        return {"x": torch.zeros(num, self.width), "edge_index": edges}

    def loss(self, model: nn.Module, batch: Any) -> Any:
        x, (sources, targets) = batch["x"], batch["edge_index"]
        x = model[:2](x)
        messages = x.index_select(0, sources).sigmoid()
        x = torch.zeros_like(x).index_add(0, targets, messages)
        return model[2:](x).square().mean()


def stage_of(**keys: Any) -> ResolvedStage:
    return ResolvedStage(**{**STAGE, **keys})


def traces_of(
    recipe, stage, points, *, device="cpu", is_fake=True, accumulation=1, ranks=1, times=1
) -> list[Trace]:
    """The last of so many steps at each point; one at the first is thrown away."""
    points = [points[0], *points]
    points = [point for point in points for _ in range(times)]
    data = [recipe.batch(b, *([n] if n else [])) for b, n in points]  # with their numbers
    with opened(recipe, stage, device=device, is_fake=is_fake, ranks=ranks) as traced:
        traces = [
            traced.trace(data.pop(0), batch=b, size=n, accumulation=accumulation) for b, n in points
        ]
    return traces[2 * times - 1 :: times]


BATCHES = [(2, 0), (3, 0), (5, 0), (56, 0)]
FARTHER = [(112, 0), (224, 0)]
BOTH = [(2, 16), (2, 32), (2, 48), (3, 16), (3, 32), (3, 48), (4, 64)]


def fit_of(recipe, stage, *, device="cpu", accumulation=1) -> Fit:
    points = BOTH if isinstance(recipe, Gpt) else BATCHES
    farther: list[Any] = []
    for times in (1, 2):  # as child.py does where a model keeps tensors of the last batch
        *used, held_back = traces_of(
            recipe, stage, points, device=device, accumulation=accumulation, times=times
        )
        if times == 2 and points is BATCHES:
            farther = traces_of(
                recipe, stage, FARTHER, device=device, accumulation=accumulation, times=times
            )
        found = fit(used, held_back=held_back, farther=farther)
        if found.is_exact:
            break
    return found


def profiled_peak(recipe, stage, point, *, accumulation=1) -> int:
    """Of a real step, by torch's own profiler: nothing of ours looks."""
    cpu = torch.device("cpu")
    assembled = assemble(recipe, stage, device=cpu, total_steps=9, say=str)
    engine = make_engine(recipe, stage, assembled, ranks=ALONE, device=cpu, num_shapes=1, say=str)
    batch, size = point
    data = recipe.batch(batch, *([size] if size else []))

    def step() -> None:
        micro_batches = [MicroBatch(data, batch)] * accumulation
        engine.window.entries.clear()
        engine.step(iter(micro_batches), batch * accumulation)

    step()
    step()
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True
    ) as profile:
        step()
    states = tensors_in(dict(assembled.tracked.optimizer.state))
    model = assembled.model
    seen: set[int] = set()
    kept = [*model.parameters(), *model.buffers(), *states, *tensors_in(data)]
    there = count_bytes(kept, seen=seen)
    events = profile.profiler.kineto_results.events()
    told = sorted((e.start_ns(), e.nbytes()) for e in events if e.name() == "[memory]")
    return there + max(itertools.accumulate(num for _, num in told))

"""GPT-2 with 124 M weights and a context of 1024, for `_speed.py`: a recipe without data."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

CONTEXT, VOCABULARY = 1024, 50257


class Block(nn.Module):
    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.before = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.ask, self.answer = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        batch, length, width = state.shape
        parts = self.ask(self.before[0](state)).split(width, -1)
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in parts
        )
        dropout = self.dropout if self.training else 0.0
        seen = functional.scaled_dot_product_attention(
            query, key, value, is_causal=True, dropout_p=dropout
        )
        state = state + self.drop(self.answer(seen.transpose(1, 2).reshape(state.shape)))
        return state + self.drop(self.think(self.before[1](state)))


class Gpt(nn.Module):
    def __init__(self, width: int = 768, layers: int = 12, heads: int = 12) -> None:
        super().__init__()
        self.token, self.place = nn.Embedding(VOCABULARY, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.Sequential(*(Block(width, heads, 0.1) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.token.weight

    def forward(self, tokens: Tensor) -> Tensor:
        places = torch.arange(tokens.shape[-1], device=tokens.device)
        return self.head(self.norm(self.blocks(self.token(tokens) + self.place(places))))


class Gpt124M:
    def build_model(self) -> nn.Module:
        return Gpt()

    def build_dataset(self, source: str, split: str) -> list[Tensor]:
        raise FileNotFoundError(f"{source} ({split}): a recipe to estimate with, not to train")

    def loss(self, model: nn.Module, batch: Tensor) -> Tensor:
        found = model(batch[:, :-1])
        return functional.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten())

    def example_batch(self, size: int | None, batch: int) -> Tensor:
        """Every sample has the whole context, and the token after it."""
        return torch.zeros(batch, (size or CONTEXT) + 1, dtype=torch.int64)

"""A small transformer learns to continue a text, letter by letter.

tasuki calls the methods of `SmallLM`; the spec's `params` are the arguments of its constructor.
Nothing here knows of preemptions, checkpoints or jobs.
"""

from __future__ import annotations

import math
import time
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset

VOCABULARY = 128
"""ASCII: a letter is its own number."""


class Text(Dataset[Tensor]):
    """Pieces of a text, one after another. Each has a letter more than the context: what comes
    after the last one is to be learnt, too."""

    def __init__(self, path: Path, context: int) -> None:
        try:
            letters = path.read_bytes()
        except FileNotFoundError:
            raise FileNotFoundError(f"{path} is not there: python generate.py makes it") from None
        self.letters = torch.frombuffer(bytearray(letters), dtype=torch.uint8)
        self.context = context

    def __len__(self) -> int:
        return (len(self.letters) - 1) // self.context

    def __getitem__(self, number: int) -> Tensor:
        begin = number * self.context
        return self.letters[begin : begin + self.context + 1].long()


class Block(nn.Module):
    """Look back at earlier letters, then think about each."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.ask = nn.Linear(width, 3 * width, bias=False)
        self.answer = nn.Linear(width, width, bias=False)
        self.think = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)

    def forward(self, state: Tensor) -> Tensor:
        batch, length, width = state.shape
        query, key, value = (
            part.view(batch, length, self.heads, -1).transpose(1, 2)
            for part in self.ask(self.norms[0](state)).split(width, -1)
        )
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        state = state + self.drop(self.answer(seen.transpose(1, 2).reshape(state.shape)))
        return state + self.drop(self.think(self.norms[1](state)))


class Transformer(nn.Module):
    def __init__(self, width: int, layers: int, heads: int, context: int, dropout: float) -> None:
        super().__init__()
        self.letter = nn.Embedding(VOCABULARY, width)
        self.place = nn.Embedding(context, width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for table in (self.letter, self.place):
            nn.init.normal_(table.weight, std=width**-0.5)
        self.head.weight = self.letter.weight  # tied: one tensor, stored once in a checkpoint

    def forward(self, letters: Tensor) -> Tensor:
        places = torch.arange(letters.shape[-1], device=letters.device)
        return self.head(self.norm(self.blocks(self.letter(letters) + self.place(places))))


class SmallLM:
    tokens_per_sample = "weight"
    """What `loss` weighs by are letters: the metrics have `tokens_per_sec`."""

    def __init__(
        self,
        width: int = 64,
        layers: int = 2,
        heads: int = 4,
        context: int = 64,
        dropout: float = 0.05,
        pause: float = 0.0,
    ) -> None:
        self.sizes = {"width": width, "layers": layers, "heads": heads, "context": context}
        self.dropout = dropout
        self.pause = pause
        """Seconds to wait in each micro-batch of training: a small model's run then lasts long
        enough to be interrupted. Changes no number."""

    def build_model(self) -> nn.Module:
        return Transformer(**self.sizes, dropout=self.dropout)

    def build_dataset(self, source: str, split: str) -> Text:
        return Text(Path(source, f"{split}.txt"), self.sizes["context"])

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, float]:
        """The sum over all letters and their number: so the split of a step into micro-batches and
        ranks changes nothing in what is learnt."""
        if self.pause and model.training:
            time.sleep(self.pause)
        return surprise(model, batch), float(batch[:, 1:].numel())

    def evaluate(self, model: nn.Module, dataset: Text) -> dict[str, float]:
        """Mean surprise per letter in nats (`loss`) and bits, and `guess`, that of a model which
        knows only how frequent each letter is: what learning has to beat."""
        device = next(model.parameters()).device
        total, count = 0.0, 0
        for begin in range(0, len(dataset), 64):
            numbers = range(begin, min(begin + 64, len(dataset)))
            batch = torch.stack([dataset[number] for number in numbers]).to(device)
            total += float(surprise(model, batch))
            count += batch[:, 1:].numel()
        loss = total / count
        shares = torch.bincount(dataset.letters.long(), minlength=VOCABULARY) / len(dataset.letters)
        guess = float(torch.special.entr(shares).sum())
        return {"loss": loss, "bits_per_letter": loss / math.log(2), "guess": guess}


def surprise(model: nn.Module, batch: Tensor) -> Tensor:
    """−log p of each letter given those before it, summed."""
    found = model(batch[:, :-1])
    return functional.cross_entropy(found.flatten(0, 1), batch[:, 1:].flatten(), reduction="sum")

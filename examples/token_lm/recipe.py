"""A sequence model with a long context learns to continue the tokens of packed shards.

tasuki calls the methods of `TokenLM`; the spec's `params` are the arguments of its constructor.
Memory grows with the context, not with its square: attention is computed in pieces
(`scaled_dot_product_attention`), and so is the loss, whose logits would else be the largest tensor
of a step. Precision, gradient checkpointing and compilation are keys of the spec, not code here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from tasuki.data.tokens import TokenDataset

PIECE = 8192
"""Tokens whose logits exist at once."""
LAGS = 4
"""Tokens, the last one included, that queries and keys are made of."""


class Attention(nn.Module):
    """Each token asks all earlier ones.

    Queries are made of a token and those before it, keys of the tokens before: a key says what came
    before its value. At first both look at three tokens in the same way, so that a layer begins by
    finding what followed the same words earlier; all of it is learnt further.
    """

    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.near = nn.Parameter(first_lags(d_model))
        self.query, self.key, self.value, self.answer = (
            nn.Linear(d_model, d_model, bias=False) for _ in range(4)
        )
        self.sharpness = nn.Parameter(torch.full((heads, 1, 1), 2.0))
        with torch.no_grad():
            self.key.weight.copy_(self.query.weight)
            self.answer.weight.zero_()

    def forward(self, state: Tensor, rotation: Tensor) -> Tensor:
        query, key = mix_lags(state, self.near)
        query, key, value = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query(query), self.key(key), self.value(state))
        )
        query = rotate(normal(query) * self.sharpness, rotation).to(value.dtype)
        key = rotate(normal(key), rotation).to(value.dtype)
        seen = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return self.answer(seen.transpose(1, 2).flatten(2))


class Thought(nn.Module):
    """Each token by itself: a gated network (SwiGLU)."""

    def __init__(self, d_model: int) -> None:
        super().__init__()
        hidden = 64 * math.ceil(d_model * 8 / 3 / 64)
        self.widen = nn.Linear(d_model, 2 * hidden, bias=False)
        self.narrow = nn.Linear(hidden, d_model, bias=False)
        nn.init.zeros_(self.narrow.weight)

    def forward(self, state: Tensor) -> Tensor:
        gate, value = self.widen(state).chunk(2, -1)
        return self.narrow(functional.silu(gate) * value)


class Block(nn.Module):
    def __init__(self, d_model: int, heads: int) -> None:
        super().__init__()
        self.attention = Attention(d_model, heads)
        self.thought = Thought(d_model)

    def forward(self, state: Tensor, rotation: Tensor) -> Tensor:
        state = state + self.attention(normal(state), rotation)
        return state + self.thought(normal(state))


class SequenceModel(nn.Module):
    """Tokens → states. `logits` makes of states what comes next, with the table that tokens were
    looked up in (tied weights)."""

    def __init__(
        self, *, vocabulary: int, d_model: int, layers: int, heads: int, rope_base: float
    ) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, d_model)
        nn.init.normal_(self.table.weight, std=d_model**-0.5)
        self.blocks = nn.ModuleList(Block(d_model, heads) for _ in range(layers))
        self.rotated = d_model // heads // 2
        self.rope_base = rope_base

    def forward(self, tokens: Tensor) -> Tensor:
        rotation = make_rotation(
            tokens.shape[-1], width=self.rotated, base=self.rope_base, device=tokens.device
        )
        state = normal(self.table(tokens))
        for block in self.blocks:
            state = block(state, rotation)
        return normal(state)

    def logits(self, states: Tensor) -> Tensor:
        # A state begins as its token's own row of the table; with the product of 1,024 channels a
        # fresh model would be certain that every token comes twice.
        return functional.linear(states * (8 * states.shape[-1] ** -0.5), self.table.weight)


def normal(state: Tensor) -> Tensor:
    return functional.rms_norm(state, state.shape[-1:])


def first_lags(d_model: int) -> Tensor:
    """(query and key, lag, channel): a third of the channels looks at each of three tokens, the
    key's one token further back."""
    lags = torch.zeros(2, LAGS, d_model)
    for part in range(2):
        for lag in range(LAGS - 1):
            lags[part, lag + part, lag :: LAGS - 1] = 1.0
    return lags


def mix_lags(state: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
    """The last tokens weighed channel by channel, once for the query and once for the key."""
    length = state.shape[1]
    padded = functional.pad(state, (0, 0, LAGS - 1, 0))
    earlier = [padded[:, LAGS - 1 - lag : LAGS - 1 - lag + length] for lag in range(LAGS)]
    query, key = (
        sum((part[lag] * earlier[lag] for lag in range(1, LAGS)), part[0] * earlier[0])
        for part in weights
    )
    return query, key


def make_rotation(length: int, *, width: int, base: float, device: torch.device) -> Tensor:
    """RoPE: the place of a token as angles, one per pair of channels; (2, length, width / 2)."""
    speeds = base ** -torch.arange(0, 1, 2 / width, dtype=torch.float32, device=device)
    angles = torch.outer(torch.arange(length, dtype=torch.float32, device=device), speeds)
    return torch.stack((angles.cos(), angles.sin()))


def rotate(part: Tensor, rotation: Tensor) -> Tensor:
    """Half of the channels know how far apart a query and a key are; the others only what they say,
    at whatever distance."""
    cos, sin = rotation
    one, other, still = part.split((cos.shape[-1], cos.shape[-1], part.shape[-1] // 2), -1)
    return torch.cat((one * cos - other * sin, one * sin + other * cos, still), -1)


class TokenLM:
    tokens_per_sample = "weight"
    """The weight of the loss counts tokens."""

    def __init__(
        self,
        d_model: int = 64,
        layers: int = 2,
        heads: int = 2,
        context: int = 512,
        vocabulary: int = 257,
        end_token: int = 256,
        rope_base: float = 10_000.0,
    ) -> None:
        if d_model % heads or d_model // heads % 4:
            raise ValueError(f"d_model {d_model} is not {heads} heads of a multiple of 4 channels")
        self.sizes = {"d_model": d_model, "layers": layers, "heads": heads}
        self.context = context
        self.vocabulary = vocabulary
        self.end_token = end_token
        self.rope_base = rope_base

    def build_model(self) -> nn.Module:
        return SequenceModel(vocabulary=self.vocabulary, rope_base=self.rope_base, **self.sizes)

    def build_dataset(self, source: str, split: str) -> TokenDataset:
        dataset = TokenDataset(source, split, context=self.context)
        if dataset.vocab > self.vocabulary or dataset.end_token != self.end_token:
            raise ValueError(
                f"{source} has other tokens than the model: write params: "
                f"{{vocabulary: {dataset.vocab}, end_token: {dataset.end_token}}}"
            )
        return dataset

    def loss(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
        """The sum over all tokens that were foretold, and their number: so the split of a step into
        micro-batches and ranks changes nothing in what is learnt."""
        losses, is_real = self.surprise(model, batch)
        count = is_real.sum()
        return losses.sum(), count, {"tokens": count}

    def surprise(self, model: nn.Module, batch: Tensor) -> tuple[Tensor, Tensor]:
        """−log p of each token but the first given those before it, 0 where it is padding; and
        whether it is none. Only padding is an end token after an end token."""
        given, wanted = batch[:, :-1], batch[:, 1:]
        is_real = (given != self.end_token) | (wanted != self.end_token)
        states = model(given).flatten(0, 1)
        losses = [
            # Logits are made again for the backward pass instead of being kept: at 32K tokens and
            # a vocabulary of 20,000 those of one sample alone are 2.6 GB.
            checkpoint(nats, model, some, tokens, use_reentrant=False, preserve_rng_state=False)
            if torch.is_grad_enabled() and len(states) > PIECE
            else nats(model, some, tokens)
            for some, tokens in zip(states.split(PIECE), wanted.flatten().split(PIECE), strict=True)
        ]
        return torch.cat(losses).view_as(wanted) * is_real, is_real

    def evaluate(self, model: nn.Module, dataset: TokenDataset) -> dict[str, float]:
        """Mean surprise per token in nats (`loss`), as `perplexity`, and in the first and the last
        quarter of the context: a model that remembers is less surprised `late` than `early`.

        `unigram` and `bigram` are what learning has to beat: the least that any table of tokens, or
        of pairs of tokens, can reach on this very text.
        """
        device = next(model.parameters()).device
        sums = torch.zeros(4, 2, dtype=torch.float64)
        pairs = []
        for batch in batches_of(dataset):
            losses, is_real = self.surprise(model, batch.to(device))
            for quarter, (part, real) in enumerate(
                zip(losses.tensor_split(4, 1), is_real.tensor_split(4, 1), strict=True)
            ):
                sums[quarter] += torch.stack((part.double().sum(), real.sum().double())).cpu()
            real = is_real.cpu()
            pairs.append(batch[:, :-1][real] * self.vocabulary + batch[:, 1:][real])
        total, count = sums.sum(0).tolist()
        early, late = (sums[:, 0] / sums[:, 1])[[0, -1]].tolist()
        unigram, bigram = table_bounds(torch.cat(pairs), self.vocabulary)
        return {
            "loss": total / count,
            "perplexity": math.exp(total / count),
            "early": early,
            "late": late,
            "unigram": unigram,
            "bigram": bigram,
        }


def nats(model: nn.Module, states: Tensor, wanted: Tensor) -> Tensor:
    return functional.cross_entropy(model.logits(states).float(), wanted, reduction="none")


def batches_of(dataset: TokenDataset) -> Iterator[Tensor]:
    """About 16,384 tokens each."""
    size = max(1, 16_384 // dataset.context)
    for begin in range(0, len(dataset), size):
        yield dataset.batch(range(begin, min(begin + size, len(dataset))))


def table_bounds(pairs: Tensor, vocabulary: int) -> tuple[float, float]:
    """Entropy of a token by itself, and given the one before it."""
    first, second, both = (
        entropy(part) for part in (pairs // vocabulary, pairs % vocabulary, pairs)
    )
    return second, both - first


def entropy(values: Tensor) -> float:
    _, counts = values.unique(return_counts=True)
    return float(torch.special.entr(counts.double() / counts.sum()).sum())

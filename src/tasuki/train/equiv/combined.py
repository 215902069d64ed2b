"""Is the plain gradient a sum of the micro-batches' gradients, and with which weights?

A gradient has thousands of numbers and a step a few micro-batches: weights that make the sum come
out do not exist by accident. So where they exist the loss is a mean or a sum over *something*, and
they tell over what; where they do not, no weights can make this split equal. Gradients are compared
as sketches (signed sums of their numbers): linear, and so small that one of each micro-batch can be
kept.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from tasuki.train.equiv.passes import Gradient

_LENGTH = 4096
_EQUAL = 1e-6
"""Of weights that count as those of samples, or of something else: shares of whole numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Combined:
    """How the micro-batches make up the plain batch."""

    residual: float
    """What is left with the best weights; relative."""
    weights: tuple[float, ...]
    """The best."""
    as_given: float
    """What is left with the weights that the loss gave, or the numbers of samples."""


def sketch(gradient: Gradient) -> Tensor:
    """Signed sums of its numbers; the same signs for the same parameter."""
    total = torch.zeros(_LENGTH, dtype=torch.float64)
    for number, name in enumerate(sorted(gradient)):
        flat = gradient[name].reshape(-1)
        rows = -(-len(flat) // _LENGTH)
        padded = torch.zeros(rows * _LENGTH, dtype=torch.float64)
        padded[: len(flat)] = flat
        generator = torch.Generator().manual_seed(number)
        signs = torch.randint(0, 2, (rows, 1), generator=generator).double() * 2 - 1
        offset = int(torch.randint(0, _LENGTH, (), generator=generator))
        total += (padded.view(rows, _LENGTH) * signs).sum(0).roll(offset)
    return total


def combine(parts: Sequence[Gradient], given: Sequence[float], plain: Gradient) -> Combined:
    """`given`: the weight of each part, as the engine would take it."""
    wanted = sketch(plain)
    scale = float(wanted.abs().max()) or 1.0
    columns = torch.stack([sketch(part) for part in parts], dim=1) / scale
    wanted = wanted / scale
    solved = torch.linalg.lstsq(columns, wanted.unsqueeze(1), driver="gelsd").solution.squeeze(1)
    shares = torch.tensor(given, dtype=torch.float64) / (sum(given) or 1.0)
    return Combined(
        residual=float((columns @ solved - wanted).abs().max()),
        weights=tuple(solved.tolist()),
        as_given=float((columns @ shares - wanted).abs().max()),
    )


def name_weights(
    weights: Sequence[float], counts: Sequence[Mapping[str, float]], samples: Sequence[int]
) -> str | None:
    """What in the micro-batches has these proportions."""
    if _are_proportional(weights, samples):
        return "samples"
    known = set(counts[0]).intersection(*counts[1:])
    # Of several that fit, what leaves most out is meant: a mask, before a length.
    fitting = [name for name in counts[0] if name in known]
    fitting = [name for name in fitting if _are_proportional(weights, [c[name] for c in counts])]
    return min(fitting, key=lambda name: counts[0][name]) if fitting else None


def _are_proportional(weights: Sequence[float], counts: Sequence[float]) -> bool:
    total, all_weights = sum(counts), sum(weights)
    if not total or not all_weights:
        return False
    pairs = zip(weights, counts, strict=True)
    return all(abs(w / all_weights - c / total) <= _EQUAL for w, c in pairs)

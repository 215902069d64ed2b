"""The bucket boundaries with the least padding, found exactly.

Pure. Each sample is padded to its bucket's upper size; which uppers waste least is a shortest path
through the distinct sizes, bucket after bucket. With sizes z_1 < … < z_m, c_j samples of each,
f(z) = z^power, C and W the running sums of c and c·f(z):

    best_k(j) = min over i < j of  best_{k-1}(i) + f(z_j)·(C_j - C_i) - (W_j - W_i)

For a fixed i this is a line in f(z_j) with the slope -C_i, which falls with i, asked at ascending
places: the lower envelope of the lines gives each layer in O(m) instead of O(m²). All numbers are
whole: nothing is rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

GOOD_WASTE = 0.05
MOST_BUCKETS = 16


@dataclass(frozen=True, slots=True)
class Boundaries:
    """Upper sizes of buckets, ascending, and the share of padding they leave."""

    uppers: tuple[int, ...]
    waste: float
    """Padding / (padding + data), all samples padded to their bucket's upper size."""


def best_boundaries(
    values: Sequence[int], counts: Sequence[int], *, buckets: int | None = None, power: int = 1
) -> Boundaries:
    """For distinct ascending sizes and how many samples have each.

    `buckets` of None: as few as keep the waste within 5 %, at most 16. `power` says how a sample's
    cost grows with its size: 1 for sequences, 2 for matrices.
    """
    sizes = [int(value) for value in values]
    assert sizes and all(low < high for low, high in pairwise(sizes)), sizes[:9]
    sums = _Sums(sizes, [int(count) for count in counts], power)
    wanted = min(buckets or MOST_BUCKETS, len(sizes))
    layer: list[int | None] = [0] + [None] * len(sizes)
    choices: list[list[int]] = []
    while len(choices) < wanted:
        layer, chosen = _next_layer(layer, sums)
        choices.append(chosen)
        padding = layer[-1]
        if buckets is None and padding is not None and _waste(padding, sums) <= GOOD_WASTE:
            break
    padding = layer[-1]
    assert padding is not None
    return Boundaries(_trace(choices, sizes), _waste(padding, sums))


def waste_of(
    values: Sequence[int], counts: Sequence[int], uppers: Sequence[int], *, power: int = 1
) -> float:
    """The share of padding that given uppers leave."""
    data = padded = 0
    remaining = iter(sorted(uppers))
    upper = next(remaining)
    for value, count in zip(values, counts, strict=True):
        while int(value) > upper:
            upper = next(remaining)
        data += int(count) * int(value) ** power
        padded += int(count) * upper**power
    return (padded - data) / padded if padded else 0.0


class _Sums:
    """Running sums over the sizes; index j means the first j of them."""

    def __init__(self, sizes: list[int], counts: list[int], power: int) -> None:
        self.costs = [0, *(size**power for size in sizes)]
        self.samples, self.data = [0], [0]
        for cost, count in zip(self.costs[1:], counts, strict=True):
            self.samples.append(self.samples[-1] + count)
            self.data.append(self.data[-1] + count * cost)


def _waste(padding: int, sums: _Sums) -> float:
    padded = padding + sums.data[-1]
    return padding / padded if padded else 0.0


def _next_layer(layer: list[int | None], sums: _Sums) -> tuple[list[int | None], list[int]]:
    """One bucket more: the least padding up to each size, and where its last bucket begins."""
    after: list[int | None] = [None] * len(layer)
    chosen = [0] * len(layer)
    lines: list[tuple[int, int, int]] = []  # (slope, value at 0, i), steep ones last
    first = 0
    for j in range(1, len(layer)):
        before = layer[j - 1]
        if before is not None:
            _add_line(lines, (-sums.samples[j - 1], before + sums.data[j - 1], j - 1), first)
        if not lines:
            continue
        first = min(first, len(lines) - 1)
        at = sums.costs[j]
        while first + 1 < len(lines) and _value(lines[first + 1], at) <= _value(lines[first], at):
            first += 1
        after[j] = _value(lines[first], at) + at * sums.samples[j] - sums.data[j]
        chosen[j] = lines[first][2]
    return after, chosen


def _value(line: tuple[int, int, int], at: int) -> int:
    return line[0] * at + line[1]


def _add_line(lines: list[tuple[int, int, int]], line: tuple[int, int, int], first: int) -> None:
    """Keep only lines that are lowest somewhere; slopes fall from line to line."""
    while len(lines) - first >= 2:
        (m1, b1, _), (m2, b2, _) = lines[-2], lines[-1]
        # The new line meets the last but one before the last one does: the last is never lowest.
        if (line[1] - b1) * (m1 - m2) <= (b2 - b1) * (m1 - line[0]):
            lines.pop()
        else:
            break
    lines.append(line)


def _trace(choices: list[list[int]], sizes: list[int]) -> tuple[int, ...]:
    uppers = []
    j = len(sizes)
    for chosen in reversed(choices):
        uppers.append(sizes[j - 1])
        j = chosen[j]
    return tuple(reversed(uppers))

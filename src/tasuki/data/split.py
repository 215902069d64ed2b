"""Spread the samples of a step over ranks and micro-batches.

Pure, and free of numpy: `plan` uses it too. A step's samples are fixed by the order; the number of
ranks and the micro-batch only decide who works on which of them, so they may change between
attempts without changing what is learnt (promise 8).
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

from tasuki.errors import UsageError

DEFAULT_EFFECTIVE_BATCH = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """How a full step is done; steps at the end of a bucket may be smaller."""

    effective_batch: int
    """Samples of a step, over all ranks."""
    micro_batch: int
    """The most samples that a rank puts through the model at once."""
    accumulation: int
    """Micro-batches of a full step on the rank that has the most samples."""

    def __post_init__(self) -> None:
        assert min(self.effective_batch, self.micro_batch, self.accumulation) >= 1, self


def share_of_rank(num: int, rank: int, world: int) -> range:
    """Which of a step's `num` samples are this rank's: contiguous, the earlier ranks get more.

    A share is empty where there are fewer samples than ranks.
    """
    assert num >= 0 and 0 <= rank < world, (num, rank, world)
    each, extra = divmod(num, world)
    start = rank * each + min(rank, extra)
    return range(start, start + each + (rank < extra))


def micro_batches(share: range, micro_batch: int) -> list[range]:
    """Cut a share into as few micro-batches as possible, as even as possible.

    Nine samples by four become 3 + 3 + 3, not 4 + 4 + 1: as many passes, a lower peak, and no lone
    sample for BatchNorm to stumble over.
    """
    assert micro_batch >= 1, micro_batch
    pieces = _ceil(len(share), micro_batch)
    cuts = (share_of_rank(len(share), piece, pieces) for piece in range(pieces))
    return [share[cut.start : cut.stop] for cut in cuts]


def split_by_cost(costs: Sequence[int], budget: int, *, rank: int, world: int) -> list[list[int]]:
    """This rank's micro-batches of a step, each within the budget; numbers of samples in the step.

    The dearest samples are dealt first, each to the rank that has least so far; a rank then fills
    as few micro-batches as it can (first fit, dearest first). A sample over the budget goes alone.
    A rank may get nothing.
    """
    dearest = sorted(range(len(costs)), key=lambda sample: (-costs[sample], sample))
    loads = [(0, 0, each) for each in range(world)]  # then those with fewer samples
    mine = []
    for sample in dearest:
        load, count, least = heapq.heappop(loads)
        heapq.heappush(loads, (load + costs[sample], count + 1, least))
        if least == rank:
            mine.append(sample)
    filled: list[tuple[int, list[int]]] = []
    for sample in mine:
        for number, (load, samples) in enumerate(filled):
            if load + costs[sample] <= budget:
                samples.append(sample)
                filled[number] = (load + costs[sample], samples)
                break
        else:
            filled.append((costs[sample], [sample]))
    return sorted(sorted(samples) for _, samples in filled)


def resolve_batch(
    effective_batch: int | None, micro_batch: int | None, accumulation: int | None, ranks: int
) -> Batch:
    """Find what was left open in effective_batch = micro_batch × accumulation × ranks.

    Two given, and the third follows; all three must agree. Where only one or none is given:
    effective_batch is 8 unless given, and accumulation 1 unless a micro_batch asks for more. An
    effective_batch that does not divide evenly gives uneven shares; it is never rounded. A
    micro_batch is a limit: where a rank's share is smaller, the share is the micro-batch.
    """
    given = {
        "effective_batch": effective_batch,
        "micro_batch": micro_batch,
        "accumulation": accumulation,
        "ranks": ranks,
    }
    for name, value in given.items():
        if value is not None and value < 1:
            raise UsageError(f"{name} is {value}", hint="give a number of at least 1")
    if micro_batch is not None and accumulation is not None:
        return _multiply(effective_batch, micro_batch, accumulation, ranks)
    if micro_batch is not None:
        return _divide_by_micro_batch(effective_batch, micro_batch, ranks)
    samples = effective_batch or DEFAULT_EFFECTIVE_BATCH
    return _divide_by_accumulation(samples, accumulation or 1, ranks)


def _multiply(
    effective_batch: int | None, micro_batch: int, accumulation: int, ranks: int
) -> Batch:
    product = micro_batch * accumulation * ranks
    if effective_batch not in (None, product):
        raise UsageError(
            f"effective_batch is {effective_batch}, but micro_batch {micro_batch} × "
            f"accumulation {accumulation} × ranks {ranks} = {product}",
            hint=f"leave one of them out, or write effective_batch: {product}",
        )
    return Batch(effective_batch=product, micro_batch=micro_batch, accumulation=accumulation)


def _divide_by_micro_batch(effective_batch: int | None, micro_batch: int, ranks: int) -> Batch:
    if effective_batch is None and micro_batch * ranks > DEFAULT_EFFECTIVE_BATCH:
        # Raising it silently would make what is learnt depend on the number of GPUs.
        raise UsageError(
            f"micro_batch {micro_batch} × ranks {ranks} = {micro_batch * ranks} samples, but a "
            f"step has {DEFAULT_EFFECTIVE_BATCH} (the default effective_batch)",
            hint=f"write effective_batch: {micro_batch * ranks}, or a smaller micro_batch",
        )
    samples = effective_batch or DEFAULT_EFFECTIVE_BATCH
    share = _ceil(samples, ranks)
    micro_batch = min(micro_batch, share)
    return Batch(
        effective_batch=samples, micro_batch=micro_batch, accumulation=_ceil(share, micro_batch)
    )


def _divide_by_accumulation(effective_batch: int, accumulation: int, ranks: int) -> Batch:
    share = _ceil(effective_batch, ranks)
    micro_batch = _ceil(share, accumulation)
    possible = _ceil(share, micro_batch)
    if possible != accumulation:
        raise UsageError(
            f"effective_batch {effective_batch} over {ranks} ranks gives a rank {share} samples, "
            f"which cannot be cut into {accumulation} even micro-batches",
            hint=f"leave accumulation out and write micro_batch: {micro_batch} (then accumulation "
            f"is {possible}), or effective_batch: {micro_batch * accumulation * ranks}",
        )
    return Batch(effective_batch=effective_batch, micro_batch=micro_batch, accumulation=possible)


def _ceil(number: int, by: int) -> int:
    return -(-number // by)

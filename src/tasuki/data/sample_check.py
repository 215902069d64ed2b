"""Compare what a stage recorded about its used samples with the pure order of samples.

Records add up over ranks and attempts (used.py), so the last one covers all steps before it. The
others tell where a difference begins.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from tasuki.data.order import Order
from tasuki.data.plain import Gathered
from tasuki.data.used import NONE, Used, digest_of
from tasuki.errors import DataError

_BLOCK_SAMPLES = 1 << 16  # numpy is fast, and the arrays stay in the processor's cache


class SampleDifference(NamedTuple):
    """The first record that differs, and the last one before it."""

    step: int
    after_step: int
    expected: int  # samples up to `step`


def find_difference(
    order: Order | Gathered, records: Mapping[int, Used], progress: Callable[[int], None]
) -> SampleDifference | None:
    """Compare the records, by number of steps done, with the order from its beginning."""
    per_epoch, samples, members = order.steps_per_epoch, order.samples_per_epoch, order.plan.members
    last, block = max(records), max(1, _BLOCK_SAMPLES // order.effective_batch)
    cuts = sorted({0, *records, *range(0, last, block), *range(0, last, per_epoch)})
    expected, after_step = NONE, 0
    seen = np.zeros(samples if members is None else int(members.max()) + 1, dtype=bool)
    for first, stop in pairwise(cuts):
        epoch, step = divmod(first, per_epoch)
        ids, counts = order.steps(epoch, step, step + stop - first)
        expected += digest_of(np.arange(first, stop, dtype=np.int64), counts, ids)
        if records.get(stop, expected) != expected:
            return SampleDifference(stop, after_step, expected.count)
        if stop in records:
            after_step = stop
        # Equal digests would prove nothing if the order itself repeated a sample.
        seen[ids] = True
        if stop % per_epoch == 0:
            has_all = seen[slice(None) if members is None else members].all()
            if not has_all or expected.count != (epoch + 1) * samples:
                raise DataError(f"epoch {epoch} of the order does not contain each sample once")
            seen[:] = False
        progress(stop)
    return None

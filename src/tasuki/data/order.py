"""Which samples a step takes: a pure function of (seed, stage, epoch, bucket plan, step).

Nothing is stored and nothing is replayed: a resumed run computes the step at which it stands. Pure:
no clock, no disk, no global random state. It does not know ranks or micro-batches (split.py).

THE ORDER, FORMAT 1. Every resumed run depends on it: it changes only with a new ORDER_FORMAT.

    key(epoch, purpose, size) = blake2b, 32-byte digest, of the ASCII text of the JSON array
        [1, seed, stage, epoch, purpose, size]      no blanks; non-ASCII as \\uXXXX; no size: null
    P(n, key) = the keyed permutation of range(n) of permutation.py
    B = effective_batch; bucket b has size z, N samples (dataset indices ascending) and
        ceil(N / B) slots; O = samples in all smaller buckets

    1. The samples of a bucket are shuffled: place p of a bucket holds its sample number
       P(N, key(epoch, "samples", z)).at(p).
    2. Slot j of a bucket takes its places j*B … min((j+1)*B, N) - 1, in this order. So a step has
       samples of one bucket, and only a bucket's last slot may be smaller.
    3. The steps of an epoch are the slots of all buckets:
       shuffle: slots are numbered through, buckets ascending in size, j ascending;
           step s takes slot P(all slots, key(epoch, "steps", null)).at(s);
       smallest_first, largest_first: bucket after bucket, sizes ascending or descending; the t-th
           step of a bucket takes its slot P(slots of the bucket, key(epoch, "slots", z)).at(t);
       score: nothing is shuffled: place p of a bucket holds the sample with the p-th smallest
           score (of equal ones the smaller index); steps are the slots in ascending score of their
           first sample (of equal ones the smaller bucket, then the smaller j), in every epoch.
    4. The position of a sample in its epoch is O + p. Positions are 0 … samples - 1, each once; a
       step's are consecutive; they depend neither on B nor on the kind of order.
    5. The seed of a sample's random numbers is number `position` of the splitmix64 stream that
       starts at the state k: mix(k + (position + 1) * 0x9E3779B97F4A7C15) >> 1, where k is the
       first 8 bytes, little-endian, of key(epoch, "rng", null).

Steps are computed in blocks because one pass of numpy over 4,096 samples takes only about three
times as long as one over 8 (0.1 to 0.2 ms); the size of a block changes no result.
"""

from __future__ import annotations

import hashlib
import json
from bisect import bisect_left
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, NamedTuple, get_args

import numpy as np
from numpy.typing import NDArray

from tasuki.data.buckets import BucketPlan
from tasuki.data.permutation import (
    KeyedPermutation,
    mix_word,
    mix_words,
    permute_each,
    position_of_each,
)
from tasuki.errors import UsageError

ORDER_FORMAT = 1

Ints = NDArray[np.int64]
OrderKind = Literal["shuffle", "smallest_first", "largest_first", "score"]
LengthUnit = Literal["epochs", "steps", "samples"]
Purpose = Literal["samples", "steps", "slots", "rng"]

SCORE_HINT = "give the recipe `sample_scores(self, dataset)`, or the file a data set `score`"
BLOCK_SAMPLES = 4096
_MAX_BLOCK_STEPS = 2048
"""Steps are shuffled too: with few samples per step, a seek would take over a millisecond."""
_KEPT_BLOCKS = 2
_SEEK = 8
"""After a jump, a block of an eighth: who jumps may do so again, and wants an answer soon."""
_GOLDEN = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1


class StepSamples(NamedTuple):
    """The samples of one step, all of one bucket."""

    # A NamedTuple, as one is made for every step: 0.30 µs, a frozen dataclass takes 0.56.
    bucket: int
    indices: Ints
    """Dataset indices; read-only, as it is a window on the block."""
    first_position: int
    """Position of the first sample in its epoch; the others follow it one by one."""

    @property
    def positions(self) -> Ints:
        """Where in the epoch the samples stand: what their random numbers are seeded with."""
        stop = self.first_position + len(self.indices)
        return np.arange(self.first_position, stop, dtype=np.int64)


@dataclass(frozen=True, slots=True, order=True)
class Cursor:
    """A place in a stage: `step_in_epoch` steps of `epoch` are done."""

    epoch: int
    step_in_epoch: int


def derive_key(*, seed: int, stage: str, epoch: int, purpose: Purpose, size: int | None) -> bytes:
    """The key of one shuffle (see the definition above)."""
    facts = [ORDER_FORMAT, int(seed), stage, int(epoch), purpose, size]
    return hashlib.blake2b(
        json.dumps(facts, separators=(",", ":")).encode("ascii"), digest_size=32
    ).digest()


@lru_cache(maxsize=16)
def _seed_stream(seed: int, stage: str, epoch: int) -> int:
    key = derive_key(seed=seed, stage=stage, epoch=epoch, purpose="rng", size=None)
    return int.from_bytes(key[:8], "little")


def sample_seed(seed: int, stage: str, epoch: int, position: int) -> int:
    """63 bits that seed the random numbers of one sample, whoever fetches it."""
    state = _seed_stream(seed, stage, epoch) + (position + 1) * _GOLDEN
    return mix_word(state & _MASK) >> 1


def sample_seeds(seed: int, stage: str, epoch: int, positions: Ints) -> Ints:
    """`sample_seed` of many positions at once."""
    states = np.asarray(positions).astype(np.uint64).reshape(-1)
    states += np.uint64(1)
    states *= np.uint64(_GOLDEN)
    states += np.uint64(_seed_stream(seed, stage, epoch))
    seeds = mix_words(states) >> np.uint64(1)
    return seeds.astype(np.int64).reshape(np.shape(positions))


class _Block(NamedTuple):
    """Some steps of an epoch, computed together. Lists, as one item of an array is slow to read."""

    epoch: int
    first: int
    stop: int
    buckets: list[int]
    first_positions: list[int]
    bounds: list[int]
    indices: Ints


class _Shortfall(NamedTuple):
    """The steps of an epoch that are not full, ascending, and how much is missing up to each."""

    epoch: int
    steps: Ints
    missing: Ints
    """missing[i]: samples that the first i of them are short of full steps."""


class Order:
    """The steps of a stage.

    `step` may be called in any order and from several threads: what is kept between calls only
    saves time, and is replaced as a whole.
    """

    def __init__(
        self,
        plan: BucketPlan,
        *,
        seed: int,
        stage: str,
        effective_batch: int,
        kind: OrderKind = "shuffle",
        block_samples: int = BLOCK_SAMPLES,
    ) -> None:
        if effective_batch < 1:
            raise UsageError(
                f"effective_batch is {effective_batch}", hint="give a number of at least 1"
            )
        if kind not in get_args(OrderKind):
            raise UsageError(
                f"there is no order `{kind}`", hint=f"choose among {', '.join(get_args(OrderKind))}"
            )
        self.plan = plan
        self.seed = int(seed)
        self.stage = stage
        self.effective_batch = int(effective_batch)
        self.kind = kind
        self._samples = np.array([bucket.samples for bucket in plan.buckets], dtype=np.int64)
        self._offsets = np.cumsum(self._samples) - self._samples
        self._slots = -(-self._samples // self.effective_batch)
        # Slots are numbered through bucket after bucket in this sequence of buckets.
        ascending = np.arange(len(plan.buckets), dtype=np.int64)
        self._sequence = ascending[::-1] if kind == "largest_first" else ascending
        slots = self._slots[self._sequence]
        self._first_slots = np.cumsum(slots) - slots
        self.samples_per_epoch = int(self._samples.sum())
        self.steps_per_epoch = int(self._slots.sum())
        self._steps_per_block = min(max(1, block_samples // self.effective_batch), _MAX_BLOCK_STEPS)
        self._blocks: tuple[_Block, ...] = ()
        self._seeds: tuple[_Block | None, list[int]] = (None, [])
        self._shuffles: tuple[int, dict[tuple[Purpose, int], KeyedPermutation]] = (0, {})
        self._shortfall: _Shortfall | None = None
        self._by_score = self._sort_slots() if kind == "score" else None

    def step(self, epoch: int, step: int) -> StepSamples:
        """The samples of one step, in O(1) wherever it lies."""
        block = self._block_with(epoch, step)
        at = step - block.first
        return StepSamples(
            block.buckets[at],
            block.indices[block.bounds[at] : block.bounds[at + 1]],
            block.first_positions[at],
        )

    def seeds(self, epoch: int, step: int) -> list[int]:
        """`sample_seed` of each sample of a step."""
        block = self._block_with(epoch, step)
        of_block, seeds = self._seeds
        if of_block is not block:
            bounds = np.array(block.bounds)
            first = np.repeat(np.array(block.first_positions) - bounds[:-1], np.diff(bounds))
            positions = first + np.arange(bounds[-1])
            seeds = sample_seeds(self.seed, self.stage, epoch, positions).tolist()
            self._seeds = (block, seeds)
        at = step - block.first
        return seeds[block.bounds[at] : block.bounds[at + 1]]

    def steps(self, epoch: int, first: int, stop: int) -> tuple[Ints, Ints]:
        """The samples of the steps from `first` up to `stop`, one step after another, and how many
        each step has. For who goes through whole epochs: nothing is kept."""
        if not 0 <= first < stop <= self.steps_per_epoch or epoch < 0:
            raise IndexError(f"epoch {epoch} has no steps {first} to {stop}")
        block = self._compute_block(epoch, first, stop)
        return block.indices, np.diff(block.bounds)

    def total_steps(self, length_unit: LengthUnit, count: int) -> int:
        """Steps of a stage of this length; for samples: the first step count that uses enough."""
        if count < 0:
            raise UsageError(f"a stage cannot last {count} {length_unit}")
        if length_unit == "steps":
            return count
        if length_unit == "epochs":
            return count * self.steps_per_epoch
        epochs, rest = divmod(count, self.samples_per_epoch)
        steps = bisect_left(
            range(self.steps_per_epoch), rest, key=lambda done: self._samples_in_epoch(epochs, done)
        )
        return epochs * self.steps_per_epoch + steps

    def partial_steps(self, epoch: int) -> list[int]:
        """The steps of an epoch that are not full: at most one for each bucket."""
        steps: list[int] = self._find_shortfall(epoch).steps.tolist()
        return steps

    # Blocks of steps

    def _block_with(self, epoch: int, step: int) -> _Block:
        for block in self._blocks:
            if block.epoch == epoch and block.first <= step < block.stop:
                return block
        return self._load_block(epoch, step)

    def _load_block(self, epoch: int, step: int) -> _Block:
        if epoch < 0 or not 0 <= step < self.steps_per_epoch:
            raise IndexError(f"epoch {epoch} has no step {step}: {self.steps_per_epoch} per epoch")
        goes_on = step == 0 or any(b.epoch == epoch and b.stop == step for b in self._blocks)
        steps = self._steps_per_block if goes_on else max(1, self._steps_per_block // _SEEK)
        block = self._compute_block(epoch, step, min(step + steps, self.steps_per_epoch))
        self._blocks = (block, *self._blocks[: _KEPT_BLOCKS - 1])
        return block

    def _compute_block(self, epoch: int, first: int, stop: int) -> _Block:
        buckets, slots = self._slots_at(epoch, np.arange(first, stop, dtype=np.int64))
        first_places = slots * self.effective_batch
        counts = np.minimum(self.effective_batch, self._samples[buckets] - first_places)
        bounds = np.concatenate(([0], np.cumsum(counts)))
        of_sample = np.repeat(buckets, counts)
        places = np.arange(bounds[-1], dtype=np.int64) + np.repeat(
            first_places - bounds[:-1], counts
        )
        if self.kind == "score":
            members = places
        else:
            members = self._shuffle(permute_each, epoch, "samples", of_sample, places)
        members += self._offsets[of_sample]
        indices = members if self.plan.members is None else self.plan.members[members]
        indices.flags.writeable = False
        return _Block(
            epoch=epoch,
            first=first,
            stop=stop,
            buckets=buckets.tolist(),
            first_positions=(self._offsets[buckets] + first_places).tolist(),
            bounds=bounds.tolist(),
            indices=indices,
        )

    def _slots_at(self, epoch: int, steps: Ints) -> tuple[Ints, Ints]:
        """For each step its bucket, and the slot of this bucket."""
        if self.kind == "shuffle":
            steps = self._step_shuffle(epoch).at(steps)
        elif self._by_score is not None:
            steps = self._by_score[steps]
        turns = np.searchsorted(self._first_slots, steps, side="right") - 1
        buckets = self._sequence[turns]
        slots = steps - self._first_slots[turns]
        if self.kind in ("smallest_first", "largest_first"):
            slots = self._shuffle(permute_each, epoch, "slots", buckets, slots)
        return buckets, slots

    def _sort_slots(self) -> Ints:
        """The slots, numbered through, in the order in which `score` takes them."""
        plan = self.plan
        if plan.scores is None or plan.members is None:
            raise UsageError("`order: score` needs a score per sample", hint=SCORE_HINT)
        first_places = [
            np.arange(slots, dtype=np.int64) * self.effective_batch + offset
            for slots, offset in zip(self._slots.tolist(), self._offsets.tolist(), strict=True)
        ]
        of_slots = plan.scores[plan.members[np.concatenate(first_places)]]
        return np.argsort(of_slots, kind="stable")

    # Samples used so far

    def _samples_in_epoch(self, epoch: int, steps: int) -> int:
        """Samples of the first steps of an epoch: full steps, less what the small ones lack."""
        shortfall = self._shortfall
        if shortfall is None or shortfall.epoch != epoch:
            self._shortfall = shortfall = self._find_shortfall(epoch)
        missing = shortfall.missing[np.searchsorted(shortfall.steps, steps)]
        return steps * self.effective_batch - int(missing)

    def _find_shortfall(self, epoch: int) -> _Shortfall:
        """Ask the inverse shuffle at which step each bucket's last slot comes: no scan."""
        lacking = self._slots * self.effective_batch - self._samples
        turns = np.flatnonzero(lacking[self._sequence])
        buckets = self._sequence[turns]
        slots = self._slots[buckets] - 1
        if self.kind == "shuffle":
            steps = self._step_shuffle(epoch).position_of(self._first_slots[turns] + slots)
        elif self._by_score is not None:
            steps = np.argsort(self._by_score)[self._first_slots[turns] + slots]
        else:
            slots = self._shuffle(position_of_each, epoch, "slots", buckets, slots)
            steps = self._first_slots[turns] + slots
        ascending = np.argsort(steps)
        missing = np.concatenate(([0], np.cumsum(lacking[buckets][ascending])))
        return _Shortfall(epoch=epoch, steps=steps[ascending], missing=missing)

    # Shuffles

    def _step_shuffle(self, epoch: int) -> KeyedPermutation:
        return self._permutation(epoch, "steps", None, self.steps_per_epoch)

    def _shuffle(
        self,
        each: Callable[[list[KeyedPermutation], Ints, Ints], Ints],
        epoch: int,
        purpose: Literal["samples", "slots"],
        buckets: Ints,
        values: Ints,
    ) -> Ints:
        """Send each value through the shuffle of its bucket."""
        lengths = self._samples if purpose == "samples" else self._slots
        # Counting takes a quarter of the time of sorting (np.unique), or less.
        present = np.flatnonzero(np.bincount(buckets, minlength=len(lengths)))
        turn_of = np.zeros(len(lengths), dtype=np.int64)
        turn_of[present] = np.arange(len(present))
        shuffles = [
            self._permutation(epoch, purpose, bucket, int(lengths[bucket]))
            for bucket in present.tolist()
        ]
        return each(shuffles, turn_of[buckets], values) if shuffles else values

    def _permutation(
        self, epoch: int, purpose: Purpose, bucket: int | None, length: int
    ) -> KeyedPermutation:
        """Kept for one epoch: a block of steps may need hundreds, and so does the next."""
        of_epoch, kept = self._shuffles
        if of_epoch != epoch:
            kept = {}
            self._shuffles = (epoch, kept)
        name = (purpose, -1 if bucket is None else bucket)
        if name not in kept:
            size = None if bucket is None else self.plan.buckets[bucket].size
            key = derive_key(
                seed=self.seed, stage=self.stage, epoch=epoch, purpose=purpose, size=size
            )
            kept[name] = KeyedPermutation(length, key)
        return kept[name]

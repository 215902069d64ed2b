from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.data.split import Batch, micro_batches, resolve_batch, share_of_rank
from tasuki.errors import UsageError

counts = st.integers(1, 40)


@given(st.integers(0, 500), st.integers(1, 64))
def test_shares_are_contiguous_cover_all_and_the_earlier_ranks_get_more(
    num: int, world: int
) -> None:
    shares = [share_of_rank(num, rank, world) for rank in range(world)]
    assert [sample for share in shares for sample in share] == list(range(num))
    lengths = [len(share) for share in shares]
    assert lengths == sorted(lengths, reverse=True)
    assert max(lengths) - min(lengths) <= 1


@given(st.integers(0, 50), st.integers(0, 300), counts)
def test_micro_batches_cover_the_share_in_as_few_even_pieces_as_possible(
    start: int, length: int, micro_batch: int
) -> None:
    share = range(start, start + length)
    pieces = micro_batches(share, micro_batch)
    assert [sample for piece in pieces for sample in piece] == list(share)
    assert len(pieces) == -(-length // micro_batch)
    lengths = [len(piece) for piece in pieces]
    assert all(0 < size <= micro_batch for size in lengths)
    assert not lengths or max(lengths) - min(lengths) <= 1


def test_nine_samples_by_four_leave_no_lone_sample() -> None:
    assert micro_batches(range(9), 4) == [range(3), range(3, 6), range(6, 9)]


def test_an_empty_share_has_no_micro_batches() -> None:
    assert micro_batches(share_of_rank(2, 3, 4), 8) == []


@pytest.mark.parametrize(
    ("effective", "micro", "accumulation", "ranks", "expected"),
    [
        (None, None, None, 1, (8, 8, 1)),
        (None, None, None, 3, (8, 3, 1)),
        (None, None, None, 16, (8, 1, 1)),
        (32, None, None, 4, (32, 8, 1)),
        (10, None, None, 4, (10, 3, 1)),
        (1024, 128, None, 4, (1024, 128, 2)),
        (1024, None, 2, 4, (1024, 128, 2)),
        (None, 128, 2, 4, (1024, 128, 2)),
        (1024, 128, 2, 4, (1024, 128, 2)),
        (16, 1, None, 1, (16, 1, 16)),
        (10, 4, None, 1, (10, 4, 3)),
        (16, 4, None, 3, (16, 4, 2)),
        (16, None, 2, 3, (16, 3, 2)),
        (8, 64, None, 2, (8, 4, 1)),
        (None, 2, None, 1, (8, 2, 4)),
        (None, 2, None, 4, (8, 2, 1)),
        (None, None, 4, 1, (8, 2, 4)),
    ],
)
def test_what_is_not_given_follows(
    effective: int | None,
    micro: int | None,
    accumulation: int | None,
    ranks: int,
    expected: tuple[int, int, int],
) -> None:
    batch = resolve_batch(effective, micro, accumulation, ranks)
    assert (batch.effective_batch, batch.micro_batch, batch.accumulation) == expected


def test_three_numbers_that_disagree_are_refused_with_all_numbers() -> None:
    with pytest.raises(UsageError) as caught:
        resolve_batch(1000, 128, 2, 4)
    message = "effective_batch is 1000, but micro_batch 128 × accumulation 2 × ranks 4 = 1024"
    assert str(caught.value) == message
    assert "effective_batch: 1024" in caught.value.hint


def test_a_micro_batch_alone_never_raises_the_default_effective_batch_silently() -> None:
    with pytest.raises(UsageError, match="micro_batch 4 × ranks 4 = 16 samples") as caught:
        resolve_batch(None, 4, None, 4)
    assert "effective_batch: 16" in caught.value.hint


@pytest.mark.parametrize(("effective", "accumulation", "ranks"), [(9, 4, 1), (8, 4, 4)])
def test_an_accumulation_that_cannot_be_kept_is_refused_with_a_way_out(
    effective: int, accumulation: int, ranks: int
) -> None:
    with pytest.raises(UsageError, match=f"into {accumulation} even micro-batches") as caught:
        resolve_batch(effective, None, accumulation, ranks)
    assert "micro_batch:" in caught.value.hint


@pytest.mark.parametrize("name", ["effective_batch", "micro_batch", "accumulation", "ranks"])
def test_numbers_below_one_are_refused_by_name(name: str) -> None:
    numbers: dict[str, int] = {"effective_batch": 8, "micro_batch": 8, "accumulation": 1}
    with pytest.raises(UsageError, match=f"{name} is 0"):
        resolve_batch(**({**numbers, "ranks": 1} | {name: 0}))


@given(counts, st.none() | counts, st.none() | counts, st.integers(1, 9))
def test_what_is_resolved_is_what_the_ranks_then_do(
    effective: int, micro: int | None, accumulation: int | None, ranks: int
) -> None:
    try:
        batch: Batch = resolve_batch(effective, micro, accumulation, ranks)
    except UsageError:
        assert accumulation is not None
        return
    assert batch.effective_batch == effective
    assert accumulation in (None, batch.accumulation)
    share = share_of_rank(effective, 0, ranks)
    pieces = micro_batches(share, batch.micro_batch)
    assert len(pieces) == batch.accumulation
    assert max(len(piece) for piece in pieces) <= batch.micro_batch
    assert micro is not None or len(pieces[0]) == batch.micro_batch

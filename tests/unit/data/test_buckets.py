from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data import buckets
from tasuki.data.buckets import (
    FEW_SIZES,
    Bucket,
    BucketPlan,
    BucketRule,
    plan_buckets,
    sort_by_score,
)
from tasuki.errors import DataError

RULES = [
    BucketRule(),
    BucketRule(kind="default"),
    BucketRule(kind="auto"),
    BucketRule(kind="auto", count=3, power=2),
    BucketRule(kind="bounds", uppers=(2, 5, 9)),
    BucketRule(kind="single"),
]


def members(plan: BucketPlan, bucket: int) -> list[int]:
    index = plan.index(bucket)
    return list(range(plan.num_samples)) if index is None else index.tolist()


def test_there_is_one_bucket_per_size_ascending() -> None:
    plan = plan_buckets([512, 256, 512, 1024], 4)
    assert plan.buckets == (Bucket(256, 1), Bucket(512, 2), Bucket(1024, 1))
    assert [plan.index(b).tolist() for b in range(3)] == [[1], [0, 2], [3]]  # type: ignore[union-attr]
    assert plan.num_samples == 4


def test_without_sizes_there_is_one_bucket_and_no_index_is_kept() -> None:
    plan = plan_buckets(None, 10**12)
    assert plan.buckets == (Bucket(None, 10**12),)
    assert plan.index(0) is None


def test_samples_all_of_one_size_need_no_index_either() -> None:
    plan = plan_buckets(np.full(1000, 64), 1000)
    assert plan.buckets == (Bucket(64, 1000),)
    assert plan.index(0) is None


def test_a_filter_keeps_only_the_wanted_sizes() -> None:
    plan = plan_buckets([1, 2, 3, 2, 1], 5, lambda size: size >= 2)
    assert plan.buckets == (Bucket(2, 2), Bucket(3, 1))
    assert plan.num_samples == 3
    only = plan_buckets([1, 2, 3, 2, 1], 5, lambda size: size == 2)
    assert only.index(0).tolist() == [1, 3]  # type: ignore[union-attr]


def test_a_filter_that_leaves_nothing_names_the_sizes_that_exist() -> None:
    with pytest.raises(DataError, match=r"512 \(2 samples\), 1024 \(1 samples\)"):
        plan_buckets([512, 1024, 512], 3, lambda size: size == 2048)


def test_a_long_list_of_sizes_is_cut_short_in_the_error() -> None:
    with pytest.raises(DataError, match=r"and 80 more, up to 99$"):
        plan_buckets(list(range(100)), 100, lambda size: False)


def test_a_filter_on_data_without_sizes_is_refused() -> None:
    with pytest.raises(DataError, match="do not say how large") as caught:
        plan_buckets(None, 3, lambda size: True)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("sizes", "words"),
    [
        ([1, 2], "3 samples need 3 sizes, but there are 2"),
        ([[1], [2], [3]], "shape"),
        ([1.0, 2.0, 3.0], "whole numbers"),
        ([True, False, True], "whole numbers"),
        ([1, -2, 3], "from -2 to 3"),
        ([1, 2**63, 3], "not sizes|whole numbers"),
    ],
)
def test_sizes_that_cannot_be_are_refused(sizes: list[int], words: str) -> None:
    with pytest.raises(DataError, match=words):
        plan_buckets(sizes, 3)


@pytest.mark.parametrize("sizes", [None, []])
def test_no_samples_at_all_is_an_error(sizes: list[int] | None) -> None:
    with pytest.raises(DataError, match="no samples"):
        plan_buckets(sizes, 0)


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=60))
def test_the_buckets_hold_each_sample_once_in_ascending_order(sizes: list[int]) -> None:
    plan = plan_buckets(sizes, len(sizes))
    seen: list[int] = []
    for number, bucket in enumerate(plan.buckets):
        index = plan.index(number)
        members = list(range(len(sizes))) if index is None else index.tolist()
        assert members == sorted(members)
        assert len(members) == bucket.samples
        assert {sizes[member] for member in members} == {bucket.size}
        seen += members
    assert sorted(seen) == list(range(len(sizes)))


def test_the_fingerprint_sees_sizes_counts_and_members_and_nothing_else() -> None:
    sizes = [1, 2, 1, 2]
    same = plan_buckets(np.array(sizes, dtype=np.uint16), 4).fingerprint()
    assert plan_buckets(sizes, 4).fingerprint() == same
    others = [
        plan_buckets([1, 3, 1, 3], 4),
        plan_buckets([1, 1, 2, 2], 4),
        plan_buckets([1, 2, 1, 2, 2], 5),
        plan_buckets(sizes, 4, lambda size: size == 1),
        plan_buckets(None, 4),
        plan_buckets([1, 1, 1, 1], 4),
    ]
    assert len({same, *(plan.fingerprint() for plan in others)}) == 1 + len(others)


def test_boundaries_put_each_sample_into_the_first_bucket_that_holds_it() -> None:
    rule = BucketRule(kind="bounds", uppers=(128, 256, 1024))
    plan = plan_buckets([100, 128, 129, 256, 1000, 1], 6, rule=rule)
    assert plan.buckets == (Bucket(128, 3), Bucket(256, 2), Bucket(1024, 1))
    assert [members(plan, b) for b in range(3)] == [[0, 1, 5], [2, 3], [4]]
    padded = 3 * 128 + 2 * 256 + 1024
    assert plan.waste == (padded - (100 + 128 + 129 + 256 + 1000 + 1)) / padded


def test_boundaries_that_no_sample_needs_make_no_bucket() -> None:
    rule = BucketRule(kind="bounds", uppers=(8, 16, 32, 64))
    plan = plan_buckets([30, 10, 31], 3, rule=rule)
    assert plan.buckets == (Bucket(16, 1), Bucket(32, 2))


def test_samples_beyond_the_last_boundary_are_refused_with_their_number_and_size() -> None:
    rule = BucketRule(kind="bounds", uppers=(128, 256))
    words = r"2 samples are larger than the last bucket boundary 256, the largest of size 900"
    with pytest.raises(DataError, match=words) as caught:
        plan_buckets([100, 300, 900], 3, rule=rule)
    assert "900" in caught.value.hint
    # Those that the stage leaves out do not count.
    assert plan_buckets([100, 300, 900], 3, lambda s: s < 200, rule=rule).num_samples == 1


def test_by_default_few_sizes_get_a_bucket_each_and_many_get_boundaries() -> None:
    rule = BucketRule(kind="default")
    few = plan_buckets(list(range(1, FEW_SIZES + 1)), FEW_SIZES, rule=rule)
    assert len(few.buckets) == FEW_SIZES and few.waste == 0.0
    many = plan_buckets(list(range(1, FEW_SIZES + 2)), FEW_SIZES + 1, rule=rule)
    assert 1 < len(many.buckets) <= 16
    assert 0.0 < many.waste <= 0.05
    assert many.buckets[-1].size == FEW_SIZES + 1


def test_sizes_that_a_stage_leaves_out_do_not_count_as_sizes() -> None:
    sizes = list(range(1, 200))
    plan = plan_buckets(sizes, len(sizes), lambda s: s <= 3, rule=BucketRule(kind="default"))
    assert plan.buckets == (Bucket(1, 1), Bucket(2, 1), Bucket(3, 1))


def test_auto_takes_as_many_buckets_as_asked_for() -> None:
    sizes = [3, 3, 3, 4, 90, 91, 500]
    plan = plan_buckets(sizes, 7, rule=BucketRule(kind="auto", count=3))
    assert plan.buckets == (Bucket(4, 4), Bucket(91, 2), Bucket(500, 1))
    assert plan.waste == (3 + 1) / (4 * 4 + 2 * 91 + 500)


def test_with_costs_all_wanted_samples_share_one_bucket_without_a_size() -> None:
    plan = plan_buckets([5, 9, 5, 2], 4, lambda s: s != 9, rule=BucketRule(kind="single"))
    assert plan.buckets == (Bucket(None, 3),)
    assert members(plan, 0) == [0, 2, 3]
    assert plan_buckets([5, 9], 2, rule=BucketRule(kind="single")).index(0) is None


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.sampled_from(RULES))
def test_whatever_the_rule_each_sample_is_in_one_bucket_that_is_large_enough(
    sizes: list[int], rule: BucketRule
) -> None:
    plan = plan_buckets(sizes, len(sizes), rule=rule)
    lower, seen = -1, []
    for number, bucket in enumerate(plan.buckets):
        own = members(plan, number)
        assert own == sorted(own) and len(own) == bucket.samples
        if bucket.size is not None:
            assert all(lower < sizes[member] <= bucket.size for member in own)
            lower = bucket.size
        seen += own
    assert sorted(seen) == list(range(len(sizes)))


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@pytest.mark.parametrize("block", [7, 1000])
def test_an_index_in_a_file_is_the_one_in_memory_and_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rule: BucketRule, block: int
) -> None:
    sizes = np.random.default_rng(1).integers(1, 10, 300)
    scores = np.random.default_rng(2).random(300)
    usual = plan_buckets(sizes, 300, lambda size: size != 4, rule=rule, index=tmp_path)
    monkeypatch.setattr(buckets, "LARGE", 100)
    monkeypatch.setattr(buckets, "_BLOCK", block)
    mapped = plan_buckets(sizes, 300, lambda size: size != 4, rule=rule, index=tmp_path)
    assert not isinstance(usual.members, np.memmap) and isinstance(mapped.members, np.memmap)
    assert mapped.buckets == usual.buckets
    assert mapped.members.tolist() == usual.members.tolist()  # type: ignore[union-attr]
    assert mapped.fingerprint() == usual.fingerprint()
    by_score = sort_by_score(mapped, scores, index=tmp_path)
    assert isinstance(by_score.members, np.memmap)
    assert by_score.members.tolist() == sort_by_score(usual, scores).members.tolist()  # type: ignore[union-attr]
    assert list(tmp_path.iterdir()) == []


def test_sizes_may_come_from_a_sequence_that_gives_only_pieces(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Pieces:
        """Like the sizes of a file: 10⁸ of them are never in memory at once."""

        def __init__(self, values: list[int]) -> None:
            self._values = values

        def __len__(self) -> int:
            return len(self._values)

        def __getitem__(self, where: slice) -> np.ndarray:
            assert where.stop - where.start <= 50
            return np.array(self._values[where], dtype=np.uint16)

    sizes = np.random.default_rng(5).integers(1, 6, 333).tolist()
    monkeypatch.setattr(buckets, "_BLOCK", 50)
    plan = plan_buckets(Pieces(sizes), 333)  # type: ignore[arg-type]
    assert plan.fingerprint() == plan_buckets(sizes, 333).fingerprint()


def test_sorted_by_score_the_buckets_are_the_same_and_equal_scores_keep_their_order() -> None:
    plan = plan_buckets([9, 9, 5, 9, 5, 9], 6)
    by_score = sort_by_score(plan, [3, 1, 2, 1, -4.5, 3])
    assert by_score.buckets == plan.buckets and by_score.waste == plan.waste
    assert [members(by_score, b) for b in range(2)] == [[4, 2], [1, 3, 0, 5]]
    alone = sort_by_score(plan_buckets(None, 3), np.array([2, 0, 1], dtype=np.float32))
    assert members(alone, 0) == [1, 2, 0]


@pytest.mark.parametrize(
    ("scores", "words"),
    [
        ([1.0, 2.0], "2 scores for at least 3 samples"),
        ([1.0, float("nan"), 2.0], "finite number per sample"),
        ([1.0, float("inf"), 2.0], "finite number per sample"),
        ([[1.0], [2.0], [3.0]], "finite number per sample"),
    ],
)
def test_scores_that_cannot_be_are_refused(scores: list[float], words: str) -> None:
    with pytest.raises(DataError, match=words) as caught:
        sort_by_score(plan_buckets([1, 1, 2], 3), scores)
    assert caught.value.hint


def test_plans_of_equal_fingerprints_have_the_same_order_of_buckets_by_score_too() -> None:
    plan = plan_buckets([1, 1, 2, 2], 4)
    first = sort_by_score(plan, [0.0, 1.0, 2.0, 3.0])
    # In each bucket the same order; but the larger samples come first now.
    second = sort_by_score(plan, [2.0, 3.0, 0.0, 1.0])
    assert first.members.tolist() == second.members.tolist()  # type: ignore[union-attr]
    assert first.fingerprint() != second.fingerprint()

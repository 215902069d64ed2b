from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data.buckets import Bucket, plan_buckets
from tasuki.errors import DataError


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

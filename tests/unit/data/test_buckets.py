"""Each sample is in one bucket that holds it; boundaries leave the least padding there is."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.data import buckets
from tasuki.data.boundaries import GOOD_WASTE, MOST_BUCKETS, best_boundaries, waste_of
from tasuki.data.buckets import FEW_SIZES, Bucket, BucketRule, plan_buckets, sort_by_score
from tasuki.errors import DataError

RULES = [
    BucketRule(),
    BucketRule(kind="default"),
    BucketRule(kind="auto"),
    BucketRule(kind="auto", count=3, power=2),
    BucketRule(kind="bounds", uppers=(2, 5, 9)),
    BucketRule(kind="single"),
]


def members(plan, bucket):
    index = plan.index(bucket)
    return list(range(plan.num_samples)) if index is None else index.tolist()


def test_there_is_one_bucket_per_wanted_size_ascending():
    plan = plan_buckets([512, 256, 512, 1024], 4)
    assert plan.buckets == (Bucket(256, 1), Bucket(512, 2), Bucket(1024, 1))
    assert [members(plan, b) for b in range(3)] == [[1], [0, 2], [3]]
    wanted = plan_buckets([512, 256, 512, 1024], 4, lambda size: size >= 512)
    assert wanted.buckets == (Bucket(512, 2), Bucket(1024, 1)) and wanted.num_samples == 3
    assert members(wanted, 0) == [0, 2]


def test_one_bucket_of_all_samples_needs_no_index():
    for sizes, size, num in ((None, None, 10**12), (np.full(1000, 64), 64, 1000)):
        plan = plan_buckets(sizes, num)
        assert plan.buckets == (Bucket(size, num),) and plan.index(0) is None


def test_a_stage_without_samples_is_refused_and_the_sizes_that_exist_are_named():
    with pytest.raises(DataError, match=r"512 \(2 samples\), 1024 \(1 samples\)"):
        plan_buckets([512, 1024, 512], 3, lambda size: size == 2048)
    with pytest.raises(DataError, match=r"and 80 more, up to 99$"):
        plan_buckets(list(range(100)), 100, lambda size: False)
    with pytest.raises(DataError, match="do not say how large") as caught:
        plan_buckets(None, 3, lambda size: True)
    assert caught.value.hint
    for sizes in (None, []):
        with pytest.raises(DataError, match="no samples"):
            plan_buckets(sizes, 0)


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
def test_sizes_that_cannot_be_are_refused(sizes, words):
    with pytest.raises(DataError, match=words):
        plan_buckets(sizes, 3)


def test_the_fingerprint_sees_sizes_counts_and_members_and_nothing_else():
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


def test_boundaries_put_each_sample_into_the_first_bucket_that_holds_it():
    rule = BucketRule(kind="bounds", uppers=(128, 256, 1024))
    plan = plan_buckets([100, 128, 129, 256, 1000, 1], 6, rule=rule)
    assert plan.buckets == (Bucket(128, 3), Bucket(256, 2), Bucket(1024, 1))
    assert [members(plan, b) for b in range(3)] == [[0, 1, 5], [2, 3], [4]]
    assert plan_buckets([200, 1], 2, rule=rule).buckets == (Bucket(128, 1), Bucket(256, 1))
    padded = 3 * 128 + 2 * 256 + 1024
    assert plan.waste == (padded - (100 + 128 + 129 + 256 + 1000 + 1)) / padded


def test_samples_beyond_the_last_boundary_are_refused_with_their_number_and_size():
    rule = BucketRule(kind="bounds", uppers=(128, 256))
    words = r"2 samples are larger than the last bucket boundary 256, the largest of size 900"
    with pytest.raises(DataError, match=words) as caught:
        plan_buckets([100, 300, 900], 3, rule=rule)
    assert "900" in caught.value.hint
    # Those that the stage leaves out do not count.
    assert plan_buckets([100, 300, 900], 3, lambda s: s < 200, rule=rule).num_samples == 1


def test_by_default_few_sizes_get_a_bucket_each_and_many_get_boundaries():
    rule = BucketRule(kind="default")
    few = plan_buckets(list(range(1, FEW_SIZES + 1)), FEW_SIZES, rule=rule)
    assert len(few.buckets) == FEW_SIZES and few.waste == 0.0
    many = plan_buckets(list(range(1, FEW_SIZES + 2)), FEW_SIZES + 1, rule=rule)
    assert 1 < len(many.buckets) <= 16
    assert 0.0 < many.waste <= 0.05
    assert many.buckets[-1].size == FEW_SIZES + 1
    sizes = list(range(1, 200))  # those that a stage leaves out do not count
    plan = plan_buckets(sizes, len(sizes), lambda size: size <= 3, rule=rule)
    assert plan.buckets == (Bucket(1, 1), Bucket(2, 1), Bucket(3, 1))
    rule = BucketRule(kind="auto", count=3)
    plan = plan_buckets([3, 3, 3, 4, 90, 91, 500], 7, rule=rule)
    assert plan.buckets == (Bucket(4, 4), Bucket(91, 2), Bucket(500, 1))


@settings(max_examples=60, deadline=None, database=None)
@given(st.lists(st.integers(0, 9), min_size=1, max_size=60), st.sampled_from(RULES))
def test_whatever_the_rule_each_sample_is_in_one_bucket_that_is_large_enough(sizes, rule):
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
def test_an_index_in_a_file_is_the_one_in_memory(tmp_path, monkeypatch, rule):
    sizes = np.random.default_rng(1).integers(1, 10, 300)
    scores = np.random.default_rng(2).random(300)
    usual = plan_buckets(sizes, 300, lambda size: size != 4, rule=rule, index=tmp_path)
    monkeypatch.setattr(buckets, "LARGE", 100)
    monkeypatch.setattr(buckets, "_BLOCK", 7)
    mapped = plan_buckets(sizes, 300, lambda size: size != 4, rule=rule, index=tmp_path)
    assert not isinstance(usual.members, np.memmap) and isinstance(mapped.members, np.memmap)
    assert mapped.buckets == usual.buckets
    assert mapped.members.tolist() == usual.members.tolist()
    assert mapped.fingerprint() == usual.fingerprint()
    by_score = sort_by_score(mapped, scores, index=tmp_path)
    assert isinstance(by_score.members, np.memmap)
    assert by_score.members.tolist() == sort_by_score(usual, scores).members.tolist()
    assert list(tmp_path.iterdir()) == []


def test_sizes_may_come_from_a_sequence_that_gives_only_pieces(monkeypatch):
    class Pieces:
        """Like the sizes of a file: 10⁸ of them are never in memory at once."""

        def __init__(self, values):
            self._values = values

        def __len__(self):
            return len(self._values)

        def __getitem__(self, where):
            assert where.stop - where.start <= 50
            return np.array(self._values[where], dtype=np.uint16)

    sizes = np.random.default_rng(5).integers(1, 6, 333).tolist()
    monkeypatch.setattr(buckets, "_BLOCK", 50)
    plan = plan_buckets(Pieces(sizes), 333)
    assert plan.fingerprint() == plan_buckets(sizes, 333).fingerprint()


def test_sorted_by_score_the_buckets_are_the_same_and_equal_scores_keep_their_order():
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
def test_scores_that_cannot_be_are_refused(scores, words):
    with pytest.raises(DataError, match=words) as caught:
        sort_by_score(plan_buckets([1, 1, 2], 3), scores)
    assert caught.value.hint


def test_plans_of_equal_fingerprints_have_the_same_order_of_buckets_by_score_too():
    plan = plan_buckets([1, 1, 2, 2], 4)
    first = sort_by_score(plan, [0.0, 1.0, 2.0, 3.0])
    # In each bucket the same order; but the larger samples come first now.
    second = sort_by_score(plan, [2.0, 3.0, 0.0, 1.0])
    assert first.members.tolist() == second.members.tolist()
    assert first.fingerprint() != second.fingerprint()


# -- boundaries -----------------------------------------------------------------------------------

quick = settings(max_examples=60, deadline=None, database=None)
histograms = st.dictionaries(
    st.integers(0, 40) | st.integers(0, 600), st.integers(1, 60), min_size=1, max_size=14
)
powers = st.integers(1, 2)


def parts(histogram):
    sizes = sorted(histogram)
    return sizes, [histogram[size] for size in sizes]


def padding(histogram, uppers, power):
    """Counted sample by sample, from the definition."""
    return sum(
        count * (min(upper for upper in uppers if upper >= size) ** power - size**power)
        for size, count in histogram.items()
    )


def least_padding(histogram, buckets, power):
    """Every choice of uppers, tried one after another."""
    sizes = sorted(histogram)
    others = combinations(sizes[:-1], min(buckets, len(sizes)) - 1)
    return min(padding(histogram, (*chosen, sizes[-1]), power) for chosen in others)


@quick
@given(histograms, st.integers(1, 5), powers)
def test_no_other_boundaries_leave_less_padding(histogram, buckets, power):
    """They are sizes that exist, ascending, up to the largest; waste is the share of padding."""
    found = best_boundaries(*parts(histogram), buckets=buckets, power=power)
    assert list(found.uppers) == sorted(set(found.uppers) & set(histogram))
    assert found.uppers[-1] == max(histogram)
    assert len(found.uppers) == min(buckets, len(histogram))
    lost = padding(histogram, found.uppers, power)
    assert lost == least_padding(histogram, buckets, power)
    data = sum(count * size**power for size, count in histogram.items())
    assert found.waste == (lost / (lost + data) if lost + data else 0.0)
    assert waste_of(*parts(histogram), list(found.uppers)[::-1], power=power) == found.waste


@quick
@given(histograms, powers)
def test_left_open_there_are_as_few_buckets_as_keep_the_waste_within_five_percent(histogram, power):
    found = best_boundaries(*parts(histogram), power=power)
    assert found.waste <= GOOD_WASTE == 0.05
    if (fewer := len(found.uppers) - 1) > 0:
        assert best_boundaries(*parts(histogram), buckets=fewer, power=power).waste > GOOD_WASTE


def test_there_are_never_more_than_sixteen_unless_asked_for():
    sizes = [2**exponent for exponent in range(40)]
    counts = sizes[::-1]  # as much data of every size: two in a bucket waste a quarter of theirs
    found = best_boundaries(sizes, counts)
    assert len(found.uppers) == MOST_BUCKETS == 16
    assert found.waste > GOOD_WASTE
    assert len(best_boundaries(sizes, counts, buckets=30).uppers) == 30


@pytest.mark.parametrize("power", [1, 2])
def test_large_numbers_are_not_rounded(power):
    base = 2**40
    # In floats the costs of these choices differ by less than their rounding.
    histogram = {base: 10**12, base + 1: 1, base + 2: 2, base + 3: 10**12}
    found = best_boundaries(*parts(histogram), buckets=2, power=power)
    assert padding(histogram, found.uppers, power) == least_padding(histogram, 2, power)

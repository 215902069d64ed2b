"""What was measured of a stage counts again while all that its steps hang on is the same."""

from __future__ import annotations

from dataclasses import replace

import msgspec
import pytest

from tasuki.estimation.works import Place, begun_key, measured_key, timed_key
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedLoader, ResolvedStage
from tasuki.spec.values import Length

STAGE = ResolvedStage(
    name="a", recipe="r:R", data="d", effective_batch=None, micro_batch=4, accumulation=1
)
PLACE = Place(folder="/p", device="cpu", ranks=2, cpus=8, machine=("a CPU", "packages"))


def keys(stage: ResolvedStage = STAGE, place: Place = PLACE) -> tuple[str, ...]:
    return measured_key(stage, place), timed_key(stage, place), begun_key(stage, place)


def other(**values: object) -> ResolvedStage:
    return msgspec.structs.replace(STAGE, **values)


@pytest.mark.parametrize(
    "change",
    [
        {"recipe": "r:Other"},
        {"params": {"width": 3}},
        {"data": "e"},
        {"split": "val"},
        {"micro_batch": 8},
        {"accumulation": 2},
        {"effective_batch": 8, "accumulation": None, "micro_batch": 2},
        {"precision": "bf16"},
        {"gradient_checkpointing": True},
        {"compile": True},
        {"clip": None},
        {"exact": False},
        {"order": "largest_first"},
        {"loader": ResolvedLoader(workers=3)},
        {"buckets": Buckets(kind="auto")},
    ],
)
def test_another_code_batch_precision_or_data_is_measured_anew(change):
    before, after = keys(), keys(other(**change))
    assert before[0] != after[0] and before[1] != after[1]


@pytest.mark.parametrize(
    "change",
    [
        {"machine": ("another CPU", "packages")},
        {"machine": ("a CPU", "other packages")},
        {"device": "cuda"},
        {"folder": "/q"},
        {"cpus": 2},
    ],
)
def test_another_machine_or_number_of_threads_is_measured_anew(change):
    before, after = keys(), keys(place=replace(PLACE, **change))
    assert before[0] != after[0] and before[1] != after[1]


def test_names_seeds_rates_and_saves_change_no_step():
    same = other(name="b", seed=7, lr=0.5, expect_peak_bytes=3, init_from="previous")
    assert keys() == keys(same)


def test_another_length_is_counted_anew_and_not_timed_anew():
    longer = keys(other(length=Length(unit="epochs", count=9)))
    assert longer[0] != keys()[0] and longer[1:] == keys()[1:]


def test_more_ranks_of_the_same_share_are_not_timed_anew():
    wide = replace(PLACE, ranks=4, cpus=16)
    assert keys(place=wide)[0] != keys()[0] and keys(place=wide)[1:] == keys()[1:]


def test_more_ranks_that_share_a_step_are_timed_anew_and_begin_as_fast():
    stage, wide = other(effective_batch=16, accumulation=None), replace(PLACE, ranks=4, cpus=16)
    assert timed_key(stage, wide) != timed_key(stage, PLACE)
    assert begun_key(stage, wide) == begun_key(stage, PLACE)


def test_samples_that_are_dealt_out_by_cost_are_timed_for_each_number_of_ranks():
    stage = other(buckets=Buckets(kind="cost", cost="n", budget=9))
    assert timed_key(stage, replace(PLACE, ranks=4, cpus=16)) != timed_key(stage, PLACE)

"""What `tune` tries on a stage, and what it makes of the figures."""

from __future__ import annotations

from typing import Any

import pytest

from tasuki.estimation.ratios import Ratio
from tasuki.estimation.tuning import (
    Facts,
    Judged,
    Measured,
    Variant,
    Yardstick,
    changed,
    expected_s,
    judge,
    loss_difference,
    most_s,
    never_tried,
    variants_for,
    winners,
)
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedLoader, ResolvedStage


def facts(**more: Any) -> Facts:
    plain: dict[str, Any] = {
        "is_gpu": False,
        "precisions": ("fp32", "bf16"),
        "ranks": 1,
        "cpus": 8,
        "spare_cpus": 2,
        "workers": 0,
        "num_blocks": 6,
        "is_foreign": False,
        "wait_share": 0.2,
    }
    return Facts(**{**plain, **more})


def labels(stage: ResolvedStage, *only: str, **more: Any) -> list[str]:
    return [v.label for v in variants_for(stage, facts(**more), only=only) if not v.refused]


STAGE = ResolvedStage(name="a", recipe="r:R", effective_batch=8)


def test_what_cannot_be_tried_anyhow_is_known_before_anything_is_built():
    reason = never_tried(STAGE, ["offload"], is_gpu=False)
    assert reason == "`offload`: there is no GPU here to relieve"
    assert never_tried(STAGE, ["offload"], is_gpu=True) == ""
    assert never_tried(STAGE, ["offload", "exact"], is_gpu=False) == ""  # exactness can be given up
    assert never_tried(STAGE, ["offload", "compile"], is_gpu=False) == ""
    assert never_tried(STAGE, [], is_gpu=False) == ""


def test_the_budget_bounds_what_is_measured():
    assert [most_s(budget) for budget in (1.0, 40.0, 120.0)] == [60.0, 60.0, 180.0]


def test_every_switch_that_this_device_has_is_tried_away_from_where_it_stands():
    assert labels(STAGE) == [
        "precision: bf16",
        "compile: true",
        "gradient_checkpointing: true",
        "gradient_checkpointing: 2",
        "micro_batch: 4",
        "loader.workers: 1",
        "loader.workers: 2",
        "exact: false",
    ]


def test_a_gpu_has_more_formats_and_a_host_to_move_the_optimizer_to():
    found = labels(STAGE, is_gpu=True, precisions=("fp32", "tf32", "bf16", "fp16"))
    assert {"precision: tf32", "precision: fp16", "offload: true"} <= set(found)


def test_what_is_on_is_tried_off():
    stage = ResolvedStage(
        name="a",
        precision="bf16",
        compile="default",
        gradient_checkpointing=["encoder"],
        offload=True,
        exact=False,
        loader=ResolvedLoader(workers=2),
    )
    found = labels(stage, is_gpu=True, workers=2)
    assert found == [
        "precision: fp32",
        "compile: false",
        "gradient_checkpointing: false",
        "micro_batch: 4",
        "loader.workers: 0",
        "loader.workers: 1",
        "offload: false",
    ]


def test_the_effective_batch_stays_whatever_the_micro_batch():
    stage = ResolvedStage(name="a", effective_batch=None, micro_batch=4, accumulation=2)
    [half, double] = [v.changes for v in variants_for(stage, facts(), only=["micro_batch"])]
    assert half == {"micro_batch": 2, "accumulation": 4}
    assert double == {"micro_batch": 8, "accumulation": 1}
    stage = ResolvedStage(name="a", effective_batch=9, micro_batch=3, accumulation=3)
    assert labels(stage, "micro_batch") == []  # 9 samples cannot be halved or doubled evenly


def test_workers_are_not_tried_where_steps_hardly_wait_unless_asked_for():
    assert not any("workers" in label for label in labels(STAGE, wait_share=0.01))
    assert labels(STAGE, "loader.workers", wait_share=0.01) == [
        "loader.workers: 1",
        "loader.workers: 2",
    ]


@pytest.mark.parametrize(
    ("switch", "stage", "more", "words"),
    [
        ("offload", STAGE, {}, "no GPU"),
        ("loader.workers", STAGE, {"cpus": 1, "spare_cpus": 0}, "no CPU is left"),
        ("loader.workers", STAGE, {"is_foreign": True}, "a loader of its own"),
        ("micro_batch", ResolvedStage(name="a", effective_batch=1), {}, "one sample"),
        (
            "micro_batch",
            ResolvedStage(name="a", buckets=Buckets(kind="cost", cost="n", budget=9)),
            {},
            "step by step",
        ),
        ("exact", ResolvedStage(name="a", exact=False), {}, "already"),
    ],
)
def test_what_was_asked_for_and_cannot_be_says_why(switch, stage, more, words):
    [first, *_] = variants_for(stage, facts(**more), only=[switch])
    assert words in first.refused


def test_a_changed_stage_differs_in_what_was_changed_alone():
    other = changed(STAGE, {"loader.workers": 3, "compile": True})
    assert (other.loader.workers, other.compile) == (3, True)
    assert changed(other, {"loader.workers": "auto", "compile": False}) == STAGE


def measured(value: float, low: float, high: float, switch: str = "compile", **more: Any):
    variant = Variant(switch=switch, value=True, was=False, changes={switch: True})
    ratio = Ratio(value=value, low=low, high=high, pairs=9)
    return Measured(variant=variant, ratio=ratio, **{"loss_difference": 0.0, **more})


CALM = Yardstick(ratio=Ratio(value=1.0, low=0.99, high=1.01, pairs=9), loss_difference=0.001)


@pytest.mark.parametrize(
    ("found", "words", "is_kept"),
    [
        (measured(1.3, 1.2, 1.4), "keep", True),
        (measured(1.3, 1.2, 1.4, memory_share=0.6), "keep; 40% less memory", True),
        (measured(0.7, 0.6, 0.8, memory_share=0.5), "slower; 50% less memory", False),
        (measured(1.0, 0.98, 1.02), "no gain", False),
        (measured(1.1, 0.9, 1.3), "too noisy to tell: try --budget 5m", False),
        (measured(1.3, 1.2, 1.4, loss_difference=0.1), "the loss differs by more than 0.5%", False),
        (measured(1.3, 1.2, 1.4, loss_difference=float("nan")), "the loss differs", False),
        (measured(1.3, 1.2, 1.4, "exact"), "gives up exactness", True),
    ],
)
def test_a_verdict_says_no_more_than_the_interval(found, words, is_kept):
    judged = judge(found, CALM, budget="5m")
    assert words in judged.verdict and judged.is_kept is is_kept, judged


def test_a_start_that_costs_more_than_the_stage_saves_is_not_worth_it():
    short = measured(1.3, 1.2, 1.4, later_s=150.0, saves_s=4.0)
    assert judge(short, CALM, budget="5m").verdict == ("quicker, but starts 2m30s later to save 4s")
    assert judge(measured(1.3, 1.2, 1.4, later_s=150.0, saves_s=9e3), CALM, budget="5m").is_kept
    assert judge(measured(1.3, 1.2, 1.4, later_s=3.0, saves_s=0.1), CALM, budget="5m").is_kept


def test_a_gain_that_the_baseline_makes_over_itself_is_none():
    noisy = Yardstick(ratio=Ratio(value=1.15, low=1.1, high=1.2, pairs=9))
    assert not judge(measured(1.12, 1.05, 1.2), noisy, budget="5m").is_kept
    assert judge(measured(1.5, 1.3, 1.7), noisy, budget="5m").is_kept


def test_a_gain_within_the_reach_of_noise_is_not_kept_however_sure_it_looks():
    wild = Yardstick(ratio=Ratio(value=1.1, low=0.4, high=2.5, pairs=6))
    judged = judge(measured(1.7, 1.4, 2.7), wild, budget="5m")
    assert "above 1, but noise alone measured up to 2.50" in judged.verdict
    assert not judged.is_kept
    assert judge(measured(5.8, 4.2, 10.7), wild, budget="5m").is_kept
    assert judge(measured(0.7, 0.5, 0.9), wild, budget="5m").verdict == "no gain"
    assert judge(measured(0.1, 0.05, 0.2), wild, budget="5m").verdict == "slower"


def test_a_difference_that_another_seed_makes_too_is_none_but_only_up_to_two_percent():
    assert Yardstick(loss_difference=-0.015).tolerance == 0.015
    assert Yardstick(loss_difference=0.4).tolerance == 0.02
    assert Yardstick(loss_difference=0.0).tolerance == 0.005


def test_the_best_position_of_each_switch_wins_and_exactness_goes_only_by_name():
    half = measured(1.2, 1.1, 1.3, "micro_batch")
    double = measured(1.4, 1.3, 1.5, "micro_batch")
    loose = measured(1.5, 1.4, 1.6, "exact")
    found = [(one, judge(one, CALM, budget="5m")) for one in (half, double, loose)]
    found.append((measured(0.9, 0.8, 0.95), Judged(verdict="slower")))
    assert winners(found) == [double]
    assert winners(found, asked=["exact", "compile"]) == [loose]


def test_losses_are_compared_at_the_same_steps():
    assert loss_difference([4, 3, 2, 1], [4, 3, 2, 1, 9]) == (0.0, True)
    difference = loss_difference([4.0, 3.0, 2.0, 1.0], [4.0, 3.0, 2.5, 1.1])
    assert difference == (pytest.approx(0.1), False)
    assert loss_difference([], [1.0]) is None


def test_slow_steps_take_longer_than_the_budget_and_that_is_known_beforehand():
    assert expected_s(step_s=0.001, num=10, budget_s=120) == pytest.approx(120.2)
    assert expected_s(step_s=1.0, num=10, budget_s=120) == pytest.approx(560)

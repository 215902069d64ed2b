"""A stage is foretold from past ones of its recipe with other data, with an honest error bar."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from tasuki.estimation.facts import family_key, stage_key
from tasuki.estimation.scale import Shape
from tasuki.estimation.times import FEW_RUNS, StageTimes, estimate_stage, needs_measuring
from tasuki.spec.resolved import ResolvedEvaluate, ResolvedSave, ResolvedStage, ResolvedValidate
from tasuki.spec.values import Every, Length

NEW = ResolvedStage(
    name="new", recipe="r:R", data="large.h5", length=Length(unit="epochs", count=2)
)
OLD = replace(NEW, name="old", data="small.h5")


def past(
    step_s: float = 0.5,
    *,
    sizes: dict[int | None, tuple[int, float]] | None = None,
    batch: int = 8,
    stage: ResolvedStage = OLD,
    **more: Any,
) -> dict[str, Any]:
    """A line; `sizes`: samples and mean step by size."""
    buckets = [
        {"size": size, "samples": samples, "mean_s": mean_s}
        for size, (samples, mean_s) in (sizes or {None: (800, step_s)}).items()
    ]
    per_epoch = sum(-(-bucket["samples"] // batch) for bucket in buckets)
    mean = sum(b["mean_s"] * -(-b["samples"] // batch) for b in buckets) / per_epoch
    return {
        "kind": "stage",
        "key": stage_key(stage, device="cpu", ranks=1),
        "family": family_key(stage, device="cpu", ranks=1),
        "at": 1.0,
        "run": "before",
        "stage": "old",
        "step_s": step_s,
        "steps": 2 * per_epoch,
        "train_s": mean * 2 * per_epoch,
        "steps_per_epoch": per_epoch,
        "samples": sum(bucket["samples"] for bucket in buckets),
        "effective_batch": batch,
        "buckets": buckets,
        "start_s": 6.0,
        "save_s": 0.5,
        **more,
    }


def shape(*buckets: tuple[int | None, int], batch: int = 8) -> Shape:
    return Shape(buckets=buckets, effective_batch=batch)


def foretell(
    *history: dict[str, Any], of: Shape | None = None, stage: ResolvedStage = NEW, **more: Any
) -> StageTimes:
    asked: dict[str, Any] = {"own_events": (), "measured": None, **more}
    return estimate_stage(stage, device="cpu", ranks=1, history=history, shape=of, **asked)


# -- steps ----------------------------------------------------------------------------------------


def test_more_data_take_as_many_more_steps_of_the_same_length():
    times = foretell(past(), of=shape((None, 4000)))
    assert (times.source, times.used) == ("history (scaled)", ("before/old",))
    assert (times.total_steps, times.wall_s) == (1000, pytest.approx(500.0))


def test_the_same_sizes_in_another_mix_take_what_each_of_them_took():
    known = past(sizes={512: (80, 1.0), 1024: (80, 4.0)})
    times = foretell(known, of=shape((512, 800), (1024, 8)))
    assert times.wall_s == pytest.approx(2 * (100 * 1.0 + 1 * 4.0))


def test_a_size_between_two_known_ones_is_interpolated():
    known = past(sizes={512: (80, 2.0), 1024: (80, 4.0)})
    times = foretell(known, of=shape((768, 80)))
    assert times.wall_s == pytest.approx(2 * 10 * 3.0)


def test_three_sizes_show_that_the_time_grows_with_the_square():
    known = past(sizes={10: (80, 1.5), 20: (80, 4.5), 40: (80, 16.5)})
    times = foretell(known, of=shape((30, 80)))
    assert times.wall_s == pytest.approx(2 * 10 * 9.5, rel=0.01)


def test_one_step_alone_does_not_tell_how_much_of_it_is_fixed():
    times = foretell(past(), of=shape((None, 800), batch=32))
    low, high = 50 * 0.5, 50 * 2.0  # of 25 steps an epoch: nothing grows, or all does
    assert times.wall_s == pytest.approx((low + high) / 2)
    assert times.error is not None and times.error >= (high - low) / (high + low)
    assert times.wall_s_p90 is not None and times.wall_s_p90 >= high


def test_steps_of_known_sizes_say_nothing_where_sizes_are_not_known():
    known = past(sizes={512: (80, 2.0), 1024: (80, 4.0)})
    assert foretell(known, of=shape((None, 80))).source == "unknown"
    assert foretell(past(), of=shape((512, 80))).source == "unknown"


def test_a_measurement_is_better_than_history_that_must_be_stretched():
    measured = {"step_s": 1.0, "total_steps": 50, "start_s": 5.0, "save_s": 0.1}
    stretched = foretell(past(), of=shape((None, 800), batch=64), measured=measured)
    assert (stretched.source, stretched.wall_s) == ("measured here", 50.0)
    alike = foretell(past(), of=shape((None, 400)), measured={**measured, "total_steps": 100})
    assert (alike.source, alike.wall_s) == ("history (scaled)", 50.0)


def test_a_plan_that_knows_no_data_has_them_measured():
    times = foretell(past())
    assert needs_measuring(times)
    measured = {"step_s": 9.0, "total_steps": 200, "start_s": 5.0, "save_s": 0.1}
    told = {**measured, "steps_per_epoch": 100, "effective_batch": 8}
    assert foretell(past(), measured=told).wall_s == pytest.approx(200 * 0.5)


@pytest.mark.parametrize("change", [{"recipe": "r:S"}, {"params": {"w": 2}}, {"precision": "bf16"}])
def test_another_family_does_not_count(change: dict[str, Any]):
    known = past(stage=replace(OLD, **change))
    assert foretell(known, of=shape((None, 800))).source == "unknown"


def test_history_of_another_card_does_not_count():
    known = past(gpu="v100")
    assert foretell(known, of=shape((None, 800)), gpu="h100").source == "unknown"
    assert foretell(known, of=shape((None, 800)), gpu="v100").wall_s is not None


def test_the_same_work_counts_before_its_family_and_its_data_may_have_grown():
    same = past(0.25, stage=NEW, at=0.5)
    times = foretell(past(), same, of=shape((None, 1600)))
    assert (times.source, times.total_steps, times.wall_s) == ("history", 400, 100.0)


def test_a_data_sheet_counts_where_nothing_else_is_known():
    sheet = StageTimes(wall_s=60.0, step_s=0.3, total_steps=200, source="predicted", error=0.5)
    assert foretell(of=shape((None, 800)), predicted=sheet) == sheet
    past_one = foretell(past(), of=shape((None, 800)), predicted=sheet)
    assert past_one.source == "history (scaled)"


def test_of_two_unsure_times_the_surer_counts_and_a_whole_before_a_single_step() -> None:
    bigger = replace(NEW, effective_batch=4096)
    far, known = shape((None, 80_000), batch=4096), past()
    scaled = foretell(known, of=far, stage=bigger)
    assert scaled.error is not None and scaled.error > 0.3
    surer = StageTimes(wall_s=60.0, step_s=0.3, total_steps=200, source="predicted", error=0.3)
    assert foretell(known, of=far, stage=bigger, predicted=surer) == surer
    only_a_step = StageTimes(
        wall_s=None, step_s=0.3, total_steps=None, source="predicted", error=0.3
    )
    assert foretell(known, of=far, stage=bigger, predicted=only_a_step) == scaled


@pytest.mark.parametrize(
    "wrong",
    [{"train_s": "1"}, {"train_s": -5.0}, {"steps": float("nan")}, {"buckets": [{"size": "x"}]}],
)
def test_a_line_that_cannot_be_foretells_nothing(wrong: dict[str, Any]):
    assert foretell({**past(), **wrong}, of=shape((None, 800))).source == "unknown"


# -- all of the wall ------------------------------------------------------------------------------


def test_the_whole_is_start_steps_saves_validation_and_evaluation():
    stage = replace(
        NEW,
        save=ResolvedSave(every=Every(unit="steps", count=50)),
        validate=ResolvedValidate(),
        evaluate=ResolvedEvaluate(data="test.h5"),
    )
    known = past(blocked_s=0.2, validate_s=3.0, other_s=0.1, sha256="w")
    evaluation = {
        "kind": "evaluation",
        "run": "before",
        "stage": "old",
        "sha256": "w",
        "at": 2.0,
        "evaluate_s": 7.0,
        "start_s": 2.5,
    }
    times = foretell(known, evaluation, of=shape((None, 1600)), stage=stage)
    assert times.wall_s == pytest.approx(200.0)
    assert times.saves_s == pytest.approx(7 * 0.2 + 0.5), "between steps, and the last one"
    assert times.validate_s == pytest.approx(3 * 6.0), "three, each over twice the samples"
    assert times.evaluate_s == 7.0, "its own data stay the same"
    trained = 6.0 + 200.0 + 1.9 + 18.0 + 0.1
    assert times.whole_s(evaluates=False) == pytest.approx(trained)
    assert times.whole_s(evaluates=True) == pytest.approx(trained + 2.5 + 7.0)


# -- how sure -------------------------------------------------------------------------------------


def test_one_past_run_is_widened_by_a_stated_factor():
    times = foretell(past(), of=shape((None, 800)))
    assert times.wall_s is not None
    assert times.wall_s_p90 == pytest.approx(times.wall_s * (1 + FEW_RUNS))
    assert times.error == FEW_RUNS


def test_many_past_runs_that_agree_narrow_it_and_one_that_does_not_widens_it():
    alike = [past(at=float(n)) for n in range(12)]
    narrow = foretell(*alike, of=shape((None, 800)))
    odd = [past(1.0 if n in (3, 6, 9) else 0.5, at=float(n)) for n in range(12)]
    wide = foretell(*odd, of=shape((None, 800)))
    assert narrow.wall_s == wide.wall_s == pytest.approx(100.0)
    assert narrow.wall_s_p90 is not None and narrow.wall_s_p90 < 110.0
    assert wide.wall_s_p90 == pytest.approx(200.0)


def test_a_given_time_wins_and_says_nothing_of_how_sure():
    stage = replace(NEW, expect_wall_s=77.0)
    times = foretell(past(), of=shape((None, 800)), stage=stage)
    assert (times.source, times.wall_s, times.total_steps) == ("given", 77.0, 200)
    assert (times.wall_s_p90, times.error, times.used) == (None, None, ())
    assert times.start_s == 6.0

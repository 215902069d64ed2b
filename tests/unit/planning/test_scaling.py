"""What further ranks bring, told from history."""

from __future__ import annotations

import pytest
from msgspec import structs

from tasuki.estimation.facts import stage_key
from tasuki.estimation.scaling import Baseline, Scaling, find_baseline
from tests.unit.planning.test_times import STAGE


def fact(stage, ranks: int, *, step_s: float, at: float = 0.0, batch: int = 64) -> dict:
    key = stage_key(stage, device="cpu", ranks=ranks)
    return {"key": key, "at": at, "step_s": step_s, "effective_batch": batch}


def test_the_newest_line_of_the_fewest_ranks_is_what_is_compared_with():
    stage = STAGE
    history = [
        fact(stage, 2, step_s=0.5),
        fact(stage, 1, step_s=8.0, at=1.0),
        fact(stage, 1, step_s=1.0, at=2.0),
        fact(stage, 4, step_s=0.1),
        fact(stage, 8, step_s=0.1),
    ]
    found = find_baseline(history, stage, device="cpu", ranks=4)
    assert found == Baseline(ranks=1, samples_per_sec=64.0)
    scaling = Scaling(ranks=4, samples_per_sec=230.4, baseline=found)
    assert scaling.speedup == pytest.approx(3.6)
    assert scaling.efficiency == pytest.approx(0.9)
    assert "4 ranks, 230.4 samples/s (57.6 each); 3.60 × of 1 rank (90%), by history" in (
        scaling.in_words()
    )


def test_other_work_another_device_and_lines_without_figures_do_not_count():
    stage, other = STAGE, structs.replace(STAGE, recipe="other:Thing")
    history = [
        fact(other, 1, step_s=1.0),
        {"key": "x"},
        {**fact(stage, 1, step_s=1.0), "step_s": 0},
    ]
    assert find_baseline(history, stage, device="cpu", ranks=4) is None
    assert find_baseline([fact(stage, 1, step_s=1.0)], stage, device="cuda", ranks=4) is None


def test_another_model_of_gpu_does_not_count_where_its_line_tells_it():
    mine, foreign = ({**fact(STAGE, 1, step_s=1.0), "device_model": model} for model in "ab")
    find = {"device": "cpu", "ranks": 4, "device_model": "a"}
    assert find_baseline([foreign], STAGE, **find) is None
    assert find_baseline([foreign, mine], STAGE, **find) is not None
    assert find_baseline([fact(STAGE, 1, step_s=1.0)], STAGE, **find) is not None


@pytest.mark.parametrize("wrong", [{"step_s": "1"}, {"step_s": -1.0}, {"effective_batch": [8]}])
def test_a_line_that_cannot_be_does_not_count(wrong):
    line = {**fact(STAGE, 1, step_s=1.0), **wrong}
    assert find_baseline([line], STAGE, device="cpu", ranks=4) is None


def test_without_history_the_share_of_the_exchange_is_told_alone():
    scaling = Scaling(ranks=2, samples_per_sec=100.0, exchange=0.25)
    assert scaling.in_words() == (
        "2 ranks, 100 samples/s (50 each); exchange of gradients about 25% of a step"
    )
    told = scaling.as_json()
    assert (told["speedup"], told["efficiency"], told["exchange"]) == (None, None, 0.25)

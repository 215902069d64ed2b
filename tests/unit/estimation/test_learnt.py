"""Finished stages correct what is predicted for their kind of card."""

from __future__ import annotations

from typing import Any

import pytest

from tasuki.estimation.learnt import learn_calibration, learn_margin
from tasuki.estimation.roofline import START_FACTOR

GIB = 1 << 30


def line(number: int, **more: Any) -> dict[str, Any]:
    return {"key": f"k{number}", "at": float(number), "step_s": 0.3, "gpu": "a100-40gb", **more}


def predicted(number: int, bare: float, **more: Any) -> dict[str, Any]:
    return line(number, predicted={"bare_step_s": bare, "tensor_bytes": None}, **more)


def test_steps_on_a_card_teach_its_factor():
    learnt = learn_calibration([predicted(1, 0.2), predicted(2, 0.15)], gpu="a100-40gb")
    assert (learnt.factor, learnt.runs) == (pytest.approx(1.75), 2)


def test_other_cards_and_lines_without_a_prediction_teach_nothing():
    lines = [predicted(1, 0.2, gpu="v100"), line(2), line(3, predicted=None)]
    learnt = learn_calibration(lines, gpu="a100-40gb")
    assert (learnt.factor, learnt.runs) == (START_FACTOR, 0)


def test_the_same_work_done_often_speaks_once_and_the_newest_counts():
    often = [predicted(1, 0.2, at=float(at), step_s=0.1 * at) for at in (9, 4, 2)]
    learnt = learn_calibration(often, gpu="a100-40gb")
    assert (learnt.factor, learnt.runs) == (pytest.approx(4.5), 1)


def held(number: int, reserved: float, said: float) -> dict[str, Any]:
    memory = {"reserved_bytes": int(reserved * GIB)}
    return line(number, memory=memory, predicted={"reserved_bytes": int(said * GIB)})


def test_what_cards_held_beyond_the_prediction_becomes_the_margin():
    lines = [held(n, 10.0 + (n % 5) * 0.1, 10.0) for n in range(40)]
    margin = learn_margin(lines, gpu="a100-40gb")
    assert margin is not None and margin.share == pytest.approx(0.04, abs=1e-4)
    assert margin.runs == 40


def test_one_run_alone_narrows_no_margin():
    margin = learn_margin([held(1, 9.0, 10.0)], gpu="a100-40gb")
    assert margin is not None and margin.share == 0.1


def test_without_both_there_is_no_margin():
    assert learn_margin([line(1, memory={"reserved_bytes": 5})], gpu="a100-40gb") is None


@pytest.mark.parametrize("bare", ["0.2", -1.0, float("nan"), 1e30])
def test_a_prediction_that_cannot_be_teaches_nothing(bare):
    assert learn_calibration([predicted(1, bare)], gpu="a100-40gb").runs == 0

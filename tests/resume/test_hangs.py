"""A rank that says nothing for too long is ended, with its stacks in the log; one that may take its
time is left alone."""

from __future__ import annotations

import pytest
from tests.harness.faulty import armed
from tests.harness.project import differences
from tests.harness.traced import attempts, make_traced

from tasuki.runs.atomic import read_json

STAGES = [{"name": "one", "data": "d", "epochs": 50}]
MORE = {"stages": STAGES, "defaults": {"save": {"every": "100 steps"}, "log_every": "50 steps"}}
PAUSE = 0.005
LATE = 260
"""Steps before the hang: with the pause over a second, so that the supervisor knows a limit."""


def hanging(do: str, *, rank: int = 0) -> dict:
    order = {"at": "step.begin", "do": do, "seconds": 3600, "rank": rank, "claim": 1}
    return {**armed({**order, "count": LATE}), "TASUKI_STEP_LIMIT_S": "3"}


def err_of_rank_0(project) -> str:
    return (project.run.logs / f"{project.job.path.name}.1.err").read_text()


def test_a_rank_that_hangs_is_ended_and_the_next_attempt_goes_on(warm, tmp_path):
    project = make_traced(tmp_path / "p", params={"pause": PAUSE}, **MORE)
    whole = make_traced(tmp_path / "whole", **MORE)
    assert warm.start(whole.job.path).wait() == 0
    assert warm.start(project.job.path, **hanging("pause")).wait() == 0, project.logs()
    first, second = attempts(project)
    assert (first.ending, first.cause, second.ending) == ("failed", "none", "done")
    (hung,) = first.hung
    assert hung["rank"] == 0 and 50 <= hung["step"] < LATE, hung
    assert hung["silent_s"] > hung["limit_s"] >= 3
    message = read_json(project.run.claims / "1" / "end.json")["message"]
    said = f"rank 0 said nothing for {hung['silent_s']:.0f} s at step {hung['step']}"
    assert said in message, message
    assert "are in their .err logs" in message
    err = err_of_rank_0(project)
    assert "failpoints.py" in err and "in _act" in err, err  # where it hung
    assert err.count("hread 0x") >= 2, err  # all its threads
    assert differences(whole, project) == []


@pytest.mark.long
def test_a_rank_that_is_stopped_is_found_among_those_that_wait_for_it(warm, tmp_path):
    params = {"norm": "layer"}
    project = make_traced(tmp_path / "p", ranks=2, params={"pause": PAUSE, **params}, **MORE)
    whole = make_traced(tmp_path / "whole", ranks=2, params=params, **MORE)
    assert warm.start(whole.job.path).wait() == 0
    assert warm.start(project.job.path, **hanging("stop", rank=1)).wait() == 0, project.logs()
    first, second = attempts(project)
    assert (first.ending, second.ending) == ("failed", "done")
    (hung,) = first.hung
    assert (hung["rank"], hung["state"]) == (1, "T"), hung
    message = read_json(project.run.claims / "1" / "end.json")["message"]
    assert "rank 1 said nothing" in message and "stopped by a signal" in message, message
    assert "training.py" in err_of_rank_0(project)  # rank 0 could tell where it waited
    assert differences(whole, project) == []


@pytest.mark.long
def test_a_validation_may_take_longer_than_any_step_on_all_ranks(warm, tmp_path):
    """Rank 0 validates, rank 1 waits for it: both are silent for longer than a step may be."""
    stages = [{"name": "one", "data": "d", "epochs": 50, "validate": {"every": "290 steps"}}]
    project = make_traced(
        tmp_path / "p",
        recipe="Evaluated",
        stages=stages,
        ranks=2,
        defaults={"save": {"every": "100 steps"}},
        params={"pause": PAUSE, "norm": "layer", "evaluate_for": 5.0},
    )
    assert warm.start(project.job.path, TASUKI_STEP_LIMIT_S="4").wait() == 0, project.logs()
    (attempt,) = attempts(project)
    assert attempt.ending == "done" and attempt.hung == []

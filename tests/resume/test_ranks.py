"""Several ranks: exactly once with any number of them, bit for bit with the same number.

Two ranks cannot show faults of ordering: a sum of two numbers has one order. So: four.
"""

from __future__ import annotations

import time

import pytest
from safetensors.torch import load_file
from tests.harness.faulty import armed, events, finish, wait_until
from tests.harness.project import Project, differences, make_project

from tasuki.commands.status import read_status
from tasuki.runs.history import append_history, read_history

EPOCHS = 12
"""96 steps: ranks agree to stop at a later one than that in which the notice came."""


def read_steps(project: Project) -> int:
    """How far the run has come, from its own events."""
    return max((e["step"] for e in events(project, "progress", "committed")), default=0)


def wait_for_step(project: Project, step: int, *, within_s: float = 60) -> None:
    wait_until(lambda: read_steps(project) >= step, project, within_s=within_s, every_s=0.01)


def test_every_sample_is_used_exactly_once_per_epoch_while_ranks_go_from_one_to_two_to_three(
    warm, tmp_path
):
    project = make_project(
        tmp_path / "p",
        recipe="Counter",
        stages=[{"name": "one", "data": "d", "epochs": EPOCHS}],
        defaults={"clip": 0, "schedule": "constant", "warmup": 0, "save": {"every": "2 steps"}},
    )
    orders = armed(
        {"at": "step.done", "do": "term-group", "count": 9, "claim": 1},
        {"at": "step.done", "do": "term-group", "count": 5, "claim": 2, "rank": 1},
        {"at": "step.done", "do": "kill", "count": 9, "claim": 3, "rank": 2},
    )
    for ranks, status in ((1, 75), (2, 75), (3, 0)):
        project.set_ranks(ranks)
        assert warm.start(project.job.path, **orders).wait() == status, project.logs()
    assert project.run.is_complete(), project.logs()
    weights = load_file(project.run.stage("one").weights)["w"]
    # Steps have 8 samples each: w[i] loses exactly 1/8 whenever sample i is used.
    assert weights.tolist() == [-EPOCHS / 8] * 64


def make_four(folder) -> Project:
    return make_project(
        folder,
        ranks=4,
        params={"norm": "layer"},
        stages=[{"name": "one", "data": "d", "epochs": 20}],
        defaults={"effective_batch": 11, "micro_batch": 2, "save": {"every": "9 steps"}},
    )


def test_four_ranks_resume_bit_for_bit_after_a_notice_and_after_one_of_them_is_killed(
    warm, tmp_path
):
    """Of 80 steps: all may agree to stop many steps after the one in which the notice came."""
    whole, project = make_four(tmp_path / "whole"), make_four(tmp_path / "p")
    finish(warm, whole, starts=1)
    orders = [
        {"at": "step.done", "do": "kill", "rank": 2, "count": 11, "claim": 1},
        {"at": "step.done", "do": "term-group", "rank": 3, "count": 5, "claim": 2},
    ]
    assert warm.start(project.job.path, **armed(*orders)).wait() == 75, project.logs()
    finish(warm, project, starts=1)
    endings = [event["ending"] for event in events(project, "attempt-ended")]
    assert endings == ["failed", "handed-over", "done"]
    assert differences(whole, project) == []


def test_fewer_samples_than_ranks_are_said_and_used_exactly_once(warm, tmp_path):
    project = make_project(
        tmp_path / "p",
        recipe="Counter",
        params={"samples": 2},
        ranks=4,
        stages=[{"name": "one", "data": "d", "epochs": 3}],
        defaults={"clip": 0, "schedule": "constant", "warmup": 0},
    )
    assert warm.start(project.job.path).wait() == 0, project.logs()
    said = "stage `one` has 2 samples for 4 ranks: the others only take part; ask for fewer GPUs"
    assert project.logs().count(said) == 1
    weights = load_file(project.run.stage("one").weights)["w"]
    assert weights.tolist() == [-1.5, -1.5]  # each loses half in each of three epochs


def test_a_run_with_several_ranks_says_what_they_bring_by_history_or_by_the_exchange(
    warm, tmp_path
):
    def train(folder, ranks: int) -> Project:
        project = make_project(folder, ranks=ranks)
        append_to = project.run.path.parent
        for line in earlier:
            append_history(append_to, "earlier.1", line)
        assert warm.start(project.job.path).wait() == 0, project.logs()
        return project

    earlier: list[dict] = []
    alone = train(tmp_path / "one", 1)
    assert "Scaling:" not in alone.logs()
    unknown = train(tmp_path / "two", 2)
    (told,) = events(unknown, "scaling")
    assert told["ranks"] == 2 and told["speedup"] is None and 0 <= told["exchange"] <= 1
    assert "Scaling: 2 ranks, " in unknown.logs()
    earlier = list(read_history(alone.run.path.parent))
    known = train(tmp_path / "both", 2)
    (stage,) = read_status([known.run], now=time.time())["runs"][0]["stages"]
    found = stage["scaling"]
    assert found["baseline_ranks"] == 1
    assert found["efficiency"] == pytest.approx(found["speedup"] / 2, abs=1e-3)
    assert "× of 1 rank (" in known.logs()
    assert differences(unknown, known) == [], "measuring changes nothing"

"""Several ranks: exactly once with any number of them, bit for bit with the same number.

Two ranks cannot show faults of ordering: a sum of two numbers has one order. So: four.
"""

from __future__ import annotations

import signal
import time

import psutil
import pytest
from safetensors.torch import load_file
from tests.harness.project import Project, differences, make_project

EPOCHS = 5


def read_steps(project: Project) -> int:
    """How far the run has come, from its own events."""
    from tasuki.runs.events import read_events

    steps = [e["step"] for e in read_events(project.run) if e["kind"] in ("progress", "committed")]
    return max(steps, default=0)


def wait_for_step(project: Project, step: int, *, within_s: float = 60) -> None:
    until = time.monotonic() + within_s
    while read_steps(project) < step:
        assert time.monotonic() < until, project.logs()
        time.sleep(0.01)


def ranks_of(supervisor: int) -> list[psutil.Process]:
    return psutil.Process(supervisor).children()


def test_every_sample_is_used_exactly_once_per_epoch_while_ranks_go_from_one_to_two_to_three(
    warm, tmp_path
):
    project = make_project(
        tmp_path / "p",
        recipe="Counter",
        params={"pause": 0.01},
        stages=[{"name": "one", "data": "d", "epochs": EPOCHS}],
        defaults={"clip": 0, "schedule": "constant", "warmup": 0, "save": {"every": "2 steps"}},
    )
    for ranks, step, number in ((1, 6, signal.SIGTERM), (2, 15, signal.SIGKILL), (3, 22, None)):
        project.set_ranks(ranks)
        started = warm.start(project.job.path)
        wait_for_step(project, step)
        if number is not None:
            started.kill(number)
        started.wait()
    assert project.run.is_complete(), project.logs()
    weights = load_file(project.run.stage("one").weights)["w"]
    # Steps have 8 samples each: w[i] loses exactly 1/8 whenever sample i is used.
    assert weights.tolist() == [-EPOCHS / 8] * 64


@pytest.fixture(scope="module")
def four_undisturbed(warm, tmp_path_factory):
    project = make_four(tmp_path_factory.mktemp("four") / "p")
    assert warm.start(project.job.path).wait() == 0, project.logs()
    return project


def make_four(folder) -> Project:
    return make_project(
        folder,
        ranks=4,
        params={"pause": 0.005, "norm": "layer"},
        stages=[{"name": "one", "data": "d", "epochs": 6}],
        defaults={"effective_batch": 11, "micro_batch": 2, "save": {"every": "9 steps"}},
    )


def test_four_ranks_resume_bit_for_bit_after_a_notice(warm, tmp_path, four_undisturbed):
    project = make_four(tmp_path / "p")
    started = warm.start(project.job.path)
    wait_for_step(project, 5)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    assert warm.start(project.job.path).wait() == 0, project.logs()
    assert differences(four_undisturbed, project) == []


def test_four_ranks_resume_bit_for_bit_after_one_of_them_is_killed(
    warm, tmp_path, four_undisturbed
):
    project = make_four(tmp_path / "p")
    started = warm.start(project.job.path)
    wait_for_step(project, 9)
    ranks_of(started.pid)[2].send_signal(signal.SIGKILL)
    assert started.wait() == 0, project.logs()
    assert differences(four_undisturbed, project) == []


def test_a_signal_that_reaches_one_rank_only_stops_all_at_the_same_step(
    warm, tmp_path, four_undisturbed
):
    project = make_four(tmp_path / "p")
    started = warm.start(project.job.path)
    wait_for_step(project, 5)
    ranks_of(started.pid)[3].send_signal(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    assert read_steps(project) < 24
    assert warm.start(project.job.path).wait() == 0, project.logs()
    assert differences(four_undisturbed, project) == []


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
    from tasuki.commands.status import read_status
    from tasuki.runs.events import read_events
    from tasuki.runs.history import append_history, read_history

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
    (told,) = [e for e in read_events(unknown.run) if e["kind"] == "scaling"]
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

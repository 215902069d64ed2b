"""`tasuki audit` proves over all attempts that each sample was used exactly once per epoch (R7),
and says where that is not so."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file
from tests.harness.project import Project, make_project

from tasuki.checkpoint.verify import read_manifest
from tasuki.data.used import Used
from tasuki.runs.events import read_events

CODE = '''
class Sized(Counter):
    """Samples of sizes 2, 3 and 4, with costs and scores."""

    def sample_sizes(self, dataset):
        return [2 + i % 3 for i in range(len(dataset))]

    def sample_costs(self, dataset):
        return {"n": self.sample_sizes(dataset)}

    def sample_scores(self, dataset):
        return [(7 * i) % 11 for i in range(len(dataset))]


class Bringer(Counter):
    def build_dataset(self, source, split):
        return torch.utils.data.DataLoader(list(range(self.samples)), batch_size=4)


class Drawn(Counter):
    """Which samples there are is drawn while the data are opened."""

    def build_dataset(self, source, split):
        return random.sample(range(self.samples), int(torch.randint(20, 40, ())))
'''
PLAIN = {"clip": 0, "schedule": "constant", "warmup": 0}


def make(folder: Path, *, recipe: str = "Counter", **more: Any) -> Project:
    defaults = {**PLAIN, "save": {"every": "2 steps"}, **more.pop("defaults", {})}
    return make_project(folder, recipe=recipe, code=CODE, defaults=defaults, **more)


def finish(warm, project: Project) -> Project:
    assert warm.start(project.job.path).wait() == 0, project.logs()
    return project


def audit(project: Project, *stages: str) -> dict[str, dict[str, Any]]:
    """What the verb's child process answers, from a fork that has torch imported already."""
    import tasuki.train.audit  # noqa: F401

    order = {
        "run": str(project.run.path),
        "stages": list(stages or project.stages),
        "paths": [str(project.run.code), str(project.folder)],
    }
    with multiprocessing.get_context("fork").Pool(1) as pool:
        found = pool.apply(_work, (order, str(project.folder)))
    return {told["stage"]: told for told in found["stages"]}


def _work(order: dict[str, Any], folder: str) -> dict[str, Any]:
    from tasuki.answers import Told
    from tasuki.train.audit import work

    os.chdir(folder)
    return work(order, Told(os.open(os.devnull, os.O_WRONLY)))


def committed(project: Project) -> list[dict[str, Any]]:
    return [event for event in read_events(project.run) if event["kind"] == "committed"]


def last_step(project: Project) -> int:
    return max((event["step"] for event in committed(project)), default=0)


def wait_for_commit(project: Project, step: int) -> None:
    until = time.monotonic() + 60
    while last_step(project) < step:
        assert time.monotonic() < until, project.logs()
        time.sleep(0.005)


# -- R7 -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "interruptions", [7, pytest.param(100, marks=[pytest.mark.long, pytest.mark.timeout(1200)])]
)
def test_after_kills_and_notices_on_one_two_four_and_three_ranks_each_sample_was_used_once(
    warm, tmp_path, interruptions
):
    chance = random.Random(interruptions)
    samples = 8 * 4 * interruptions  # twelve steps for each attempt, over three epochs
    project = make(
        tmp_path / "p",
        params={"pause": 0.02, "samples": samples},
        stages=[{"name": "one", "data": "d", "epochs": 3}],
        defaults={"save": {"every": "1 step"}},
    )
    for number in range(interruptions):
        project.set_ranks((1, 2, 4, 3)[4 * number // interruptions])
        before = last_step(project)
        started = warm.start(project.job.path)
        wait_for_commit(project, before + chance.randint(1, 3))
        time.sleep(chance.uniform(0, 0.03))  # anywhere in a step or a save
        started.kill(chance.choice([signal.SIGKILL, signal.SIGTERM]))
        started.wait()
    assert not project.run.is_complete()
    before = audit(project)["one"]
    assert before["verdict"] == "proven", before
    finish(warm, project)
    found = audit(project)["one"]
    assert (found["verdict"], found["reason"]) == ("proven", None)
    assert (found["repeated"], found["skipped"], found["samples"]) == (0, 0, 3 * samples)
    assert (found["epochs_complete"], found["samples_per_epoch"]) == (3, samples)
    assert found["attempts"] == interruptions + 1
    assert found["checked"] == found["matching"] >= interruptions
    # The same without any audit: w[i] loses exactly 1/8 whenever sample i is used.
    assert load_file(project.run.stage("one").weights)["w"].tolist() == [-3 / 8] * samples
    print(
        f"R7: {interruptions} interruptions over 3 epochs, ranks 1 2 4 3: "
        f"{found['repeated']} repeated, {found['skipped']} skipped"
    )


# -- every kind of stage --------------------------------------------------------------------------

STAGES = [
    {"name": "steps", "data": "d", "steps": 13},
    {"name": "sizes", "data": "d", "epochs": 2, "size": [2, 4], "order": "smallest_first"},
    {"name": "cost", "data": "d", "epochs": 2, "buckets": {"cost": "n", "budget": 9}},
    {"name": "score", "data": "d", "epochs": 2, "order": "score"},
    {"name": "samples", "data": "d", "samples": 70, "buckets": [3, 4]},
]


@pytest.fixture(scope="module")
def staged(warm, tmp_path_factory) -> Project:
    """Five kinds of stages, handed over in each and finished."""
    folder = tmp_path_factory.mktemp("staged") / "p"
    project = make(
        folder,
        recipe="Sized",
        params={"samples": 40, "pause": 0.01},
        stages=STAGES,
        defaults={"loader": {"workers": 1}, "save": {"every": "3 steps"}},
        cluster={"cpus": 2},
    )
    for stage in STAGES:
        started = warm.start(project.job.path)
        until = time.monotonic() + 60
        while not has_committed(project, stage["name"]):
            assert time.monotonic() < until, project.logs()
            time.sleep(0.005)
        started.kill(signal.SIGTERM)
        assert started.wait() in (0, 75), project.logs()
    return finish(warm, project)


def has_committed(project: Project, stage: str) -> bool:
    """Some steps of that stage."""
    events = read_events(project.run)
    starts = [number for number, event in enumerate(events) if is_start_of(event, stage)]
    later = events[starts[0] :] if starts else []
    return any(event["kind"] == "committed" and event["step"] for event in later)


def is_start_of(event: dict[str, Any], stage: str) -> bool:
    return event["kind"] == "restored" and event["stage"] == stage


@pytest.mark.long
def test_stages_of_every_length_order_and_bucket_are_proven_one_by_one(staged):
    found = audit(staged)
    assert {name: told["verdict"] for name, told in found.items()} == dict.fromkeys(
        (stage["name"] for stage in STAGES), "proven"
    ), found
    # 40 samples of three sizes: six steps of up to 8 an epoch, and one of the third.
    assert (found["steps"]["steps"], found["steps"]["epochs_complete"]) == (13, 2)
    assert found["sizes"]["samples_per_epoch"] == 27
    assert found["cost"]["samples"] == found["score"]["samples"] == 80
    assert found["samples"]["samples"] >= 70 and found["samples"]["epochs_complete"] == 1
    assert sum(told["attempts"] for told in found.values()) > len(STAGES)


def test_one_stage_can_be_asked_for_and_nothing_is_changed(staged):
    before = {p: p.stat().st_mtime_ns for p in staged.folder.rglob("*") if p.is_file()}
    assert list(audit(staged, "cost")) == ["cost"]
    after = {p: p.stat().st_mtime_ns for p in staged.folder.rglob("*") if p.is_file()}
    assert after == before


def test_data_whose_samples_are_drawn_while_they_are_opened_are_the_same_again(warm, tmp_path):
    project = make(tmp_path / "p", recipe="Drawn", stages=[{"name": "one", "data": "d"}])
    found = audit(finish(warm, project))["one"]
    assert found["verdict"] == "proven" and 20 <= found["samples"] < 40


def test_a_loader_of_the_recipe_s_own_is_said_to_be_unknown(warm, tmp_path):
    project = make(tmp_path / "p", recipe="Bringer", stages=[{"name": "one", "data": "d"}])
    found = audit(finish(warm, project))["one"]
    assert found["verdict"] == "not known"
    assert found["reason"] == "not known: the recipe brings its own loader"


# -- what went wrong, and where -------------------------------------------------------------------


@pytest.fixture(scope="module")
def three_attempts(warm, tmp_path_factory) -> Project:
    """Killed after step 6 and after step 12; commits every second step, all of them kept."""
    folder = tmp_path_factory.mktemp("three") / "p"
    project = make(
        folder,
        params={"pause": 0.005},
        stages=[{"name": "one", "data": "d", "epochs": 3}, {"name": "two", "data": "d"}],
        defaults={"save": {"every": "2 steps", "keep": 50}},
    )
    for step in (6, 12):
        started = warm.start(project.job.path)
        wait_for_commit(project, step)
        started.kill(signal.SIGKILL)
        started.wait()
    return finish(warm, project)


@pytest.fixture
def run(three_attempts, tmp_path) -> Iterator[Project]:
    """A copy of that run that a test may spoil."""
    shutil.copytree(three_attempts.folder, tmp_path / "p")
    yield replace(
        three_attempts,
        folder=tmp_path / "p",
        run=replace(three_attempts.run, path=tmp_path / "p" / "runs" / "exp"),
    )


def change_events(project: Project, change: Any) -> None:
    """`change` gets each event and gives what is to stand there instead, or None."""
    for path in project.run.events.glob("*.jsonl"):
        events = [change(json.loads(line)) for line in path.read_text().splitlines()]
        path.write_text("".join(json.dumps(e) + "\n" for e in events if e is not None))


def falsify(project: Project, names: set[str], change: Any) -> None:
    """Another record for these checkpoints: in the events, and in the manifests that are there."""

    def other(event: dict[str, Any]) -> dict[str, Any]:
        if event.get("checkpoint") in names and event.get("used"):
            event["used"] = change(Used.from_json(event["used"])).to_json()
        return event

    change_events(project, other)
    for name in names:
        path = project.run.checkpoints / name
        if path.exists():
            manifest = read_manifest(path)
            wrong = change(Used.from_json(manifest.facts["used"])).to_json()
            manifest = replace(manifest, facts={**manifest.facts, "used": wrong})
            (path / "manifest.json").write_bytes(manifest.render())


def test_the_copy_is_proven_before_it_is_spoilt(run):
    found = audit(run)
    assert [told["verdict"] for told in found.values()] == ["proven", "proven"], found
    assert found["one"]["attempts"] == 3 and found["one"]["checked"] == found["one"]["matching"]


def test_a_record_of_other_samples_is_found_between_its_commit_and_the_one_before(run):
    of_second = [e for e in committed(run) if e["claim"] == 2]
    wrong = of_second[1]
    later = [e["checkpoint"] for e in committed(run) if e["step"] >= wrong["step"]]
    moved = Used(0, 12345)
    falsify(run, set(later), lambda used: used + moved)
    found = audit(run, "one")["one"]
    assert found["verdict"] == "not proven"
    first = found["mismatches"][0]
    assert first["checkpoint"] == wrong["checkpoint"] and first["attempt"] == 2
    assert first["after_checkpoint"] == of_second[0]["checkpoint"]
    assert first["after_step"] == of_second[0]["step"] < first["step"] == wrong["step"]
    assert found["reason"] == (
        f"attempt 2 used other samples than the order says between step {first['after_step']} "
        f"({of_second[0]['checkpoint']}) and step {wrong['step']} ({wrong['checkpoint']})"
    )
    assert (found["repeated"], found["skipped"], found["samples"]) == (None, None, None)


def test_a_sample_too_many_is_told_by_its_number(run):
    last = committed(run)[-1]["checkpoint"]
    falsify(run, {last}, lambda used: Used(used.count + 1, used.digest ^ 1))
    found = audit(run)
    assert [told["verdict"] for told in found.values()] == ["proven", "not proven"]
    assert "65 samples in all where there should be 64" in found["two"]["reason"]


def test_a_manifest_and_an_event_that_disagree_are_found(run):
    name = sorted(path.name for path in run.run.checkpoints.glob("step-*"))[-1]
    path = run.run.checkpoints / name
    manifest = read_manifest(path)
    facts = {**manifest.facts, "used": Used(64, 1).to_json()}
    (path / "manifest.json").write_bytes(replace(manifest, facts=facts).render())
    found = audit(run)["two"]
    assert found["verdict"] == "not proven"
    assert (
        found["reason"] == f"event and manifest of {name} tell different things about its samples"
    )


def test_records_that_are_missing_in_between_are_named_and_those_at_the_end_are_missed(run):
    shutil.rmtree(run.run.checkpoints)
    run.run.checkpoints.mkdir()
    steps = {e["checkpoint"]: e["step"] for e in committed(run) if e["claim"] == 1}
    middle = next(name for name, step in steps.items() if step == 4)
    change_events(run, lambda e: None if e.get("checkpoint") == middle else e)
    assert audit(run, "one")["one"]["verdict"] == "proven"
    change_events(run, lambda e: None if e["kind"] == "committed" and e["step"] == 24 else e)
    found = audit(run, "one")["one"]
    assert found["verdict"] == "not proven"
    assert "the stage ended with step 24, but nothing is on record after step-" in found["reason"]
    change_events(run, lambda e: {k: v for k, v in e.items() if k != "used"})
    found = audit(run, "one")["one"]
    assert found["verdict"] == "not proven" and found["unrecorded"]


def test_commits_that_were_rolled_back_or_came_late_are_told_apart(run):
    events = committed(run)
    parent = json.loads((run.run.claims / "2" / "parent.json").read_text())["parent"]
    (resumed,) = (e for e in events if e["checkpoint"] == parent)
    again = next(e for e in events if e["claim"] == 2 and e["step"] == resumed["step"] + 2)
    number = int(parent[5:14])

    def commit(step: int, t: float) -> str:
        name = f"step-{number + step:09d}.c1"
        event = {**again, "checkpoint": name, "claim": 1, "t": t, "step": resumed["step"] + step}
        with next(run.run.events.glob("1.*.rank0.jsonl")).open("a") as file:
            file.write(json.dumps(event) + "\n")
        return name

    back = commit(2, resumed["t"] + 0.001)
    found = audit(run, "one")["one"]
    assert (found["verdict"], found["rolled_back"], found["late"]) == ("proven", [back], [])
    change_events(run, lambda e: {**e, "t": e["t"] + 900} if e.get("checkpoint") == back else e)
    found = audit(run, "one")["one"]
    assert (found["verdict"], found["rolled_back"], found["late"]) == ("proven", [], [back])
    falsify(run, {back}, lambda used: used + Used(0, 9))
    found = audit(run, "one")["one"]
    assert found["verdict"] == "not proven" and found["mismatches"][0]["place"] == "late"
    assert found["mismatches"][0]["after_checkpoint"] == parent


def test_other_data_than_those_of_the_training_are_not_proven(run):
    for folder in (run.run.code, run.folder):
        path = folder / "recipes.py"
        path.write_text(path.read_text().replace("samples=64", "samples=72"))
    found = audit(run)["one"]
    assert found["verdict"] == "not proven"
    assert "every record differs: are these the data it was trained with?" in found["reason"]


def test_data_that_cannot_be_opened_any_more_leave_it_unproven_with_the_reason(run):
    path = run.run.code / "recipes.py"
    path.write_text(path.read_text().replace("return list(range(", "return open('gone.h5') + (("))
    found = audit(run)["one"]
    assert found["verdict"] == "not proven"
    assert "the order cannot be built again: " in found["reason"] and "gone.h5" in found["reason"]
    assert found["attempts"] == 3


def test_a_stage_without_a_committed_step_is_not_begun(warm, tmp_path):
    stages = [{"name": "one", "data": "d"}, {"name": "two", "data": "d"}]
    project = make(tmp_path / "p", stages=stages)
    assert [told["verdict"] for told in audit(project).values()] == ["not begun"] * 2

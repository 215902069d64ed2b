"""`tasuki verify samples`: each sample exactly once per epoch, or where not."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from click.testing import CliRunner

from tasuki import verify_samples
from tasuki.checkpoint.verify import read_manifest
from tasuki.cli.verify import command
from tasuki.commands.verify import SamplesReport
from tasuki.data.used import Used
from tasuki.errors import EXIT_DONE, EXIT_FAILED, EXIT_RESUME_ME, TasukiError, UsageError
from tasuki.runs.events import read_events
from tests.adapters.subjects import FLAT, RANKS, STREAM, Subject, make_script
from tests.harness.project import Project, make_project
from tests.harness.samples import check_samples

STAGES = [{"name": "one", "data": "d", "epochs": 5}, {"name": "two", "data": "d"}]
DEFAULTS = {"clip": 0, "schedule": "constant", "warmup": 0, "save": {"every": "2 steps"}}
CODE = '''

class Drawn(Counter):
    """Which samples there are is drawn while the data are opened."""

    def build_dataset(self, source, split):
        return random.sample(range(self.samples), int(torch.randint(20, 40, ())))


class OwnLoader(Counter):
    def build_dataset(self, source, split):
        return torch.utils.data.DataLoader(list(range(self.samples)), batch_size=4)
'''
STRIKES = [
    {"at": "step.done", "do": "term-group", "count": 6, "claim": 1},
    {"at": "step.done", "do": "kill", "count": 5, "claim": 2, "rank": 0},
]


def make(folder: Path, *, recipe: str = "Counter", **more: Any) -> Project:
    return make_project(folder, recipe=recipe, code=CODE, defaults=DEFAULTS, **more)


@pytest.fixture(scope="session")
def interrupted(warm, tmp_path_factory) -> Project:
    """A stopped attempt on one rank, a killed one on two ranks, and one that finished on two."""
    folder = tmp_path_factory.mktemp("interrupted") / "p"
    # With two ranks alone, the batch of stage two has the size that its checkpoints recorded.
    stages = [STAGES[0], {**STAGES[1], "micro_batch": 2, "accumulation": 2}]
    made = make(folder, stages=stages, ranks=2, params={"pause": 0.005})
    for ranks, code in ((1, EXIT_RESUME_ME), (2, EXIT_DONE)):
        made.set_ranks(ranks)
        started = warm.start(made.job.path, TASUKI_FAILPOINTS=json.dumps(STRIKES))
        assert started.wait() == code, made.logs()
    return made


@pytest.fixture
def spoilt(interrupted, tmp_path) -> Project:
    """A copy of that run which a test may change."""
    folder = tmp_path / "p"
    shutil.copytree(interrupted.folder, folder)
    made = replace(
        interrupted, folder=folder, run=replace(interrupted.run, path=folder / "runs/exp")
    )
    spec = json.loads(made.run.spec.read_text())
    made.run.spec.write_text(json.dumps({**spec, "folder": str(folder)}))
    return made


def committed(made: Project, attempt: int) -> list[dict[str, Any]]:
    """What an attempt committed of stage one, with its steps."""
    events = [event for event in read_events(made.run) if event["kind"] == "committed"]
    return [e for e in events if e["claim"] == attempt and e["stage"] == "one"]


def change_records(made: Project, change: Callable[[dict[str, Any]], Any]) -> None:
    """Replace the record of each event and manifest by what `change` returns for it."""
    for path in made.run.events.glob("*.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in (event for event in events if event.get("used")):
            event["used"] = change(event)
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    for path in made.run.checkpoints.glob("step-*"):
        manifest = read_manifest(path)
        at = manifest.position
        event = {"stage": at.stage, "step": at.stage_step, "claim": manifest.claim}
        used = change({**event, "used": manifest.facts["used"]})
        new = replace(manifest, facts={**manifest.facts, "used": used})
        (path / "manifest.json").write_bytes(new.render())


def add_sample(record: dict[str, Any]) -> dict[str, Any]:
    """As if one sample more had been used."""
    return (Used.from_json(record["used"]) + Used(1, 12345)).to_json()


# -- verified -------------------------------------------------------------------------------------


def test_an_interrupted_run_on_one_and_two_ranks_is_verified_and_not_changed(interrupted):
    before = {path: path.stat().st_mtime_ns for path in interrupted.run.path.rglob("*")}
    report = verify_samples(str(interrupted.run.path))
    assert report.exactly_once
    one, two = report.stages
    assert (one.status, one.epochs, one.samples, one.attempts) == ("verified", 5, 320, 3)
    assert (two.status, two.epochs, two.samples, two.attempts) == ("verified", 1, 64, 1)
    assert {path: path.stat().st_mtime_ns for path in interrupted.run.path.rglob("*")} == before


def test_an_unfinished_run_is_verified_up_to_its_newest_checkpoint(warm, tmp_path):
    made = make(tmp_path / "p", stages=STAGES)
    started = warm.start(made.job.path, TASUKI_FAILPOINTS=json.dumps(STRIKES[:1]))
    assert started.wait() == EXIT_RESUME_ME, made.logs()
    before = check_samples(made.run)
    one, two = before.values()
    assert one["status"] == "verified" and 6 * 8 <= one["samples"] < 320
    assert two == {"stage": "two", "status": "not started"}
    # A damaged event must not send the check through 10**15 steps.
    event = {**committed(made, 1)[-1], "checkpoint": "step-999999999.c1", "step": 10**15}
    with next(made.run.events.glob("1.*.rank0.jsonl")).open("a") as file:
        file.write(json.dumps(event) + "\n")
    assert check_samples(made.run) == before


@pytest.mark.parametrize(
    ("recipe", "status"), [("Drawn", "verified"), ("OwnLoader", "not recorded")]
)
def test_samples_drawn_by_the_recipe_are_the_same_again_and_its_own_loader_hides_them(
    warm, tmp_path, recipe, status
):
    made = make(tmp_path / "p", recipe=recipe, stages=STAGES[1:])
    assert warm.start(made.job.path).wait() == EXIT_DONE, made.logs()
    assert check_samples(made.run)["two"]["status"] == status


@pytest.mark.parametrize("ranks", [1, pytest.param(2, marks=pytest.mark.long)])
def test_a_custom_loop_that_was_interrupted_is_verified(warm, tmp_path, ranks):
    # Two ranks stop at a later step than the one of the signal: 60 epochs leave room for it.
    script = FLAT if ranks == 1 else RANKS.replace("epochs=5", "epochs=60")
    made = make_script(tmp_path / "p", Subject("loop", script, 0, ranks=ranks))
    strike = {"at": "step.done", "do": "term", "count": 8}
    assert made.attempt(warm, strike) == [EXIT_RESUME_ME] * ranks, made.said()
    assert made.attempt(warm) == [EXIT_DONE] * ranks, made.said()
    stage = check_samples(made.run)["train"]
    assert (stage["status"], stage["attempts"]) == ("verified", 2), stage
    assert stage["samples"] == (5 * 44 if ranks == 1 else 60 * 46)


def test_a_missing_record_hides_nothing_unless_it_is_the_last(spoilt):
    change_records(spoilt, lambda r: None if r["claim"] == 1 else r["used"])
    stage = check_samples(spoilt.run)["one"]
    assert stage["status"] == "verified" and stage["missing_records"] > 1
    change_records(spoilt, lambda r: None if r["step"] == 40 else r["used"])
    stage = check_samples(spoilt.run)["one"]
    assert stage["status"] == "not recorded" and "up to its last step, 40" in stage["message"]


def test_what_a_rolled_back_attempt_recorded_does_not_count(spoilt):
    parent = json.loads((spoilt.run.claims / "3" / "parent.json").read_text())["parent"]
    (known,) = (e for e in committed(spoilt, 2) if e["checkpoint"] == parent)
    step, number = known["step"] + 1, int(parent[5:14]) + 1
    event = {**known, "step": step, "checkpoint": f"step-{number:09d}.c2"}
    event["used"] = add_sample(known)
    with next(spoilt.run.events.glob("2.*.rank0.jsonl")).open("a") as file:
        file.write(json.dumps(event) + "\n")
    assert check_samples(spoilt.run)["one"]["status"] == "verified"


# -- not verified ---------------------------------------------------------------------------------


def test_other_samples_are_found_by_attempt_and_step(spoilt):
    before, wrong = committed(spoilt, 3)[1:3]
    change_records(spoilt, lambda r: add_sample(r) if r["step"] >= wrong["step"] else r["used"])
    stage = check_samples(spoilt.run)["one"]
    steps = f"attempt 3 used other samples between steps {before['step']} and {wrong['step']} "
    assert stage["status"] == "wrong" and stage["message"].startswith(steps)
    count = wrong["used"]["count"]
    assert f"({count + 1} recorded by then, {count} expected)" in stage["message"]


def test_a_custom_loop_that_uses_a_sample_twice_is_found(warm, tmp_path):
    plant = "batches.indices = batches.indices[:-1] + batches.indices[:1]"
    plant = f"        batches = run._batches\n        if run.step == 11: {plant}\n"
    script = FLAT.replace("        run.log(loss=loss)", plant)
    made = make_script(tmp_path / "p", Subject("loop", script, 0))
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    stage = check_samples(made.run)["train"]
    assert stage["status"] == "wrong" and "between steps 7 and 14" in stage["message"]


def test_changed_data_are_suspected_when_the_first_record_differs(spoilt):
    path = spoilt.run.code / "recipes.py"
    path.write_text(path.read_text().replace("samples=64", "samples=72"))
    stage = check_samples(spoilt.run)["one"]
    assert stage["status"] == "wrong" and "have the data changed since?" in stage["message"]


def test_data_that_cannot_be_opened_are_an_error_with_its_place(spoilt):
    path = spoilt.run.code / "recipes.py"
    path.write_text(path.read_text().replace("return list(range(", "return open('gone.h5') + (("))
    with pytest.raises(TasukiError, match=r"gone\.h5.*recipes\.py"):
        verify_samples(str(spoilt.run.path))


def test_a_stream_of_a_custom_loop_is_not_recorded(warm, tmp_path):
    made = make_script(tmp_path / "p", Subject("stream", STREAM, 24))
    assert made.attempt(warm) == [EXIT_DONE], made.said()
    assert check_samples(made.run)["train"]["status"] == "not recorded"


# -- the command ----------------------------------------------------------------------------------


def test_the_command_prints_a_line_per_stage_and_its_json_is_the_report(interrupted):
    words = ["samples", "exp", "--runs", str(interrupted.run.path.parent)]
    said = CliRunner().invoke(command, words, standalone_mode=False)
    assert said.return_value == EXIT_DONE
    assert (
        said.stdout
        == "one: verified, 320 samples, 64 per epoch\ntwo: verified, 64 samples, 64 per epoch\n"
    )
    said = CliRunner().invoke(command, [*words, "--stage", "two", "--json"], standalone_mode=False)
    report = msgspec.json.decode(said.stdout, type=SamplesReport)
    assert report.exactly_once and [stage.stage for stage in report.stages] == ["two"]


def test_exit_code_1_for_a_run_that_was_not_started(tmp_path):
    made = make(tmp_path / "p", stages=STAGES[:1])
    words = ["samples", str(made.run.path), "--runs", str(made.run.path.parent)]
    said = CliRunner().invoke(command, words, standalone_mode=False)
    assert (said.return_value, said.stdout) == (EXIT_FAILED, "one: not started\n")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ({"run": "exq"}, "no run `exq`"),
        ({"run": "exp", "stage": "three"}, "no stage `three`"),
        ({"run": "exp/one", "stage": "two"}, "name two stages"),
    ],
)
def test_an_unknown_run_or_stage_is_refused(interrupted, words, error):
    with pytest.raises(UsageError, match=error):
        verify_samples(**words, runs_dir=interrupted.run.path.parent)

"""A run of which somebody deleted a part: every verb says what is gone, and what can be done."""

from __future__ import annotations

import json
import shutil

import pytest

from tasuki.runs.atomic import FORMAT, make_folder, write_json
from tasuki.runs.attempts import write_attempt_end
from tasuki.runs.claims import take_claim
from tasuki.runs.find import next_run
from tasuki.runs.remains import missing_of
from tasuki.runs.runs import RunFolder
from tests.commands.person import make_project

SHOWING = ["status", "why", "watch --once", "logs", "checkpoint show", "report --md -o -"]
WORKING = ["verify samples", "evaluate", "export", "cancel", "extend", "resume --here"]


@pytest.fixture
def torn(finished, tmp_path):
    """A finished run, and a way to delete parts of it."""
    run = RunFolder(tmp_path / "runs" / "exp")
    shutil.copytree(finished.run().path, run.path)

    def delete(*parts: str) -> RunFolder:
        for part in parts:
            gone = run.path / part
            shutil.rmtree(gone) if gone.is_dir() else gone.unlink()
        return run

    return delete


def test_a_run_that_is_whole_lacks_nothing(torn):
    assert missing_of(torn()) == []


@pytest.mark.parametrize("verb", SHOWING)
def test_what_is_left_of_a_run_without_a_spec_is_shown(here, torn, tmp_path, verb):
    torn("spec.json")
    said = here(tmp_path, *verb.split(), "exp")
    assert said.code == 0, said
    if verb != "logs":
        assert "is gone from its folder" in said.out + said.err
    alone = here(tmp_path, *verb.split()) if verb not in ("why", "logs") else said
    assert alone.code == 0 and (verb == "logs" or "is gone from" in alone.out + alone.err)


@pytest.mark.parametrize("verb", WORKING)
def test_who_would_work_on_what_is_left_is_told_that_the_spec_is_gone(here, torn, tmp_path, verb):
    torn("spec.json")
    more = ["+1h"] if verb == "extend" else []
    said = here(tmp_path, *verb.split(), "exp", *more)
    assert said.code == 1 and "is what is left of a run: its spec.json is gone" in said.err, said
    assert "hint: only a copy of `spec.json`" in said.err and "tasuki why" in said.err


def test_nothing_is_begun_inside_of_what_is_left_of_a_run(here, finished, tmp_path):
    project = tmp_path / "again"
    shutil.copytree(finished.folder, project)
    RunFolder(project / "runs" / "exp").spec.unlink()
    for verb in ("plan", "run"):
        said = here(project, verb)
        assert said.code == 1 and "is what is left of a run" in said.err, said
    assert next_run(project / "runs", "exp").name == "exp-2"


@pytest.mark.parametrize(
    ("part", "still"),
    [
        ("events", "why"),
        ("claims", "verify samples"),
        ("checkpoints", "stages"),
        ("training_state.json", "next attempt"),
        ("stages", "another run"),
    ],
)
def test_status_names_the_part_that_is_gone_and_what_hangs_on_it(here, torn, tmp_path, part, still):
    torn(part)
    told = here(tmp_path, "status", "exp", "--json").run
    assert told["state"] == "complete"
    assert f"`{part}" in told["reason"] and "gone from its folder" in told["reason"]
    assert still in told["hint"]
    for verb in SHOWING:
        assert here(tmp_path, *verb.split(), "exp").code == 0


def test_weights_that_were_deleted_are_not_called_unfinished(here, torn, tmp_path):
    torn("stages")
    said = here(tmp_path, "export", "exp")
    assert said.code == 1 and "is complete, but `stages/" in said.err, said
    assert "100%" in here(tmp_path, "status", COLUMNS="160").out


@pytest.mark.long
def test_of_a_complete_run_no_other_stage_is_taken_for_the_one_that_is_gone(here, tmp_path):
    stages = [{"name": n, "data": "d", "epochs": 1} for n in ("one", "two")]
    project = make_project(tmp_path / "p", stages=stages)
    assert here(project.folder, "run").code == 0
    shutil.rmtree(project.run().stage("two").path)
    for name in ("exp", "exp/two"):
        said = here(project.folder, "export", name)
        assert said.code == 1 and "is complete, but `stages/two/metrics.json`" in said.err, said
    assert here(project.folder, "export", "exp/one").code == 0


def test_folders_of_other_tools_are_no_remains_and_hide_no_run(here, torn, tmp_path):
    torn()
    (tmp_path / "exp" / "checkpoints" / "epoch=3.ckpt").mkdir(parents=True)
    assert str(tmp_path / "runs") in here(tmp_path, "checkpoint", "show", "exp", "--json").out
    shutil.rmtree(tmp_path / "runs")
    said = here(tmp_path, "why", "exp")
    assert said.code == 2 and "there is no run `exp`" in said.err, said


def test_a_checkpoint_that_was_copied_away_is_as_good_as_it_is(here, torn, tmp_path):
    run = torn()
    shutil.copytree(run.checkpoints, tmp_path / "backup" / "checkpoints")
    newest = max((tmp_path / "backup" / "checkpoints").glob("step-*"))
    assert here(tmp_path, "checkpoint", "verify", str(newest)).code == 0


def test_a_spec_that_cannot_be_read_hides_no_other_runs_checkpoints(here, torn, tmp_path):
    run = torn()
    shutil.copytree(run.path, run.path.with_name("other"))
    (run.path.with_name("other") / "spec.json").write_text('{"format": 99}')
    said = here(tmp_path, "checkpoint", "show", "--json")
    assert said.code == 0 and {one["experiment"] for one in said.json()["runs"]} == {"exp", "other"}


def test_a_run_whose_node_was_lost_before_its_first_save_lacks_nothing(tmp_path):
    run = RunFolder(tmp_path / "runs" / "early")
    make_folder(run.path)
    write_json(run.spec, {"format": FORMAT, "stages": [{"name": "one"}]})
    claim = take_claim(run)
    make_folder(run.events)
    write_attempt_end(run, claim, {"ending": "failed", "cause": "node-failure"})
    assert missing_of(run) == []


def test_the_board_lists_what_is_left_of_a_run(torn, tmp_path):
    from tasuki.commands.board import RunsSource
    from tasuki.testing import FakeClock

    torn("spec.json")
    source = RunsSource(tmp_path / "runs", FakeClock())
    assert source.names() == ["exp"]
    assert "spec.json` is gone" in source.summary("exp")["reason"]
    assert any("spec.json` is gone" in words for words in source.detail("exp")["problems"])
    json.dumps(source.detail("exp"))

"""A run of which parts are gone, damaged or strange: every verb shows what is left of it.

How each file is read has its tests in tests/unit/runs; here no verb may end in a traceback, wait
for ever, or hide what is whole.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable

import pytest

from tasuki.checkpoint.lineage import ancestry_of
from tasuki.commands.board import RunsSource
from tasuki.errors import StoreError
from tasuki.runs.atomic import open_plain
from tasuki.runs.attempts import write_attempt_end
from tasuki.runs.claims import highest_claim, list_claims, sweep_temps, take_claim
from tasuki.runs.find import next_run
from tasuki.runs.lines import read_last_lines, read_lines
from tasuki.runs.remains import missing_of
from tasuki.runs.runs import RunFolder
from tasuki.testing import FakeClock
from tests.harness.written import WrittenRun

SHOWING = [
    *("status", "why", "why --json", "watch --once", "logs", "report --md -o -"),
    "checkpoint show",
]
WORKING = ["verify samples", "evaluate", "export", "cancel", "extend", "resume --here"]
PARTS = [
    *("spec.json", "events", "claims", "checkpoints", "stages", "metrics", "logs"),
    *("training_state.json", "control"),
]


@pytest.fixture
def run(finished, tmp_path) -> RunFolder:
    """A copy of a finished run, to be damaged."""
    copy = RunFolder(tmp_path / "runs" / "exp")
    shutil.copytree(finished.run().path, copy.path)
    return copy


def remove(run: RunFolder, part: str) -> None:
    path = run.path / part
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def make_pipe(run: RunFolder, part: str) -> None:
    remove(run, part)
    os.mkfifo(run.path / part)


def make_folder(run: RunFolder, part: str) -> None:
    remove(run, part)
    (run.path / part).mkdir()


def make_loop(run: RunFolder, part: str) -> None:
    """A link to itself."""
    remove(run, part)
    (run.path / part).symlink_to((run.path / part).name)


def write_junk(run: RunFolder, part: str) -> None:
    junk = [b"{torn", b"[1]", b"\xff\xfe", b'{"t": 12.5, "claim": 1, "kind": "attempt-ended"}']
    junk += [b'{"t": 1, "claim": 1, "who": "rank0", "kind": "time", "parts": {"step": "NaN"}}']
    junk += [b'{"t": 2, "claim": 1, "kind": "progress", "parts": "x", "step": "y"}']
    (run.path / part).write_bytes(b"\n".join(junk) + b"\n")


def empty(run: RunFolder, part: str) -> None:
    (run.path / part).write_text("{}")


DAMAGES: list[tuple[Callable[[RunFolder, str], None], str]] = [
    (make_pipe, "events/2.0.rank0.jsonl"),
    (make_loop, "events/2.0.supervisor.jsonl"),
    (make_pipe, "metrics/2.jsonl"),
    (make_folder, "logs/x-01.2.log"),
    (make_folder, "training_state.json"),
    (make_pipe, "claims/1/end.json"),
    (make_loop, "claims/2"),
    (empty, "claims/1/end.json"),
    (write_junk, "events/1.0.junk.jsonl"),
]


@pytest.mark.parametrize(("damage", "part"), DAMAGES)
def test_no_verb_waits_or_fails_without_words_at_something_odd_in_a_run(here, run, damage, part):
    run.marker.unlink()  # so that events are read
    run.accounts.unlink()
    damage(run, part)
    for verb in SHOWING:
        said = here(run.path.parents[1], *verb.split(), "exp")
        assert said.code in (0, 1) and "Traceback" not in said.err, said
        named = run.path if damage is empty else run.path / part
        assert said.code == 0 or str(named) in said.err, said


@pytest.mark.parametrize("part", PARTS)
def test_of_a_run_without_one_of_its_parts_the_rest_is_shown(here, run, part):
    assert missing_of(run) == []
    remove(run, part)
    for verb in SHOWING:
        said = here(run.path.parents[1], *verb.split(), "exp")
        assert said.code == 0 and "Traceback" not in said.err, said
        if part == "spec.json" and not verb.startswith("logs"):
            assert "is gone from its folder" in said.out + said.err
    source = RunsSource(run.path.parent, FakeClock())
    json.dumps([source.summary("exp"), source.detail("exp"), source.curves("exp", points=9)])


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
def test_status_names_the_part_that_is_gone_and_what_depends_on_it(here, run, part, still):
    remove(run, part)
    told = here(run.path.parents[1], "status", "exp", "--json").run
    assert told["state"] == "complete" and still in told["hint"]
    assert f"`{part}" in told["reason"] and "gone from its folder" in told["reason"]


@pytest.mark.parametrize("verb", WORKING)
def test_a_verb_that_needs_the_spec_says_that_it_is_gone(here, run, verb):
    remove(run, "spec.json")
    more = ["+1h"] if verb == "extend" else []
    said = here(run.path.parents[1], *verb.split(), "exp", *more)
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


def test_weights_that_were_deleted_are_not_called_unfinished(here, run):
    remove(run, "stages")
    said = here(run.path.parents[1], "export", "exp")
    assert said.code == 1 and "is complete, but `stages/" in said.err, said
    assert "100%" in here(run.path.parents[1], "status", COLUMNS="160").out


def test_of_a_complete_run_no_other_stage_is_taken_for_the_one_that_is_gone(here, run, tmp_path):
    remove(run, "stages/large")
    for name in ("exp", "exp/large"):
        said = here(tmp_path, "export", name)
        assert said.code == 1 and "is complete, but `stages/large/metrics.json`" in said.err, said
    assert here(tmp_path, "export", "exp/small", "--dry-run").code == 0


def test_folders_of_other_tools_are_not_runs_and_hide_none(here, run, tmp_path):
    (tmp_path / "exp" / "checkpoints" / "epoch=3.ckpt").mkdir(parents=True)
    (run.path.parent / "notes").mkdir()
    assert str(tmp_path / "runs") in here(tmp_path, "checkpoint", "show", "exp", "--json").out
    assert here(tmp_path, "status", "--json").run["experiment"] == "exp"
    shutil.rmtree(tmp_path / "runs")
    said = here(tmp_path, "why", "exp")
    assert said.code == 2 and "there is no run `exp`" in said.err, said


def test_runs_that_cannot_be_read_hide_no_others(here, run, tmp_path):
    """A spec of a newer tasuki, a file where events were, and a folder that may not be opened."""
    for name in ("newer", "odd", "locked"):
        shutil.copytree(run.path, run.path.with_name(name))
    (run.path.with_name("newer") / "spec.json").write_text('{"format": 99, "stages": []}')
    odd = RunFolder(run.path.with_name("odd"))
    remove(odd, "events")
    odd.events.touch()
    odd.marker.unlink()
    for verb in ("status", "watch", "checkpoint show", "report"):
        told = here(tmp_path, *verb.split(), "--json").json()["runs"]
        assert {one["experiment"] for one in told} >= {"exp", "newer", "odd"}, verb
    newer = here(tmp_path, "status", "newer")
    assert newer.code == 1 and "spec.json has format 99" in newer.err, newer
    assert "hint: use the tasuki that wrote it" in newer.err
    # Root obeys no modes, unless it gives up its rights.
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    locked = run.path.with_name("locked")
    locked.chmod(0)
    words = [*drop, sys.executable, "-m", "tasuki", "status"]
    said = subprocess.run(
        words, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    locked.chmod(0o700)
    assert "Traceback" not in said.stderr and "Permission denied" in said.stdout + said.stderr
    assert "exp" in said.stdout


def test_one_log_that_cannot_be_read_hides_no_other(here, run):
    make_pipe(run, "logs/a-01.1.log")
    said = here(run.path.parents[1], "logs", "exp")
    assert said.code == 0 and "Finished stage" in said.out
    assert f"warning: {run.logs / 'a-01.1.log'} is damaged: it is no plain file" in said.err


def test_a_run_whose_node_was_lost_before_its_first_save_lacks_nothing(tmp_path):
    written = WrittenRun(tmp_path / "runs", FakeClock(), "early")
    written.begin(is_alive=False)
    write_attempt_end(written.run, 1, {"ending": "failed", "cause": "node-failure"})
    assert missing_of(written.run) == []


@pytest.mark.parametrize("read", [read_lines, read_last_lines])
def test_a_pipe_among_files_of_lines_is_named_instead_of_waited_for(run, read):
    make_pipe(run, "events/1.jsonl")
    with pytest.raises(StoreError, match="no plain file") as error:
        list(read(run.events / "1.jsonl"))
    assert "move it away" in error.value.hint
    with pytest.raises(StoreError, match="no plain file"):
        open_plain(run.path)


def test_odd_numbers_among_the_claims_are_not_counted_through(run):
    (run.claims / ("9" * 25)).mkdir()
    assert list_claims(run) == [1]
    (run.claims / "999999999").mkdir()
    assert highest_claim(run) == 999999999
    assert [claim for claim, _ in ancestry_of(run)] == [999999999, 1]
    sweep_temps(run, claim=999999999)
    with pytest.raises(StoreError, match="nothing can follow it"):
        take_claim(run)


@pytest.mark.parametrize("t", [1e300, 1e11, -1e11])
def test_a_time_that_no_calendar_has_is_left_open_by_every_verb(tmp_path, here, monkeypatch, t):
    monkeypatch.chdir(tmp_path)
    clock = FakeClock()
    written = WrittenRun(tmp_path / "runs", clock)
    clock.jump_wall(t - clock.wall())
    for _ in range(2):
        written.begin(is_alive=False)
        written.tell("worker-started", stage="train", phase="train")
        written.tell("progress", who="rank0", stage="train", step=1, total_steps=2, loss=0.5)
        written.tell("machine", cpu_percent=1.0)
        written.log(1, loss=0.5)
        written.end()
    for verb in (*SHOWING, "report --csv", "report -o -"):
        said = here(tmp_path, *verb.split(), "exp")
        assert said.code in (0, 1) and "Traceback" not in said.err, said
    source = RunsSource(tmp_path / "runs", FakeClock())
    for told in (source.summary("exp"), source.detail("exp"), source.curves("exp", points=9)):
        json.dumps(told)

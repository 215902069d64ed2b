"""What nobody of ours puts into a run's folder: no verb waits for it, and none fills the memory."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasuki.checkpoint.lineage import ancestry_of
from tasuki.errors import StoreError
from tasuki.runs.atomic import open_plain
from tasuki.runs.claims import highest_claim, list_claims, sweep_temps, take_claim
from tasuki.runs.lines import read_last_lines, read_lines
from tasuki.runs.runs import RunFolder

VERBS = ["status", "why", "watch --once", "logs", "report --md -o -", "checkpoint show"]
PLACES = [
    *("events/2.0.rank0.jsonl", "events/2.0.supervisor.jsonl", "metrics/2.jsonl"),
    *("logs/x-01.2.log", "training_state.json", "claims/1/end.json", "claims/2"),
]


@pytest.fixture
def run(finished, tmp_path) -> RunFolder:
    copy = RunFolder(tmp_path / "runs" / "exp")
    shutil.copytree(finished.run().path, copy.path)
    copy.marker.unlink()  # so that its events are read
    copy.accounts.unlink()
    return copy


def make_pipe(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def make_folder(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.mkdir()


def make_loop(path: Path) -> None:
    path.unlink(missing_ok=True)
    path.symlink_to(path.name)


@pytest.mark.parametrize("make", [make_pipe, make_folder, make_loop])
@pytest.mark.parametrize("place", PLACES)
def test_a_pipe_a_folder_or_a_loop_of_links_keeps_no_verb_waiting(here, run, make, place):
    make(run.path / place)
    for verb in VERBS:
        said = here(run.path.parent.parent, *verb.split(), "exp")
        assert said.code in (0, 1) and "Traceback" not in said.err, said
        if said.code == 1 or (verb == "logs" and place.startswith("logs/") and make != make_loop):
            assert str(run.path / place) in said.err


def test_one_log_that_is_none_hides_no_other(here, run):
    make_pipe(run.logs / "a-01.1.log")
    said = here(run.path.parent.parent, "logs", "exp")
    assert said.code == 0 and "Finished stage" in said.out
    assert f"warning: {run.logs / 'a-01.1.log'} is damaged: it is no plain file" in said.err


@pytest.mark.parametrize("read", [read_lines, read_last_lines])
def test_a_pipe_among_files_of_lines_is_named_instead_of_waited_for(tmp_path, read):
    make_pipe(tmp_path / "1.jsonl")
    with pytest.raises(StoreError, match="no plain file") as error:
        list(read(tmp_path / "1.jsonl"))
    assert "move it away" in error.value.hint
    with pytest.raises(StoreError, match="no plain file"):
        open_plain(tmp_path)


def test_an_end_of_an_attempt_without_its_words_is_damage_in_words(here, run):
    (run.claims / "1" / "end.json").write_text("{}")
    for verb in ("why", "status"):
        said = here(run.path.parent.parent, verb, "exp")
        assert said.code in (0, 1) and "is damaged" in said.out + said.err, said


def test_a_run_that_may_not_be_looked_at_hides_no_other(run):
    """Root obeys no modes, unless it gives up its rights."""
    other = run.path.with_name("other")
    shutil.copytree(run.path, other)
    other.chmod(0)
    drop = ["setpriv", "--inh-caps=-all", "--bounding-set=-all"] if os.geteuid() == 0 else []
    for verb in ("status", "watch --once", "why other"):
        command = [*drop, sys.executable, "-m", "tasuki", *verb.split()]
        place = run.path.parent.parent
        said = subprocess.run(
            command, cwd=place, capture_output=True, text=True, timeout=100, check=False
        )
        assert "Traceback" not in said.stderr and "Permission denied" in said.stdout + said.stderr
        assert ("exp" in said.stdout) is (verb != "why other"), said
    other.chmod(0o700)


def test_a_folder_with_a_number_that_no_attempt_has_is_no_claim(run):
    (run.claims / ("9" * 25)).mkdir()
    assert list_claims(run) == [1]


def test_an_odd_high_claim_is_not_counted_down_to(run):
    (run.claims / "999999999").mkdir()
    assert highest_claim(run) == 999999999
    assert [claim for claim, _ in ancestry_of(run)] == [999999999, 1]
    sweep_temps(run, claim=999999999)
    with pytest.raises(StoreError, match="nothing can follow it"):
        take_claim(run)


def test_a_giant_file_without_lines_is_read_in_little_memory(run):
    for who in ("rank0", "supervisor"):
        with (run.events / f"1.0.{who}.jsonl").open("ab") as file:
            file.truncate(1 << 28)
    read = (
        "import resource, sys; from pathlib import Path\n"
        "from tasuki.runs.runs import RunFolder\n"
        "from tasuki.runs.brief import read_brief_events\n"
        "from tasuki.runs.events import read_events\n"
        "run = RunFolder(Path(sys.argv[1]))\n"
        "before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "assert read_brief_events(run) and read_events(run)\n"
        "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)"
    )
    command = [sys.executable, "-c", read, str(run.path)]
    grown_kb = int(subprocess.run(command, capture_output=True, check=True, timeout=100).stdout)
    assert grown_kb < 100_000

"""The example of one's own loop: three lines more, and it survives what it is for."""

from __future__ import annotations

import difflib
from pathlib import Path

from tests.examples.copies import EXAMPLES, copy_example

from tasuki.commands.compare import compare_runs
from tasuki.errors import EXIT_DONE, EXIT_RESUME_ME
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder

EXAMPLE = EXAMPLES / "own_loop"


def start(warm, folder: Path, script: str = "train.py", failpoints: str = "[]") -> int:
    if not folder.exists():
        copy_example("own_loop", folder)
    environment = {"TASUKI_SITE": "", "TASUKI_FAILPOINTS": failpoints}
    return warm.start_script(folder / script, log=folder / "log", **environment).wait()


def test_the_lines_that_were_added_are_the_ones_that_the_page_shows():
    plain, own = ((EXAMPLE / name).read_text() for name in ("train_plain.py", "train.py"))
    changed = [
        line[2:].strip()
        for line in difflib.ndiff(plain.splitlines(), own.splitlines())
        if line.startswith("+ ") and line[2:].strip() and '"""' not in line
    ]
    added = [line for line in changed if line not in plain]
    assert added == [
        "import tasuki",
        "with tasuki.open_run() as run:",
        "run.track(model=model, optimizer=opt, scheduler=sched)",
        "for x, y in run.steps(loader, epochs=8):",
        "run.log(loss=loss)",
    ]
    page = (EXAMPLE / "README.md").read_text()
    shown = {line[1:].strip() for line in page.splitlines() if line.startswith("+")}
    assert shown == set(added) - {"import tasuki"}


def test_the_script_before_runs_as_it_is(warm, tmp_path):
    assert start(warm, tmp_path / "p", "train_plain.py") == EXIT_DONE
    assert "accuracy 0.9" in (tmp_path / "p" / "log").read_text()


def test_interrupted_twice_it_ends_as_if_undisturbed(warm, tmp_path):
    assert start(warm, tmp_path / "whole") == EXIT_DONE
    for count in (77, 100):
        order = f'[{{"at": "step.done", "do": "term", "count": {count}}}]'
        status = start(warm, tmp_path / "p", failpoints=order)
        assert status == EXIT_RESUME_ME, (tmp_path / "p" / "log").read_text()
    assert start(warm, tmp_path / "p") == EXIT_DONE
    runs = [RunFolder(tmp_path / name / "runs" / "train") for name in ("whole", "p")]
    checks = dict(compare_runs(*runs, ["train"]).checks)
    # It seeds torch alone: the generators of Python and numpy, which it does not use, are as in
    # any two processes.
    assert checks.pop("model, optimizer and random states at the end") is False
    assert all(checks.values()) and len(checks) == 2, checks
    assert len(read_metrics(runs[1])) == 26
    said = (tmp_path / "p" / "log").read_text()
    assert "accuracy 0.9" in said and said.count("Resuming from") == 2

"""A time that no calendar has ends no verb in a traceback."""

from __future__ import annotations

import json

import pytest

from tasuki.commands.board import RunsSource
from tasuki.testing import FakeClock
from tests.harness.written import WrittenRun

VERBS = (
    *(("why", "exp"), ("why", "exp", "--json"), ("status",), ("status", "exp"), ("watch",)),
    *(("report", "--md"), ("report", "--csv"), ("report", "-o", "-"), ("report", "--json")),
    *(("logs", "exp"), ("checkpoint", "show", "exp"), ("history",)),
)
TIMES = (1e300, 1e17, -1e17, 1e11, -1e11)


@pytest.mark.parametrize("t", TIMES)
def test_a_damaged_time_of_an_event_is_left_open_by_every_verb(tmp_path, here, monkeypatch, t):
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
    for words in VERBS:
        said = here(tmp_path, *words)
        assert said.code in (0, 1) and "Traceback" not in said.err, said
    source = RunsSource(tmp_path / "runs", FakeClock())
    for told in (source.summary("exp"), source.detail("exp"), source.curves("exp", points=9)):
        json.dumps(told)

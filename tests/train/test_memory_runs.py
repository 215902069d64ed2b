"""Every attempt measures its memory once, in a step that runs anyway, and tells it."""

from __future__ import annotations

import time

from tests.harness.faulty import events, finish
from tests.harness.project import make_project

from tasuki.commands.status import describe_run
from tasuki.runs.metrics import read_metrics

PARTS = ("weights", "gradients", "optimizer", "activations", "batch", "other")


def test_a_run_tells_what_its_memory_is_used_for_in_events_log_status_and_metrics(warm, tmp_path):
    stages = [{"name": name, "data": "d", "steps": steps} for name, steps in (("a", 6), ("b", 1))]
    project = make_project(
        tmp_path / "p",
        stages=stages,
        ranks=2,
        params={"norm": "layer"},
        defaults={"loader": {"workers": 1}},
        cluster={"cpus": 4},
    )
    finish(warm, project)
    told = events(project, "memory")
    assert [(event["stage"], event["on"], event["who"]) for event in told] == [
        ("a", "cpu", "memory"),
        ("b", "cpu", "memory"),
    ]
    for event in told:
        device, host = event["device"], event["host"]
        assert sum(device[part] for part in PARTS) == device["peak"]
        assert device["peak"] + device["headroom"] == device["total"]
        parameters = 4 * (6 * 16 + 16 + 16 + 16 + 16 + 1)
        assert (device["weights"], device["gradients"]) == (parameters, parameters)
        assert device["optimizer"] == 2 * parameters + 6 * 4
        assert device["batch"] == 4 * (6 + 1) * 4  # samples of one rank
        assert 0 < device["activations"] < 1 << 20
        assert host["rss"] > host["save_buffers"] > 3 * parameters
        assert host["loader"] > 0 and 0 < host["headroom"] < host["total"]
    lines = [line for line in project.logs().splitlines() if line.startswith("Memory (cpu): ")]
    assert len(lines) == 2
    shown = describe_run(project.run, now=time.time())["memory"]
    assert shown == {key: told[1][key] for key in ("stage", "on", "device", "host")}
    rows = [row for row in read_metrics(project.run) if row["split"] == "train"]
    assert rows and all(0 < row["memory_allocated_gb"] < 100 for row in rows)

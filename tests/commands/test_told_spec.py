"""What the board and the report tell of a run's spec: what was given or used, and nothing else."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tasuki.commands.report import gather_report
from tasuki.commands.told_spec import read_told_spec
from tasuki.runs.runs import RunFolder
from tasuki.spec.frozen import frozen_value
from tasuki.spec.load import load_command, load_spec
from tasuki.views.report import render
from tasuki.views.told_spec import spec_lines

SCRIPT = ["python", "train.py"]


@pytest.fixture
def freeze(tmp_path, monkeypatch):
    """A run's folder with its frozen spec, and nothing else."""
    monkeypatch.chdir(tmp_path)

    def make(*settings: str, source: str | None = None) -> RunFolder:
        if source is None:
            spec = load_command(SCRIPT, settings=settings, environ={})
        else:
            Path("tasuki.yaml").write_text(source)
            spec = load_spec("tasuki.yaml", settings=settings, environ={})
        run = RunFolder(tmp_path / "runs" / "exp")
        run.path.mkdir(parents=True)
        value = frozen_value(spec.experiments[0], spec, code="")
        run.spec.write_text(json.dumps({"format": 1, **value}))
        return run

    return make


def test_of_one_s_own_loop_only_what_was_given_is_told(freeze):
    told = read_told_spec(freeze())
    assert told["stages"] == [{"name": "train", "command": SCRIPT}]
    assert told["cluster"] == {} and "cluster" not in spec_lines(told)


def test_what_was_given_to_a_command_is_told(freeze):
    told = read_told_spec(freeze("save.every=10m", "seed=7", "cluster.time_limit=8h"))
    (stage,) = told["stages"]
    assert stage["save"]["every"] == "600 seconds" and stage["seed"] == 7
    assert told["cluster"] == {"time_limit": "8h"}


def test_of_a_recipe_the_defaults_are_told_for_they_are_used(freeze):
    source = json.dumps({"recipe": "recipes:A", "experiments": {"exp": {"data": "d"}}})
    told = read_told_spec(freeze(source=source))
    assert told["stages"][0]["effective_batch"] == 8 and told["cluster"]["grace"] == "1m"


@pytest.mark.parametrize(("device", "is_told"), [("cpu", False), ("cuda", True)])
def test_a_report_tells_gpu_hours_of_runs_on_gpus_alone(freeze, device, is_told):
    run = freeze()
    run.frozen.write_text(json.dumps({"format": 1, "device": device}))
    report = gather_report(run.path.parent, [run], now=0.0)
    assert ("GPU-hours" in render(report, "html")) is is_told
    assert ("gpu_hours" in render(report, "md")) is is_told
    assert "gpu_hours" in render(report, "csv"), "scripts count on the columns"


def test_a_report_is_asked_for_in_one_form_at_a_time(freeze, here, tmp_path):
    freeze()
    said = here(tmp_path, "report", "--md", "--csv", "-o", "r.md")
    assert said.code == 2 and "two files" in said.err and not (tmp_path / "r.md").exists()
    for form in ("--md", "--csv"):
        assert here(tmp_path, "report", form).out.startswith(("# exp", "run,"))

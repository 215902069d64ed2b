"""The demo: at least three jobs for certain, a preemption on the way, and the proof."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from tests.commands.projects import Project, user_environment

from tasuki.commands.demo import limit_for_three_jobs
from tasuki.planning.cut import cut_into_jobs
from tasuki.planning.values import StageWork

MEASURED = st.fixed_dictionaries(
    {
        "start_s": st.floats(0.5, 30),
        "step_s": st.floats(1e-4, 0.1),
        "save_s": st.floats(1e-3, 1),
        "total_steps": st.integers(100, 2000),
    }
)


@given(st.lists(MEASURED, min_size=3, max_size=3))
def test_under_the_demos_limit_every_stage_needs_a_job_of_its_own(measured):
    limit = limit_for_three_jobs(measured)
    assume(limit is not None)
    work = [
        StageWork(
            experiment="e",
            stage=str(number),
            wall_s=facts["step_s"] * facts["total_steps"],
            from_step=0,
            total_steps=facts["total_steps"],
            start_s=facts["start_s"],
            save_s=facts["save_s"],
            evaluates=True,
            evaluate_s=None,
            source="measured here",
        )
        for number, facts in enumerate(measured)
    ]
    jobs = cut_into_jobs(work, limit_s=limit)
    assert len(jobs) == 3
    assert [{piece.stage for piece in job.pieces} for job in jobs] == [{"0"}, {"1"}, {"2"}]


def test_without_h5py_the_demo_says_how_to_get_it(tmp_path):
    (tmp_path / "h5py.py").write_text("raise ImportError")
    person = Project(tmp_path, user_environment(PYTHONPATH=str(tmp_path)))
    said = person.type("demo", "demo")
    assert said.code == 1 and 'pip install "tasuki[hdf5]"' in said.err, said
    assert "Traceback" not in said.err


@pytest.mark.long
@pytest.mark.timeout(600)
def test_the_demo_proves_itself(tmp_path):
    command = [sys.executable, "-m", "tasuki", "demo", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=590, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["equal"] and all(check["equal"] for check in report["checks"])
    assert len(report["jobs"]) >= 3 and report["preemptions"] >= 1
    assert report["error_after"] < report["error_of_guess"] / 5
    assert report["error_of_guess"] < report["error_before"]
    errors = [stage["metrics"]["error"] for stage in report["stages"]]
    assert errors == sorted(errors, reverse=True)  # small matrices first helps with large ones
    assert sum(report["ledger"].values()) == pytest.approx(report["wall_s"], abs=1e-6)

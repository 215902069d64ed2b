"""The demo: at least three jobs for certain, a preemption on the way, and the proof."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tasuki.actions.demo import limit_for_three_jobs
from tasuki.plan.cut import cut_into_jobs
from tasuki.plan.values import StageWork

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


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_demo_proves_itself_within_three_minutes(tmp_path):
    command = [sys.executable, "-m", "tasuki", "demo", str(tmp_path / "demo"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=180, check=False)
    assert done.returncode == 0, done.stderr
    report = json.loads(done.stdout)
    assert report["equal"] and all(check["equal"] for check in report["checks"])
    assert len(report["jobs"]) >= 3 and report["preemptions"] >= 1
    assert report["error_after"] < 5 and report["error_before"] > 50
    assert sum(report["ledger"].values()) == pytest.approx(report["wall_s"], abs=1e-6)

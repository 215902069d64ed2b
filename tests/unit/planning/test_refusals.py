"""What cannot work is refused before it is submitted, with a plan that does; what can be warned of
is."""

from __future__ import annotations

import re
from typing import Any

import pytest

from tasuki.errors import PlanError
from tasuki.planning.cut import cut_into_jobs
from tasuki.planning.forecast import spread_of_end
from tasuki.planning.laid import Terms
from tasuki.planning.layout import lay_out
from tasuki.planning.refusals import (
    Verdict,
    doubts_about,
    judge,
    lay_out_or_refuse,
    usable_notice_s,
)
from tasuki.planning.values import StageWork
from tests.unit.planning.test_packed import HOUR, requirements_e, work

# -- R13 ------------------------------------------------------------------------------------------

FINE, COPIES, LOSES, REFUSED = Verdict
CASES = [
    # limit, step, save, grace: in seconds; every start takes 10 s
    *[(None, step, 1, 60, FINE) for step in (0.001, 0.1, 1, 10, 50)],
    *[(None, step, 1, 60, COPIES) for step in (58, 60, 600, 3600)],
    *[(None, 1, save, 60, FINE) for save in (0, 5, 30, 57)],
    *[(None, 1, save, 60, COPIES) for save in (58, 58.5)],
    *[(None, 1, save, 60, LOSES) for save in (59, 60, 300)],
    *[(28_800, step, 2, 60, FINE) for step in (0.01, 1, 30, 56)],
    *[(28_800, step, 2, 60, COPIES) for step in (57, 600, 3600, 14_000)],
    *[(28_800, step, 2, 60, REFUSED) for step in (14_393, 14_400, 28_800, 100_000)],
    *[(28_800, 1, save, 60, LOSES) for save in (60, 600, 5_000, 11_500)],
    *[(28_800, 1, save, 60, REFUSED) for save in (11_515, 14_400, 28_800)],
    *[(limit, 1, 1, 60, REFUSED) for limit in (1, 5, 10, 15)],
    *[(limit, 1, 1, 60, FINE) for limit in (16, 60, 600)],
    *[(3600, 5, 2, grace, FINE) for grace in (9, 30, 120)],
    *[(3600, 5, 2, grace, COPIES) for grace in (4, 5, 7.9)],
    *[(3600, 5, 2, grace, LOSES) for grace in (0, 1, 2, 3)],
]


@pytest.mark.parametrize(("limit_s", "step_s", "save_s", "grace_s", "verdict"), CASES)
def test_the_verdict_is_right_before_submission(
    limit_s: float | None, step_s: float, save_s: float, grace_s: float, verdict: Verdict
) -> None:
    notice_s = usable_notice_s(grace_s, is_slurm=False)
    facts: dict[str, Any] = {"step_s": step_s, "save_s": save_s}
    assert judge(limit_s=limit_s, start_s=10.0, notice_s=notice_s, **facts) is verdict
    # And the plan does as the verdict says, whether it is packed or not.
    stage = work("e", "s", 100 * step_s / HOUR, total_steps=100, start_s=10.0, save_s=save_s)
    doubt = doubts_about(stage, grace_s=grace_s, is_slurm=False)
    terms = Terms(gpus=2, cpus=2, limit_s=limit_s, effort=100)
    if verdict is REFUSED:
        with pytest.raises(PlanError):
            cut_into_jobs([stage], limit_s=limit_s)
        with pytest.raises(PlanError):
            lay_out([[stage]], terms)
        return
    assert cut_into_jobs([stage], limit_s=limit_s) and lay_out([[stage]], terms).jobs
    assert ("a copy of the state" in doubt) == (verdict is COPIES)
    assert ("is done again" in doubt) == (verdict is LOSES)


# -- the nearest plan that works ------------------------------------------------------------------


def refusal(chains: list[list[StageWork]], terms: Terms) -> PlanError:
    with pytest.raises(PlanError) as caught:
        lay_out_or_refuse(chains, terms)
    return caught.value


def test_a_missed_deadline_is_refused_with_the_numbers_and_plans_that_meet_it() -> None:
    chains = [[work(c[0].experiment, w.stage, 1, epochs=10) for w in c] for c in requirements_e()]
    error = refusal(chains, Terms(gpus=2, cpus=8, deadline_s=3.1 * HOUR, at_once=1))
    assert re.search(r"takes 4h\S* and misses its deadline of 3h6m by 54m", error.message)
    assert "nothing is shorter than 4h" in error.message
    assert "`cluster.gpus: 4` (3h in 1 job)" in error.hint
    epochs = re.search(r"fewer epochs: (\d) of 10 in `exp1/s`", error.hint)
    assert epochs is not None and 5 <= int(epochs[1]) < 10
    later = re.search(r"`deadline: (4h\d*m?)`", error.hint)
    assert later is not None


def test_what_the_refusal_names_really_works() -> None:
    chains = [[work(f"e{n}", "s", 1, epochs=4)] for n in range(8)]
    terms = Terms(gpus=2, cpus=8, deadline_s=2.5 * HOUR, at_once=1)
    assert "`cluster.gpus: 4`" in refusal(chains, terms).hint
    layout = lay_out(chains, Terms(gpus=4, cpus=16, deadline_s=2.5 * HOUR, at_once=1))
    assert layout.makespan_s is not None and layout.makespan_s < 2.5 * HOUR


def test_a_stage_that_cannot_progress_is_refused_with_a_limit_in_which_it_can() -> None:
    stage = work("e", "slow", 10, total_steps=10, start_s=600.0, gpus=1)
    error = refusal([[stage]], Terms(gpus=1, cpus=1, limit_s=2 * HOUR))
    assert "1h10m, and of a job 59m58s can be used" in error.message
    assert "`cluster.time_limit: 2h30m` (11h" in error.hint


def test_more_jobs_than_the_site_takes_are_refused_with_a_limit_that_needs_fewer() -> None:
    chains = [[work("a", f"s{n}", 1.5) for n in range(6)]]
    error = refusal(chains, Terms(gpus=1, cpus=1, limit_s=2 * HOUR, max_jobs=3))
    assert "6 jobs are planned, but this site takes 3" in error.message
    assert "`cluster.time_limit: 4h`" in error.hint and "3 jobs" in error.hint


def test_a_refusal_without_an_alternative_keeps_its_own_hint() -> None:
    stage = work("e", "s", 1, save_s=1e9)
    assert "cluster.time_limit" in refusal([[stage]], Terms(gpus=1, cpus=1, limit_s=60.0)).hint


# -- how sure -------------------------------------------------------------------------------------


def test_what_is_given_has_no_spread_and_what_is_foretold_has_one() -> None:
    terms = Terms(gpus=2, cpus=2)
    given = lay_out([[work("a", "s", 1)], [work("b", "s", 1)]], terms)
    assert given.p10_s is given.p90_s is None
    sure, unsure = (
        lay_out([[work("a", "s", 1, error=e)], [work("b", "s", 1, error=e)]], terms)
        for e in (0.05, 0.5)
    )
    assert sure.p90_s is not None and unsure.p90_s is not None
    assert sure.p10_s is not None and sure.makespan_s is not None
    assert sure.p10_s < sure.makespan_s < sure.p90_s < unsure.p90_s < 2 * HOUR
    assert spread_of_end(sure.jobs) == (sure.p10_s, sure.p90_s)  # the same each time


def test_a_single_stage_ends_in_nine_of_ten_cases_as_its_error_bar_says() -> None:
    layout = lay_out([[work("a", "s", 1, error=0.25, gpus=2)]], Terms(gpus=2, cpus=2))
    assert layout.p90_s == pytest.approx(1.25 * HOUR, rel=0.05)
    assert layout.p10_s == pytest.approx(HOUR / 1.25, rel=0.05)


def test_the_end_of_jobs_one_after_another_is_as_unsure_as_all_of_them() -> None:
    chains = [[work("a", f"s{n}", 1.5, error=0.2, gpus=2) for n in range(4)]]
    layout = lay_out(chains, Terms(gpus=2, cpus=2, limit_s=2 * HOUR))
    assert len(layout.jobs) == 4 and layout.p90_s is not None
    assert 6.3 * HOUR < layout.p90_s < 7.3 * HOUR

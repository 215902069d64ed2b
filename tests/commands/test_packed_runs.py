"""`tasuki run` with several experiments in one job: the trouble of one stays its own."""

from __future__ import annotations

import pytest

from tests.commands.person import finish, until

STAGES = {"stages": [{"name": "one", "data": "d", "epochs": 8, "gpus": 1}]}


@pytest.mark.parametrize("harm", [pytest.param("claims", marks=pytest.mark.long), "spec.json"])
def test_a_run_folder_that_is_damaged_ends_no_other_run_and_hides_none(project, harm):
    made = project(
        params={"pause": 0.05},
        cluster__gpus=2,
        cluster__cpus=2,
        experiments={"bad": STAGES, "good": STAGES},
    )
    process = made.start("run")
    until(lambda: made.step("bad") and made.step("good"), made.logs)
    path = made.run("bad").path / harm
    path.rename(path.with_suffix(".kept"))
    path.write_text("{")
    said = finish(process)
    assert said.code == 1, said
    assert made.run("good").is_complete(), f"{said}\n{made.logs()}"
    told = {run["experiment"]: run for run in made.type("status", "--json").json()["runs"]}
    assert told["good"]["state"] == "complete"
    assert (told["bad"]["state"], told["bad"]["step"]) == (None, None)
    assert "cannot be read" in told["bad"]["reason"]
    assert "unknown" in made.type("status").out

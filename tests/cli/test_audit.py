"""`tasuki audit`: proven, or where not."""

from __future__ import annotations

import json
import shutil

import pytest

import tasuki
from tests.cli.person import Project


def test_a_finished_run_is_proven_stage_by_stage_and_nothing_is_changed(finished: Project, here):
    before = finished.tree()
    said = here(finished.folder, "audit", "exp", "--json")
    assert said.code == 0, said
    told = said.json()
    assert (told["format"], told["experiment"], told["is_proven"]) == (1, "exp", True)
    assert [(s["stage"], s["verdict"], s["reason"]) for s in told["stages"]] == [
        ("small", "proven", None),
        ("large", "proven", None),
    ]
    small = told["stages"][0]
    assert (small["samples"], small["repeated"], small["skipped"]) == (3 * 44, 0, 0)
    assert (small["epochs_complete"], small["samples_per_epoch"]) == (3, 44)
    assert finished.tree() == before


def test_people_are_told_in_a_line_per_stage_and_a_sentence(finished: Project, here):
    said = here(finished.folder, "audit", "exp/large")
    assert said.code == 0, said
    words = " ".join(said.out.split())
    assert words.startswith("large: proven: 2 epochs of 44 samples, 0 repeated, 0 skipped; 3 of 3 ")
    assert words.endswith("proven: exp used every sample exactly once per epoch"), words


def test_what_is_not_proven_has_a_reason_and_exit_code_1(finished: Project, here, tmp_path):
    made = Project(tmp_path / "p", finished.environment)
    shutil.copytree(finished.folder, made.folder)
    for path in made.run().events.glob("*.rank0.jsonl"):
        events = [json.loads(line) for line in path.read_text().splitlines()]
        for event in events:
            if event["kind"] == "committed" and event["step"] == 7:
                event["used"]["digest"] = f"{1 + int(event['used']['digest'], 16):032x}"
        path.write_text("".join(json.dumps(event) + "\n" for event in events))
    said = here(made.folder, "audit", "exp", COLUMNS="200")
    assert said.code == 1, said
    words = "attempt 1 used other samples than the order says between step 0 "
    assert words in " ".join(said.out.split()) and "not proven" in said.out, said


def test_a_run_without_a_committed_step_is_not_proven(project, here):
    made = project(cluster__python="/bin/false")
    here(made.folder, "run")
    said = here(made.folder, "audit", "exp")
    assert said.code == 1 and "no step of exp is committed yet" in said.out, said


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["exq"], "there is no run `exq`"),
        (["exp", "--stage", "lrge"], "there is no stage `lrge`"),
        (["exp/small", "--stage", "large"], "name two stages"),
    ],
)
def test_what_cannot_be_meant_is_refused(finished: Project, here, words, error):
    said = here(finished.folder, "audit", *words)
    assert said.code == 2 and error in said.err, said


@pytest.mark.long
def test_the_function_gives_what_the_command_line_prints(finished: Project, here):
    said = here(finished.folder, "audit", "exp", "--stage", "small", "--json")
    assert tasuki.audit("exp", stage="small", runs=finished.runs) == said.json()

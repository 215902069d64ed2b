"""`tasuki history`: what past stages took, and which lines could not be read."""

from __future__ import annotations

import json

import pytest

from tasuki.runs.history import append_history

DAY = 86400.0
LINE = {
    "format": 1,
    "kind": "stage",
    "key": "k",
    "family": "f",
    "at": 1.79e9,
    "run": "exp",
    "experiment": "exp",
    "stage": "small",
    "recipe": "recipes:Net",
    "device": "cuda",
    "device_model": "NVIDIA A100-SXM4-40GB",
    "gpu": "a100-40gb",
    "ranks": 2,
    "samples": 1200,
    "step_s": 0.25,
    "steps": 100,
    "train_s": 26.0,
    "attempts": 3,
    "preemptions": 1,
    "queue_s": 900.0,
    "parts": {"start": 4.0, "step": 26.0},
    "sha256": "s",
    "memory": {"on": "cuda", "reserved_bytes": 12_000_000_000, "tensor_bytes": 9_000_000_000},
}


@pytest.fixture
def runs(tmp_path):
    """Two experiments on two cards, and an evaluation."""
    folder = tmp_path / "runs"
    append_history(folder, "exp.1", LINE)
    evaluation = {"kind": "evaluation", "run": "exp", "stage": "small", "sha256": "s"}
    append_history(folder, "exp.1", {**evaluation, "evaluate_s": 7.0, "at": 1.79e9 + 60})
    other = {"run": "b-2", "experiment": "b", "recipe": "recipes:Other", "gpu": "v100"}
    other |= {"device_model": "Tesla V100", "at": 1.79e9 + 3 * DAY}
    append_history(folder, "b-2.1", {**LINE, **other})
    return folder


def test_past_stages_are_listed_newest_first(here, tmp_path, runs):
    said = here(tmp_path, "history", "--json")
    assert said.code == 0, said
    newest, oldest = said.json()["stages"]
    assert (newest["run"], oldest["run"]) == ("b-2", "exp")
    assert oldest["at"] == "2026-09-21T14:13:20Z"
    assert (oldest["peak_bytes"], oldest["wall_s"]) == (12_000_000_000, 30.0)
    assert (oldest["evaluate_s"], newest["evaluate_s"]) == (7.0, None)
    assert said.json()["left_out"] == []


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (("--experiment", "exp", "b"), ["b-2", "exp"]),
        (("--recipe", "Net"), ["exp"]),
        (("--recipe", "N"), []),
        (("--gpu", "A100-40GB"), ["exp"]),
        (("--gpu", "tesla"), ["b-2"]),
        (("--since", "2026-09-22"), ["b-2"]),
    ],
)
def test_a_filter_keeps_what_is_meant(here, tmp_path, runs, words, found):
    said = here(tmp_path, "history", *words, "--json")
    assert [stage["run"] for stage in said.json()["stages"]] == found


def test_the_table_shows_what_people_ask_for(here, tmp_path, runs):
    said = here(tmp_path, "history", "--experiment", "exp", COLUMNS="140")
    assert said.code == 0
    for word in ("exp/small", "a100-40gb", "1,200", "250 ms", "12 GB", "30s", "15m", "3 (1 preem"):
        assert word in said.out, said.out


def test_lines_that_were_left_out_are_named_with_file_and_reason(here, tmp_path, runs):
    with (runs / ".history" / "exp.1.jsonl").open("ab") as file:
        file.write(json.dumps({**LINE, "step_s": "fast"}).encode() + b'\n{"format": 2}\n{"key": ')
    said = here(tmp_path, "history", COLUMNS="140")
    assert "left out: exp.1.jsonl: 1 line foreign: `step_s` is no number" in said.out
    assert "left out: exp.1.jsonl: 1 line of format 2" in said.out
    assert "left out: exp.1.jsonl: 1 line torn or damaged" in said.out
    told = here(tmp_path, "history", "--json").json()
    assert len(told["stages"]) == 2
    assert {"file": "exp.1.jsonl", "what": "torn or damaged", "lines": 1} in told["left_out"]


def test_where_nothing_was_trained_yet_there_is_no_history(here, tmp_path):
    said = here(tmp_path, "history")
    assert said.code == 0 and "no past stages in" in said.out


@pytest.mark.parametrize("word", ["yesterday", "7"])
def test_a_time_that_is_none_is_refused_with_what_to_write(here, tmp_path, word):
    said = here(tmp_path, "history", "--since", word)
    assert said.code == 2 and word in said.err
    assert "hint:" in said.err and "2026-11-17" in said.err


def test_a_finished_run_is_in_the_history(here, finished):
    stages = here(finished.folder, "history", "--json").json()["stages"]
    assert {stage["stage"] for stage in stages} == {"small", "large"}
    assert all(stage["step_s"] > 0 and stage["wall_s"] > 0 for stage in stages)

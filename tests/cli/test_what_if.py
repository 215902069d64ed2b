"""`plan --what-if`: the same work under other settings, side by side."""

from __future__ import annotations

from typing import Any

import pytest

import tasuki
from tasuki.views.what_if import show_what_if
from tests.cli.person import make_project
from tests.cli.test_looks import screen, shown

STAGES = [{"name": n, "data": "d", "epochs": 1, "expect": {"wall": "5h"}} for n in "ab"]
CASE = {
    *("settings", "is_base", "makespan_s", "makespan_s_p10", "makespan_s_p90", "jobs"),
    *("gpu_hours", "cost", "useful", "deadline_s", "meets_deadline", "sources", "unchanged"),
    *("best", "error", "hint"),
}


@pytest.fixture
def folder(tmp_path):
    return make_project(
        tmp_path / "p",
        stages=STAGES,
        cluster__time_limit="8h",
        cluster__gpus=2,
        cluster__price_per_gpu_hour=1.5,
    ).folder


def test_every_combination_is_a_case_and_as_json_it_has_the_keys_that_scripts_read(here, folder):
    words = ("--what-if", "gpus=1,2", "--what-if", "time_limit=6h,24h")
    said = here(folder, "plan", *words, "--json")
    found = said.json()
    assert said.code == 0 and set(found) == {"format", "base", "cases", "notes"}
    assert all(set(case) == CASE for case in [found["base"], *found["cases"]])
    assert [list(case["settings"].values()) for case in found["cases"]] == [
        *(["1", "6h"], ["1", "24h"], ["2", "6h"], ["2", "24h"])
    ]
    assert list(found["cases"][0]["settings"]) == ["cluster.gpus", "cluster.time_limit"]
    assert [case["jobs"] for case in found["cases"]] == [2, 1, 2, 1]
    costs = [case["cost"] for case in found["cases"]]
    assert costs[2] == pytest.approx(2 * costs[0])
    assert not (folder / "runs").exists()


def test_a_case_is_the_plan_that_set_would_give(here, folder):
    [case] = here(folder, "plan", "--what-if", "time_limit=6h", "--json").json()["cases"]
    plan = here(folder, "plan", "--set", "cluster.time_limit=6h", "--json").json()
    for key in ("makespan_s", "cost", "gpu_hours", "deadline_s"):
        assert case[key] == plan[key]
    assert case["jobs"] == len(plan["jobs"])


def test_the_best_are_marked_and_the_one_that_is_the_spec_is_named(here, folder):
    cases = here(folder, "plan", "--what-if", "gpus=1,2,4", "--json").json()["cases"]
    assert [case["best"] for case in cases] == [["cheapest"], [], []]  # none is faster
    assert [case["is_base"] for case in cases] == [False, True, False]
    out = here(folder, "plan", "--what-if", "gpus=1,2,4", COLUMNS="100").out
    rows = [line.split() for line in out.splitlines() if line[:1].isdigit()]
    assert [row[0] for row in rows] == ["1", "2", "4"]
    assert rows[0][-1] == "cheapest" and " ".join(rows[1][-4:]) == "as in the spec"


def test_times_that_are_given_do_not_change_with_the_card_and_that_is_said(here, folder):
    words = ("plan", "--what-if", "gpu=a100-40gb,h100-80gb")
    found = here(folder, *words, "--json").json()
    assert [case["unchanged"] for case in found["cases"]] == [["gpu"], ["gpu"]]
    assert "given: does not change with gpu" in here(folder, *words).out
    wide = here(folder, *words, COLUMNS="200").out
    assert wide.count("given: does not change with gpu") == 3  # in both rows, and why below
    limits = here(folder, "plan", "--what-if", "time_limit=6h,8h", "--json").json()
    assert [case["unchanged"] for case in limits["cases"]] == [[], []]
    epochs = here(folder, "plan", "--what-if", "epochs=1,9", "--json").json()
    assert [case["unchanged"] for case in epochs["cases"]] == [["epochs"], ["epochs"]]


def test_one_price_for_every_card_is_pointed_out_and_a_site_file_gives_each_its_own(
    here, folder, tmp_path
):
    words = ("plan", "--what-if", "gpu=a100-40gb,h100-80gb", "--json")
    [note] = here(folder, *words).json()["notes"]
    assert "one price holds for every card" in note
    site = tmp_path / "site.yaml"
    site.write_text(
        "cluster: {price_per_gpu_hour: 9}\n"
        "gpus:\n  a100-40gb: {price_per_gpu_hour: 1}\n  h100-80gb: {price_per_gpu_hour: 3}\n"
    )
    spec = folder / "tasuki.yaml"
    spec.write_text(spec.read_text().replace('"price_per_gpu_hour": 1.5', '"account": "x"'))
    said = here(folder, *words, TASUKI_SITE=str(site))
    assert said.code == 0, said
    found = said.json()
    first, second = (case["cost"] for case in found["cases"])
    assert second == pytest.approx(3 * first) and found["notes"] == []
    assert [case["best"] for case in found["cases"]] == [["cheapest"], []]


def test_a_case_that_is_refused_is_a_row_with_its_reason(here, folder):
    words = ("plan", "--what-if", "gpus=0,2")
    said = here(folder, *words)
    assert said.code == 0 and "error:" not in said.err
    [row] = [line for line in said.out.splitlines() if line.startswith("0 ")]
    assert "refused:" in row
    assert "gpus=0: refused: `gpus` must be " in said.out
    refused, able = here(folder, *words, "--json").json()["cases"]
    assert refused["error"] and refused["makespan_s"] is None and refused["best"] == []
    assert able["error"] is None


def test_a_plan_that_is_refused_is_a_row_too_and_all_of_them_are_exit_code_1(here, tmp_path):
    stages = [{**STAGES[0], "evaluate": {"reserve": "2h"}}]
    folder = make_project(tmp_path / "p", stages=stages, cluster__time_limit="8h").folder
    words = ("plan", "--what-if", "time_limit=1h,8h")
    said = here(folder, *words, "--json")
    refused, able = said.json()["cases"]
    assert said.code == 0 and refused["error"] and able["error"] is None
    said = here(folder, "plan", "--what-if", "time_limit=1h,30m")
    assert said.code == 1 and said.out.count("refused: ") >= 2 and "cannot keep 2h free" in said.out


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("gpus=1,2,3,4,5,6,7,8,9", "nodes=1,2,3,4,5,6,7,8"), "9 × 8 = 72 plans, and 64"),
        (("gpus",), "a key, `=` and values are wanted"),
        (("gpus=",), "a key, `=` and values are wanted"),
        (("gpus=2", "cluster.gpus=4"), "twice"),
        (("gpsu=2,4",), "unknown key `gpsu`"),
        (("cluster.gpsu=2,4",), "unknown key `gpsu`"),
    ],
)
def test_what_cannot_be_meant_is_refused_before_anything_is_planned(here, folder, words, told):
    said = here(folder, "plan", *(word for one in words for word in ("--what-if", one)))
    assert said.code == 2 and told in said.err and said.out == "" and "planning" not in said.err


@pytest.mark.long
def test_steps_are_measured_once_for_all_cases_that_share_them(tmp_path, here):
    project = make_project(tmp_path / "p", stages=[{"name": "a", "data": "24", "epochs": 2}])
    recipe = project.folder / "recipes.py"
    counted = project.folder / "opened"
    recipe.write_text(
        recipe.read_text() + f"\n\nwith open({str(counted)!r}, 'a') as file:\n    file.write('x')\n"
    )
    here(project.folder, "plan", "--json")
    once = counted.stat().st_size
    counted.unlink()
    said = here(project.folder, "plan", "--fresh", "--what-if", "time_limit=10m,20m", "--json")
    assert {case["sources"][0] for case in said.json()["cases"]} == {"measured here"}
    assert counted.stat().st_size == once
    assert "planning 2 of 2: cluster.time_limit=20m" in said.err


def test_the_same_from_python(monkeypatch, folder, here):
    monkeypatch.chdir(folder)
    found = tasuki.plan(what_if=["gpus=1,2"])
    assert found == here(folder, "plan", "--what-if", "gpus=1,2", "--json").json()


# -- looks -----------------------------------------------------------------------------------------


def case(gpus: str, **more: Any) -> dict[str, Any]:
    values = dict.fromkeys(CASE)
    lists: dict[str, Any] = {"sources": ["given"], "unchanged": [], "best": []}
    known = {"makespan_s": 7200.0, "jobs": 1, "is_base": False}
    return {**values, **lists, **known, "settings": {"cluster.gpus": gpus}, **more}


@pytest.mark.parametrize("width", [40, 60, 80, 120, 200])
def test_a_comparison_fits_the_window_and_says_unknown_where_nothing_is_known(width):
    spread = {"makespan_s_p10": 7000.0, "makespan_s_p90": 9000.0, "gpu_hours": 8.0, "useful": 0.9}
    late = {"deadline_s": 3600.0, "meets_deadline": False}
    met = {"deadline_s": 10800.0, "meets_deadline": True, "best": ["fastest"], "cost": 12.0}
    refused = {"error": "stage `s` of `e` needs 4 GPUs, and a job has 2", "makespan_s": None}
    cases = [
        *(case("2", **refused, hint="raise them"), case("4", **spread, **late)),
        *(case("8", **spread, **met), case("16", makespan_s=None)),
    ]
    console = screen(width)
    show_what_if({"base": cases[1], "cases": cases, "notes": []}, console=console)
    lines = shown(console)
    text = " ".join(" ".join(lines).split())
    assert max(map(len, lines)) <= width
    assert "refused: stage `s` of `e` needs 4 GPUs, and a job has 2; raise them" in text
    assert "met by 1h" in text and "missed by 1h" in text
    assert "unknown" in text and "12.00" in text and "fastest" in text

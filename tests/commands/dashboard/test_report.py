"""`tasuki report`: one file that tells everything about runs, obeys nobody and needs nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser

import pytest

import tasuki
from tasuki.commands.report import gather_report
from tasuki.runs.atomic import read_json, write_json
from tasuki.runs.runs import RunFolder
from tasuki.views.marks import marked, without_paths
from tasuki.views.report import render
from tasuki.views.report.scale import Scale, scale_of
from tests.commands.dashboard.boards import CANARIES
from tests.commands.dashboard.spoilt import IMAGE, SCRIPT

NOW = 1_800_000_000.0
EMPTY = {"meta", "br", "hr", "img", "link", "input"}


class Page(HTMLParser):
    """Reads a page as a browser would, and insists that every element is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] != ["style"]:
            self.text += data


@pytest.fixture(scope="session")
def told(runs):
    """Of the run and its twin."""
    return gather_report(runs, [RunFolder(runs / name) for name in ("exp", "twin")], now=NOW)


def test_one_file_holds_results_curves_plan_times_attempts_environment_and_spec(told):
    text = render(told, "html")
    page = Page(text)
    titles = re.findall(r"<h2>(.*?)</h2>", text)
    assert titles == [
        *("Results", "Runs", "Curves", "Plan and reality", "Where the time went", "Attempts"),
        *("Environment", "Spec"),
    ]
    for words in ("exp", "twin", "small", "large", "best loss", "test loss", "goodput", "torch"):
        assert words in page.text
    assert len(re.findall('<polyline class="line', text)) >= 8
    assert len(re.findall('<svg class="mark', text)) >= 2 and "interrupted" in page.text
    assert len(re.findall('<rect class="actual', text)) >= 8
    assert "attempt" in page.text and "They are the same." in page.text
    assert len(text.encode()) < 1_000_000


def test_a_report_needs_nothing_from_elsewhere_runs_nothing_and_names_no_path(told, runs):
    text = render(told, "html")
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"src", "href", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    assert set(re.findall(r"\w+://[^\s\"'<)]+", text)) == {"http://www.w3.org/2000/svg"}
    assert str(runs.parent) not in text
    assert not [name for name, secret in CANARIES.items() if secret in text + json.dumps(told)]


def test_a_lone_surrogate_does_not_stop_a_page():
    assert marked("\ud800\ufffe") == "��"


def test_paths_of_this_machine_are_shortened():
    text = "/home/ann/p/runs/exp1 was begun with `/data/x/spec.yaml`; see ~/a/b or http://x/y/z"
    assert without_paths(text) == "…/exp1 was begun with `…/spec.yaml`; see …/b or http://x/y/z"
    assert without_paths("3/4 of exp/stage and/or 1 / 2") == "3/4 of exp/stage and/or 1 / 2"


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast_with_the_page_in_light_and_dark(told, scheme):
    light, _, dark = render(told, "html").partition("prefers-color-scheme: dark")
    colours = dict(
        re.findall(r"--(page|text|soft|mark): (#\w{6})", dark if scheme == "dark" else light)
    )
    assert all(contrast(colours[name], colours["page"]) >= 4.5 for name in ("text", "soft", "mark"))


def contrast(front: str, back: str) -> float:
    """As WCAG 2 counts it."""

    def light(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        red, green, blue = (
            p / 12.92 if p <= 0.03928 else ((p + 0.055) / 1.055) ** 2.4 for p in parts
        )
        return 0.2126 * red + 0.7152 * green + 0.0722 * blue

    low, high = sorted((light(front), light(back)))
    return (high + 0.05) / (low + 0.05)


def test_every_curve_and_every_table_has_words_for_who_does_not_see_them(told):
    page = Page(render(told, "html"))
    pictures = [a for tag, a in page.tags if tag == "svg" and a.get("role") == "img"]
    assert len(pictures) > 5 and all(a.get("aria-label") for a in pictures)
    assert {a.get("scope") for tag, a in page.tags if tag == "th"} == {"col", "row"}
    tables = [1 for tag, _ in page.tags if tag == "table"]
    assert len(tables) == len([1 for tag, _ in page.tags if tag == "caption"]) >= 4


def test_csv_has_a_row_per_stage_with_whole_numbers(told):
    rows = list(csv.DictReader(io.StringIO(render(told, "csv"))))
    assert [(row["run"], row["stage"]) for row in rows] == [
        *(("exp", "small"), ("exp", "large"), ("twin", "small"), ("twin", "large")),
    ]
    assert int(rows[0]["steps"]) == 36 and float(rows[1]["test_loss"]) > 0
    assert rows[0]["wall_s"] == "" and float(rows[1]["wall_s"]) > 1
    assert int(rows[1]["attempts"]) == 2


def test_markdown_has_tables_that_are_whole(told):
    text = render(told, "md")
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) > 12 and all(line.endswith("|") for line in lines)
    assert "## Attempts" in text and re.search(r"^1\. .*interrupted", text, re.MULTILINE)


def test_runs_of_one_name_in_different_folders_each_have_a_column():
    from tasuki.views.report.text import difference_rows, environment_rows, ledger_rows

    def run(name: str, seconds: float) -> dict:
        return {
            "experiment": name,
            "wall_s": seconds,
            "ledger": {"parts": {"step": seconds}},
            "environment": {"torch": str(seconds)},
            "spec": {"cluster": {}, "all": {}, "stages": [{"name": "one", "lr": seconds}]},
        }

    runs = [run("exp", 1.5), run("other", 2.5), run("exp", 3.5)]
    names = ["exp (1)", "other", "exp (2)"]
    assert [list(row)[1:] for row in ledger_rows(runs)] == [names] * 2
    (row,) = environment_rows(runs)
    assert row == {"": "torch", "exp (1)": "1.5", "other": "2.5", "exp (2)": "3.5"}
    (row,) = difference_rows(runs)
    assert row == {"": "one lr", "exp (1)": "1.5", "other": "2.5", "exp (2)": "3.5"}


def test_a_spreadsheet_takes_no_name_for_a_formula(told):
    run = {**told["runs"][0], "experiment": "=cmd|' /C calc'!A0"}
    for row in csv.reader(io.StringIO(render({**told, "runs": [run]}, "csv"))):
        assert not [cell for cell in row if cell.startswith(("=", "+", "@"))], row


@pytest.mark.parametrize("name", ["hostile", "strange", "half", "newer", "newer-events"])
def test_of_a_damaged_or_hostile_run_the_rest_is_told_and_nothing_is_obeyed(runs, name):
    report = gather_report(runs, [RunFolder(runs / name), RunFolder(runs / "exp")], now=NOW)
    text = render(report, "html")
    page = Page(text)
    assert not {"script", "img", "iframe"} & {tag for tag, _ in page.tags}
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", text)
    text.encode("utf-8")
    for form in ("md", "csv"):
        other = render(report, form)
        assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f]", other)
        other.encode("utf-8")
    if name == "hostile":
        assert SCRIPT in page.text and IMAGE in page.text
    if name in ("newer", "newer-events"):
        assert "What could not be read" in page.text and "newer" in page.text


def test_the_verb_writes_where_it_is_told_and_replaces_nothing_else(here, runs, tmp_path):
    words = ["report", "exp", "--runs", str(runs)]
    said = here(tmp_path, *words)
    assert said.code == 0 and said.out == "" and said.err == "wrote report.html\n"
    assert (tmp_path / "report.html").stat().st_mode & 0o077 == 0
    assert here(tmp_path, *words, "-o", "report.html").code == 0  # a page is replaced
    assert here(tmp_path, *words, "-o", "-").out.startswith("<!doctype html>")
    assert here(tmp_path, *words, "--csv").out.startswith("run,stage,")
    assert here(tmp_path, *words, "-o", "r.md").code == 0
    assert (tmp_path / "r.md").read_text().startswith("# exp\n")
    assert here(tmp_path, *words, "--json").json()["runs"][0]["experiment"] == "exp"
    (tmp_path / "notes.txt").write_text("mine")
    for name in ("notes.txt", "nowhere/x.html", "."):
        for form in ([], ["--md"], ["--csv"]):
            refused = here(tmp_path, *words, *form, "-o", name)
            assert refused.code == 2 and "error:" in refused.err, name
    assert (tmp_path / "notes.txt").read_text() == "mine"
    missing = here(tmp_path, "report", "exq", "--runs", str(runs))
    assert missing.code == 2 and "did you mean `exp`?" in missing.err
    nothing = here(tmp_path, "report", "--runs", str(tmp_path))
    assert nothing.code == 2 and "there are no runs" in nothing.err


def test_the_python_function_returns_the_values_and_writes_by_the_ending(runs, tmp_path):
    found = tasuki.report("exp", "twin", runs=runs, to=tmp_path / "r.csv")
    assert [run["experiment"] for run in found["runs"]] == ["exp", "twin"]
    assert (tmp_path / "r.csv").read_text().startswith("run,")
    with pytest.raises(tasuki.TasukiError, match=r"cannot be a \.pdf"):
        tasuki.report("exp", runs=runs, to=tmp_path / "r.pdf")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_it_from_a_file_at_any_width_without_trouble(
    told, look, tmp_path, scheme, width
):
    file = tmp_path / "report.html"
    file.write_text(render(told, "html"), "utf-8")
    page = look(file.as_uri(), width=width, color_scheme=scheme, java_script_enabled=True)
    assert page.asked == [file.as_uri()]
    assert not page.is_too_wide()
    assert page.too_faint() == [] and page.nameless() == []
    first = page.page.locator("polyline.line").first.bounding_box()
    assert first["width"] > width / 2


@pytest.mark.parametrize(
    ("values", "is_log"),
    [([1.0, 0.001], True), ([1.0, 0.5], False), ([1.0, 0.0], False), ([1.0, -1.0], False)],
)
def test_a_loss_that_falls_far_is_drawn_by_its_logarithm(values, is_log):
    scale = scale_of(values, may_be_log=True)
    assert scale and scale.is_log is is_log
    assert all(0 <= scale.at(value) <= 1 for value in values)


@pytest.mark.parametrize(
    "values",
    [[5.0], [0.0, 0.0], [1e-300, 1e300], [-3.0, 7.5], [None, 2.0], [1e-9, 2e-9], [1e308, 1.0]],
)
def test_axes_have_round_numbers_within_them_whatever_the_values(values):
    scale = scale_of(values)
    assert scale is not None
    ticks = scale.ticks(6)
    assert 1 <= len(ticks) <= 8 and ticks == sorted(set(ticks))
    assert all(-0.001 <= scale.at(tick) <= 1.001 for tick in ticks)
    assert scale_of([None, float("nan")]) is None
    assert Scale(0, 10).at(5) == 0.5


def test_runs_of_other_days_are_drawn_from_their_own_beginnings(runs, tmp_path):
    from tasuki.views.report.times import gantt_of

    def piece(run: str, begin: float) -> dict[str, object]:
        return {
            "experiment": run,
            "stage": "s",
            "kind": "train",
            "attempt": 1,
            "is_running": False,
            "began_at": begin,
            "ended_at": begin + 60,
            "ending": "done",
            "cause": None,
        }

    def drawn(later: float) -> bool:
        actual = [piece("a", 0.0), piece("b", later)]
        timeline = {"planned": [], "planned_from": None, "actual": actual, "deadline_at": None}
        found = gantt_of(timeline, ["a", "b"], now=1e6)
        assert found is not None and found.svg.count('<rect class="actual') == 2
        return found.is_apart

    assert not drawn(30.0) and drawn(86400.0)


def test_of_a_run_that_goes_on_stages_are_trained_in_work_or_ahead(runs, tmp_path):
    run = RunFolder(tmp_path / "runs" / "exp")
    shutil.copytree(runs / "exp", run.path)
    run.marker.unlink()
    shutil.rmtree(run.stage("large").path)
    told = gather_report(run.path.parent, [run], now=NOW)["runs"][0]
    first, second = told["results"]
    assert (first["state"], second["state"]) == ("trained", told["state"])
    assert second["steps"] is not None and second["loss"] is not None
    shutil.rmtree(run.stage("small").path)
    write_json(run.training_state, {**read_json(run.training_state), "stage": "small"})
    told = gather_report(run.path.parent, [run], now=NOW)["runs"][0]
    assert [one["state"] for one in told["results"]] == [told["state"], "ahead"]

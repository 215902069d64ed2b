"""`tasuki report`: one file that tells everything about runs, obeys nobody and needs nothing."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

import tasuki
from tasuki.commands.board import RunsSource
from tasuki.commands.report import gather_report
from tasuki.commands.told_spec import read_told_spec
from tasuki.runs.atomic import read_json, write_json
from tasuki.runs.control import Word, say
from tasuki.runs.runs import RunFolder
from tasuki.spec.frozen import frozen_value
from tasuki.spec.load import load_command, load_spec
from tasuki.views.marks import marked, without_paths
from tasuki.views.report import render
from tasuki.views.report.scale import Scale, scale_of
from tasuki.views.told_spec import spec_lines
from tests.commands.dashboard.damaged_runs import IMAGE, SCRIPT
from tests.commands.projects import secrets
from tests.harness.written import WrittenRun

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
    assert not [name for name, secret in secrets().items() if secret in text + json.dumps(told)]


def test_paths_of_this_machine_are_shortened_and_half_characters_replaced():
    assert marked("\ud800\ufffe") == "\ufffd\ufffd"
    text = "/home/ann/p/runs/exp1 was begun with `/data/x/spec.yaml`; see ~/a/b or http://x/y/z"
    assert without_paths(text) == "…/exp1 was begun with `…/spec.yaml`; see …/b or http://x/y/z"
    assert without_paths("3/4 of exp/stage and/or 1 / 2") == "3/4 of exp/stage and/or 1 / 2"


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
    found = tasuki.report("exp", "twin", runs=runs, to=tmp_path / "r.csv")
    assert [run["experiment"] for run in found["runs"]] == ["exp", "twin"]
    assert (tmp_path / "r.csv").read_text().startswith("run,")
    with pytest.raises(tasuki.TasukiError, match=r"cannot be a \.pdf"):
        tasuki.report("exp", runs=runs, to=tmp_path / "r.pdf")


@pytest.mark.long
@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_a_browser_shows_it_from_a_file_at_any_width_without_trouble(
    told, look, tmp_path, width, scheme
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


def report_of(written: WrittenRun, form: str = "html") -> str:
    run = written.run
    report = gather_report(run.path.parent, [run], now=written.clock.wall())
    return render(report, form)


@pytest.mark.parametrize("form", ["html", "md"])
def test_only_columns_of_tasuki_are_durations_and_shares_whatever_results_are_called(written, form):
    written.begin()
    results = {"latency_s": "NaN", "samples_per_s": 1024.5, "goodput": "NaN", "wall_s": 75.25}
    written.finish(metrics=results)
    text = report_of(written, form)
    assert "1024" in text and "17m" not in text and "NaN" in text
    assert "75.25" in text and "1m15" not in text


@pytest.mark.parametrize("form", ["html", "md"])
def test_settings_that_differ_between_runs_are_listed_and_no_others(written, form):
    runs = written.run.path.parent
    other = WrittenRun(runs, written.clock, "other", settings=["lr=0.25", "cluster.gpus=2"])
    for run in (written, other):
        run.begin()
    report = gather_report(runs, [written.run, other.run], now=written.clock.wall())
    text = render(report, form)
    assert "Differing settings" in text and "train lr" in text and "0.25" in text
    assert "cluster gpus" in text and "train command" not in text
    assert "Differing settings" not in report_of(written, form)


SAID = "HTTPError: 401 for GET https://me:hunter2@host/x?api_key=sk-hunter2"


def crash(written: WrittenRun) -> None:
    """An attempt that ended with an address in its error, and a person's word after it."""
    written.begin(job="j")
    written.tell("warning", text=SAID)
    written.tell("worker-started", stage="train", phase="train")
    written.end(ending="failed", cause="none", message=SAID)
    say(written.run, Word.FAIL, reason=SAID, hint=SAID, claim=1)


@pytest.mark.parametrize("form", ["html", "md"])
def test_a_page_to_mail_holds_no_secret_that_an_error_told(written, form):
    crash(written)
    text = report_of(written, form)
    assert "HTTPError: 401" in text and "hunter2" not in text


def test_nor_does_the_board_in_its_list_its_stories_and_its_events(written):
    crash(written)
    source = RunsSource(runs=written.run.path.parent, clock=written.clock)
    told = [source.summary("exp"), source.detail("exp"), source.events("exp", most=9)]
    for one in map(json.dumps, told):
        assert "HTTPError: 401" in one and "hunter2" not in one


COMMAND = ["python", "train.py"]


@pytest.fixture
def freeze(tmp_path, monkeypatch):
    """A run's folder with its frozen spec, and nothing else."""
    monkeypatch.chdir(tmp_path)

    def make(*settings: str, source: str | None = None, name: str = "exp") -> RunFolder:
        if source is None:
            spec = load_command(COMMAND, settings=settings, environ={})
        else:
            Path("tasuki.yaml").write_text(source)
            spec = load_spec("tasuki.yaml", settings=settings, environ={})
        run = RunFolder(tmp_path / "runs" / name)
        run.path.mkdir(parents=True)
        value = frozen_value(spec.experiments[0], spec, code="")
        run.spec.write_text(json.dumps({"format": 1, **value}))
        return run

    return make


def test_of_one_s_own_loop_only_what_was_given_is_told(freeze):
    told = read_told_spec(freeze())
    assert told["stages"] == [{"name": "train", "command": COMMAND}]
    assert told["cluster"] == {} and "cluster" not in spec_lines(told)
    told = read_told_spec(freeze("save.every=10m", "seed=7", "cluster.time_limit=8h", name="other"))
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

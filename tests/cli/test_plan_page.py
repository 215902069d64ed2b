"""`plan --html`: one file that shows everything, obeys nobody and says nothing of this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from html.parser import HTMLParser
from typing import Any
from xml.etree import ElementTree

import pytest

from tasuki.views.marks import marked, without_paths
from tasuki.views.plan_page import page_of
from tests.cli.person import make_project
from tests.cli.plans import five, five_items, job, many_lanes, piece, plan

HOSTILE = "<script>alert('x')</script>\"'&\x00\x1b[2J\u202e]]>"
SVG = "{http://www.w3.org/2000/svg}"
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


def svg_of(text: str) -> ElementTree.Element:
    found = re.search(r"<svg xmlns.*?\n</svg>", text, re.DOTALL)
    assert found
    return ElementTree.fromstring(found[0])


def bars_of(text: str) -> list[ElementTree.Element]:
    return [e for e in svg_of(text).iter(f"{SVG}svg") if "bar" in e.get("class", "").split()]


def share(text: str | None) -> float:
    assert text and text.endswith("%")
    return float(text[:-1])


def test_a_page_is_well_formed_and_its_picture_has_a_bar_for_each_piece_to_scale():
    text = page_of(five(limit_s=10800.0, deadline_s=9000.0))
    page = Page(text)
    bars = bars_of(text)
    assert len(bars) == len(five_items())
    lengths = {
        next(e.text for e in bar.iter(f"{SVG}title")).splitlines()[0]: bar.get("width")
        for bar in bars
    }
    for item in five_items():
        verb = "train " if item.kind == "train" else "evaluate "
        width = share(lengths[f"{verb}{item.experiment}/{item.stage}"])
        assert width == pytest.approx(item.seconds / 108, abs=0.01)
    assert "deadline 2h30m" in page.text and "proved optimal" in page.text


def test_limits_and_the_deadline_are_lines_at_their_moments():
    root = svg_of(page_of(five(limit_s=10800.0, deadline_s=8640.0 + 540.0)))
    lines = {e.get("class"): e.get("x1") for e in root.iter(f"{SVG}line")}
    assert share(lines["limit"]) == 100 and share(lines["deadline"]) == 85


def test_a_page_needs_nothing_from_elsewhere_and_runs_nothing():
    text = page_of(five())
    page = Page(text)
    assert not {"script", "link", "img", "iframe", "object"} & {tag for tag, _ in page.tags}
    for _, attributes in page.tags:
        assert not {"src", "href", "style"} & set(attributes)
        assert not any(name.startswith("on") for name in attributes)
    addresses = set(re.findall(r"\w+://[^\s\"'<)]+", text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not a place
    assert not re.search(r"@import|url\((?!#)", text)
    [policy] = [a["content"] for _, a in page.tags if a.get("http-equiv")]
    assert policy and policy.startswith("default-src 'none'; style-src 'sha256-")


def test_names_that_a_browser_would_obey_are_shown_as_text():
    values = plan(
        job(((0,), [piece(HOSTILE, HOSTILE)]), ((1,), [piece("b", source=HOSTILE)])),
        id=f"p-{HOSTILE}",
        reasons=(HOSTILE,),
        warnings=(HOSTILE,),
        fits={HOSTILE: {"chosen": {HOSTILE: HOSTILE}, "lost": [{"why": HOSTILE}], "n": HOSTILE}},
    )
    text = page_of(values)
    page = Page(text)
    assert "script" not in {tag for tag, _ in page.tags}
    assert "<script>alert('x')</script>" in page.text
    assert not re.search("[\x00-\x08\x0b\x0c\x0e-\x1f\u202e]", text)
    assert len(bars_of(text)) == 2
    text.encode("utf-8")


def test_a_lone_surrogate_does_not_stop_a_page():
    page_of(plan(job(((0,), [piece("a\ud800")])))).encode("utf-8")
    assert marked("\ud800\ufffe") == "��"


def test_paths_of_this_machine_are_not_handed_on():
    told = "/home/ann/p/runs/exp1 was begun with `/data/x/spec.yaml`; see ~/a/b or http://x/y/z"
    assert without_paths(told) == ("…/exp1 was begun with `…/spec.yaml`; see …/b or http://x/y/z")
    assert without_paths("3/4 of exp/stage and/or 1 / 2") == "3/4 of exp/stage and/or 1 / 2"
    text = page_of(plan(job(((0,), [piece(source="/opt/site/x.yaml")])), warnings=(told,)))
    assert "/home" not in text and "/opt" not in text and "/data" not in text


def test_every_table_has_heads_and_the_picture_a_title_and_a_description():
    text = page_of(five(fits={"exp1/stage1": FIT}))
    page = Page(text)
    tables = [a for tag, a in page.tags if tag == "table"]
    assert len(tables) == len([1 for tag, _ in page.tags if tag == "caption"]) == 3
    assert {a.get("scope") for tag, a in page.tags if tag == "th"} == {"col", "row"}
    root = svg_of(text)
    named = {e.get("id") for e in root if e.tag in (f"{SVG}title", f"{SVG}desc")}
    assert root.get("role") == "img" and set(root.get("aria-labelledby", "").split()) == named
    assert ("html", {"lang": "en"}) in page.tags


FIT: dict[str, Any] = {
    "effective_batch": 16,
    "chosen": {"micro_batch": 4, "gradient_checkpointing": False, "step_s": 0.8, "why": "fastest"},
    "alternatives": [
        {"micro_batch": 8, "peak_bytes": 55_000_000_000, "why": "needs 55 GB of 42.3 GB"},
        {"micro_batch": 1, "gradient_checkpointing": True, "why": "twice as slow"},
    ],
}


def test_what_was_weighed_at_the_same_batch_is_told_with_why_it_lost():
    page = Page(page_of(five(fits={"exp1/stage1": FIT})))
    for words in (
        "effective batch: 16",
        "needs 55 GB of 42.3 GB",
        "twice as slow",
        "55 GB",
        "800ms",
    ):
        assert words in page.text
    assert ("tr", {"class": "chosen"}) in page.tags


def test_what_is_unknown_is_said_to_be_and_never_0():
    values = plan(
        job(((0,), [piece(expected_s=None, peak_bytes=None)]), ((1,), [piece("b")]), limit_s=900.0)
    )
    page = Page(page_of(values))
    assert page.text.count("unknown") >= 8 and "length not known" in page.text
    [bar] = [b for b in bars_of(page_of(values)) if "unknown" in b.get("class", "").split()]
    assert share(bar.get("width")) == 100
    nothing = Page(page_of(plan(job(((0,), [piece(expected_s=None)]), limit_s=None))))
    assert "No picture" in nothing.text
    assert "nothing left to do" in Page(page_of(plan())).text


def test_a_plan_of_hundreds_of_lanes_shows_them_all():
    assert len(bars_of(page_of(many_lanes(300)))) == 300


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_from_what_is_behind_them(scheme):
    text = page_of(five())
    light, _, dark = text.partition("prefers-color-scheme: dark")
    source = light if scheme == "light" else dark
    names = re.findall(r"--(\w+): (#\w{6})", source)
    colours: dict[str, list[str]] = {}
    for name, colour in names:
        colours.setdefault(name, []).append(colour)
    [page], [words], [soft] = colours["page"], colours["text"], colours["soft"]
    pairs = [(words, page), (soft, page), (colours["mark"][0], page)]
    pairs += list(zip(colours["ink"], colours["fill"], strict=True))
    assert len(colours["ink"]) == 8
    assert all(contrast(front, back) >= 4.5 for front, back in pairs)


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


# -- the verb --------------------------------------------------------------------------------------

STAGES = [{"name": n, "data": "d", "epochs": 1, "expect": {"wall": "5h"}} for n in "ab"]


def test_the_verb_writes_the_page_says_so_and_shows_the_plan_as_ever(here, tmp_path):
    folder = make_project(tmp_path / "p", stages=STAGES, cluster__time_limit="8h").folder
    said = here(folder, "plan", "--html", "plan.html")
    assert said.code == 0 and said.err == "wrote plan.html\n" and "known from" in said.out
    first = Page((folder / "plan.html").read_text("utf-8"))
    assert "train exp/a" in first.text and str(tmp_path) not in first.text
    assert here(folder, "plan", "--html", "plan.html", "--stages", "a", "--json").json()["jobs"]
    again = Page((folder / "plan.html").read_text("utf-8"))
    assert "train exp/b" not in again.text
    assert sorted(p.name for p in folder.iterdir() if p.name.startswith("plan")) == ["plan.html"]


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("tasuki.yaml", "no HTML page"),
        (".", "no HTML page"),
        ("nowhere/plan.html", "no folder"),
    ],
)
def test_nothing_else_is_ever_replaced_by_a_page(here, tmp_path, name, told):
    project = make_project(tmp_path / "p", stages=STAGES)
    before = (project.folder / "tasuki.yaml").read_text()
    said = here(project.folder, "plan", "--html", name)
    assert said.code == 2 and told in said.err and said.out == ""
    assert (project.folder / "tasuki.yaml").read_text() == before


CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")


@pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium here")
@pytest.mark.long
def test_a_browser_draws_the_page_as_wide_as_its_window_and_reports_no_trouble(tmp_path):
    page, shot = tmp_path / "plan.html", tmp_path / "shot.png"
    page.write_text(page_of(five(limit_s=10800.0)), "utf-8")
    done = subprocess.run(
        [
            *(
                str(CHROMIUM),
                "--headless",
                "--no-sandbox",
                "--disable-gpu",
                "--enable-logging=stderr",
            ),
            *(f"--user-data-dir={tmp_path}/browser", "--window-size=600,900"),
            *(f"--screenshot={shot}", page.as_uri()),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    assert done.returncode == 0 and shot.read_bytes().startswith(b"\x89PNG")
    assert "CONSOLE" not in done.stderr  # where a browser tells what its policy refused

"""A packed plan in the terminal: a row for each GPU, to scale, in any window and any encoding."""

from __future__ import annotations

import io
import itertools
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from tasuki.planning.values import Plan
from tasuki.testing import FakeClock
from tasuki.views.chart import chart_of, place_in_cells, ticks
from tasuki.views.gantt import show_gantt
from tasuki.views.live import LiveView
from tasuki.views.plan import show_plan
from tasuki.views.plan_facts import facts_of
from tests.commands.plans import five, five_items, job, many_lanes, piece, plan
from tests.commands.test_layout import screen, shown

WIDTHS = [40, 80, 200]


def draw(values: dict[str, Any], width: int = 80) -> list[str]:
    console = screen(width)
    show_gantt(values, console)
    return shown(console)


def rows_of(lines: list[str]) -> list[str]:
    return [line for line in lines if line.startswith("GPU ")]


# -- the layout of cells ---------------------------------------------------------------------------
@st.composite
def spans_in_order(draw_one):
    cuts = draw_one(st.lists(st.floats(0, 1000), min_size=2, max_size=60))
    cuts = sorted(cuts)
    pairs = list(zip(cuts[::2], cuts[1::2], strict=False))
    return pairs, max(1.0, cuts[-1]) * draw_one(st.sampled_from([1.0, 1.3, 7.0]))


@given(spans_in_order(), st.integers(8, 200))
def test_bars_never_share_a_cell_keep_their_order_and_are_to_scale_where_they_can(case, width):
    spans, end_s = case
    cells = place_in_cells(spans, width=width, end_s=end_s)
    placed = [cell for cell in cells if cell is not None]
    assert len(placed) == min(width, len(spans))
    assert all(0 <= left < right <= width for left, right in placed)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(placed))
    one = end_s / width
    if all(end - start >= one for start, end in spans):
        for (start, end), (left, right) in zip(spans, placed, strict=True):
            assert abs(left - start / one) <= 0.5 + 1e-6 and abs(right - end / one) <= 0.5 + 1e-6


@given(st.floats(0.2, 1e8), st.integers(1, 40))
def test_ticks_are_few_round_and_begin_at_the_beginning(end_s, most):
    moments = ticks(end_s, most=most)
    assert moments[0] == 0 and len(moments) <= max(2, most) and moments[-1] <= end_s * (1 + 1e-9)
    assert len({round(b - a, 6) for a, b in itertools.pairwise(moments)}) <= 1


def test_where_there_are_more_bars_than_cells_the_shortest_are_left_out_and_counted():
    pieces = [piece(f"e{n}", expected_s=60.0 if n % 9 else 900.0) for n in range(90)]
    values = plan(job(((0,), pieces), ((1,), [piece("x", expected_s=60.0)]), start_s=0.0))
    lines = draw(values, 40)
    assert any("are too short to be seen" in line for line in lines)
    assert all(len(line) <= 40 for line in lines)


# -- what is drawn ---------------------------------------------------------------------------------
def test_every_gpu_has_a_row_on_which_bars_are_as_long_as_their_pieces_take():
    values = plan(
        job(
            ((0,), [piece("a", "s", expected_s=3600.0), piece("b", "s", expected_s=1800.0)]),
            ((1,), [piece("c", "s", expected_s=5400.0)]),
            start_s=0.0,
            limit_s=None,
        )
    )
    first, second = (row[6:] for row in rows_of(draw(values, 97)))
    assert first.index("┣b/s") == 60 and len(first) == 90
    assert second.startswith("┣c/s━") and len(second) == 90 and second.count("┣") == 1


def test_a_piece_of_several_gpus_stands_in_the_row_of_each():
    pieces = [piece("w", "wide", expected_s=600.0, start_s=0.0)]
    later = [piece("n", "narrow", expected_s=600.0, start_s=600.0)]
    values = plan(job(((0, 1, 2), pieces), ((1,), later), start_s=0.0))
    rows = rows_of(draw(values))
    assert len(rows) == 3 and all("w/wide" in row for row in rows)
    assert ["n/narrow" in row for row in rows] == [False, True, False]
    assert rows[0].endswith("·") and rows[2].endswith("·") and not rows[1].endswith("·")


def test_a_bar_too_short_for_its_name_has_a_letter_that_the_legend_explains():
    lines = draw(five(), 40)
    legend = dict(
        entry.split(" ", 1)
        for line in lines
        for entry in line.split("   ")
        if entry[1:2] == " " and entry[0].isalpha()
    )
    assert legend["a"] and all(any(f"┣{one}" in r for r in rows_of(lines)) for one in legend)
    assert "evaluate exp4/stage2" in legend.values()


def test_limits_and_the_deadline_are_marked_where_they_are_and_told_where_they_are_not():
    near = draw(five(limit_s=3 * 3600.0, deadline_s=2.75 * 3600), 97)
    for row in rows_of(near):
        assert row[6 + 90] == "│" and row[6 + 82 : 6 + 84].count("┇") == 1
    assert any(line.endswith("deadline 2h45m ┇") for line in near)
    assert "│ limit of the job" in "\n".join(near)
    far = "\n".join(draw(five(limit_s=86400.0), 97))
    assert "limit 1d (off the chart)" in far and "│" not in far and "┇" not in far


def test_what_nobody_knows_the_length_of_is_drawn_as_such_up_to_what_comes_next():
    unknown = piece("u", "long", expected_s=None, source="unknown", start_s=0.0)
    after = piece("v", "next", "evaluate", expected_s=600.0, start_s=1800.0)
    values = plan(job(((0,), [unknown, after]), ((1,), [piece("w", start_s=0.0)]), start_s=0.0))
    lines = draw(values)
    assert "u/long?" in rows_of(lines)[0] and "? length not known" in "\n".join(lines)
    facts = dict(facts_of(values))
    assert facts["makespan"] == "unknown, as is the time of u/long"
    assert facts["times known from"] == "unknown (1), given (2)"


def test_where_no_time_is_known_at_all_there_is_no_picture_and_it_says_so():
    pieces = [piece(n, expected_s=None) for n in "ab"]
    values = plan(job(((0,), pieces[:1]), ((1,), pieces[1:]), limit_s=None))
    assert chart_of(values) is None
    assert draw(values) == ["no picture: of none of these it is known how long it takes"]


@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("which", ["five", "lanes", "jobs"])
def test_no_line_is_wider_than_the_window(width, which):
    values = {
        "five": lambda: five(deadline_s=10800.0),
        "lanes": lambda: many_lanes(300),
        "jobs": lambda: plan(
            job(((0,), [piece("名前" * 9, "段階")]), ((10,), [piece("b" * 90)])),
            job(((0,), [piece("c")]), name="p-1a2b3c-02", after=("p-1a2b3c-01",)),
        ),
    }[which]()
    lines = draw(values, width)
    assert max(cell_len(line) for line in lines) <= width
    assert {line.split()[1] for line in rows_of(lines)} >= {"0"}
    if which == "lanes":
        assert len(rows_of(lines)) == 32 and "… and 268 more lanes" in lines


@pytest.mark.parametrize("width", [40, 120])
def test_a_packed_plan_shows_its_table_by_job_and_lane_its_gantt_and_what_to_expect(width):
    console = screen(width)
    show_plan(five(), python="python", runs="runs", console=console)
    lines = shown(console)
    text = " ".join(" ".join(lines).split())
    for item in five_items():
        assert f"{'train ' if item.kind == 'train' else 'evaluate '}{item.experiment}/" in text
    assert "makespan: 2h27m (p10–p90 unknown)" in text
    assert "packing: proved optimal: none can take less than 2h27m" in text
    assert "deadline: 6h, met with 3h33m to spare" in text
    assert "GPU-hours: 9.8" in text and "useful time: job 01 97%" in text
    assert "cost: unknown: no `cluster.price_per_gpu_hour`" in text
    assert "times known from: given (13)" in text
    assert all(len(line) <= width or "tasuki.jobs" in line for line in lines)
    if width >= 80:
        heads = [line.split()[:3] for line in lines if line.strip().startswith("01 ")]
        assert heads == [["01", "6h", "0"]]
        lanes = [line[15:18].strip() for line in lines if line.rstrip().endswith("given")]
        assert lanes == [*"0", "", "", *"1", "", *"2", "", "", "", *"3", "", "", ""]


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"optimal": False, "gap": 0.0123, "lower_bound_s": 3600.0}, "at most 1.2% too long"),
        ({}, "how far from the best is unknown"),
        ({"makespan_s_p10": 3000.0, "makespan_s_p90": 4200.0}, "(p10–p90: 50m – 1h10m)"),
        ({"deadline_s": 3500.0}, "missed by 1m40s"),
        ({"deadline_s": 9000.0, "makespan_s": None}, "whether it is met is unknown"),
        ({"cost": 12.5}, "12.50"),
        ({"gpu_hours": None}, "unknown"),
    ],
)
def test_what_is_told_of_a_plan_as_a_whole_never_makes_a_number_of_what_is_unknown(more, told):
    values = plan(job(((0,), [piece()]), ((1,), [piece()])), **{"makespan_s": 3600.0, **more})
    facts = dict(facts_of(values))
    assert any(told in words for words in facts.values())
    assert not any(words.split()[0] in ("0", "0s", "0.00", "0%") for words in facts.values())


# -- terminals -------------------------------------------------------------------------------------
def test_without_utf8_everything_is_ascii_and_says_the_same():
    raw = io.BytesIO()
    file = io.TextIOWrapper(raw, encoding="ascii")
    console = Console(file=file, width=80, force_terminal=True, color_system=None, _environ={})
    show_plan(five(limit_s=10800.0), python="python", runs="runs", console=console)
    file.flush()
    text = raw.getvalue().decode("ascii")
    assert "[exp1/stage1====" in text and "[exp4~" in text and "|" in text
    assert "= training   ~ evaluation   . idle   | limit of the job" in text


@pytest.mark.parametrize("no_color", [True, False])
def test_colour_is_only_added_and_only_where_it_is_wanted(no_color):
    environ = {"NO_COLOR": "1"} if no_color else {}
    file = io.StringIO()
    console = Console(
        file=file, width=80, force_terminal=True, color_system="standard", _environ=environ
    )
    show_gantt(five(), console)
    text = file.getvalue()
    assert ("\x1b[30;4" in text) != no_color
    assert re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines() == draw(five())


def test_a_run_shows_the_gantt_of_a_packed_plan_when_it_starts():
    console = screen(80)
    values = {k: v for k, v in five().items() if k != "format"}
    first = job(((0,), [piece("a")]), ((1,), [piece("b")]), start_s=0.0)
    made = Plan(**{**values, "jobs": (first,)})
    LiveView(list, clock=FakeClock(), console=console).show_plan(made, unit="slot")
    lines = shown(console)
    assert lines[0].startswith("plan p-1a2b3c: 1 job, about 2h27m")
    assert [line[:6] for line in lines if line.startswith("slot ")] == ["slot 0", "slot 1"]
    assert not any("known from" in line for line in lines)

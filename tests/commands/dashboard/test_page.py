"""The board in a real browser: what people see of runs, live, by mouse and by keyboard."""

from __future__ import annotations

import shutil
import signal

import pytest

from tests.commands.dashboard.boards import board_on
from tests.commands.dashboard.damaged_runs import IMAGE, PAYLOADS, SCRIPT
from tests.commands.dashboard.fake_source import TOKEN, FakeSource, served
from tests.commands.projects import finish, until


def test_a_run_shows_its_curves_marks_attempts_times_and_plan(board, look):
    page = look(board.at("exp"))
    page.drawn()
    page.wait(".mark")
    # The key leaves the address at once, and a reload works without it.
    assert "token" not in page.page.url
    page.page.reload()
    page.drawn()
    page.wait(".mark")
    assert all(url.startswith(f"http://127.0.0.1:{board.port}/") for url in page.asked)
    assert sum("token" in url for url in page.asked) == 1
    assert page.text("h1") == "exp" and "complete" in page.text(".title .state")
    marks = page.page.locator(".plot.first .mark")
    assert marks.count() == 1
    assert "attempt 1 ended: interrupted, at step" in marks.get_attribute("aria-label")
    assert page.page.locator(".attempt").count() == 2
    assert "wall clock" in page.text(".ledger") and "goodput" in page.text(".ledger")
    assert page.count(".gantt rect.actual") >= 4 and page.count(".gantt rect.stop") == 1
    assert [page.text(f".track li:nth-child({n}) .name") for n in (1, 2)] == ["small", "large"]
    names = page.page.locator(".plot .what").all_inner_texts()
    assert names[0] == "loss" and "lr" in names


@pytest.mark.long
def test_while_a_run_trains_its_curve_grows_and_an_interruption_is_marked(project, look, tmp_path):
    made = project(params={"pause": 0.05}, stages=[{"name": "one", "data": "d", "epochs": 60}])
    training = made.start("run")
    until(lambda: made.step() >= 3, made.logs)
    with board_on(made.runs, folder=made.folder) as board:
        page = look(board.at("exp"))
        page.drawn()
        page.wait(".title .state.running")
        before = page.points()
        page.until("() => document.querySelector('#live').className === 'live'")
        page.until(
            "(n) => Number(document.querySelector('.plot.first').dataset.points) > n + 3", before
        )
        training.send_signal(signal.SIGINT)
        assert finish(training).code == 75
        page.wait(".plot.first .mark")
        page.wait(".title .state.handed-over")
        page.until("() => document.querySelectorAll('.attempt').length === 1")
        again = made.start("run")
        reached = page.points()
        page.wait(".title .state.running")
        page.until(
            "(n) => Number(document.querySelector('.plot.first').dataset.points) > n + 3", reached
        )
        again.send_signal(signal.SIGINT)
        finish(again)
        steps = page.page.evaluate("performance.getEntriesByName('ready').length")
        assert steps == 1, "the page was loaded again"
        page.close()


@pytest.mark.long
def test_the_list_alone_is_live_too_and_follows_runs_that_come_change_and_go(runs, look, tmp_path):
    shown = tmp_path / "runs"
    shown.mkdir()
    with board_on(shown, folder=tmp_path) as board:
        page = look(board.at())
        page.until("() => document.querySelector('#count').textContent === 'no runs here yet'")
        page.until("() => document.querySelector('#live').className === 'live'")
        shutil.copytree(runs / "exp", shown / "exp")
        page.wait(".row .state.complete")
        (shown / "exp" / "training_complete.marker").unlink()
        page.wait(".row .state:not(.complete)")
        shutil.rmtree(shown / "exp")
        page.until("() => document.querySelectorAll('.row').length === 0")
        page.close()


@pytest.mark.long
def test_of_a_thousand_runs_only_those_that_are_seen_are_on_the_page(look):
    with served(FakeSource(1000)) as port:
        page = look(f"http://127.0.0.1:{port}/?token={TOKEN}#/")
        page.until("() => document.querySelector('#count').textContent.includes('1000 running')")
        assert 5 < page.count(".row") < 40
        page.page.evaluate("document.querySelector('#scroll').scrollTop = 1e9")
        page.until("() => document.querySelector('#rows').textContent.includes('run-0999')")
        assert page.count(".row") < 40
        assert page.page.get_attribute(".row", "aria-setsize") == "1000"
        page.press("/")
        page.page.keyboard.type("0123")
        page.until("() => document.querySelectorAll('.row').length === 1")
        page.close()


def test_hostile_names_numbers_and_lines_are_shown_as_text_and_never_obeyed(board, look):
    page = look(board.at("hostile"))
    page.drawn(SCRIPT)
    shown = page.page.locator(".plot .what").all_inner_texts()
    assert {SCRIPT, IMAGE, "__proto__", "constructor"} <= set(shown)
    assert IMAGE in page.text(".track")
    page.press("3")
    page.wait("#part table")
    assert SCRIPT in page.text("#part") and IMAGE in page.text("#part")
    page.press("5")
    page.until("() => document.querySelector('pre.log')?.textContent.includes('49 ')")
    told = page.page.evaluate("document.querySelector('pre.log')?.textContent")
    assert len(PAYLOADS) == 50 and SCRIPT in told and IMAGE in told and "../../etc" in told
    control = [c for c in told if (ord(c) < 32 and c not in "\n\t") or 127 <= ord(c) < 160]
    assert control == []
    assert page.page.evaluate("document.title") == "hostile · tasuki board"
    assert page.count("#main script, #main img, #main iframe, #list script, #list img") == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["half", "strange", "newer-events", "newer"])
def test_a_run_that_is_damaged_or_strange_shows_what_is_left_of_it(board, look, name):
    page = look(board.at(name))
    page.wait("#main h1")
    if name == "newer":
        page.wait(".row.unknown")
        page.until("() => document.querySelector('#main').innerText.includes('newer')")
        return
    page.drawn()
    page.wait(".card.curves")
    for part in "23456":
        page.press(part)
        page.wait("#part .card")
    if name == "newer-events":
        page.press("1")
        page.until("() => document.querySelector('#part').innerText.includes('newer tasuki')")


@pytest.mark.long
def test_runs_are_laid_over_each_other_and_told_side_by_side(board, look):
    page = look(board.at("exp"))
    page.drawn()
    page.page.check("input[aria-label='compare twin']")
    page.until("() => document.querySelectorAll('.plot.first .legend li').length >= 4")
    assert "with=twin" in page.page.url
    rows = page.page.locator("[aria-label='Runs side by side'] tbody tr").all_inner_texts()
    assert [row.split("\t")[0].strip() for row in rows] == ["exp", "twin"]
    assert page.count(".plot.first .mark") == 2
    page.page.click("#chosen button")
    page.until("() => !location.hash.includes('with')")
    page.until("() => document.querySelectorAll('.plot.first .mark').length === 1")


@pytest.mark.long
def test_a_curve_is_zoomed_by_dragging_seen_whole_again_and_drawn_by_time_and_logarithm(
    board, look
):
    page = look(board.at("exp"))
    page.drawn()
    box = page.page.locator(".plot.first .u-over").bounding_box()
    middle = box["y"] + box["height"] / 2
    page.page.mouse.move(box["x"] + box["width"] * 0.3, middle)
    page.until("() => [...document.querySelectorAll('.tip')].some((tip) => !tip.hidden)")
    assert "step" in page.text(".plot.first .tip")
    page.page.mouse.down()
    page.page.mouse.move(box["x"] + box["width"] * 0.6, middle, steps=4)
    page.page.mouse.up()
    page.wait(".tools .whole", state="visible")
    page.page.dblclick(".plot.first .u-over")
    page.wait(".tools .whole", state="hidden")
    for key, button in (("l", ".by-log"), ("s", "[data-x=time]")):
        before = page.page.get_attribute(button, "aria-pressed")
        page.press(key)
        page.until(
            "([b, was]) => document.querySelector(b).getAttribute('aria-pressed') !== was",
            [button, before],
        )


@pytest.mark.long
def test_everything_can_be_done_with_the_keyboard(board, look):
    page = look(board.at())
    page.wait(".row")
    page.press("j", "j", "k")
    name = page.page.evaluate("document.activeElement.querySelector('.name').textContent")
    outline = page.page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid", "where one is must be seen"
    page.press("Enter")
    page.until("(name) => document.querySelector('#main h1')?.textContent === name", name)
    page.press("4")
    page.wait("[data-part=checkpoints][aria-selected=true]")
    page.page.focus("[data-part=checkpoints]")
    page.press("ArrowRight")
    page.wait("[data-part=logs][aria-selected=true]")
    page.press("Escape")
    page.wait(".welcome")
    page.press("/")
    page.page.keyboard.type("twi")
    page.until("() => document.querySelectorAll('.row').length === 1")
    assert "1 of" in page.text("#count")
    page.press("Enter")
    page.until("() => document.querySelector('#main h1')?.textContent === 'twin'")
    page.press("/", "Escape")
    page.until("() => document.querySelectorAll('.row').length > 4")
    page.press("?")
    page.wait("#help[open]")
    page.press("Escape")
    page.wait("#help", state="hidden")
    page.press("x", "t")
    page.wait("html[data-theme=dark]")
    page.page.reload()
    page.wait("html[data-theme=dark]")  # it is kept


@pytest.mark.long
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_letters_stand_out_and_everything_has_a_name_in_each_part(board, look, scheme):
    page = look(board.at("exp", others=("twin",)), color_scheme=scheme)
    page.drawn()
    assert page.page.get_attribute("html", "data-theme") == scheme
    for part in "123456":
        page.press(part)
        page.wait("#part .card")
        assert page.too_faint() == [] and page.nameless() == [], part
    page.press("?")
    assert page.too_faint() == []


@pytest.mark.long
def test_on_a_phone_list_and_run_follow_each_other_and_nothing_is_wider_than_it(board, look):
    page = look(board.at(), width=390, height=780)
    page.wait(".row")
    assert not page.is_too_wide()
    page.page.click(".row .go >> nth=0")
    page.wait("#main h1")
    assert not page.page.is_visible("#list")
    for part in ("events", "logs", "overview"):
        page.page.click(f"[data-part={part}]")
        page.wait("#part .card")
        assert not page.is_too_wide(), part
    page.page.click(".back")
    page.wait("#list", state="visible")


@pytest.mark.long
def test_curves_follow_the_width_of_the_window(board, look):
    page = look(board.at("exp"))
    page.drawn()
    for width in (1500, 700):
        page.page.set_viewport_size({"width": width, "height": 900})
        page.until(
            """() => [...document.querySelectorAll('.plot')].every((plot) =>
                 Math.abs(plot.querySelector('.canvas').clientWidth -
                          plot.querySelector('.uplot').offsetWidth) <= 2)"""
        )
        assert not page.is_too_wide()


@pytest.mark.long
def test_a_log_is_followed_while_it_grows(runs, look, tmp_path):
    log = next(p for p in sorted((runs / "twin" / "logs").iterdir()) if p.name.endswith(".2.log"))
    with board_on(runs, folder=tmp_path) as board:
        page = look(board.at("twin", "logs"))
        page.until("() => document.querySelector('pre.log')?.textContent.length > 20")
        with log.open("ab") as file:
            file.write("half of a € sign: ".encode() + "€".encode()[:1])
            file.flush()
            page.until("() => document.querySelector('pre.log')?.textContent.includes('sign: ')")
            file.write("€".encode()[1:] + b" and the rest\n")
        page.until(
            "() => document.querySelector('pre.log')?.textContent.includes('€ and the rest')"
        )
        page.close()


@pytest.mark.long
def test_ctrl_c_ends_the_board_though_pages_look_and_the_page_says_so(runs, look, tmp_path):
    with board_on(runs, folder=tmp_path) as board:
        page = look(board.at("exp"))
        page.until("() => document.querySelector('#live').className === 'live'")
        board.process.send_signal(signal.SIGINT)
        assert board.process.wait(timeout=60) == 0
    assert board.process.stderr is not None and "Traceback" not in board.process.stderr.read()
    page.until("() => document.querySelector('#live').className === 'away'")
    assert "not connected" in page.text("#live")
    page.close()
    page.trouble.clear()  # the browser tells of the connections that it lost

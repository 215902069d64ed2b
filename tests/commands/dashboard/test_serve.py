"""How a board begins and ends, what it costs to look, and that no page can stop another."""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shutil
import socket
import sys
import time
from pathlib import Path
from typing import Any

import psutil

from tasuki.clock import SystemClock
from tasuki.commands.board import RunsSource
from tasuki.runs.metrics import MetricLog
from tasuki.runs.runs import RunFolder
from tasuki.views.board.files import page_files
from tasuki.views.board.serve import open_listener
from tasuki.views.board.stream import MOST_STREAMS, Looked, Stream
from tasuki.views.board.summaries import Summaries
from tests.commands.dashboard.boards import board_on
from tests.commands.dashboard.fake_source import TOKEN, FakeSource, served
from tests.commands.projects import until

KEY = (
    f"GET /api/stream HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n\r\n".encode()
)


def open_stream(port: int, *, small_buffer: bool = False) -> socket.socket:
    wire = socket.socket()
    if small_buffer:
        wire.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    wire.connect(("127.0.0.1", port))
    wire.sendall(KEY)
    return wire


def test_the_address_and_the_tunnel_are_printed_and_it_listens_on_this_machine_alone(board):
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/\?token=[\w-]{43}", board.url)
    host = socket.gethostname()
    assert re.search(rf"ssh -N -L {board.port}:127\.0\.0\.1:{board.port} \S+@{host}", board.said)
    connections = psutil.Process(board.process.pid).net_connections()
    assert [c.laddr.ip for c in connections if c.status == "LISTEN"] == ["127.0.0.1"]


def test_a_port_that_is_taken_is_told_and_without_one_the_next_is_used_with_a_new_key(
    here, board, runs, tmp_path
):
    with open_listener(None) as taken:
        port = taken.getsockname()[1]
        said = here(tmp_path, "board", "--runs", str(runs), "--port", str(port))
        assert said.code == 2 and said.out == ""
        assert f"error: port {port} is taken on this machine" in said.err and "--port" in said.err
        with board_on(runs, folder=tmp_path) as other:
            assert other.port != port and other.token != board.token


def test_without_its_packages_the_board_names_the_extra(here, runs, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    said = here(tmp_path, "board", "--runs", str(runs))
    assert said.code == 2 and 'pip install "tasuki[board]"' in said.err


def test_what_was_vendored_is_what_its_readme_says_and_nothing_comes_from_elsewhere():
    folder = Path(__file__).parents[3] / "src/tasuki/views/board/static"
    told = (folder / "uplot/README.md").read_text()
    sums = dict(re.findall(r"^\| (\S+) \| ([0-9a-f]{64}) \|$", told, re.MULTILINE))
    assert set(sums) == {"uPlot.iife.min.js", "uPlot.min.css", "LICENSE"}
    for name, digest in sums.items():
        assert hashlib.sha256((folder / "uplot" / name).read_bytes()).hexdigest() == digest
    assert "1.6.32" in told and b"v1.6.32" in (folder / "uplot/uPlot.iife.min.js").read_bytes()
    own = {name: file.data.decode() for name, file in page_files().items() if "uplot" not in name}
    for name, text in own.items():
        addresses = set(re.findall(r"https?://[^\s\"'`)]+", text))
        assert addresses <= {"http://www.w3.org/2000/svg"}, name
        assert not re.search(
            r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|new Function", text
        ), name
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|style=", own["index.html"])


def test_pages_that_look_have_an_end_to_their_number_and_going_makes_room():
    with served(FakeSource()) as port:
        wires = [open_stream(port) for _ in range(MOST_STREAMS)]
        for wire in wires:
            assert b"200 OK" in wire.recv(4096)
        refused = open_stream(port)
        assert b" 503 " in refused.recv(4096)
        for wire in [refused, *wires[:3]]:
            wire.close()

        def is_let_in() -> bool:
            with open_stream(port) as wire:
                return b"200 OK" in wire.recv(4096)

        until(is_let_in)
        for wire in wires[3:]:
            wire.close()


def test_whoever_holds_the_line_without_asking_is_sent_away_and_the_owner_is_answered(monkeypatch):
    from tasuki.views.board import connections

    monkeypatch.setattr(connections, "_ASK_WITHIN_S", 2.0)
    with served(FakeSource()) as port, contextlib.ExitStack() as all_of_them:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(150)]
        for wire in silent:
            all_of_them.callback(wire.close)
        for wire in silent[-40:]:
            wire.sendall(b"GET /api/runs HTTP/1.1\r\nHost: local")  # and no more
        refused = all_of_them.enter_context(socket.create_connection(("127.0.0.1", port)))
        refused.sendall(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with open_stream(port) as owner:
            assert b"200 OK" in owner.recv(4096)
        for wire in [refused, *silent]:
            wire.settimeout(60)
            with contextlib.suppress(ConnectionError):
                while wire.recv(4096):
                    pass


def test_a_page_that_does_not_read_is_dropped_and_others_go_on():
    """Three times 4 MB take the board at least 2 s: by then its patience of 1 s is over."""
    with served(FakeSource(20, padding=200_000), patience_s=1.0) as port:
        slow, good = open_stream(port, small_buffer=True), open_stream(port)
        got = 0
        end = time.monotonic() + 60
        while got < 12_000_000 and time.monotonic() < end:
            got += len(good.recv(1 << 20))
        assert got >= 12_000_000
        slow.settimeout(60)
        left = 0
        with contextlib.suppress(ConnectionError):
            while piece := slow.recv(1 << 20):
                left += len(piece)
        assert left < 12_000_000, "it was kept for the slow one"
        good.close()


def test_nobody_reads_runs_while_nobody_looks(monkeypatch):
    from tasuki.views.board import summaries

    monkeypatch.setattr(summaries, "_LOOKED_AT_S", 0.2)
    monkeypatch.setattr(summaries, "_LEAST_REST_S", 0.02)
    source = FakeSource(3)
    looked = Summaries(source)
    looked.start()
    until(lambda: looked.since(-1).is_whole)
    until(lambda: _rests(source))
    before = source.asked
    looked.since(-1)
    until(lambda: source.asked > before)
    looked.stop()


def _rests(source: FakeSource) -> bool:
    before = source.asked
    time.sleep(0.15)
    return source.asked == before


def test_a_list_that_is_known_is_told_by_its_changes_alone():
    source = FakeSource(1000)
    looked = Summaries(source)
    looked._pass()
    first = looked.since(-1)
    assert len(first.rows) == 1000 and first.is_whole
    source.rows["run-0007"]["state"] = "complete"
    del source.rows["run-0009"]
    looked._pass()
    news = looked.since(first.number)
    assert [row["experiment"] for row in news.rows] == ["run-0007"] and news.gone == ["run-0009"]
    assert looked.since(news.number).rows == []


def test_an_end_is_told_though_no_step_came_with_it_and_numbers_taken_back_are_asked_for_anew():
    source = FakeSource()
    looked = [Looked("run-0000", 5.0)]
    stream = Stream(source=source, summaries=Summaries(source), number=-1, looked=looked)
    stream.news()
    assert stream.news() == b""
    source.marks = [{"step": 5, "t": 1.0, "attempt": 1, "cause": "preempted"}]
    assert b"event: curves" in (told := stream.news()) and b"preempted" in told
    assert stream.news() == b""
    source.voided = 1
    assert b'"is_anew":true' in stream.news()


def test_numbers_that_no_machine_can_hold_hide_neither_their_run_nor_the_others(runs, tmp_path):
    for name in ("exp", "other"):
        shutil.copytree(runs / "exp", tmp_path / name)
    run, huge = RunFolder(tmp_path / "exp"), 10**400
    row = {"stage": "one", "step": 1, "split": "train", "loss": huge, "t": huge}
    event = {"t": huge, "claim": 1, "kind": "progress", "stage": "one", "step": 1}
    events = [event, {**event, "t": 5, "seconds": huge, "queue_s": huge, "kind": "began"}]
    for folder, lines in ((run.metrics, [row] * 50), (run.events, events)):
        with next(iter(folder.glob("1*.jsonl"))).open("a") as file:
            file.writelines(f"{json.dumps(line)}\n" for line in lines)
    source = RunsSource(tmp_path, SystemClock())
    looked = Summaries(source)
    looked._pass()
    assert [row["state"] for row in looked.since(-1).rows] == ["complete"] * 2
    assert source.curves("exp", points=9)["series"]
    assert source.detail("exp")["why"] is not None


def test_a_run_that_nobody_foresaw_is_a_line_with_words_and_the_list_goes_on(monkeypatch):
    from tasuki.views.board import summaries

    class Strange(FakeSource):
        def summary(self, name: str) -> dict[str, Any]:
            if name == "run-0001":
                raise RuntimeError("deep inside")
            return super().summary(name)

    monkeypatch.setattr(summaries, "_LEAST_REST_S", 0.02)
    source = Strange(3)
    looked = Summaries(source)
    looked.start()
    until(lambda: looked.since(-1).is_whole)
    rows = {row["experiment"]: row for row in looked.since(-1).rows}
    assert "cannot be read" in rows["run-0001"]["reason"]
    assert "deep inside" in rows["run-0001"]["reason"]
    source.rows["run-0002"]["state"] = "complete"
    until(lambda: looked.since(-1).rows[2]["state"] == "complete")
    looked.stop()


def test_a_validation_that_follows_the_training_of_its_step_is_told_live_and_only_once(tmp_path):
    run = RunFolder(tmp_path / "exp")
    run.path.mkdir()
    run.spec.write_text('{"format": 1, "experiment": "exp", "stages": [{"name": "one"}]}')
    log, source = MetricLog(run, claim=1, clock=SystemClock()), RunsSource(tmp_path, SystemClock())

    def told(stream: Stream) -> list[tuple[str, list[int]]]:
        words = [line for line in stream.news().split(b"\n") if b'"series"' in line]
        series = [one for line in words for one in json.loads(line[6:])["series"]]
        return sorted((one["split"], one["steps"]) for one in series)

    def add(split: str, step: int) -> None:
        log.add({"stage": "one", "step": step, "split": split, "loss": 1.0})

    for step in range(1, 31):
        add("train", step)
    looked = [Looked("exp", 29.0)]
    stream = Stream(source=source, summaries=Summaries(source), number=-1, looked=looked)
    assert told(stream) == [("train", [29, 30])]  # the page knows 29: no other curve may be so far
    add("val", 30)
    assert told(stream) == [("val", [30])] and told(stream) == []
    add("train", 31)
    add("train", 40)
    assert told(stream) == [("train", [31, 40])]
    add("val", 40)
    assert told(stream) == [("val", [40])] and told(stream) == []
    late = Stream(source=source, summaries=Summaries(source), number=-1, looked=[Looked("exp", 41)])
    add("train", 41)
    assert told(late) == [("train", [41])]
    add("val", 41)
    assert told(late) == [("val", [41])]


def test_a_run_that_is_deleted_leaves_the_list_and_a_folder_that_is_away_takes_none(runs, tmp_path):
    copy = tmp_path / "runs"
    shutil.copytree(runs / "exp", copy / "exp")

    looked = Summaries(RunsSource(copy, SystemClock()))
    looked._pass()
    assert [row["state"] for row in looked.since(-1).rows] == ["complete"]
    shutil.rmtree(copy / "exp")
    looked._pass()
    assert looked.since(-1).rows == [] and looked.since(-1).gone == ["exp"]


def test_answers_of_a_run_are_bounded_and_always_json(board):
    for name in ("exp", "half", "newer-events", "strange", "hostile"):
        assert board.get(f"/api/runs/{name}").json()["experiment"] == name
        found = board.get(f"/api/runs/{name}/curves?points=20").json()
        assert all(len(one["steps"]) <= 20 for one in found["series"])
        assert len(board.get(f"/api/runs/{name}/events").json()["events"]) <= 500
    assert board.get("/api/runs/half").json()["why"]["ledger"]["wall_s"] == 0  # not since 1970
    assert board.get("/api/runs/newer").status == 200
    assert "newer" in " ".join(board.get("/api/runs/newer").json()["problems"])
    rows = {row["experiment"]: row for row in board.get("/api/runs").json()["rows"]}
    assert rows["newer"]["state"] is None and "cannot be read" in rows["newer"]["reason"]
    assert rows["exp"]["state"] == "complete" and len(rows["exp"]["spark"]) > 5


def test_looking_closer_brings_only_what_lies_between(board):
    whole = board.get("/api/runs/exp/curves").json()
    part = board.get("/api/runs/exp/curves?first=20&last=40").json()
    [loss] = [o for o in whole["series"] if (o["key"], o["split"]) == ("loss", "train")]
    [near] = [o for o in part["series"] if (o["key"], o["split"]) == ("loss", "train")]
    assert near["steps"] == [step for step in loss["steps"] if 20 <= step <= 40] != []


def test_a_long_log_comes_in_pieces_that_join_without_a_gap(runs, tmp_path):

    copy = tmp_path / "runs"
    shutil.copytree(runs / "exp", copy / "exp")
    log = copy / "exp/logs/job.7.log"
    whole = "".join(f"line {n} € ä\n" for n in range(30_000))
    log.write_text(whole)
    source = RunsSource(copy, SystemClock())
    piece = source.log("exp", file=None, start=None, end=None)
    assert piece["file"] == "job.7.log" and piece["size"] == len(whole.encode())
    text = piece["text"]
    assert len(text.encode()) <= 65_536
    while piece["start"] > 0:
        piece = source.log("exp", file="job.7.log", start=None, end=piece["start"])
        text = piece["text"] + text
    assert text == whole


def test_values_named_like_secrets_are_not_shown_in_a_spec(runs, tmp_path):
    from tasuki.commands.told_spec import read_told_spec
    from tasuki.spec.hiding import HIDDEN

    copy = tmp_path / "exp"
    shutil.copytree(runs / "exp", copy)
    value = json.loads((copy / "spec.json").read_text())
    for stage in value["spec"]["stages"]:
        stage["params"] = {"api_keys": ["s3"], "hf_token": "s3", "num_tokens": 7, "key_dim": 8}
        stage["command"] = ["python", "t.py", "--token", "s3", "--password=s3", "--lr", "3e-4"]
    value["sinks"] = {"mine:Sink": {"key": "s3"}}
    (copy / "spec.json").write_text(json.dumps(value))
    told = read_told_spec(RunFolder(copy))
    assert "s3" not in json.dumps(told)
    assert told["all"]["params"] == {
        "api_keys": HIDDEN,
        "hf_token": HIDDEN,
        "num_tokens": 7,
        "key_dim": 8,
    }
    assert told["all"]["command"][-2:] == ["--lr", "3e-4"] and told["sinks"] == ["mine:Sink"]

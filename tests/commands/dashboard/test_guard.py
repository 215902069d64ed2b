"""S4: nobody but who has the address gets anything from the board, and nobody changes anything."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.commands.dashboard.boards import Answer, RunningBoard
from tests.commands.projects import secrets

PAGES = ["/", "/api/runs", "/api/runs/exp", "/api/runs/exp/curves", "/static/js/main.js"]
API = "/api/runs/exp"
OTHER_TOKENS = ["", "x", "null", "undefined", "0" * 43, "%00", "*", "A" * 300]


def hostile_requests(board: RunningBoard) -> Iterator[tuple[str, str, dict[str, str]]]:
    """(method, path, headers), each of which must be refused."""
    key = {"Authorization": f"Bearer {board.token}"}
    host = f"127.0.0.1:{board.port}"
    for page in PAGES:  # without the key
        yield "GET", page, {}
    for token in OTHER_TOKENS:  # with another
        yield "GET", f"/?token={token}", {}
        yield "GET", API, {"Authorization": f"Bearer {token}"}
    yield "GET", f"/?token={board.token}&token=x", {}
    yield "GET", f"{API}?token={board.token}", {}  # the address of the page alone takes it
    yield "GET", API, {"Authorization": f"Basic {board.token}"}
    yield "GET", API, {"Cookie": f"tasuki-board-{board.port}={board.token}"}
    yield "GET", API, {"Cookie": f"tasuki-board-{board.port}="}
    yield "GET", API, {"X-Token": board.token}
    for method in ("POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "PROPFIND"):
        yield method, API, key
    for name in (
        *("evil.example", f"evil.example:{board.port}", "127.0.0.1.evil.example", "0.0.0.0"),
        *("169.254.169.254", "localhost.evil", "127.0.0.1@evil", "", "[::1", "127.0.0.1:x"),
    ):  # a name that was made to resolve to this machine
        yield "GET", API, {**key, "Host": name}
    ticket = _ticket(board)
    for site in ("cross-site", "same-site", "nonsense"):  # another page in the same browser
        yield "GET", API, {"Cookie": ticket, "Sec-Fetch-Site": site}
    for origin in (
        "http://evil.example",
        "null",
        f"https://{host}",
        f"http://127.0.0.1:{board.port + 1}",
    ):
        yield "GET", API, {"Cookie": ticket, "Origin": origin}
    for path in (
        *(
            "/api/runs/..",
            "/api/runs/%2e%2e",
            "/api/runs/..%2f..%2fetc%2fpasswd",
            "/api/runs/.jobs",
        ),
        *("/api/runs/%00", "/api/runs/exp%00", "/api/runs/nowhere", f"/api/runs/{'a' * 900}"),
        *("/api/runs//etc/passwd", "/api/runs/exp/../../x", "/api/runs/exp/log?file=../spec.json"),
        *("/api/runs/exp/log?file=%2fetc%2fpasswd", "/api/runs/exp/log?file=..%2f..%2ftasuki.yaml"),
        *(
            "/static/../app.py",
            "/static/%2e%2e/app.py",
            "/static/..%2fapp.py",
            "/static//etc/passwd",
        ),
        *("/static/", "/static/js", "/static/uplot/README.md", "/static/js/main.js/", "/api", "//"),
        *(
            "/api/runs/exp/curves?points=x",
            "/api/runs/exp/curves?first=nan",
            "/docs",
            "/.git/config",
        ),
        *("/api/runs/exp/curves?points=1e400", f"/?{'q' * 9000}", "/api/runs/exp/log?start=-inf"),
        *("/api/stream?look=nowhere&at=0", "/api/stream?look=exp", "/api/stream?log=..&file=x"),
        *("/api/stream?" + "look=exp&at=0&" * 9, "/api/runs/exp/log?file=a&file=b"),
    ):  # with the key, but after something else
        yield "GET", path, key
    yield "GET", API, {**key, "Content-Length": "5"}
    yield "GET", API, {**key, "Transfer-Encoding": "chunked"}


def _ticket(board: RunningBoard) -> str:
    return board.get("/").headers["set-cookie"].partition(";")[0]


def test_every_hostile_request_is_refused(board):
    tried = list(hostile_requests(board))
    assert len(tried) >= 60
    allowed = []
    for method, path, headers in tried:
        answer = board.ask(method, path, headers)
        told = f"{answer.headers} {answer.text}"
        assert "root:" not in told and board.token not in told and "canary-" not in told
        if not 400 <= answer.status < 500:
            allowed.append((method, path, headers, answer.status))
    assert allowed == []


RAW = [
    b"GET / HTTP/1.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
    b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: a\r\nCookie: tasuki-board=b\r\n\r\n",
    b"GET http://evil/ HTTP/1.1\r\nHost: evil\r\n\r\n",
    b"GET /api/runs HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\x00" * 40 + b"\r\n\r\n",
    b"GET /\x00 HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/9.9\r\nHost: 127.0.0.1\r\n\r\n",
    b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
]


@pytest.mark.parametrize("request_", RAW, ids=range(len(RAW)))
def test_what_is_no_proper_request_is_refused_and_the_board_goes_on(board, request_):
    got = board.raw(request_)
    status = got.split(b" ", 2)[1:2]
    assert not status or status[0].startswith(b"4"), got[:200]
    assert board.get("/api/runs").status == 200


def test_who_has_the_address_gets_the_page_and_a_cookie_that_is_not_the_key(board):
    first = board.ask("GET", f"/?token={board.token}", {})
    assert first.status == 200 and "<title>tasuki board</title>" in first.text
    cookie = first.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=Strict" in cookie and board.token not in cookie
    again = {"Cookie": cookie.partition(";")[0]}
    for page in PAGES:
        assert board.ask("GET", page, again).status == 200
        assert board.ask("HEAD", page, again).text == ""
    from_our_page = {**again, "Sec-Fetch-Site": "same-origin", "Host": "localhost:9999"}
    assert board.ask("GET", API, from_our_page).status == 200  # through a tunnel of another port


@pytest.mark.parametrize("path", [*PAGES, "/nowhere", "/api/runs/nowhere"])
def test_every_answer_forbids_what_a_page_must_not_do(board, path):
    for answer in (board.get(path), board.ask("GET", path, {})):
        assert_forbids(answer)


def assert_forbids(answer: Answer) -> None:
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy and "script-src 'self'" in policy
    assert "unsafe" not in policy and "frame-ancestors 'none'" in policy and "*" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["cache-control"] == "no-store"
    assert not any(name.startswith("access-control") for name in answer.headers)
    assert "server" not in answer.headers


def test_no_secret_of_anybodys_environment_is_in_any_answer(board, runs):
    """S3: 40 canaries stood in the environment of the run and stand in the board's."""
    assert len(secrets()) == 40
    paths = ["/", "/api/runs"]
    for run in ("exp", "hostile", "half"):
        own = f"/api/runs/{run}"
        paths += [own, f"{own}/curves", f"{own}/events", f"{own}/log"]
        files = board.get(f"{own}/log").json()["files"]
        paths += [f"{own}/log?file={one['file']}" for one in files if "<" not in one["file"]]
    answers = [board.get(path) for path in paths]
    assert len(answers) > 20 and sum(len(answer.text) for answer in answers) > 50_000
    for answer in answers:
        assert answer.status == 200
        assert not [name for name, secret in secrets().items() if secret in answer.text]
        assert board.token not in answer.text + str(answer.headers)


def test_nothing_is_written_by_looking(board, runs):
    def tree() -> dict[str, int]:
        return {str(path): path.stat().st_mtime_ns for path in runs.rglob("*")}

    before = tree()
    for path in ("/api/runs", "/api/runs/exp", "/api/runs/half", "/api/runs/strange/curves"):
        board.get(path)
    assert tree() == before

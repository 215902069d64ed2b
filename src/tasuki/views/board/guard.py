"""Who may ask, and what: the border of the board. Pure ASGI, before anything else is looked at.

Loopback alone is no protection: every page in the user's browser, and every user of a login
node, can reach it. So each request needs the token that was printed (a page turns it into a
cookie), comes under a name of this machine (a foreign name that resolves to 127.0.0.1 is refused),
from our own page or from no page at all, and reads. All else is refused before any file is touched.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from urllib.parse import parse_qs

from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_OURSELVES = frozenset({"127.0.0.1", "localhost", "[::1]"})
_MOST_PATH = 1024
_MOST_QUERY = 8192
_MOST_TOKEN = 200

HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
        "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}
"""On every answer, refusals included."""


@dataclass(frozen=True, slots=True)
class Refusal:
    status: int
    why: str


class Guard:
    """Wraps the board's application."""

    def __init__(self, app: ASGIApp, *, token: str, cookie: str) -> None:
        self._app = app
        self._token = token.encode()
        # A cookie is seen by whatever else listens on this host: it is not the token itself.
        self._ticket = hmac.new(self._token, b"ticket", hashlib.sha256).hexdigest()
        self._cookie = cookie

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        headers = _Headers(scope)
        refusal = self._refuse(scope, headers)
        if refusal is not None:
            answer = PlainTextResponse(f"{refusal.why}\n", refusal.status)
            answer.headers["connection"] = "close"  # nobody is held to who may not ask
            if refusal.status == 405:
                answer.headers["allow"] = "GET, HEAD"
            await answer(scope, receive, self._guarded(send, is_new=False))
            return
        is_new = self._knows_token(scope, headers)
        await self._app(scope, receive, self._guarded(send, is_new=is_new))

    def _refuse(self, scope: Scope, headers: _Headers) -> Refusal | None:
        if scope["method"] not in ("GET", "HEAD"):
            return Refusal(405, "the board only shows: GET and HEAD")
        if (
            len(scope.get("raw_path") or b"") > _MOST_PATH
            or len(scope["query_string"]) > _MOST_QUERY
        ):
            return Refusal(414, "that address is too long")
        if headers.one("transfer-encoding") or headers.one("content-length") not in (None, "0"):
            return Refusal(400, "a request to the board has no body")
        hosts = headers.every("host")
        if len(hosts) != 1 or _name_in(hosts[0]) not in _OURSELVES:
            return Refusal(421, "the board answers to 127.0.0.1 and localhost only")
        is_linked = self._knows_token(scope, headers)
        if not is_linked and not _is_from_our_page(headers, hosts[0]):
            return Refusal(403, "another page may not ask the board")
        if not is_linked and not self._has_ticket(headers):
            return Refusal(401, "open the address that `tasuki board` printed: it holds the key")
        return None

    def _knows_token(self, scope: Scope, headers: _Headers) -> bool:
        """In the first page's address, or in a script's header."""
        said = headers.one("authorization") or ""
        if said.startswith("Bearer ") and self._is_token(said.removeprefix("Bearer ")):
            return True
        if scope["path"] != "/" or headers.one("origin") is not None:
            return False
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [])
        return len(given) == 1 and self._is_token(given[0])

    def _is_token(self, text: str) -> bool:
        return len(text) <= _MOST_TOKEN and hmac.compare_digest(
            text.encode("utf-8", "replace"), self._token
        )

    def _has_ticket(self, headers: _Headers) -> bool:
        for line in headers.every("cookie"):
            for pair in line.split(";"):
                name, _, value = pair.strip().partition("=")
                if name == self._cookie and hmac.compare_digest(
                    value.encode("latin-1", "replace"), self._ticket.encode()
                ):
                    return True
        return False

    def _guarded(self, send: Send, *, is_new: bool) -> Send:
        ticket = f"{self._cookie}={self._ticket}; Path=/; HttpOnly; SameSite=Strict"

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                own: list[tuple[bytes, bytes]] = [
                    pair for pair in message.get("headers", []) if pair[0].decode() not in HEADERS
                ]
                own += [(key.encode(), value.encode()) for key, value in HEADERS.items()]
                if is_new:
                    own.append((b"set-cookie", ticket.encode()))
                message = {**message, "headers": own}
            await send(message)

        return send_with_headers


class _Headers:
    """Of one request, as they came: doubled ones stay doubled."""

    def __init__(self, scope: Scope) -> None:
        self._pairs: list[tuple[bytes, bytes]] = scope["headers"]

    def every(self, name: str) -> list[str]:
        return [value.decode("latin-1") for key, value in self._pairs if key == name.encode()]

    def one(self, name: str) -> str | None:
        """The only one; several are joined, and so equal to nothing that is expected."""
        found = self.every(name)
        return ", ".join(found) if found else None


def _name_in(host: str) -> str:
    """A host header without its port, which a tunnel may have changed."""
    name, colon, port = host.rpartition(":")
    if host.endswith("]") or not colon:
        name, port = host, ""
    return name.lower() if not port or (port.isascii() and port.isdecimal()) else ""


def _is_from_our_page(headers: _Headers, host: str) -> bool:
    """Browsers say where a request comes from; a port beside ours is another page's."""
    site, origin = headers.one("sec-fetch-site"), headers.one("origin")
    if site not in (None, "same-origin", "none"):
        return False
    return origin in (None, f"http://{host}")

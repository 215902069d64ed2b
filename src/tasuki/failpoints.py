"""Named places where `verify resume` and our tests make something go wrong. Free while nothing is
armed.

A rank reads what is armed from its environment, once: `TASUKI_FAILPOINTS`, a JSON list of
`{"at": name, "do": action, "count": 2, "times": 1, "rank": 0, "claim": 1}`. The action happens at
the `count`-th pass of the place (default the first) and at `times` passes from there on; `rank` and
`claim` narrow it down. Actions: `kill`, `term`, `stop` (signals to this process; then `seconds` are
waited, so that whoever listens has heard), `term-group`, `exit`, `raise`, `pause` (for `seconds`),
the name of an errno (`ENOSPC`: an OSError), and words that the place itself understands (`nan`).
"""

from __future__ import annotations

import errno
import json
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass

VARIABLE = "TASUKI_FAILPOINTS"


@dataclass(slots=True)
class _Armed:
    at: str
    do: str
    count: int = 1
    times: int = 1
    seconds: float = 0.0
    passes: int = 0


_armed: list[_Armed] = []


def arm(environment: Mapping[str, str], *, rank: int, claim: int) -> None:
    """Called once by a rank, before it works."""
    _armed.clear()
    for order in json.loads(environment.get(VARIABLE) or "[]"):
        if order.get("rank", rank) == rank and order.get("claim", claim) == claim:
            facts = {key: value for key, value in order.items() if key not in ("rank", "claim")}
            _armed.append(_Armed(**facts))


def failpoint(name: str) -> str | None:
    """Pass a named place. Gives the word of an action that the place itself carries out."""
    if not _armed:
        return None
    word = None
    for armed in _armed:
        if armed.at == name:
            armed.passes += 1
            if armed.count <= armed.passes < armed.count + armed.times:
                word = _act(armed) or word
    return word


def _act(armed: _Armed) -> str | None:
    match armed.do:
        case "kill" | "term" | "stop":
            number = {"kill": signal.SIGKILL, "term": signal.SIGTERM, "stop": signal.SIGSTOP}
            os.kill(os.getpid(), number[armed.do])
            time.sleep(armed.seconds)
        case "term-group":
            os.killpg(os.getpgrp(), signal.SIGTERM)
        case "exit":
            os._exit(1)
        case "raise":
            raise RuntimeError(f"planted at {armed.at}")
        case "pause":
            time.sleep(armed.seconds)
        case word if word in errno.__dict__:
            number = getattr(errno, word)
            raise OSError(number, os.strerror(number))
        case word:
            return word
    return None

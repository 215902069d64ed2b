"""Runs as they are found after bad days: damaged, newer than us, with wild clocks and names."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

SCRIPT = "<script>document.title='owned'</script>"
IMAGE = "<img src=x onerror=\"document.title='owned'\">"
PAYLOADS = [
    *("\x1b[2J", "\x1b[31mred\x1b[0m", "\x1b]0;owned\x07", "\x1b]8;;http://x\x07link\x1b]8;;\x07"),
    *("\x1b[6n", "\x1bc", "\x1b[?1049h", "\x1b[1;1H", "\x1bP1$r\x1b\\", "\x1b]52;c;aGk=\x07"),
    *("\x07", "\x08\x08\x08", "\x0b", "\x0c", "\x00", "\x7f", "\x9b31m", "\x85", "\x1b", "\x1b["),
    *("\r", "a\rb", "50%|#####   |\r60%|######  |\r", "\u202eevil", "\u2066x\u2069", "\u200f"),
    *(SCRIPT, IMAGE, "<svg/onload=alert(1)>", "<iframe src=javascript:alert(1)>", "</pre><b>x"),
    *("<!--", "]]>", "&lt;b&gt;", "&#60;script&#62;", "javascript:alert(1)", "${7*7}", "{{7*7}}"),
    *("<%= 7 %>", "'\"><b onmouseover=alert(1)>", "data:text/html,<b>", "\ufeff", "\ud7ff"),
    *("=cmd|' /C calc'!A0", "@SUM(1)", "`rm -rf`", "$(id)", "%n%s%x", "..\\..\\x", "../../etc"),
]
"""50 lines that somebody, somewhere, would obey."""


def damage_runs(runs: Path) -> None:
    for name, damage in DAMAGES.items():
        if not (runs / name).exists():
            shutil.copytree(runs / "exp", runs / name)
            damage(runs / name)


def _add(path: Path, *lines: object) -> None:
    with path.open("a") as file:
        for line in lines:
            file.write((line if isinstance(line, str) else json.dumps(line)) + "\n")


def _twin(run: Path) -> None:
    pass


def _half(run: Path) -> None:
    """Somebody deleted what looked big, or old."""
    for name in ("events", "claims", "checkpoints", "stages"):
        shutil.rmtree(run / name)
    (run / "training_complete.marker").unlink()
    (run / "training_state.json").unlink()


def _newer(run: Path) -> None:
    value = json.loads((run / "spec.json").read_text())
    (run / "spec.json").write_text(json.dumps({**value, "format": 99}))


def _newer_events(run: Path) -> None:
    _add(
        run / "events" / "99.0.rank0.jsonl",
        {"format": 99, "when": "tomorrow", "what": "something new"},
        {"t": "noon", "claim": "x", "kind": 7},
        "{torn",
    )


def _strange(run: Path) -> None:
    """NaN, words for numbers, a clock that was put back, steps that are none."""
    newest = max((run / "metrics").glob("*.jsonl"), key=lambda p: int(p.stem))
    row = {"attempt": 9, "stage": "large", "epoch": 1, "samples": 1, "split": "train"}
    _add(
        newest,
        *({**row, "t": 4.0 + n, "step": 60 + n, "loss": "NaN", "note": "words"} for n in range(3)),
        '{"t": NaN, "step": 64, "stage": "large", "split": "train", "loss": NaN, "deep": Infinity}',
        {**row, "t": 1e300, "step": 65, "loss": 1e308},
        {**row, "t": -5, "step": 66, "loss": -1e308},
        {**row, "t": 3, "step": "x", "loss": 1},
        {**row, "t": 3, "step": 10**30, "loss": 1},
        [1, 2, 3],
    )


def _hostile(run: Path) -> None:
    """What a recipe, a message or a library may have put into our files."""
    newest = max((run / "metrics").glob("*.jsonl"), key=lambda p: int(p.stem))
    row = {"attempt": 9, "epoch": 1, "samples": 1, "t": 5.0}
    names = {SCRIPT: 1.0, IMAGE: 2.0, "=cmd|' /C calc'!A0": 3.0, "__proto__": 4.0, "constructor": 5}
    _add(newest, *({**row, "stage": "large", "split": IMAGE, "step": n, **names} for n in range(9)))
    _add(
        run / "events" / "9.0.rank0.jsonl",
        {"t": 1e9, "claim": 9, "who": SCRIPT, "kind": IMAGE, "text": SCRIPT, IMAGE: SCRIPT},
        {"t": 1e9, "claim": 9, "who": "rank0", "kind": "warning", "half": "\ud800", "n": 10**30},
        {"t": 1e9, "claim": 9, "who": "rank0", "kind": "warning", "text": "\x1b[2J\u202e" + IMAGE},
    )
    log = run / "logs" / f"job-{IMAGE.replace('/', '')}.9.log"
    log.write_bytes(
        "\n".join(f"{n:02d} {p}" for n, p in enumerate(PAYLOADS)).encode() + b"\n\xff\xfe\n"
    )
    evaluation = run / "stages" / "large" / "evaluation.json"
    value = json.loads(evaluation.read_text())
    evaluation.write_text(json.dumps({**value, "metrics": {IMAGE: 1.0, "loss": 0.5}}))


DAMAGES: dict[str, Callable[[Path], None]] = {
    "twin": _twin,
    "half": _half,
    "newer": _newer,
    "newer-events": _newer_events,
    "strange": _strange,
    "hostile": _hostile,
}

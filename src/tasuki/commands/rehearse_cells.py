"""What became of a stage in a rehearsal, by column: from the places that its processes reached.

Pure. `places` are those that train/rehearsed.py writes down, in their order; a place belongs to the
column in which a person looks for what failed there.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

COLUMNS = ("imports", "data", "steps", "save", "load", "evaluate")
_COLUMN_OF = {
    "imports": "imports",
    "data": "data",
    "build": "steps",
    "weights": "load",
    "start": "save",
    "restore": "load",
    "steps": "steps",
    "validate": "evaluate",
    "end": "save",
    "verify": "save",
    "again": "load",
    "finish": "save",
    "schedule": "steps",
    "evaluate": "evaluate",
}
_PASSED_AT = {
    "imports": "data",
    "data": "build",
    "steps": "end",
    "load": "finish",
    "save": "schedule",
}
"""By column: the place whose reaching says that all before it went well."""
MEMORY = "OutOfMemory"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    state: str
    """ok, failed, skipped (it cannot be tried), not reached, none (the stage has nothing there)."""
    message: str = ""
    hint: str = ""

    def as_json(self) -> dict[str, str]:
        return {"state": self.state, "message": self.message, "hint": self.hint}


OK = Cell(state="ok")
NONE = Cell(state="none")
NOT_REACHED = Cell(state="not reached")


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """Of one phase of a stage: how far it came, and what it said at its end."""

    places: tuple[str, ...] = ()
    failed: str | None = None
    """None: it did not fail, or was not asked for."""
    hint: str = ""
    kind: str = ""
    saved_bytes: int | None = None
    """Of a checkpoint."""
    frozen_bytes: int = 0
    """Of parameters that no step changes: stored once for all checkpoints."""
    stood: str = ""
    """Where, when the budget was used up; empty: it was over by then."""

    @property
    def is_done(self) -> bool:
        return bool(self.places) and self.places[-1] == "done" and self.failed is None

    @property
    def column(self) -> str:
        """Where it stopped."""
        return _COLUMN_OF.get(self.places[-1], COLUMNS[0]) if self.places else COLUMNS[0]


def read_way(lines: Sequence[Mapping[str, Any]]) -> Way:
    places = tuple(str(line["place"]) for line in lines if "place" in line)
    saved: Mapping[str, Any] = next((line for line in lines if "saved_bytes" in line), {})
    told = next((line for line in lines if "failed" in line), None)
    way = Way(
        places=places,
        saved_bytes=saved.get("saved_bytes"),
        frozen_bytes=int(saved.get("frozen_bytes", 0)),
    )
    if told is None:
        return way
    words, hint, kind = (str(told[key]) for key in ("failed", "hint", "kind"))
    return replace(way, failed=words, hint=hint, kind=kind)


def cells_of(trained: Way, evaluated: Way, *, validates: bool, evaluates: bool) -> dict[str, Cell]:
    """Of a stage that was begun."""
    cells = dict.fromkeys(COLUMNS, NOT_REACHED)
    for column, place in _PASSED_AT.items():
        if place in trained.places:
            cells[column] = OK
    if "end" in trained.places and validates:
        cells["evaluate"] = OK
    if trained.is_done:
        cells |= dict.fromkeys(("imports", "data", "steps", "save", "load"), OK)
    elif trained.failed is not None:
        cells[trained.column] = _failed(trained)
    elif trained.stood:
        cells[trained.column] = _stood(trained)
    if evaluates:
        cells["evaluate"] = _evaluation(cells["evaluate"], evaluated)
    elif not validates:
        cells["evaluate"] = NONE
    return cells


def _evaluation(so_far: Cell, evaluated: Way) -> Cell:
    if so_far.state == "failed":
        return so_far
    if evaluated.failed is not None:
        return _failed(evaluated)
    if evaluated.stood and not evaluated.is_done:
        return _stood(evaluated)
    return OK if evaluated.is_done else NOT_REACHED


def _stood(way: Way) -> Cell:
    return Cell(state="not reached", message=way.stood)


def _failed(way: Way) -> Cell:
    return Cell(state="failed", message=way.failed or "", hint=way.hint)


def ran_out_of_memory(way: Way) -> bool:
    """With one sample; or the system ended it, which is the same on a small machine."""
    return way.kind in (MEMORY, "killed") and way.column in ("steps", "evaluate")


def seconds_of(events: Sequence[Mapping[str, Any]], stage: str) -> float:
    """That the processes of a stage lived."""
    own = [e for e in events if e.get("stage") == stage]
    starts = [e["t"] for e in own if e["kind"] == "worker-started"]
    ends = [e["t"] for e in own if e["kind"] == "worker-ended"]
    return sum(float(end) - float(start) for start, end in zip(starts, ends, strict=False))


def memory_of(events: Sequence[Mapping[str, Any]], stage: str) -> dict[str, Any] | None:
    told = [e for e in events if e["kind"] == "memory" and e.get("stage") == stage]
    return {key: told[-1][key] for key in ("on", "device", "host")} if told else None


def halvings_of(events: Sequence[Mapping[str, Any]], stage: str) -> list[str]:
    """Micro-batches that did not fit, and which one did."""
    own = [e for e in events if e["kind"] == "micro-batch" and e.get("stage") == stage]
    return (
        [f"{own[-1]['most']} {own[-1]['unit']} at once: {own[-1]['was']} did not fit"]
        if own
        else []
    )

"""The manifest: a checkpoint exists when its manifest does, and is what its manifest says.

Pure: names, values, and their one spelling in JSON. The file is canonical JSON (sorted keys, no
spaces) with the sha256 of itself without that key. Every later format keeps these two rules, so
that a newer manifest can be told from a damaged one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields
from typing import Any

from tasuki.checkpoint.records import FileRecord
from tasuki.errors import CheckpointError, DamagedCheckpoint, NewerFormat
from tasuki.runs.atomic import FORMAT

MANIFEST_NAME = "manifest.json"
MAX_MANIFEST_BYTES = 8 * 2**20
"""Checksums of about 12 TB. A larger file is not one of ours."""

_NAME = re.compile(r"step-(\d{9,18})\.c(\d{1,18})(?:\.s(\d{1,9}))?", re.ASCII)
_BEST = re.compile(r"best-\d{9,18}-[0-9a-f]{12}\.safetensors", re.ASCII)
_FROZEN = re.compile(r"[0-9a-f]{32}\.safetensors", re.ASCII)
_PART = re.compile(r"part-(\d{5,9})\.(?:json|safetensors)", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Position:
    """Where a run stands. A stage starts at its step 0, which is its first checkpoint."""

    stage: str
    stage_number: int
    """From 1."""
    step: int
    """Run-wide, over all stages."""
    stage_step: int
    epoch: int
    samples: int
    """Of the stage."""
    is_start: bool
    is_end: bool

    def __post_init__(self) -> None:
        if self.stage_number < 1 or min(self.stage_step, self.epoch, self.samples) < 0:
            raise CheckpointError(f"impossible position: {self}")
        if self.step < self.stage_step or self.is_start != (self.stage_step == 0):
            # Only starts are named for their stage: another step 0 would take the name of the
            # end of the stage before.
            raise CheckpointError(f"impossible position: {self}")
        if self.is_start and self.is_end:
            raise CheckpointError(f"a stage that starts is not at its end: {self}")


@dataclass(frozen=True, slots=True)
class ParsedName:
    """What a checkpoint's name says."""

    step: int
    claim: int
    start_of: int | None
    """The number of the stage that starts here."""

    @property
    def order(self) -> tuple[int, int]:
        """Of one claim's checkpoints in time: a stage starts after the last one ended."""
        return (self.step, self.start_of or 0)

    def __str__(self) -> str:
        start = f".s{self.start_of}" if self.start_of is not None else ""
        return f"step-{self.step:09d}.c{self.claim}{start}"


def checkpoint_name(position: Position, claim: int) -> str:
    """`step-000001200.c7`, or `step-000001200.c7.s2` for the start of stage 2."""
    start_of = position.stage_number if position.is_start else None
    return str(ParsedName(position.step, claim, start_of))


def parse_name(text: str) -> ParsedName | None:
    """A checkpoint's name taken apart; None if it is no such name."""
    match = _NAME.fullmatch(text)
    if match is None:
        return None
    start_of = int(match[3]) if match[3] else None
    parsed = ParsedName(int(match[1]), int(match[2]), start_of)
    is_ours = str(parsed) == text and parsed.claim > 0 and start_of != 0
    return parsed if is_ours else None


def part_files(part: int) -> tuple[str, str]:
    """Names of a part's tree and of its tensors."""
    return f"part-{part:05d}.json", f"part-{part:05d}.safetensors"


def check_best(told: object) -> None:
    """The best weights so far, as a checkpoint names them: a file of ours, in its stage's folder.

    The name becomes a path that is read, and written when a run goes back; a checkpoint may come
    from others.
    """
    if told is None:
        return
    if not isinstance(told, dict) or type(told.get("step")) is not int:
        raise DamagedCheckpoint("the best weights that it names have no step")
    file, sha256 = told.get("file"), told.get("sha256", "")
    if not isinstance(file, str) or not _BEST.fullmatch(file) or not isinstance(sha256, str):
        raise DamagedCheckpoint(f"the best weights that it names are no file of ours: {file!r:.80}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """What a checkpoint is, and what its files must be."""

    experiment: str
    position: Position
    claim: int
    parent: str | None
    """The checkpoint before it in its lineage."""
    world: int
    """Ranks that trained."""
    parts: int
    files: tuple[FileRecord, ...]
    created_at: str
    facts: dict[str, Any]
    frozen: tuple[FileRecord, ...] = ()
    """Files with frozen parameters, shared with other checkpoints; in a folder beside them."""
    format: int = FORMAT

    def __post_init__(self) -> None:
        if self.claim < 1 or self.world < 1 or self.parts < 1:
            raise DamagedCheckpoint("the manifest counts less than one claim, rank or part")
        if self.parent is not None and parse_name(self.parent) is None:
            raise DamagedCheckpoint(f"the manifest's parent is no checkpoint: {self.parent[:80]!r}")
        if not all(_FROZEN.fullmatch(record.name) for record in self.frozen):
            raise DamagedCheckpoint("the manifest names frozen parameters that are no file of ours")
        check_best(self.facts.get("best"))
        if len(self.files) != 2 * self.parts:
            raise DamagedCheckpoint("the manifest's files are not the files of its parts")
        expected = [name for part in range(self.parts) for name in part_files(part)]
        if [record.name for record in self.files] != expected:
            raise DamagedCheckpoint("the manifest's files are not the files of its parts")

    @property
    def name(self) -> str:
        return checkpoint_name(self.position, self.claim)

    def render(self) -> bytes:
        """The file's content."""
        value = {
            **asdict(self.position),
            **{key: getattr(self, key) for key in _PLAIN},
            "files": [record.to_json() for record in self.files],
        }
        if self.frozen:
            value["frozen"] = [record.to_json() for record in self.frozen]
        try:
            if json.loads(json.dumps(self.facts)) != self.facts:
                raise ValueError("they come back from JSON as something else")
            return _canonical({**value, "sha256": _digest(value)})
        except (TypeError, ValueError) as error:
            raise CheckpointError(
                f"the facts of {self.name} cannot be written: {error}",
                hint="use str keys, and finite numbers, strings, lists and dicts as values",
            ) from error


_TYPES = {
    "experiment": str, "claim": int, "world": int, "parts": int, "created_at": str, "facts": dict,
    "stage": str, "stage_number": int, "step": int, "stage_step": int, "epoch": int,
    "samples": int, "is_start": bool, "is_end": bool, "files": list, "format": int,
}  # fmt: skip
_PARTS = ("position", "files", "frozen")
_PLAIN = [field.name for field in fields(Manifest) if field.name not in _PARTS]
_POSITION = [field.name for field in fields(Position)]


def sort_records(records: Iterable[FileRecord]) -> tuple[FileRecord, ...]:
    """In the manifest's order: by part, the tree first."""

    def key(record: FileRecord) -> tuple[int, str]:
        match = _PART.fullmatch(record.name)
        return (int(match[1]) if match else -1, record.name)

    return tuple(sorted(records, key=key))


def parse_manifest(raw: bytes) -> Manifest:
    """Read a manifest; every changed byte is found."""
    try:
        value = json.loads(raw)
        if not isinstance(value, dict):
            raise DamagedCheckpoint("the manifest is no JSON object")
        content = {key: item for key, item in value.items() if key != "sha256"}
        # The digest finds every change of content; the comparison also one of spelling.
        is_whole = value.get("sha256") == _digest(content) and _canonical(value) == raw
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"the manifest is damaged: {error}") from error
    if not is_whole:
        raise DamagedCheckpoint("the manifest is damaged: its sha256 is another")
    _check_format(content.get("format"))
    _check_types(content)
    try:
        position = Position(**{key: content[key] for key in _POSITION})
    except DamagedCheckpoint:
        raise
    except CheckpointError as error:
        raise DamagedCheckpoint(f"the manifest is damaged: {error}") from error
    files = tuple(FileRecord.from_json(item) for item in content["files"])
    frozen = content.get("frozen", [])
    if not isinstance(frozen, list):
        raise DamagedCheckpoint("the manifest's frozen files are no list")
    return Manifest(
        position=position,
        files=files,
        frozen=tuple(FileRecord.from_json(item) for item in frozen),
        **{key: content[key] for key in _PLAIN},
    )


def _check_format(found: object) -> None:
    if type(found) is int and found > FORMAT:
        raise NewerFormat(
            f"the manifest has format {found}; this tasuki reads up to {FORMAT}",
            hint="use the tasuki that wrote it, or a newer one",
        )
    if found != FORMAT:
        raise DamagedCheckpoint(f"the manifest has the unknown format {str(found)[:40]}")


def _check_types(content: dict[str, Any]) -> None:
    for key, kind in _TYPES.items():
        if type(content.get(key)) is not kind:
            raise DamagedCheckpoint(f"the manifest has no {key}")
    if "parent" not in content or not isinstance(content["parent"], (str, type(None))):
        raise DamagedCheckpoint("the manifest has no parent")


def _canonical(value: dict[str, Any]) -> bytes:
    text = json.dumps(
        value, ensure_ascii=False, allow_nan=False, sort_keys=True, separators=(",", ":")
    )
    return text.encode() + b"\n"


def _digest(value: dict[str, Any]) -> str:
    return hashlib.sha256(_canonical(value)).hexdigest()

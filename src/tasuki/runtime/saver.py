"""Commit a checkpoint from all ranks: each writes its part, rank 0 publishes when all are there."""

from __future__ import annotations

import json
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch.distributed import Store

from tasuki.checkpoint.commit import Checkpoint, discard_draft, open_draft, publish
from tasuki.checkpoint.manifest import Position
from tasuki.checkpoint.parts import write_part
from tasuki.checkpoint.records import FileRecord
from tasuki.clock import Clock
from tasuki.errors import ClaimLost, RunError, StoreError, TasukiError
from tasuki.store.runs import RunFolder

_PARTS_WITHIN = timedelta(minutes=30)


class Saver:
    """The writing side of checkpoints for one attempt."""

    def __init__(
        self,
        run: RunFolder,
        *,
        claim: int,
        rank: int,
        world: int,
        store: Store | None,
        clock: Clock,
    ) -> None:
        self._run = run
        self._claim = claim
        self._rank = rank
        self._world = world
        self._store = store
        self._clock = clock
        self._count = 0

    def save(
        self,
        position: Position,
        state: dict[str, Any],
        *,
        parent: str | None,
        facts: dict[str, Any],
    ) -> Checkpoint | None:
        """Called by every rank at the same step; returns when the commit is durable.

        Rank 0 gets the checkpoint, the others None.
        """
        self._count += 1
        if self._rank == 0:
            return self._lead(position, state, parent, facts)
        self._follow(state)
        return None

    def _lead(
        self, position: Position, state: dict[str, Any], parent: str | None, facts: dict[str, Any]
    ) -> Checkpoint:
        draft: Path | None = None
        try:
            draft = open_draft(self._run, claim=self._claim, position=position)
            self._tell("draft", {"name": draft.name})
            records = write_part(draft, 0, state)
            for rank in range(1, self._world):
                records += self._hear_part(rank)
            checkpoint = publish(
                self._run,
                draft,
                position=position,
                claim=self._claim,
                parent=parent,
                world=self._world,
                records=records,
                facts=facts,
                created_at=self._clock.wall(),
            )
        except TasukiError as error:
            if draft is not None:
                discard_draft(draft)
            self._tell("draft", _failure(error))
            self._tell("committed", _failure(error))
            raise
        self._tell("committed", {"name": checkpoint.name})
        return checkpoint

    def _follow(self, state: dict[str, Any]) -> None:
        draft = _checked(self._hear("draft"))
        try:
            records = write_part(self._run.checkpoints / draft["name"], self._rank, state)
        except TasukiError as error:
            self._tell(f"part/{self._rank}", _failure(error))
            raise
        self._tell(f"part/{self._rank}", {"records": [record.to_json() for record in records]})
        _checked(self._hear("committed"))

    def _hear_part(self, rank: int) -> list[FileRecord]:
        value = _checked(self._hear(f"part/{rank}"))
        return [FileRecord.from_json(record) for record in value["records"]]

    def _tell(self, what: str, value: dict[str, Any]) -> None:
        if self._store is not None:
            self._store.set(self._key(what), json.dumps(value))

    def _hear(self, what: str) -> dict[str, Any]:
        assert self._store is not None
        key = self._key(what)
        self._store.wait([key], _PARTS_WITHIN)
        value: dict[str, Any] = json.loads(self._store.get(key))
        return value

    def _key(self, what: str) -> str:
        return f"tasuki/save/{self._count}/{what}"


def _failure(error: TasukiError) -> dict[str, Any]:
    return {"error": type(error).__name__, "message": error.message, "hint": error.hint}


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    """Another rank's failure becomes ours, of the same kind."""
    if "error" not in value:
        return value
    kinds: dict[str, type[TasukiError]] = {"ClaimLost": ClaimLost, "StoreError": StoreError}
    raise kinds.get(value["error"], RunError)(value["message"], hint=value["hint"])

"""The work folder of tokens that are not finished: what a later call need not do again.

    .<output>.partial/
      lock               held by the process that works here
      journal.json       how far the stream is; replaced only after that is on the disk
      new/               what becomes the output, by one rename

Where the stream stands is a number of tokens and a place in a source, so going back to the begin of
a source that changed is going back to the tokens before it.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tasuki.data.tokens.sources import Source
from tasuki.errors import StoreError
from tasuki.store.atomic import (
    FORMAT,
    fsync_folder,
    make_folder,
    read_json_or_none,
    remove_tree,
    translated,
    write_json,
)
from tasuki.store.locks import take_lock

Say = Callable[[str], None]
Counts = dict[str, Any]
"""Of one source: `documents`, `tokens`, `empty`, `skipped`."""


def no_counts() -> Counts:
    return {"documents": 0, "tokens": 0, "empty": 0, "skipped": 0, "first_skipped": []}


class Journal:
    """How far the work is, in memory and in the work folder, which this process holds."""

    def __init__(self, folder: Path, *, say: Say) -> None:
        self.folder, self._say = folder, say
        self._made_parent = not folder.parent.exists()
        with translated(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        self._lock = take_lock(folder / "lock")
        self._value = self._read()

    @property
    def new(self) -> Path:
        """What becomes the output."""
        return self.folder / "new"

    @property
    def is_blank(self) -> bool:
        """Whether nothing in here would spare a later call anything."""
        return not self._path.exists()

    @property
    def is_publishing(self) -> bool:
        """Whether the output is complete, and may have its name."""
        return bool(self._value.get("publishing"))

    @property
    def key(self) -> str | None:
        """Of what is being made (tokenize.py)."""
        found = self._value.get("key")
        return found if isinstance(found, str) else None

    @property
    def trained(self) -> dict[str, Any] | None:
        """{key, size, end} of a tokenizer that an earlier call trained."""
        found: dict[str, Any] | None = self._value.get("trained")
        return found

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Those begun, in order: `path`, `stamp`, `counts`; only the last may be unfinished."""
        found: list[dict[str, Any]] = self._value.setdefault("sources", [])
        return found

    @property
    def hashes(self) -> list[str]:
        return list(self._value.get("hashes", []))

    @property
    def tokens(self) -> int:
        return sum(int(one["counts"]["tokens"]) for one in self.sources)

    @property
    def place(self) -> tuple[int, int] | None:
        """(Place, row) where the last source goes on; None: it is finished."""
        found = self._value.get("place")
        return None if found is None else (int(found[0]), int(found[1]))

    def discard(self) -> None:
        """Of another output, which has its name already or is not wanted any more."""
        remove_tree(self.new)
        self._path.unlink(missing_ok=True)
        self._value = {"format": FORMAT}

    def start_over(self, key: str) -> None:
        trained = self._value.get("trained")
        self._value = {"format": FORMAT, "key": key, "sources": [], "hashes": [], "place": None}
        if trained is not None:
            self._value["trained"] = trained

    def keep_trained(self, facts: dict[str, Any]) -> None:
        self._value["trained"] = facts
        self._write()

    def drop_changed(self, sources: Sequence[Source]) -> None:
        """Go back to before the first source that is not what it was, aloud."""
        for number, kept in enumerate(self.sources):
            now = sources[number] if number < len(sources) else None
            if now is not None and kept["path"] == str(now.path) and kept["stamp"] == now.stamp:
                continue
            if now is not None and kept["path"] == str(now.path):
                self._say(
                    f"`{now.path}` changed since the call that was interrupted: "
                    "tokenising it, and what follows, again"
                )
            else:
                self._say(
                    f"`{kept['path']}` is not the next file any more: tokenising what follows again"
                )
            del self.sources[number:]
            self._value["place"] = None
            return

    def is_about(self, sources: Sequence[Source]) -> bool:
        """Whether these sources are those that were read, all of them."""
        now = [(str(source.path), source.stamp) for source in sources]
        return now == [(kept["path"], kept["stamp"]) for kept in self.sources]

    def begin(self, source: Source) -> Counts:
        """The next source; its counts, to be added to."""
        counts = no_counts()
        self.sources.append({"path": str(source.path), "stamp": source.stamp, "counts": counts})
        self._value["place"] = [0, 1]
        return counts

    def finish(self) -> None:
        """The last source was read to its end."""
        self._value["place"] = None

    def note(self, *, place: int, row: int) -> None:
        """Where the last source goes on."""
        self._value["place"] = [place, row]

    def keep(self, hashes: Sequence[str]) -> None:
        """On the disk: what was noted, and the hashes of full shards."""
        self._value["hashes"] = list(hashes)
        self._write()

    def keep_publishing(self) -> None:
        self._value["publishing"] = True
        self._write()

    def remove(self) -> None:
        """Nothing is left to do, or nothing can be done."""
        # Closed first: on NFS an open file that is deleted stays, and so would the folder.
        self.close()
        remove_tree(self.new)
        remove_tree(self.folder / "old")
        with translated(self.folder), contextlib.suppress(FileNotFoundError):
            # The journal last: as long as it is there, a second call finds that all is done.
            for path in self.folder.iterdir():
                if path != self._path:
                    path.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
            if self._made_parent:
                self.folder.parent.rmdir()

    def publish(self, output: Path) -> None:
        """Give the output its name, by one rename."""
        with translated(output):
            if self.new.exists():
                old = self.folder / "old"
                if output.exists() and not old.exists():
                    output.rename(old)
                self.new.rename(output)
            fsync_folder(output.parent)

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _path(self) -> Path:
        return self.folder / "journal.json"

    def _read(self) -> dict[str, Any]:
        try:
            value = read_json_or_none(self._path)
        except StoreError:
            self._say(f"the journal in `{self.folder}` cannot be read: starting over")
            value = None
        return value or {"format": FORMAT}

    def _write(self) -> None:
        write_json(self._path, self._value)

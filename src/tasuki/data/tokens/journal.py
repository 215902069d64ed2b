"""The work folder of tokens that are not finished: how far the stream is.

    .<output>.partial/
      lock, journal.json (runs/unfinished.py)
      new/               what becomes the output, by one rename

Where the stream stands is a number of tokens and a place in a source, so going back to the begin of
a source that changed is going back to the tokens before it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tasuki.data.tokens.sources import Source
from tasuki.runs.atomic import FORMAT, fsync_folder, remove_tree, translated
from tasuki.runs.unfinished import WorkFolder

Counts = dict[str, Any]
"""Of one source: `documents`, `tokens`, `empty`, `skipped`."""


def no_counts() -> Counts:
    return {"documents": 0, "tokens": 0, "empty": 0, "skipped": 0, "first_skipped": []}


class Journal(WorkFolder):
    """How far the work is, in memory and in the work folder."""

    @property
    def new(self) -> Path:
        """What becomes the output."""
        return self.folder / "new"

    @property
    def is_publishing(self) -> bool:
        """Whether the output is complete, and may have its name."""
        return bool(self.journal.get("publishing"))

    @property
    def key(self) -> str | None:
        """Of what is being made (tokenize.py)."""
        found = self.journal.get("key")
        return found if isinstance(found, str) else None

    @property
    def trained(self) -> dict[str, Any] | None:
        """{key, size, end} of a tokenizer that an earlier call trained."""
        found: dict[str, Any] | None = self.journal.get("trained")
        return found

    @property
    def sources(self) -> list[dict[str, Any]]:
        """Those begun, in order: `path`, `stamp`, `counts`; only the last may be unfinished."""
        found: list[dict[str, Any]] = self.journal.setdefault("sources", [])
        return found

    @property
    def hashes(self) -> list[str]:
        return list(self.journal.get("hashes", []))

    @property
    def tokens(self) -> int:
        return sum(int(one["counts"]["tokens"]) for one in self.sources)

    @property
    def place(self) -> tuple[int, int] | None:
        """(Place, row) where the last source goes on; None: it is finished."""
        found = self.journal.get("place")
        return None if found is None else (int(found[0]), int(found[1]))

    def discard(self) -> None:
        """Of another output, which has its name already or is not wanted any more."""
        remove_tree(self.new)
        self.discard_journal()

    def start_over(self, key: str) -> None:
        trained = self.journal.get("trained")
        self.journal = {"format": FORMAT, "key": key, "sources": [], "hashes": [], "place": None}
        if trained is not None:
            self.journal["trained"] = trained

    def keep_trained(self, facts: dict[str, Any]) -> None:
        self.journal["trained"] = facts
        self.write_journal()

    def drop_changed(self, sources: Sequence[Source]) -> None:
        """Go back to before the first source that is not what it was, aloud."""
        for number, kept in enumerate(self.sources):
            now = sources[number] if number < len(sources) else None
            if now is not None and kept["path"] == str(now.path) and kept["stamp"] == now.stamp:
                continue
            if now is not None and kept["path"] == str(now.path):
                self.say(
                    f"`{now.path}` changed since the call that was interrupted: "
                    "tokenising it, and what follows, again"
                )
            else:
                self.say(
                    f"`{kept['path']}` is not the next file any more: tokenising what follows again"
                )
            del self.sources[number:]
            self.journal["place"] = None
            return

    def is_about(self, sources: Sequence[Source]) -> bool:
        """Whether these sources are those that were read, all of them."""
        now = [(str(source.path), source.stamp) for source in sources]
        return now == [(kept["path"], kept["stamp"]) for kept in self.sources]

    def begin(self, source: Source) -> Counts:
        """The next source; its counts, to be added to."""
        counts = no_counts()
        self.sources.append({"path": str(source.path), "stamp": source.stamp, "counts": counts})
        self.journal["place"] = [0, 1]
        return counts

    def finish(self) -> None:
        """The last source was read to its end."""
        self.journal["place"] = None

    def note(self, *, place: int, row: int) -> None:
        """Where the last source goes on."""
        self.journal["place"] = [place, row]

    def keep(self, hashes: Sequence[str]) -> None:
        """On the disk: what was noted, and the hashes of full shards."""
        self.journal["hashes"] = list(hashes)
        self.write_journal()

    def keep_publishing(self) -> None:
        self.journal["publishing"] = True
        self.write_journal()

    def publish(self, output: Path) -> None:
        """Give the output its name, by one rename."""
        with translated(output):
            if self.new.exists():
                old = self.folder / "old"
                if output.exists() and not old.exists():
                    output.rename(old)
                self.new.rename(output)
            fsync_folder(output.parent)

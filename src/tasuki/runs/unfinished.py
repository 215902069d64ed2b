"""The work folder of an output that is not finished: what a later call need not do again.

    .<output>.partial/
      lock               held by the process that works here
      journal.json       what is done; replaced only after that is on the disk
      …                  whatever else the work needs

What a journal says is its owner's matter (`data.curate`, `data.tokens`). The folder is removed when
the output has its name.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import (
    FORMAT,
    make_folder,
    read_json_or_none,
    remove_tree,
    translated,
    write_json,
)
from tasuki.runs.locks import take_lock

Say = Callable[[str], None]


class WorkFolder:
    """One work folder and its journal, held by this process."""

    def __init__(self, folder: Path, *, say: Say) -> None:
        self.folder, self.say = folder, say
        self._made_parent = not folder.parent.exists()
        with translated(folder.parent):
            folder.parent.mkdir(parents=True, exist_ok=True)
        make_folder(folder)
        self._lock = take_lock(folder / "lock")
        self.journal: dict[str, Any] = self._read()

    @property
    def is_blank(self) -> bool:
        """Whether nothing in here would spare a later call anything."""
        return not self._path.exists()

    def write_journal(self) -> None:
        """As it is now, onto the disk."""
        write_json(self._path, self.journal)

    def discard_journal(self) -> None:
        """What it says is worth nothing any more."""
        self._path.unlink(missing_ok=True)
        self.journal = {"format": FORMAT}

    def remove(self) -> None:
        """Nothing is left to do, or nothing can be done."""
        # Closed first: on NFS an open file that is deleted stays, and so would the folder.
        self.close()
        with translated(self.folder), contextlib.suppress(FileNotFoundError):
            # The journal last: as long as it is there, a second call finds that all is done.
            for path in self.folder.iterdir():
                if path != self._path:
                    remove_tree(path) if path.is_dir() else path.unlink(missing_ok=True)
            self._path.unlink(missing_ok=True)
        with contextlib.suppress(OSError):
            self.folder.rmdir()
            if self._made_parent:
                self.folder.parent.rmdir()

    def close(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    @property
    def _path(self) -> Path:
        return self.folder / "journal.json"

    def _read(self) -> dict[str, Any]:
        try:
            found = read_json_or_none(self._path)
        except StoreError:
            self.say(f"the journal in `{self.folder}` cannot be read: starting over")
            found = None
        return found or {"format": FORMAT}

"""How much of a file system a person may fill: disk quotas of the runs folder.

`quota` (ext4, xfs, NFS) and `lfs quota` (Lustre) are asked, briefly, and print one table; other
file systems are not asked. Who has no quota, or no such program, has none that is known. The
parsers are pure and tested on recorded output. The rules are in doctor_rules.py.
"""

from __future__ import annotations

import os
import re
import stat
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_WITHIN_S = 5.0
"""A server of NFS that is away lets `quota` wait for much longer."""
_BLOCK = 1024
_BY_QUOTA = frozenset({"ext2", "ext3", "ext4", "xfs", "nfs", "nfs4"})
_HEAD = re.compile(r"Disk quotas for (\w+) (.+?) \(\w+ \S+\):", re.ASCII)
_OWNERS = {"usr": "user", "grp": "group", "prj": "project"}
"""Lustre's words."""
_NUMBER = r"\[?(\d+)\]?\*?"
"""A star: over its soft limit. In brackets: a part of Lustre did not answer."""
_COLUMNS = 2 * (_NUMBER, _NUMBER, _NUMBER, r"\S+")
"""Used, soft, hard, grace: of kbytes, then of files."""
# The file system's name before them may stand on a line of its own.
_ROW = re.compile(r"(?:^|\s)" + r"\s+".join(_COLUMNS) + r"\s*$", re.ASCII)
_PROJECT = re.compile(r"\s*(\d+)\s", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """Of bytes or of files: what is used, and what may be. None: without limit."""

    used: int
    soft: int | None
    """May be exceeded for some days only."""
    hard: int | None

    @property
    def limit(self) -> int | None:
        """What may be used for as long as one likes."""
        limits = [limit for limit in (self.soft, self.hard) if limit is not None]
        return min(limits, default=None)

    @property
    def left(self) -> float:
        """The part of the limit that is free; 1 without one."""
        return 1.0 if self.limit is None else max(0.0, 1 - self.used / self.limit)

    def as_json(self) -> dict[str, int | None]:
        return {"used": self.used, "soft": self.soft, "hard": self.hard, "limit": self.limit}


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """What a user, a group or a project may fill."""

    owner: str
    """`user alice`."""
    bytes: Share
    files: Share

    @property
    def is_limited(self) -> bool:
        return self.bytes.limit is not None or self.files.limit is not None

    @property
    def left(self) -> float:
        return min(self.bytes.left, self.files.left)

    def as_json(self) -> dict[str, Any]:
        return {"of": self.owner, "bytes": self.bytes.as_json(), "files": self.files.as_json()}


def parse_quotas(text: str) -> list[Quota]:
    """`quota -w -p` and `lfs quota`: a heading per owner, and a row with eight columns."""
    found: list[Quota] = []
    owner = ""
    for line in text.splitlines():
        if (head := _HEAD.search(line)) is not None:
            owner = f"{_OWNERS.get(head[1], head[1])} {head[2]}"
        elif owner and (row := _ROW.search(line)) is not None:
            numbers = [int(word) for word in row.groups()]
            kbytes, files = _share(*numbers[:3], unit=_BLOCK), _share(*numbers[3:], unit=1)
            found.append(Quota(owner=owner, bytes=kbytes, files=files))
    return found


def parse_project(text: str) -> str | None:
    """`lfs project -d FOLDER`: its number; None without one."""
    match = _PROJECT.match(text)
    return match[1] if match is not None and int(match[1]) else None


def tightest(quotas: Sequence[Quota]) -> Quota | None:
    """The one that is reached first."""
    limited = [quota for quota in quotas if quota.is_limited]
    return min(limited, key=lambda quota: quota.left, default=None)


def find_quota(
    folder: Path, *, mount: str, file_system: str, environment: Mapping[str, str]
) -> Quota | None:
    """The tightest that holds for what we write into a folder; None: none is known."""
    if file_system in _BY_QUOTA:
        told = _ask(["quota", "-w", "-p", "-u", "-g", "-f", mount], environment)
    elif file_system == "lustre":
        owners = [["-u", str(os.getuid())], ["-g", str(_group_of(folder))]]
        project = parse_project(_ask(["lfs", "project", "-d", str(folder)], environment))
        owners += [["-p", project]] if project is not None else []
        told = "\n".join(_ask(["lfs", "quota", *owner, mount], environment) for owner in owners)
    else:
        return None
    return tightest(parse_quotas(told))


def _group_of(folder: Path) -> int:
    """Whose the files there become."""
    found = folder.stat()
    return found.st_gid if found.st_mode & stat.S_ISGID else os.getgid()


def _share(used: int, soft: int, hard: int, *, unit: int) -> Share:
    return Share(used=used * unit, soft=soft * unit or None, hard=hard * unit or None)


def _ask(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What it prints. Its status says only whether something is over quota."""
    try:
        return subprocess.run(
            command,
            env={**environment, "LC_ALL": "C"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            errors="replace",
            timeout=_WITHIN_S,
            check=False,
        ).stdout
    except (OSError, subprocess.TimeoutExpired):
        return ""

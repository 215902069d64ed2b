"""What this machine offers to runs: CPUs, GPUs, shared memory, and the disk of the runs."""

from __future__ import annotations

import os
import platform
import re
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tasuki.commands.machine import look_around
from tasuki.runs.atomic import translated

_MOUNTS = Path("/proc/mounts")
_SHM = Path("/dev/shm")
_OCTAL = re.compile(r"\\([0-7]{3})", re.ASCII)


def describe_machine(*, python: str, environment: Mapping[str, str]) -> dict[str, Any]:
    machine = look_around(dict(environment))
    return {
        "host": socket.gethostname(),
        "cpus": machine.cpus,
        "gpus": machine.gpus,
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "shm_bytes": shutil.disk_usage(_SHM).total if _SHM.is_dir() else None,
        "python": python,
        "python_version": platform.python_version(),
    }


def describe_runs(folder: Path) -> dict[str, Any]:
    """Where runs go, or would go; nothing is made."""
    with translated(folder):
        there = next(path for path in [folder, *folder.parents] if path.exists())
        disk = os.statvfs(there)
        mounts = _MOUNTS.read_text(errors="replace") if _MOUNTS.exists() else ""
        mount, kind = mount_of(str(there.resolve()), mounts)
    return {
        "folder": str(folder),
        "exists": folder.is_dir(),
        "is_writable": there.is_dir() and os.access(there, os.W_OK | os.X_OK),
        "mount": mount,
        "file_system": kind,
        "free_bytes": disk.f_bavail * disk.f_frsize,
        "total_bytes": disk.f_blocks * disk.f_frsize,
        "free_files": disk.f_favail if disk.f_files else None,
    }


def mount_of(path: str, mounts: str) -> tuple[str, str]:
    """Mount point and type of the file system that holds a path; the last one there counts."""
    best = ("", "unknown")
    for line in mounts.splitlines():
        words = line.split(" ")
        if len(words) < 3:
            continue
        point = _OCTAL.sub(lambda match: chr(int(match[1], 8)), words[1])
        inside = path == point or path.startswith(point.rstrip("/") + "/")
        if inside and len(point) >= len(best[0]):
            best = (point, words[2])
    return best

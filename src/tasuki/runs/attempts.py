"""What is written down about an attempt: who holds the claim, and how it ended."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.runs.atomic import FORMAT, read_json_or_none, shaped, write_json
from tasuki.runs.claims import claim_folder, list_claims
from tasuki.runs.runs import RunFolder


@dataclass(frozen=True, slots=True)
class Holder:
    """The supervisor process that took a claim."""

    claim: int
    host: str
    pid: int
    born: str
    """The process's start time as the kernel counts it: a pid alone may be another process."""
    job: str
    start: int
    at: float

    def is_alive(self) -> bool | None:
        """True or False on its own host (False after a reboot), None elsewhere."""
        here, there = host_id().split(":"), self.host.split(":")
        if here[0] != there[0]:
            return None
        return here == there and bool(self.born) and process_birth(self.pid) == self.born


def host_id() -> str:
    """This host since its last boot."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()[:8]
    except OSError:
        boot = "?"
    return f"{socket.gethostname()}:{boot}"


def process_birth(pid: int) -> str:
    """When a process was born, in clock ticks since boot; empty when it is gone or a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in ("Z", "X") else fields[19]


def write_holder(run: RunFolder, claim: int, *, job: str, start: int, at: float) -> None:
    write_json(
        claim_folder(run, claim) / "holder.json",
        {
            "format": FORMAT,
            "host": host_id(),
            "pid": os.getpid(),
            "born": process_birth(os.getpid()),
            "job": job,
            "start": start,
            "at": at,
        },
    )


def read_holder(run: RunFolder, claim: int) -> Holder | None:
    path = claim_folder(run, claim) / "holder.json"
    value = read_json_or_none(path)
    if value is None:
        return None
    with shaped(path):
        return Holder(
            claim=claim,
            host=str(value.get("host")),
            pid=int(value.get("pid", 0)),
            born=str(value.get("born")),
            job=str(value.get("job", "")),
            start=int(value.get("start", 0)),
            at=float(value.get("at", 0)),
        )


def write_attempt_end(run: RunFolder, claim: int, value: dict[str, Any]) -> None:
    write_json(claim_folder(run, claim) / "end.json", {"format": FORMAT, "claim": claim, **value})


def read_attempt_end(run: RunFolder, claim: int) -> dict[str, Any] | None:
    return read_json_or_none(claim_folder(run, claim) / "end.json")


def read_attempt_ends(run: RunFolder) -> dict[int, dict[str, Any] | None]:
    """How every attempt ended; None for one that is running or died without a word."""
    return {claim: read_attempt_end(run, claim) for claim in list_claims(run)}


def write_runner(run: RunFolder) -> None:
    """Write down the `tasuki run` that works on a run, for the gaps between its attempts."""
    pid = os.getpid()
    facts = {"host": host_id(), "pid": pid, "born": process_birth(pid)}
    write_json(run.runner, {"format": FORMAT, **facts})


def forget_runner(run: RunFolder) -> None:
    """This process works on the run no more; another's word stays."""
    value = read_json_or_none(run.runner)
    if value is not None and (value.get("host"), value.get("pid")) == (host_id(), os.getpid()):
        with contextlib.suppress(OSError):
            run.runner.unlink(missing_ok=True)


def live_runner(run: RunFolder) -> int | None:
    """The process id of another `tasuki run` on this host that works on the run."""
    value = read_json_or_none(run.runner)
    if value is None or value.get("host") != host_id() or value.get("pid") == os.getpid():
        return None
    is_alive = bool(value.get("born")) and process_birth(int(value["pid"])) == value["born"]
    return int(value["pid"]) if is_alive else None

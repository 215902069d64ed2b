"""What Slurm's commands print, as values.

Pure, and tested on recorded output. Names and comments are free text that may hold anything, even
`JobState=RUNNING`: they are taken apart first, so that nothing in them is mistaken for a field.
(Over several lines they might; tasuki's own have one.)
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime

from tasuki.errors import TasukiError

QUEUE_FORMAT = "%i|%T|%r|%P|%S|%e|%k"
"""For `squeue -o`; the comment, which is free text, comes last."""
NODES_FORMAT = "%R|%D|%c|%m|%G"
"""For `sinfo -e -o`: a partition, how many of its nodes are alike, and what each of them has."""
_FREE_TEXT = frozenset(
    {
        *("JobName", "Comment", "AdminComment", "SystemComment", "Extra", "Command", "WorkDir"),
        *("StdErr", "StdIn", "StdOut", "MailUser", "SubmitLine", "Licenses", "Features"),
    }
)
_JOB = re.compile(r"\s*\d+(?:[_+]\S*)?\|[A-Z_]+\|", re.ASCII)
_FIELD = re.compile(r"(?:^|\s)([A-Z][\w:/]*)=(\S*)", re.ASCII)
_FIRST = re.compile(r"\s*([A-Z][\w:/]*)=(.*)", re.ASCII)
_DURATION = re.compile(r"(?:(\d+)-)?(\d+)(?::(\d+))?(?::(\d+))?", re.ASCII)
_SECONDS = re.compile(r"(\d+) sec", re.ASCII)
_VERSION = re.compile(r"slurm(?:-wlm)? (\d+)\.(\d+)(?:\.(\d+))?", re.ASCII)
_NOTHING = frozenset({"", "None", "N/A", "Unknown", "(null)", "UNKNOWN"})


class UnknownWords(TasukiError):
    """Slurm printed something that is not understood."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownJob:
    """A job as `scontrol show job` shows it."""

    number: str
    state: str
    reason: str
    restarts: int
    run_s: float
    limit_s: float | None
    """None: without limit."""
    starts: float | None
    ends: float | None
    """On the controller's clock, in seconds; only differences mean something here."""
    preempted_at: float | None = None
    """On the same clock."""

    @property
    def is_preempted(self) -> bool:
        return self.preempted_at is not None

    @property
    def remaining_s(self) -> float | None:
        """From one answer, so that no clock is compared with another; None: not known."""
        if self.starts is None or self.ends is None:
            return None
        return self.ends - self.starts - self.run_s


@dataclass(frozen=True, slots=True, kw_only=True)
class QueuedJob:
    """A job as `squeue -o QUEUE_FORMAT` lists it."""

    number: str
    state: str
    reason: str
    partition: str
    starts: float | None
    ends: float | None
    comment: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownPartition:
    """A partition as `scontrol show partition` shows it."""

    name: str
    is_default: bool
    is_up: bool
    longest_s: float | None
    """None: without limit."""
    grace_s: float
    preempt_mode: str
    tier: int
    nodes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownNodes:
    """Nodes of a partition that have the same, as `sinfo -e -o NODES_FORMAT` lists them."""

    partition: str
    count: int
    cpus: int
    memory_bytes: int
    gpus: Mapping[str, int]
    """Kind ("" without one) → how many on each."""


def parse_job(text: str) -> ShownJob:
    """The first job of `scontrol show job`; of an array task too."""
    fields = dict(_fields(text))
    try:
        return ShownJob(
            number=fields["JobId"],
            state=fields["JobState"],
            reason=_or_empty(fields.get("Reason", "")),
            restarts=int(fields.get("Restarts", 0)),
            run_s=parse_duration(fields["RunTime"]) or 0.0,
            limit_s=parse_duration(fields["TimeLimit"]),
            starts=parse_time(fields["StartTime"]),
            ends=parse_time(fields["EndTime"]),
            preempted_at=parse_time(fields.get("PreemptTime", "")),
        )
    except (KeyError, ValueError) as error:
        raise _not_understood("scontrol show job", text) from error


def parse_queue(text: str) -> list[QueuedJob]:
    """A comment may have several lines: only what looks like a job begins a new one."""
    records: list[str] = []
    for line in text.split("\n"):
        if not records or _JOB.match(line):
            records.append(line)
        else:
            records[-1] += f"\n{line}"
    return [_queued(record) for record in records if record.strip()]


def _queued(line: str) -> QueuedJob:
    try:
        number, state, reason, partition, starts, ends, comment = line.split("|", 6)
        return QueuedJob(
            number=number.strip(),
            state=state,
            reason=_or_empty(reason),
            partition=partition,
            starts=parse_time(starts),
            ends=parse_time(ends),
            comment=_or_empty(comment.rstrip("\n")),
        )
    except ValueError as error:
        raise _not_understood("squeue", line) from error


def parse_partitions(text: str) -> list[ShownPartition]:
    found = []
    for block in re.split(r"\n\s*\n", text.strip()):
        fields = dict(_fields(block))
        try:
            found.append(
                ShownPartition(
                    name=fields["PartitionName"],
                    is_default=fields.get("Default") == "YES",
                    is_up=fields.get("State") == "UP",
                    longest_s=parse_duration(fields["MaxTime"]),
                    grace_s=float(fields.get("GraceTime", 0)),
                    preempt_mode=fields.get("PreemptMode", "OFF"),
                    tier=int(fields.get("PriorityTier", 1)),
                    nodes=int(fields.get("TotalNodes", 0)),
                )
            )
        except (KeyError, ValueError) as error:
            raise _not_understood("scontrol show partition", block) from error
    return found


def parse_nodes(text: str) -> list[ShownNodes]:
    """A partition without nodes has a line of zeros."""
    return [_nodes(line) for line in text.split("\n") if line.strip()]


def _nodes(line: str) -> ShownNodes:
    try:
        partition, count, cpus, megabytes, gres = line.strip().split("|", 4)
        return ShownNodes(
            partition=partition,
            count=int(count),
            cpus=int(cpus.rstrip("+")),  # `4+`: this much at least
            memory_bytes=int(megabytes.rstrip("+")) << 20,
            gpus=_parse_gpus(gres),
        )
    except ValueError as error:
        raise _not_understood("sinfo", line) from error


def _parse_gpus(gres: str) -> dict[str, int]:
    """`gpu:a100:4(S:0-1),gpu:2`: kind → number."""
    kinds: dict[str, int] = {}
    for word in re.sub(r"\([^)]*\)", "", gres).split(","):
        name, *rest = word.split(":")
        if name == "gpu":
            number = int(rest[-1]) if rest and rest[-1].isdecimal() else 1
            kind = rest[0] if rest and not rest[0].isdecimal() else ""
            kinds[kind] = max(number, kinds.get(kind, 0))
    return kinds


def most_gpus(nodes: Iterable[ShownNodes]) -> dict[str, dict[str, int]]:
    """Partition → kind of GPU → the most on one of its nodes."""
    found: dict[str, dict[str, int]] = {}
    for one in nodes:
        kinds = found.setdefault(one.partition, {})
        for kind, number in one.gpus.items():
            kinds[kind] = max(number, kinds.get(kind, 0))
    return found


def parse_settings(text: str) -> dict[str, str]:
    """`scontrol show config`: a line per setting."""
    pairs = (line.partition(" = ") for line in text.split("\n"))
    return {key.strip(): value.strip() for key, found, value in pairs if found}


def parse_version(text: str) -> tuple[int, int, int]:
    """`sinfo --version`."""
    match = _VERSION.search(text)
    if match is None:
        raise _not_understood("sinfo --version", text)
    return int(match[1]), int(match[2]), int(match[3] or 0)


def parse_duration(text: str) -> float | None:
    """`1-02:03:04`, `02:03:04`, `03:04` (minutes first) or `5` (minutes); None: no limit."""
    if text in ("UNLIMITED", "INFINITE", "NONE") or text in _NOTHING:
        return None
    match = _DURATION.fullmatch(text)
    if match is None:
        raise ValueError(f"no duration: {text[:80]!r}")
    parts = [int(part) for part in match.groups()[1:] if part is not None]
    days = int(match[1]) if match[1] else 0
    if match[1]:  # D-H, D-H:M, D-H:M:S
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return float(((days * 24 + hours) * 60 + minutes) * 60 + seconds)


def parse_seconds(text: str) -> float | None:
    """`30 sec` of `scontrol show config`."""
    match = _SECONDS.fullmatch(text.strip())
    return float(match[1]) if match else None


def parse_time(text: str) -> float | None:
    """`2026-11-16T07:16:38` in local time, as seconds; None where there is none."""
    if text in _NOTHING:
        return None
    return datetime.fromisoformat(text).timestamp()


def _fields(text: str) -> Iterator[tuple[str, str]]:
    """`Key=value` of the first job or partition; a free text ends with its line."""
    for number, line in enumerate(text.strip("\n").split("\n")):
        if number and line.startswith(("JobId=", "PartitionName=")):
            return  # the next one
        yield from _fields_of(line)


def _fields_of(line: str) -> Iterator[tuple[str, str]]:
    first = _FIRST.match(line)
    if first is not None and first[1] in _FREE_TEXT:
        yield first[1], first[2].strip()
        return
    for match in _FIELD.finditer(line):
        if match[1] in _FREE_TEXT:
            yield match[1], line[match.start(2) :].strip()
            return
        yield match[1], match[2]


def _or_empty(text: str) -> str:
    return "" if text in _NOTHING else text


def _not_understood(command: str, text: str) -> UnknownWords:
    return UnknownWords(
        f"`{command}` printed something that is not understood: {text.strip()[:200]!r}",
        hint="please report it with the version of Slurm (`sinfo --version`)",
    )

"""Four writers on one run, system call by system call, with zombies that wake up too late.

One call of one writer at a time: the order is drawn by a seeded generator, so that a race that goes
wrong comes again. A zombie is held in the middle of its work until a successor has committed, as if
it had been stopped, or its node had been thought dead. While they race, every removal and every
marker is looked at; afterwards the run must be what the claims say.
"""

from __future__ import annotations

import functools
import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.harness.syscalls import END, Call, Child, fork_watched
from tests.resume.storage.driver import KEEP, _train_stage, begin_attempt, memory, save
from tests.resume.storage.invariants import _of_checkpoint, _of_marker

from tasuki.checkpoint.lineage import find_latest, lineage, list_checkpoints
from tasuki.checkpoint.manifest import parse_name
from tasuki.checkpoint.retention import prune
from tasuki.clock import SystemClock
from tasuki.errors import ClaimLost, TasukiError
from tasuki.runs.atomic import FORMAT, read_json, write_json
from tasuki.runs.claims import highest_claim, parent_of
from tasuki.runs.finish import finish_run
from tasuki.runs.runs import RunFolder

_WRITERS = 4
_SAVES = 2


# -- the writers ----------------------------------------------------------------------------------


def _write(run: RunFolder, orders: int, teller: int) -> None:
    """In each child: one attempt per order, as a supervisor and its rank do it."""

    def tell(text: str) -> None:
        os.write(teller, text.replace("\n", " ").encode() + b"\n")

    while os.read(orders, 1):
        held: list[int] = []
        try:
            _attempt(run, tell, held)
        except ClaimLost:
            tell("LOST .")
        except TasukiError as error:
            # Who was overtaken may find its draft swept; the one who holds the run may not fail.
            is_overtaken = held and highest_claim(run) > held[-1]
            tell("LOST ." if is_overtaken else f"ERROR {type(error).__name__} {error}")
        except BaseException as error:
            tell(f"BUG {type(error).__name__} {error}")
        os.write(teller, b"END ." + END)


def _attempt(run: RunFolder, tell: Callable[[str], None], held: list[int]) -> None:
    if run.is_complete():
        return
    claim, latest = begin_attempt(run, on_claim=held.append)
    for _ in range(_SAVES):
        # Earlier claims take larger steps: by number, what a zombie commits would be the latest.
        step = (latest.manifest.position.step if latest else 0) + 10 ** max(0, 4 - claim)
        latest = save(run, step, claim=claim, parent=latest.name if latest else None)
        tell(f"ACK {claim} {latest.name}")
        prune(run, claim=claim, keep=KEEP)
    finish_run(run, claim=claim, clock=SystemClock())
    tell(f"MARKER {claim}")


# -- one race -------------------------------------------------------------------------------------


@dataclass
class Race:
    """What has happened so far, in the order in which it happened."""

    run: RunFolder
    violations: list[str] = field(default_factory=list)
    parents: dict[int, str | None] = field(default_factory=dict)
    """By claim: what it went on from, as soon as that is written down."""
    appeared: list[str] = field(default_factory=list)
    """Checkpoints, as they got their names."""
    stale: set[str] = field(default_factory=set)
    """Those that appeared when a successor had gone on from something else."""
    late: set[str] = field(default_factory=set)
    """Those that appeared when a successor had taken the run: it may have seen them, or not."""
    safe: dict[int, list[str]] = field(default_factory=dict)
    """By claim: what had been acknowledged when it was taken."""
    acknowledged: list[tuple[int, str]] = field(default_factory=list)
    looked: dict[int, int] = field(default_factory=dict)
    """By writer: the highest claim when it last looked."""
    holders: dict[int, int] = field(default_factory=dict)
    """By writer: its own claim."""
    marker: tuple[int, bytes] | None = None
    num_lost: int = 0
    num_zombies: int = 0

    def before(self, call: Call) -> None:
        """A call is about to be done."""
        place, writer = _place(call), call.child.pid
        if place in ("commit", "prune"):
            # Whoever commits or removes has just looked who holds the run, and it was not another.
            name, last = Path(call.paths[-1]).name, Path(call.paths[0]).name
            seen = self.looked.pop(writer, None)
            own = self.holders.get(writer, 0)
            if seen is None or seen > own:
                self.violations.append(f"claim {own} did not see {seen} before {last} → {name}")
            highest = max(self._claims(), default=0)
            if place == "prune" and last == self.parents.get(highest):
                self.violations.append(f"{last}, the parent of claim {highest}, was pruned")
        if call.kind.startswith("open"):
            if call.paths[0] == str(self.run.claims):
                self.looked[writer] = max(self._claims(), default=0)
            elif call.paths[0].endswith("/manifest.json"):
                self.looked.pop(writer, None)  # it must look again after that

    def after(self, call: Call) -> None:
        """It is done."""
        target = Path(call.paths[-1])
        if call.kind.startswith("rename") and parse_name(target.name) and target.exists():
            self.appeared.append(target.name)
            claim = _claim(target.name)
            if any(other > claim for other in self.safe):
                self.late.add(target.name)
            if any(other > claim for other in self.parents):
                self.stale.add(target.name)
        if call.kind.startswith("mkdir") and target.parent == self.run.claims and target.exists():
            names = [name for _, name in self.acknowledged if name not in self.late]
            self.safe.setdefault(int(target.name), names)
        if call.kind.startswith("rename") and target.name == "holder.json" and target.exists():
            claim = int(target.parent.name)
            if claim in self.holders.values():
                self.violations.append(f"two writers have claim {claim}")
            self.holders[call.child.pid] = claim
        if call.kind.startswith("rename") and target.name == "parent.json" and target.exists():
            self._note_parent(target)
        if target == self.run.marker and target.exists():
            now = (target.stat().st_ino, target.read_bytes())
            if self.marker not in (None, now):
                self.violations.append("there was a second marker")
            self.marker = now

    def _note_parent(self, path: Path) -> None:
        value = read_json(path)
        claim, parent = value["claim"], value["parent"]
        self.parents[claim] = parent
        # What was acknowledged last before it was taken, or what the same or a later one added.
        for last in self.safe[claim][-1:]:
            if parent is None or _order(parent) < _order(last):
                self.violations.append(f"claim {claim} went on from {parent}, not from {last}")

    def hear(self, line: str) -> None:
        word, _, rest = line.partition(" ")
        if word == "ACK":
            claim, name = rest.split()
            self.acknowledged.append((int(claim), name))
        elif word == "LOST":
            self.num_lost += 1
        elif word == "BUG":
            self.violations.append(f"an error that is not ours: {rest}")
        elif word == "ERROR":
            self.violations.append(f"the one who held the run failed: {rest}")

    def _is_bypassed(self, name: str) -> bool:
        """Somebody went on from an earlier one of the same claim, and committed."""
        claims = {_claim(other) for other in self.appeared}
        return any(
            other > _claim(name)
            and other in claims
            and (parent is None or (_claim(parent) == _claim(name) and _step(parent) < _step(name)))
            for other, parent in self.parents.items()
        )

    def _claims(self) -> list[int]:
        folder = self.run.claims
        return [int(name) for name in os.listdir(folder)] if folder.is_dir() else []

    def finish(self) -> None:
        """All writers are done."""
        damaged: list[str] = []
        latest = find_latest(self.run, lambda name, error: damaged.append(str(error)))
        self.violations += [f"partial: {text}" for text in damaged]
        names = lineage(self.run)
        self.violations += [f"{n} is stale, and chosen" for n in names if self._is_bypassed(n)]
        for _, name in self.acknowledged:
            is_there = (self.run.checkpoints / name).is_dir()
            if is_there and name not in self.late and name not in names:
                self.violations.append(f"{name} was acknowledged, but nobody sees it")
        for parsed in list_checkpoints(self.run):
            self.violations += _of_checkpoint(self.run.checkpoints / str(parsed))
        highest = max(self._claims(), default=0)
        own = [name for claim, name in self.acknowledged if claim == highest]
        if own and (latest is None or latest.name != own[-1]):
            self.violations.append(f"{own[-1]} was acknowledged, the latest is {latest}")
        if len(set(self.appeared) - self.stale) >= 2 and len(names) < 2:
            self.violations.append(f"only {names} are left")
        _, parent = parent_of(self.run, highest)
        if parent is not None and not (self.run.checkpoints / parent).is_dir():
            self.violations.append(f"{parent}, the parent of claim {highest}, is gone")
        if self.run.marker.exists():
            self.violations += _of_marker(self.run)


def _claim(name: str) -> int:
    parsed = parse_name(name)
    assert parsed is not None
    return parsed.claim


def _step(name: str) -> int:
    return int(name[5:14])


def _order(name: str) -> tuple[int, int]:
    return _claim(name), _step(name)


class Track:
    """The four writers, who race again and again."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.run = RunFolder(folder / "runs" / "exp")
        self._base = RunFolder(folder / "base" / "exp")
        self._base.path.mkdir(parents=True)
        spec = {"format": FORMAT, "experiment": "exp", "stages": [{"name": "one"}]}
        write_json(self._base.spec, spec)
        _train_stage(self._base)
        self.run.path.mkdir(parents=True)
        self._writers: list[Child] = []
        self._orders: list[int] = []
        for _ in range(_WRITERS):
            orders, ours = os.pipe()
            write = functools.partial(_write, self.run, orders)
            child = fork_watched(write, self.run.path)
            self._writers.append(child)
            self._orders.append(ours)
            os.close(orders)

    def close(self) -> None:
        for child in self._writers:
            child.kill()

    def race(self, seed: int) -> Race:
        chance = random.Random(seed)
        shutil.rmtree(self.run.path)
        shutil.copytree(self._base.path, self.run.path)
        race = Race(self.run)
        pending: dict[int, Call] = {}
        for number, child in enumerate(self._writers):
            child.said = b""
            os.write(self._orders[number], b".")
            self._fetch(number, pending, race)
        sleeps = _Sleeps(chance, race, classic=_CLASSIC.get(seed % 6))
        for number in sleeps.turns(pending):
            call = pending.pop(number)
            race.before(call)
            call.go_on()
            self._fetch(number, pending, race)
            race.after(call)
        race.finish()
        return race

    def _fetch(self, number: int, pending: dict[int, Call], race: Race) -> None:
        child = self._writers[number]
        before = len(child.lines)
        call = child.next()
        for line in child.lines[before:]:
            race.hear(line)
        if call is not None:
            pending[number] = call
        elif not child.said.endswith(END):
            race.violations.append(f"a writer died with {child.status}")


_PLACES = ("claim", "commit", "prune", "parent", "marker")
_CLASSIC = {0: "commit", 1: "claim", 2: "prune"}
"""By a race's number: what its zombie does; the others' zombies are drawn."""


def _place(call: Call) -> str | None:
    """The calls at which it matters most whether somebody else was here in between."""
    names = [Path(path).name for path in call.paths]
    if call.kind.startswith("rename"):
        if parse_name(names[-1]):
            return "commit"
        if parse_name(names[0]):
            return "prune"
        return "parent" if names[-1] == "parent.json" else None
    if call.kind.startswith("mkdir") and call.paths[0].rpartition("/")[0].endswith("/claims"):
        return "claim"
    return "marker" if call.kind.startswith("link") else None


class _Sleeps:
    """Whose turn it is: bursts of one writer, and zombies that sleep until a successor commits."""

    def __init__(self, chance: random.Random, race: Race, *, classic: str | None) -> None:
        """The classic: the first falls asleep in the middle of something, and wakes when another
        has taken over, but has not yet swept what lies about."""
        self._chance, self._race, self._is_classic = chance, race, classic is not None
        zombies = chance.sample(range(_WRITERS), chance.randint(2, _WRITERS - 1))
        places = [*_PLACES, "commit", "commit", "commit", str(chance.randrange(20, 330))]
        self._falls_asleep = {number: chance.choice(places) for number in zombies}
        if classic is not None:
            self._falls_asleep = {0: classic}
        self._asleep: dict[int, tuple[int, int]] = {}
        """Writer → how many commits and parents it sleeps for."""
        waits = [0, 0, 1, 2, 3] if classic is None else [_WRITERS * _SAVES]
        self._begins = {number: chance.choice(waits) for number in range(1, _WRITERS)}
        """Writer → after how many commits it begins, if there is anybody else to do them."""
        self._turns = [0] * _WRITERS

    def turns(self, pending: dict[int, Call]) -> Iterator[int]:
        while pending:
            number = self._choose(pending)
            for _ in range(self._chance.choice([1, 3, 10, 40, 120])):
                if number not in pending or self._fall_asleep(number, pending[number]):
                    break
                self._turns[number] += 1
                yield number
                if any(map(self._is_over, self._asleep.values())):
                    break

    def _choose(self, pending: dict[int, Call]) -> int:
        for number in [n for n, until in self._asleep.items() if self._is_over(until)]:
            del self._asleep[number]
            if number in pending:
                return number
        commits = len(self._race.acknowledged)
        self._begins = {n: after for n, after in self._begins.items() if after > commits}
        awake = [n for n in pending if n not in self._asleep and n not in self._begins]
        if not awake and self._begins:
            awake = [self._chance.choice(list(self._begins))]
            del self._begins[awake[0]]
        elif not awake:
            self._asleep.clear()
            awake = list(pending)
        return self._chance.choice(awake)

    def _fall_asleep(self, number: int, call: Call) -> bool:
        here = (str(self._turns[number]), _place(call))
        if number not in self._falls_asleep or self._falls_asleep[number] not in here:
            return False
        del self._falls_asleep[number]
        # Until a successor has committed; or only until it has written down what it goes on from,
        # when it has not yet swept the drafts of those before.
        commits, parents = len(self._race.acknowledged), len(self._race.parents)
        is_early = self._is_classic or self._chance.random() < 0.5
        self._asleep[number] = (commits, parents + 1) if is_early else (commits + 1, parents)
        self._race.num_zombies += 1
        return True

    def _is_over(self, until: tuple[int, int]) -> bool:
        now = (len(self._race.acknowledged), len(self._race.parents))
        return now[0] >= until[0] and now[1] >= until[1]


def race_all(*, races: int, seed: int) -> dict[str, Any]:
    """Many races; what went wrong, with the seed that shows it again."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        track = Track(Path(folder))
        violations, stale, zombies, lost, commits = [], 0, 0, 0, 0
        try:
            for number in range(seed, seed + races):
                race = track.race(number)
                violations += [f"race {number}: {text}" for text in race.violations]
                stale += len(race.stale)
                zombies += race.num_zombies
                lost += race.num_lost
                commits += len(race.acknowledged)
        finally:
            track.close()
    return {
        "violations": violations,
        "stale": stale,
        "zombies": zombies,
        "lost": lost,
        "commits": commits,
    }

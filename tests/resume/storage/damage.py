"""Damage of every kind to the newest checkpoint: is it found before a weight is used?

Bits flip, files are cut, filled with zeros, swapped, missing, replaced by something else. Then
three who would use the checkpoint are asked: `verify`, `find_latest` (which must fall back) and
`read_part`. Seeded, so that a failure comes again.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.resume.storage.driver import save

from tasuki.checkpoint.lineage import find_latest
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import read_manifest, verify
from tasuki.errors import DamagedCheckpoint
from tasuki.runs.claims import record_parent, take_claim
from tasuki.runs.runs import RunFolder

Damage = Callable[[random.Random], str]
"""Does it, and says what it did."""
_NEWEST, _BEFORE, _OLDEST = "step-000000030.c1", "step-000000020.c1", "step-000000010.c1"


def make(path: Path) -> RunFolder:
    """Three checkpoints of two ranks; the two newer ones share frozen parameters."""
    run = RunFolder(path)
    path.mkdir(parents=True)
    claim = take_claim(run)
    record_parent(run, claim, parent=None, facts={})
    for step in (10, 20, 30):
        save(run, step, world=2, has_frozen=step > 10)
    return run


class Trial:
    """A run that is damaged and made whole again."""

    def __init__(self, folder: Path) -> None:
        self._whole = make(folder / "whole" / "exp").path
        self._other = make(folder / "other" / "exp").path
        self.run = RunFolder(folder / "now" / "exp")
        self._renew()
        self.newest = self.run.checkpoints / _NEWEST
        self.files = sorted(path for path in self.newest.iterdir())
        self.frozen = sorted((self.run.checkpoints / "frozen").glob("*.safetensors"))

    def _renew(self) -> None:
        shutil.rmtree(self.run.path, ignore_errors=True)
        shutil.copytree(self._whole, self.run.path)

    def miss(self, damage: Damage, chance: random.Random) -> list[str]:
        """Who did not notice."""
        what = damage(chance)
        is_shared = "frozen" in what
        missed = [] if _raises(verify, self.newest) else [f"verify does not see {what}"]
        # A file that nobody names is not read by mistake; that it is there is for `verify` to say.
        if not what.endswith("is there") and not _raises(_load_all, self.newest):
            missed.append(f"read_part does not see {what}")
        reports: list[str] = []
        latest = find_latest(self.run, lambda name, _: reports.append(name))
        expected = _OLDEST if is_shared else _BEFORE
        if latest is None or latest.name != expected or _NEWEST not in reports:
            missed.append(f"find_latest gives {latest and latest.name} after {what}")
        self._renew()
        return missed

    # -- kinds of damage --------------------------------------------------------------------

    def flip(self, chance: random.Random) -> str:
        path = chance.choice(self.files + self.frozen)
        data = bytearray(path.read_bytes())
        at, bit = chance.randrange(len(data)), chance.randrange(8)
        data[at] ^= 1 << bit
        path.write_bytes(data)
        return f"bit {bit} of byte {at} of {self._name(path)}"

    def cut(self, chance: random.Random) -> str:
        path = chance.choice(self.files + self.frozen)
        data = path.read_bytes()
        size = chance.choice([0, 1, 8, len(data) - 1, chance.randrange(len(data))])
        kind = chance.choice(["cut", "zeros", "longer"])
        if kind == "zeros":
            size = min(size, len(data.rstrip(b"\0")) - 1)  # something must change
        tail = {"cut": b"", "zeros": bytes(len(data) - size), "longer": data[size:] + b"\0"}[kind]
        path.write_bytes(data[:size] + tail)
        return f"{kind} at {size} of {self._name(path)}"

    def swap(self, chance: random.Random) -> str:
        """One of the ways in which a file may be another, not there, or no file."""
        kinds = [
            self._missing, self._extra, self._twins, self._older, self._foreign, self._no_file,
            self._renamed, self._joined,
        ]  # fmt: skip
        return chance.choice(kinds)(chance)

    def _missing(self, chance: random.Random) -> str:
        path = chance.choice(self.files + self.frozen)
        path.unlink()
        return f"{self._name(path)} is missing"

    def _extra(self, chance: random.Random) -> str:
        name = chance.choice(["part-00002.json", ".hidden", "manifest.json.bak", "notes", "PART"])
        path = self.newest / name
        path.mkdir() if chance.random() < 0.3 else path.write_bytes(b"{}")
        return f"{name} is there"

    def _twins(self, chance: random.Random) -> str:
        """Two ranks' files in each other's place."""
        suffix = chance.choice(["json", "safetensors"])
        one, other = (self.newest / f"part-0000{n}.{suffix}" for n in (0, 1))
        if suffix == "safetensors":  # both ranks' tensors are the same here
            data = bytearray(other.read_bytes())
            data[-1] ^= 255
            other.write_bytes(data)
        text = one.read_bytes()
        one.write_bytes(other.read_bytes())
        other.write_bytes(text)
        return f"{suffix} of two ranks are swapped"

    def _older(self, chance: random.Random) -> str:
        path = chance.choice(self.files)
        shutil.copy(self.run.checkpoints / _BEFORE / path.name, path)
        return f"{path.name} is of an older checkpoint"

    def _foreign(self, chance: random.Random) -> str:
        """A file of another run, which was trained differently."""
        path = chance.choice(self.files + self.frozen)
        source = self._other / "checkpoints" / _OLDEST / "part-00000.safetensors"
        shutil.copy(source, path)
        return f"{self._name(path)} is of another run"

    def _no_file(self, chance: random.Random) -> str:
        path = chance.choice(self.files + self.frozen)
        kind = chance.choice(["folder", "link", "pipe", "broken link"])
        aside = self.run.path / "aside"
        path.rename(aside)
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(aside if kind == "link" else self.run.path / "nowhere")
        return f"{self._name(path)} is a {kind}"

    def _renamed(self, chance: random.Random) -> str:
        """An older checkpoint under the newest one's name."""
        shutil.rmtree(self.newest)
        shutil.copytree(self.run.checkpoints / chance.choice([_BEFORE, _OLDEST]), self.newest)
        return "an older checkpoint has the newest one's name"

    def _joined(self, chance: random.Random) -> str:
        one, other = chance.sample(self.files, 2)
        one.write_bytes(one.read_bytes() + other.read_bytes())
        return f"{other.name} is appended to {one.name}"

    def _name(self, path: Path) -> str:
        return str(path.relative_to(self.run.checkpoints)).removeprefix(_NEWEST + "/")


def _load_all(path: Path) -> None:
    manifest = read_manifest(path)
    for part in range(manifest.parts):
        read_part(path, part, records=manifest.files, frozen=manifest.frozen)


def _raises(act: Callable[[Path], object], path: Path) -> bool:
    try:
        act(path)
    except DamagedCheckpoint:
        return True
    return False


def damage_all(*, flips: int, cuts: int, swaps: int, seed: int) -> dict[str, Any]:
    """Each on a whole run; what was missed, in words."""
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        trial = Trial(Path(folder))
        chance = random.Random(seed)
        missed = [text for damage in _all(trial, flips, cuts, swaps) for text in damage(chance)]
    return {"count": flips + cuts + swaps, "missed": missed}


def _all(
    trial: Trial, flips: int, cuts: int, swaps: int
) -> Iterator[Callable[[random.Random], list[str]]]:
    for kind, count in ((trial.flip, flips), (trial.cut, cuts), (trial.swap, swaps)):
        for _ in range(count):
            yield lambda chance, kind=kind: trial.miss(kind, chance)


def memory() -> Path | None:
    """Where an fsync costs nothing, for tests that are not about it."""
    return Path("/dev/shm") if Path("/dev/shm").is_dir() else None

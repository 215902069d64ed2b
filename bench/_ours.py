"""tasuki's side of the comparisons: the model of _tiny.py as a recipe, in real runs.

A run is prepared as `tasuki run` does it; its job is started through the real supervisor, which
starts the rank: in fresh processes (`start`), or by the tests' fork server, which leaves out only
`exec` and the imports, where a start's time is not what is measured. What a rank is to do can be
said anew before each start (`say`): the recipe reads it from a file.

Used by start.py, resume.py and promises.py, in tasuki's own environment.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from _peers import BENCH, ROOT, environment

sys.path.insert(0, str(ROOT))

from tests.harness.project import Project, make_project
from tests.harness.warm import Started, Warm, warm_server

from _tiny import SEED, read_notes
from tasuki.checkpoint.manifest import parse_name
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder

__all__ = ["Ours", "Started", "Warm", "warm_server"]

HANDED_OVER = 75
_CODE = f'''
import sys
sys.path.insert(0, {str(BENCH)!r})
from torch.utils.data import DataLoader
from _tiny import KINDS, Notes, Tiny, read_tiny


class Bench:
    """The model of bench/_tiny.py; `what` says how it is to behave in this start."""

    def __init__(self, what, data, batch):
        self.tiny, self.data, self.batch = read_tiny(what), data, batch
        self.notes = Notes(self.tiny)

    def build_model(self):
        return Tiny(self.tiny, self.notes)

    def build_dataset(self, source, split):
        data = KINDS[self.data](self.tiny, self.notes)
        if self.data == "map":
            return data
        if self.data == "stateful":
            from torchdata.stateful_dataloader import StatefulDataLoader
            return StatefulDataLoader(data, batch_size=self.batch)
        return DataLoader(data, batch_size=self.batch)

    def loss(self, model, batch):
        return model(**batch)["loss"]
'''


@dataclass(frozen=True, slots=True)
class Ours:
    """One run of tasuki, its job, and the notes of its model."""

    project: Project
    what: Path
    tiny: dict[str, Any]

    @classmethod
    def make(
        cls,
        folder: Path,
        tiny: dict[str, Any],
        *,
        steps: int,
        save_every: int | str = "1h",
        data: str = "map",
        batch: int = 4,
    ) -> Ours:
        """`notes` of `tiny` is the file into which the model writes."""
        folder.mkdir(parents=True, exist_ok=True)
        what = folder / "what.json"
        every = f"{save_every} steps" if isinstance(save_every, int) else save_every
        with contextlib.redirect_stdout(sys.stderr):
            project = make_project(
                folder / "project",
                recipe="Bench",
                params={"what": str(what), "data": data, "batch": batch},
                stages=[{"name": "one", "data": "made", "steps": steps}],
                defaults={
                    "effective_batch": batch,
                    "seed": SEED,
                    "lr": 0.001,
                    "log_every": "50 steps",
                    "save": {"every": every},
                },
                code=_CODE,
            )
        ours = cls(project, what, tiny)
        ours.say()
        return ours

    @property
    def run(self) -> RunFolder:
        return self.project.run

    def say(self, **tiny: Any) -> None:
        """What the next start of the model is to do, beside what every start does."""
        self.what.write_text(json.dumps({**self.tiny, **tiny}))

    # -- starting -------------------------------------------------------------------------------

    def start(self) -> subprocess.Popen[bytes]:
        """A supervisor in a fresh process and session, as the local backend starts it."""
        log = self.project.job.path / "bench.log"
        with log.open("ab") as file:
            return subprocess.Popen(
                [sys.executable, "-m", "tasuki.jobs", str(self.project.job.path)],
                env=environment(),
                stdin=subprocess.DEVNULL,
                stdout=file,
                stderr=file,
                start_new_session=True,
            )

    def start_warm(self, warm: Warm) -> Started:
        return warm.start(self.project.job.path, **environment())

    def finish(self, warm: Warm) -> None:
        """Start after start until it is done; an attempt may hand over."""
        for _ in range(5):
            self.start_warm(warm).wait()
            if self.run.is_complete():
                return
        sys.exit(f"error: tasuki's run did not finish:\n{self.project.logs()[-6000:]}")

    # -- what it says ---------------------------------------------------------------------------

    def notes(self) -> list[dict[str, Any]]:
        return read_notes(Path(self.tiny["notes"]))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.run) if event["kind"] == kind]

    def committed_step(self) -> int:
        """Of the newest checkpoint that was acknowledged; -1 when there is none."""
        return max((int(event["step"]) for event in self.events("committed")), default=-1)

    def checkpoints(self) -> list[Path]:
        """What is in the folder, oldest first."""
        found = [path for path in self.run.checkpoints.iterdir() if parse_name(path.name)]
        return sorted(found, key=lambda path: parse_name(path.name).order)  # type: ignore[union-attr]


def wait_until(is_so: Any, *, seconds: float = 60.0, every_s: float = 0.005) -> bool:
    """Look again and again; False when it did not come true."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_so():
            return True
        time.sleep(every_s)
    return False

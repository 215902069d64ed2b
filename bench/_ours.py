"""tasuki in the comparisons: the model of _tiny.py as a recipe, in real runs.

A run is prepared as `tasuki run` does it; its job is started through the real supervisor, which
starts the rank: in fresh processes (`start`), or by the tests' fork server, which leaves out only
`exec` and the imports, where a start's time is not measured. `configure` sets what the next start
does: the recipe reads it from a file.

Used by start.py and promises.py.
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

INTERRUPTED = 75
_CODE = f'''
import sys
sys.path.insert(0, {str(BENCH)!r})
from _tiny import Notes, Samples, Tiny, read_tiny


class Bench:
    """The model of bench/_tiny.py; the file `settings` describes how this start behaves."""

    def __init__(self, settings):
        self.tiny = read_tiny(settings)
        self.notes = Notes(self.tiny)

    def build_model(self):
        return Tiny(self.tiny, self.notes)

    def build_dataset(self, source, split):
        return Samples(self.tiny)

    def loss(self, model, batch):
        return model(**batch)["loss"]
'''


@dataclass(frozen=True, slots=True)
class Ours:
    """One run of tasuki, its job, and the notes of its model."""

    project: Project
    settings: Path
    tiny: dict[str, Any]

    @classmethod
    def make(
        cls,
        folder: Path,
        tiny: dict[str, Any],
        *,
        steps: int,
        save_every: int | str = "1h",
        batch: int = 4,
    ) -> Ours:
        """`notes` of `tiny` is the file into which the model writes."""
        folder.mkdir(parents=True, exist_ok=True)
        settings = folder / "settings.json"
        every = f"{save_every} steps" if isinstance(save_every, int) else save_every
        with contextlib.redirect_stdout(sys.stderr):
            project = make_project(
                folder / "project",
                recipe="Bench",
                params={"settings": str(settings)},
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
        ours = cls(project, settings, tiny)
        ours.configure()
        return ours

    @property
    def run(self) -> RunFolder:
        return self.project.run

    def configure(self, **tiny: Any) -> None:
        """How the next start of the model behaves, in addition to the common settings."""
        self.settings.write_text(json.dumps({**self.tiny, **tiny}))

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
        """Start it until it is done; an attempt may be interrupted."""
        for _ in range(5):
            self.start_warm(warm).wait()
            if self.run.is_complete():
                return
        sys.exit(f"error: tasuki's run did not finish:\n{self.project.logs()[-6000:]}")

    # -- its progress ---------------------------------------------------------------------------

    def notes(self) -> list[dict[str, Any]]:
        return read_notes(Path(self.tiny["notes"]))

    def events(self, kind: str) -> list[dict[str, Any]]:
        return [event for event in read_events(self.run) if event["kind"] == kind]

    def committed_step(self) -> int:
        """The step of the newest acknowledged checkpoint, -1 without one."""
        return max((int(event["step"]) for event in self.events("committed")), default=-1)

    def checkpoints(self) -> list[Path]:
        """What is in the folder, oldest first."""
        found = [path for path in self.run.checkpoints.iterdir() if parse_name(path.name)]
        return sorted(found, key=lambda path: parse_name(path.name).order)  # type: ignore[union-attr]


def wait_until(is_so: Any, *, seconds: float = 60.0, every_s: float = 0.005) -> bool:
    """Check again and again; False when the time is up."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if is_so():
            return True
        time.sleep(every_s)
    return False

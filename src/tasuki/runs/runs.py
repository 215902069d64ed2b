"""The run folder: names of everything that belongs to one experiment's execution."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from tasuki.errors import StoreError


@dataclass(frozen=True, slots=True)
class RunFolder:
    """`runs/<experiment>`."""

    path: Path

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def spec(self) -> Path:
        """The resolved experiment, frozen at the first start."""
        return self.path / "spec.json"

    @property
    def frozen(self) -> Path:
        """What exactness hangs on: threads, versions, ranks; written by the first attempt."""
        return self.path / "frozen.json"

    @property
    def code(self) -> Path:
        return self.path / "code"

    @property
    def claims(self) -> Path:
        return self.path / "claims"

    @property
    def control(self) -> Path:
        """What people and `relay` said about the run, numbered: cancel, hold, fail, lift."""
        return self.path / "control"

    @property
    def runner(self) -> Path:
        """Which `tasuki run` works on it."""
        return self.path / "runner.json"

    @property
    def events(self) -> Path:
        return self.path / "events"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics"

    @property
    def profile(self) -> Path:
        """Where a step's time went, by attempt and stage; made by `--profile`."""
        return self.path / "profile"

    @property
    def checkpoints(self) -> Path:
        return self.path / "checkpoints"

    @property
    def stages(self) -> Path:
        return self.path / "stages"

    @property
    def aside(self) -> Path:
        """What going back made void, by the claim of that word."""
        return self.path / "aside"

    def aside_of(self, claim: int) -> Path:
        return self.aside / str(claim)

    @property
    def logs(self) -> Path:
        return self.path / "logs"

    @property
    def commands(self) -> Path:
        """What its commands are told and tell, by attempt."""
        return self.path / "commands"

    def command(self, claim: int, stage: str, kind: str) -> CommandFolder:
        end = "" if kind == "train" else f".{kind}"
        return CommandFolder(self.commands / f"{claim}.{stage}{end}")

    @property
    def alerts(self) -> Path:
        """What the commands of `on` were told, one file for each outcome: told at most once."""
        return self.path / "alerts"

    @property
    def compiled(self) -> Path:
        """Kernels that `compile` made, for later attempts."""
        return self.path / "compiled"

    @property
    def training_state(self) -> Path:
        return self.path / "training_state.json"

    @property
    def metrics_history(self) -> Path:
        return self.path / "metrics_history.jsonl"

    @property
    def final_metrics(self) -> Path:
        return self.path / "final_metrics.json"

    @property
    def final_results(self) -> Path:
        return self.path / "final_results.json"

    @property
    def accounts(self) -> Path:
        """Derived, of a finished run: goodput, GPU-hours, cost."""
        return self.path / "accounts.json"

    @property
    def marker(self) -> Path:
        """Exists when all the work is done, and only then."""
        return self.path / "training_complete.marker"

    def stage(self, name: str) -> StageFolder:
        """Also of a name that stood in a file: specs, manifests and words may come from others."""
        if name in ("", ".", "..") or "/" in name or "\0" in name:
            raise StoreError(
                f"{self.path} tells of a stage {name[:80]!r}, which cannot be a folder's name",
                hint="it was changed by hand, or comes from somebody else: restore it from a copy",
            )
        return StageFolder(self.stages / name)

    def is_complete(self) -> bool:
        return self.marker.exists()


@dataclass(frozen=True, slots=True)
class StageFolder:
    """`runs/<experiment>/stages/<stage>`."""

    path: Path

    @property
    def weights(self) -> Path:
        return self.path / "weights.safetensors"

    @property
    def metrics(self) -> Path:
        """Written last when the stage's training is done: it holds the weights' sha256."""
        return self.path / "metrics.json"

    @property
    def evaluation(self) -> Path:
        return self.path / "evaluation.json"

    def best(self, label: str) -> Path:
        """The best weights so far."""
        return self.path / f"best-{label}.safetensors"


@dataclass(frozen=True, slots=True)
class CommandFolder:
    """`runs/<experiment>/commands/<claim>.<stage>`: of one start of a command."""

    path: Path

    @property
    def deadline(self) -> Path:
        """When it will be ended, in seconds since 1970, or `never`; follows an extension."""
        return self.path / "deadline"

    @property
    def notice(self) -> Path:
        """Appears when the end is near; holds why."""
        return self.path / "notice"

    @property
    def done(self) -> Path:
        """Made by the script: all its work is done, notice or not."""
        return self.path / "done"

    @property
    def metrics(self) -> Path:
        """Made by the script: a JSON object of names and numbers."""
        return self.path / "metrics.json"

"""How long the steps of a stage take here: asked of a child with torch once, and kept (kept.py).

Beside the whole of it two parts are kept apart: how long a *rank* works on a step, and how long it
takes to begin and to save. Another number of ranks begins as fast, and where it leaves a rank's
share of a step as it is, steps are only counted anew: equal work has equal times in all plans.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.clock import SystemClock
from tasuki.commands.kept import Keeper, packages_here, stamps_of
from tasuki.commands.machine import processor_here
from tasuki.estimation.works import Place, begun_key, measured_key, timed_key
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage, to_plain

_WITHIN_S = 300
_STEP = ("step_s", "at")
_BEGIN = ("start_s", "save_s")
_TUNES = (
    "OMP_", "GOMP_", "KMP_", "MKL_", "OPENBLAS_", "DNNL_", "ONEDNN_", "ATEN_", "TORCH", "PYTORCH_",
    "CUDA_", "CUBLAS_", "CUDNN_", "NVIDIA_", "MALLOC_", "LD_PRELOAD", "TASUKI_MEMORY_CAP",
)  # fmt: skip
"""Variables that change how fast steps are; any that begins so."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """Where steps are measured, and how."""

    runs: Path
    """Where it is kept."""
    folder: str
    ranks: int
    cpus: int
    device: str
    python: str
    environment: Mapping[str, str]
    on_progress: Callable[[str], None] = lambda _: None

    def place(self) -> Place:
        tuned = [
            f"{name}={value}"
            for name, value in sorted(self.environment.items())
            if name.startswith(_TUNES)
        ]
        return Place(
            folder=self.folder,
            device=self.device,
            ranks=self.ranks,
            cpus=self.cpus,
            machine=(processor_here(self.device), packages_here(), *tuned),
        )


@dataclass(slots=True)
class Measurer:
    """Measures the steps whose times are not kept yet."""

    is_fresh: bool = False
    """Only what it has measured itself counts."""
    began: float = field(default_factory=SystemClock.wall)
    _found: dict[str, dict[str, Any]] = field(default_factory=dict)
    """By key, of either kind."""
    _keepers: dict[Path, Keeper] = field(default_factory=dict)

    @property
    def notes(self) -> list[str]:
        return [note for keeper in self._keepers.values() for note in keeper.notes]

    def measure(
        self,
        experiment: ResolvedExperiment,
        stages: Sequence[ResolvedStage],
        bench: Bench,
        *,
        may_ask: bool = True,
    ) -> dict[str, dict[str, Any]]:
        """By stage, as far as its steps could be measured, or were before and nobody may be asked
        now; `ago_s` is None where they were now."""
        place = bench.place()
        keys = {stage.name: measured_key(stage, place) for stage in stages}
        wanted = ("total_steps", *_STEP, *_BEGIN)
        missing = {
            keys[stage.name]: stage
            for stage in stages
            if not self._find(keys[stage.name], wanted, stage, bench)
        }
        if missing and may_ask:
            self._ask(experiment, list(missing.values()), bench, keys)
        found = {name: self._found[key] for name, key in keys.items() if key in self._found}
        now = SystemClock.wall()
        return {
            name: {**value, "ago_s": None if value["at"] >= self.began else now - value["at"]}
            for name, value in found.items()
        }

    def _find(
        self, key: str, names: Sequence[str], stage: ResolvedStage, bench: Bench
    ) -> dict[str, Any]:
        """Empty: it is not known."""
        if key not in self._found and not self.is_fresh:
            kept = self._keeper(bench).read(key, data=stamps_of(stage, bench.folder))
            if kept is not None and all(name in kept["value"] for name in names):
                self._found[key] = kept["value"]
        return {name: value for name, value in self._found.get(key, {}).items() if name in names}

    def _keeper(self, bench: Bench) -> Keeper:
        return self._keepers.setdefault(bench.runs, Keeper(bench.runs))

    def _ask(
        self,
        experiment: ResolvedExperiment,
        stages: Sequence[ResolvedStage],
        bench: Bench,
        keys: Mapping[str, str],
    ) -> None:
        place, stamps, known = bench.place(), {}, {}
        for stage in stages:
            stamps[stage.name] = stamps_of(stage, bench.folder)
            known[stage.name] = {
                **self._find(timed_key(stage, place), _STEP, stage, bench),
                **self._find(begun_key(stage, place), _BEGIN, stage, bench),
            }
        answer = _ask_child(experiment, stages, bench, known)
        for stage in stages:
            if (facts := answer["stages"].get(stage.name)) is None:
                continue
            value = {"at": SystemClock.wall(), **facts, **known[stage.name]}
            for key in (keys[stage.name], timed_key(stage, place), begun_key(stage, place)):
                if key not in self._found:
                    self._found[key] = value
                    data = stamps[stage.name]
                    self._keeper(bench).keep(key, value, code=answer["code"], data=data)


def measure_stages(
    experiment: ResolvedExperiment, stages: Sequence[ResolvedStage], bench: Bench
) -> dict[str, dict[str, Any]]:
    """By stage: total_steps, step_s, start_s, save_s. Nothing is kept."""
    answer: dict[str, dict[str, Any]] = _ask_child(experiment, stages, bench, {})["stages"]
    return answer


def _ask_child(
    experiment: ResolvedExperiment,
    stages: Sequence[ResolvedStage],
    bench: Bench,
    known: Mapping[str, Mapping[str, Any]],
) -> dict[str, Any]:
    names = [stage.name for stage in stages]
    bench.on_progress(f"measuring some steps of {', '.join(names)}")
    try:
        answer: dict[str, Any] = subprocesses.run(
            "tasuki.train.measure:work",
            {
                "experiment": to_plain(experiment),
                "stages": names,
                "folder": bench.folder,
                "ranks": bench.ranks,
                "cpus": bench.cpus,
                "device": bench.device,
                "timed": [
                    name for name, facts in known.items() if len(facts) == len(_STEP + _BEGIN)
                ],
            },
            python=bench.python,
            environment=bench.environment,
            cwd=bench.folder,
            timeout_s=_WITHIN_S,
            result=dict[str, Any],
        )
    except subprocesses.SubprocessTimeoutError as error:
        bench.on_progress(f"measuring `{experiment.name}` was given up: {error.message}")
        return {"stages": {}, "code": {}}
    return answer

"""`tasuki rehearse`: a minute for what usually fails after hours in a queue.

First a child opens recipes and data of all stages (train/precheck.py). Then each stage does two
real steps on its largest samples, saves, restores, hands its weights to the next and evaluates, by
real supervisors and workers in a scratch folder (rehearse_ground.py), offline. A stage that fails
does not keep others from being tried (rehearse_rounds.py). Nothing is left, and no run is touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import msgspec

from tasuki.answers import ChildFailed, ChildLate, OnProgress, ask, standing
from tasuki.clock import Clock
from tasuki.commands.doctor_rules import Finding
from tasuki.commands.machine import device_for
from tasuki.commands.plan import PlanRequest, evaluates
from tasuki.commands.rehearse_cells import (
    COLUMNS,
    NONE,
    NOT_REACHED,
    OK,
    Cell,
    Way,
    cells_of,
    halvings_of,
    memory_of,
    ran_out_of_memory,
    read_way,
    seconds_of,
)
from tasuki.commands.rehearse_checks import (
    check_command,
    judge_room,
    look_at_place,
    not_checked,
)
from tasuki.commands.rehearse_ground import Ground, offline_environment, scratch_folder
from tasuki.commands.rehearse_rounds import (
    Books,
    Key,
    Shape,
    Shortened,
    blocked,
    next_round,
    shorten,
    source_of,
    what_is_needed,
)
from tasuki.commands.status import describe_run
from tasuki.runs.atomic import FORMAT
from tasuki.runs.attempts import read_attempt_end
from tasuki.runs.events import read_events
from tasuki.runs.find import latest_run
from tasuki.runs.lines import read_lines
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage, to_plain
from tasuki.units import format_seconds

DEFAULT_BUDGET = "60s"
_OF_LOADER = "torch/utils/data/dataloader.py"
"""In the stack of the main thread, which comes last: workers are other processes."""
_KILLED = "was killed by"
"""As the supervisor says it of a rank that said nothing itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearseRequest:
    plan: PlanRequest
    clock: Clock
    budget_s: float = 60.0
    micro_batch: int | None = None
    ranks: int = 1
    is_online: bool = False
    on_step: Callable[[str], None] = lambda _: None
    on_result: Callable[[str], None] = lambda _: None
    on_progress: OnProgress = lambda _: None
    on_tick: Callable[[Sequence[RunFolder]], None] = lambda _: None
    on_event: Callable[[str, str], None] = lambda _kind, _text: None


@dataclass(slots=True, kw_only=True)
class Row:
    """One stage in the table."""

    experiment: str
    stage: ResolvedStage
    """As the spec says."""
    evaluates: bool
    short: Shortened
    cells: dict[str, Cell] = field(default_factory=lambda: dict.fromkeys(COLUMNS, NOT_REACHED))
    said: list[str] = field(default_factory=list)
    seconds: float = 0.0
    facts: dict[str, Any] = field(default_factory=dict)
    memory: dict[str, Any] | None = None
    saved_bytes: int | None = None
    frozen_bytes: int = 0

    @property
    def key(self) -> Key:
        return self.experiment, self.stage.name

    @property
    def command(self) -> tuple[str, ...] | None:
        """That evaluates it."""
        evaluate = self.stage.evaluate if self.evaluates else None
        return evaluate.command if evaluate is not None else None

    def as_json(self) -> dict[str, Any]:
        return {
            "experiment": self.experiment,
            "stage": self.stage.name,
            "kind": "recipe" if self.stage.recipe is not None else "command",
            "ok": not any(cell.state not in ("ok", "none") for cell in self.cells.values()),
            "cells": {column: self.cells[column].as_json() for column in COLUMNS},
            "seconds": round(self.seconds, 2),
            "total_steps": self.facts.get("total_steps"),
            "samples": self.facts.get("samples"),
            "largest": self.facts.get("largest"),
            "warnings": self.facts.get("warnings", []),
            "shortened": [*self.short.said, *self.said],
            "peak_bytes": self.memory["device"]["peak"] if self.memory else None,
            "memory": self.memory,
            "checkpoint_bytes": self.saved_bytes,
        }


def rehearse_stages(request: RehearseRequest) -> dict[str, Any]:
    """The values of `--json`; `ok` where everything passed."""
    began = request.clock.monotonic()
    rehearsal = _Rehearsal(request, until=began + request.budget_s)
    rehearsal.look()
    runs = Path(request.plan.spec.runs)
    with scratch_folder(runs) as path:
        rehearsal.try_all(path)
        rehearsal.judge_room()
    report = rehearsal.report()
    report["seconds"] = round(request.clock.monotonic() - began, 1)
    return report


class _Rehearsal:
    """One rehearsal, step by step."""

    def __init__(self, request: RehearseRequest, *, until: float) -> None:
        self._request, self._until = request, until
        spec, machine = request.plan.spec, request.plan.machine
        is_gpu = device_for(spec.cluster, machine) == "cuda"
        self._is_stand_in = is_gpu and machine.gpus == 0
        self._books = Books()
        self._smallest: dict[str, list[str]] = {}
        self._findings: list[Finding] = []
        self._place: dict[str, Any] = {}
        self._is_over = False
        trained = dict(_trained(spec))
        wanted = [
            (e.name, stage.name)
            for e in request.plan.experiments
            for stage in e.stages
            if not request.plan.stages or stage.name in request.plan.stages
        ]
        chosen = set(what_is_needed(spec.experiments, wanted, trained))
        self._rows = {row.key: row for row in self._make_rows(spec, chosen)}
        self._books.weights |= {key: path for key, path in trained.items() if key not in chosen}

    def _make_rows(self, spec: ResolvedSpec, chosen: set[Key]) -> Iterator[Row]:
        shape = Shape(
            ranks=spec.cluster.gpus * spec.cluster.nodes,
            is_stand_in=self._is_stand_in,
            micro_batch=self._request.micro_batch,
        )
        for experiment in spec.experiments:
            for stage in experiment.stages:
                if (experiment.name, stage.name) in chosen:
                    is_evaluated = evaluates(experiment, stage)
                    short = shorten(stage, shape, evaluates=is_evaluated)
                    yield Row(
                        experiment=experiment.name,
                        stage=stage,
                        evaluates=is_evaluated,
                        short=short,
                    )

    # -- before anything runs -----------------------------------------------------------------

    def look(self) -> None:
        """Folder, sinks, commands; then recipes and data, by a child."""
        request = self._request
        request.on_step("looking at folder and sinks")
        self._findings, self._place = look_at_place(request.plan)
        for row in self._rows.values():
            if row.stage.recipe is None:
                self._look_at_command(row)
            elif row.command is not None:
                row.said.append("its evaluation is a command: only whether it is there")
        rows = [row for row in self._rows.values() if row.stage.recipe is not None]
        if not rows:
            return
        request.on_step("importing recipes, opening data")
        try:
            answers = self._ask_all(rows)
        except ChildLate as late:
            self._note_late(rows, late)
            return  # `try_all` finds the budget used up, too
        for row, told in zip(rows, answers, strict=True):
            row.facts = told
            failed = told["failed"]
            row.cells |= {"imports": OK, "data": OK}
            if failed is not None:
                cell = Cell(state="failed", message=failed["message"], hint=failed["hint"])
                row.cells |= {"data": NOT_REACHED, failed["column"]: cell}
                self._note(row, None)

    def _note_late(self, rows: Sequence[Row], late: ChildLate) -> None:
        """It looks at one after another: at which, and at what of it, it was."""
        if late.progress.total != len(rows):
            return  # it came to none, or to halves after a crash
        row = rows[late.progress.done]
        is_open = "import" not in late.progress.what
        row.cells |= {"imports": OK} if is_open else {}
        row.cells["data" if is_open else "imports"] = Cell(
            state="not reached", message=late.place or late.progress.what
        )

    def _look_at_command(self, row: Row) -> None:
        found = self._find(row.stage.command or ("",))
        row.cells = dict.fromkeys(COLUMNS, NONE) | {"imports": found}
        row.said.append("a command: only whether it is there")
        self._books.weights[row.key] = None

    def _find(self, command: tuple[str, ...]) -> Cell:
        plan = self._request.plan
        return check_command(command, folder=plan.spec.folder, environment=plan.environment)

    def _ask_all(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        """Of a child that dies nobody knows at which stage: then halves are asked, and theirs."""
        try:
            return self._ask(rows)
        except ChildFailed as error:
            if len(rows) > 1:
                half = len(rows) // 2
                return [*self._ask_all(rows[:half]), *self._ask_all(rows[half:])]
            failed = {"column": "imports", "message": error.message, "hint": error.hint}
            return [{"failed": failed, "warnings": []}]

    def _ask(self, rows: Sequence[Row]) -> list[dict[str, Any]]:
        plan, cluster = self._request.plan, self._request.plan.spec.cluster
        order = {
            "folder": plan.spec.folder,
            "ranks": cluster.gpus * cluster.nodes,
            "offline": not self._request.is_online,
            "stages": [to_plain(row.stage) for row in rows],
            "opens": [row.evaluates and row.command is None for row in rows],
        }
        found: list[dict[str, Any]] = ask(
            "tasuki.train.precheck",
            order,
            python=plan.python,
            environment=offline_environment(plan.environment, is_online=self._request.is_online),
            folder=plan.spec.folder,
            within_s=max(0.1, self._until - self._request.clock.monotonic()),
            on_progress=self._request.on_progress,
        )
        return found

    # -- the rounds ---------------------------------------------------------------------------

    def try_all(self, path: Path) -> None:
        ground = self._ground(path)
        while True:
            while lost := blocked(self._experiments(), self._books):
                for key, source in lost:
                    self._skip(key, source)
            experiments = next_round(self._experiments(), self._books)
            if not experiments or ground.is_over or self._is_late():
                self._is_over = bool(experiments)
                return
            names = ", ".join(f"{e.name}/{s.name}" for e in experiments for s in e.stages)
            self._request.on_step(f"two steps, a save and an evaluation of {names}")
            folders = ground.run(experiments, smallest=self._smallest)
            for experiment in experiments:
                self._read_run(experiment, folders[experiment.name], ground)

    def _is_late(self) -> bool:
        return self._request.clock.monotonic() >= self._until

    def _ground(self, path: Path) -> Ground:
        batches: dict[str, dict[str, int]] = {}
        for row in self._rows.values():
            if row.short.effective_batch is not None:
                own = batches.setdefault(row.experiment, {})
                own[row.stage.name] = row.short.effective_batch
        request = self._request
        return Ground(
            path=path,
            request=self._here(),
            clock=request.clock,
            until=self._until,
            budget=format_seconds(request.budget_s),
            ranks=request.ranks,
            is_online=request.is_online,
            effective_batches=batches,
            on_tick=request.on_tick,
            on_event=request.on_event,
        )

    def _here(self) -> PlanRequest:
        """The spec's cluster, as far as this machine has it."""
        plan = self._request.plan
        cluster, cpus = plan.spec.cluster, plan.machine.cpus
        cluster = msgspec.structs.replace(
            cluster,
            gpu="cpu" if self._is_stand_in else cluster.gpu,
            cpus=min(cluster.cpus, cpus) if cluster.cpus else None,
        )
        return replace(plan, spec=msgspec.structs.replace(plan.spec, cluster=cluster))

    def _experiments(self) -> list[ResolvedExperiment]:
        """Those of the spec, as they are rehearsed: with all stages, for `previous` to mean what it
        means; what is not asked for counts as done."""
        found = []
        for experiment in self._request.plan.spec.experiments:
            stages = []
            for stage in experiment.stages:
                row = self._rows.get((experiment.name, stage.name))
                if row is None:
                    self._books.weights.setdefault((experiment.name, stage.name), None)
                stages.append(row.short.stage if row is not None else stage)
            found.append(msgspec.structs.replace(experiment, stages=tuple(stages)))
        return found

    def _skip(self, key: Key, source: Key) -> None:
        self._books.weights[key] = None
        row = self._rows[key]
        of_command = source in self._rows and self._rows[source].stage.recipe is None
        name = source[1] if source[0] == key[0] else "/".join(source)
        if of_command:
            # What a script writes is not there to be loaded: the rest can be tried.
            del self._books.weights[key]
            stage = msgspec.structs.replace(row.short.stage, init_from="none")
            row.short = replace(row.short, stage=stage)
            row.said.append(f"without the weights of `{name}`, which a command makes")
            return
        cell = Cell(state="skipped", message=f"starts from the weights of `{name}`")
        for column in COLUMNS:
            if row.cells[column] is NOT_REACHED:
                row.cells[column] = cell

    def _read_run(self, experiment: ResolvedExperiment, run: RunFolder, ground: Ground) -> None:
        """Stage after stage, as far as it came."""
        events = read_events(run)
        for number, stage in enumerate(experiment.stages):
            row = self._rows[experiment.name, stage.name]
            if not self._has_start(experiment, number):
                return
            trained, evaluated = (
                self._way(run, ground, stage.name, phase) for phase in ("train", "evaluate")
            )
            if not trained.places and trained.failed is None:
                if number == 0 and not ground.is_over:
                    self._give_up(row, run)
                return
            row.seconds += seconds_of(events, stage.name)
            row.memory = memory_of(events, stage.name) or row.memory
            row.said += halvings_of(events, stage.name)
            if self._takes_smaller(row, trained):
                return
            is_over = ground.is_over and trained.failed is None and not trained.is_done
            if is_over:
                row.cells[trained.column] = Cell(state="not reached", message=trained.stood)
                return
            row.saved_bytes, row.frozen_bytes = trained.saved_bytes, trained.frozen_bytes
            row.cells = cells_of(
                trained,
                evaluated,
                validates=stage.validate is not None,
                evaluates=row.evaluates and row.command is None,
            )
            if row.command is not None and row.cells["evaluate"].state in ("ok", "none"):
                row.cells["evaluate"] = self._find(row.command)
            weights = run.stage(stage.name).weights
            self._note(row, weights if trained.is_done and weights.is_file() else None)

    def _has_start(self, experiment: ResolvedExperiment, number: int) -> bool:
        """Where what it starts from was not made, it was not tried."""
        source = source_of(experiment, number)
        return source is None or self._books.weights.get(source) is not None

    def _way(self, run: RunFolder, ground: Ground, stage: str, phase: str) -> Way:
        path = ground.trace(run.name) / f"{stage}.{phase}.jsonl"
        way = read_way(list(read_lines(path)) if path.exists() else [])
        if way.is_done or way.failed is not None or not way.places:
            return way
        if ground.is_over:
            return replace(way, stood=self._stood(run, path.with_suffix(".stacks"), way))
        told = read_attempt_end(run, 1) or {}
        words = str(told.get("message") or "it ended without a word")
        kind = "killed" if _KILLED in words else ""
        return replace(way, failed=words, hint=str(told.get("hint") or ""), kind=kind)

    def _stood(self, run: RunFolder, path: Path, way: Way) -> str:
        """In the user's own code, else at which place of ours."""
        stacks = path.read_text(errors="replace") if path.exists() else ""
        folders = (str(run.code), self._request.plan.spec.folder)
        if _OF_LOADER in stacks.rpartition("Thread 0x")[2]:
            return "waiting for a loader worker (`--set loader.workers=0` tells where that stands)"
        return standing(stacks, folders) or f"at `{way.places[-1]}`"

    def _give_up(self, row: Row, run: RunFolder) -> None:
        """Not even its process came to a place: whoever supervised it says why."""
        told = describe_run(run, now=self._request.clock.wall())
        words = told["reason"] or f"it is {told['state']}"
        row.cells["steps"] = Cell(state="failed", message=words, hint=told["hint"] or "")
        self._note(row, None)

    def _takes_smaller(self, row: Row, trained: Way) -> bool:
        """A machine that stands in for a larger one may have no room for the largest samples."""
        is_tried = row.stage.name in self._smallest.get(row.experiment, ())
        if not self._is_stand_in or is_tried or not ran_out_of_memory(trained):
            return False
        self._smallest.setdefault(row.experiment, []).append(row.stage.name)
        row.said.append("the smallest samples: the largest do not fit this machine")
        return True

    def _note(self, row: Row, weights: Path | None) -> None:
        self._books.weights[row.key] = weights
        failed = [column for column in COLUMNS if row.cells[column].state == "failed"]
        left = [column for column in COLUMNS if row.cells[column].state == "not reached"]
        words = f"{', '.join(left)} not reached" if left else "ok"
        words = f"{', '.join(failed)} failed" if failed else words
        self._request.on_result(f"{row.experiment}/{row.stage.name}: {words}")

    # -- the end ------------------------------------------------------------------------------

    def judge_room(self) -> None:
        """For (keep + 2) checkpoints of the largest stage of each experiment."""
        needs: dict[str, int] = {}
        for row in self._rows.values():
            if row.saved_bytes is not None:
                need = (row.stage.save.keep + 2) * row.saved_bytes + row.frozen_bytes
                needs[row.experiment] = max(need, needs.get(row.experiment, 0))
        free, where = self._place["free_bytes"], self._place["mount"] or self._place["folder"]
        for name, cell in judge_room(needs, free=free, where=where).items():
            for row in self._rows.values():
                if row.experiment == name and row.cells["save"].state == "ok":
                    row.cells["save"] = cell

    def report(self) -> dict[str, Any]:
        request, spec = self._request, self._request.plan.spec
        rows = [row.as_json() for row in self._rows.values()]
        left = [f"{row.experiment}/{row.stage.name}" for row in self._unreached()]
        is_problem = any(finding.is_problem for finding in self._findings)
        return {
            "format": FORMAT,
            "ok": all(row["ok"] for row in rows) and not is_problem,
            "spec": spec.file,
            "device": device_for(self._here().spec.cluster, request.plan.machine),
            "gpu": spec.cluster.gpu,
            "is_stand_in": self._is_stand_in,
            "ranks": request.ranks,
            "budget_s": request.budget_s,
            "stages": rows,
            "findings": [finding.as_json() for finding in self._findings],
            "not_reached": left,
            "not_checked": list(
                not_checked(
                    request.plan,
                    is_stand_in=self._is_stand_in,
                    ranks=request.ranks,
                    is_online=request.is_online,
                )
            ),
        }

    def _unreached(self) -> Iterator[Row]:
        """What the budget left out: whole stages, and the evaluation of one that trained."""
        for row in self._rows.values():
            states = {cell.state for cell in row.cells.values()}
            is_cut = self._is_late() and "not reached" in states and "failed" not in states
            if is_cut or (self._is_over and not self._books.is_over(row.key)):
                yield row


def _trained(spec: ResolvedSpec) -> Iterator[tuple[Key, Path]]:
    """Weights of stages that are done in the user's own runs; they are read, never written."""
    for experiment in spec.experiments:
        run = latest_run(Path(spec.runs), experiment.name)
        for stage in experiment.stages:
            folder = run.stage(stage.name)
            if folder.metrics.exists() and folder.weights.is_file():
                yield (experiment.name, stage.name), folder.weights

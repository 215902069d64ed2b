"""`tasuki drill`: interrupt the user's own run in the worst places, and compare it bit for bit with
an undisturbed twin.

First the twin: it also tells how many steps an epoch has, from which the places follow. Then the
scenarios, side by side. Only when something differs a second twin: if that differs too, the run is
never twice the same, and the resume is not to blame. drill_diagnosis.py says why.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

from tasuki.clock import Clock, utc
from tasuki.commands.compare import Comparison, compare_runs
from tasuki.commands.drill_diagnosis import (
    Finding,
    diagnose,
    first_row_difference,
    not_restored,
)
from tasuki.commands.drill_ground import Disturbance, Ground, Interrupted, open_ground
from tasuki.commands.drill_scenarios import Scenario, Shape, plan_scenarios
from tasuki.commands.drill_trace import AttemptTrace, is_each_sample_once, replayed
from tasuki.commands.plan import PlanRequest
from tasuki.commands.status import describe_run
from tasuki.errors import RunError, UsageError
from tasuki.runs.atomic import FORMAT, read_json, write_json
from tasuki.runs.claims import list_claims
from tasuki.runs.events import read_events
from tasuki.runs.metrics import TIMING_KEYS, read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, ResolvedStage

TWIN = "twin"
SECOND = "twin-2"
REPORT = "drill.json"
_OP = re.compile(r"(\S+) does not have a deterministic implementation")


@dataclass(frozen=True, slots=True, kw_only=True)
class DrillRequest:
    plan: PlanRequest
    clock: Clock
    stage: str | None = None
    """None: the experiment's first."""
    scenarios: tuple[str, ...] = ()
    """Empty: all."""
    keep: bool = False
    on_step: Callable[[str], None] = lambda _: None
    on_result: Callable[[str], None] = lambda _: None
    on_tick: Callable[[Sequence[RunFolder]], None] = lambda _: None
    on_event: Callable[[str, str], None] = lambda _kind, _text: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What became of one scenario."""

    scenario: Scenario
    attempts: int = 0
    replayed: int = 0
    once: bool | None = None
    comparison: Comparison | None = None
    finding: Finding | None = None

    @property
    def is_equal(self) -> bool:
        is_same = self.comparison is not None and self.comparison.is_equal
        return is_same and self.once is not False and self.finding is None

    @property
    def is_unexplained(self) -> bool:
        return self.comparison is not None and not self.is_equal and self.finding is None

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.scenario.name,
            "title": self.scenario.title,
            "not_here": self.scenario.not_here,
            "struck": list(self.scenario.struck),
            "attempts": self.attempts,
            "replayed_steps": self.replayed,
            "each_sample_once": self.once,
            "equal": None if self.scenario.not_here else self.is_equal,
            "checks": self.comparison.as_json() if self.comparison else [],
            "finding": self.finding.as_json() if self.finding else None,
        }


def run_drill(request: DrillRequest) -> dict[str, Any]:
    """The report's values: the certificate, or what differs first and why."""
    plan_scenarios(Shape(), request.scenarios)  # a wrong name is said before anything runs
    experiment = request.plan.experiments[0]
    stage = choose_stage(experiment, request.stage)
    refuse_plain_script(stage, experiment.name, Path(request.plan.spec.folder))
    ground = open_ground(
        request.plan,
        experiment,
        stage,
        clock=request.clock,
        on_tick=request.on_tick,
        on_event=request.on_event,
    )
    began = request.clock.monotonic()
    if stage.command is not None:
        request.on_result(
            "the script itself is run several times, shortened: what it writes beside its run (a "
            "model file of its own) it writes each time"
        )
    try:
        drill = _Drill(request, ground, experiment, stage)
        report = drill.run()
    except Interrupted:
        ground.clear()
        raise
    report["seconds"] = round(request.clock.monotonic() - began, 1)
    if report["equal"] and not request.keep:
        ground.clear()
        ground.path.mkdir(mode=0o700)
    else:
        report["folder"] = str(ground.path)
    write_json(ground.path / REPORT, report)
    return report


def choose_stage(experiment: ResolvedExperiment, name: str | None) -> ResolvedStage:
    names = [stage.name for stage in experiment.stages]
    if name is not None and name not in names:
        raise UsageError(
            f"`{experiment.name}` has no stage `{name}`", hint=f"it has: {', '.join(names)}"
        )
    return experiment.stages[names.index(name) if name is not None else 0]


def refuse_plain_script(stage: ResolvedStage, experiment: str, folder: Path) -> None:
    """A script that tasuki does not save would train in vain, for as long as it takes."""
    if stage.command is None:
        return
    scripts = [folder / word for word in stage.command if word.endswith(".py")]
    texts = [script.read_text(errors="replace") for script in scripts if script.is_file()]
    if any("tasuki" in text for text in texts) or not texts:
        return
    raise UsageError(
        f"stage `{stage.name}` of `{experiment}` runs a command: `tasuki drill` does nothing for "
        "it",
        hint="a drill compares checkpoints of tasuki, and a script has its own; `tasuki run "
        "--preempt-every 20s` interrupts it too, and with `tasuki.open_run` in its loop it can be "
        "drilled (`tasuki help own_loop`)",
    )


class _Drill:
    """One drill, step by step."""

    def __init__(
        self,
        request: DrillRequest,
        ground: Ground,
        experiment: ResolvedExperiment,
        stage: ResolvedStage,
    ) -> None:
        self._request, self._ground = request, ground
        self._experiment, self._stage = experiment, stage
        self._twin: list[AttemptTrace] = []
        self._second: list[AttemptTrace] = []
        self._shape = Shape()
        self._notes: dict[str, None] = {}
        """State that no checkpoint holds and that, here, changed nothing."""

    def run(self) -> dict[str, Any]:
        ground, say = self._ground, self._request.on_step
        say(f"the twin: stage {self._stage.name} of {self._experiment.name}, short, undisturbed")
        ground.run([Disturbance(name=TWIN)])
        self._refuse_broken()
        self._twin = ground.traces(TWIN)
        self._shape = shape_of(self._twin)
        scenarios = plan_scenarios(self._shape, self._request.scenarios)
        possible = {s.name: s for s in scenarios if not s.not_here}
        say(f"{len(possible)} runs of the same, interrupted: {', '.join(possible)}")
        results = {s.name: Result(scenario=s) for s in scenarios}

        def judge(name: str) -> None:
            results[name] = self._judge(possible[name])
            self._request.on_result(f"{name}: {'equal' if results[name].is_equal else 'DIFFERS'}")

        ground.run([_disturbance(scenario) for scenario in possible.values()], on_end=judge)
        if any(results[name].is_unexplained for name in possible):
            say("something differs: a second undisturbed run, to see whether that is the resume")
            ground.run([Disturbance(name=SECOND)])
            self._second = ground.traces(SECOND)
            results |= {n: self._explain(r) for n, r in results.items() if r.is_unexplained}
        return self._report(list(results.values()))

    def _refuse_broken(self) -> None:
        run = self._ground.run_folder(TWIN)
        if run.is_complete():
            return
        _, reason, hint = self._told(run)
        raise RunError(
            f"stage `{self._stage.name}` does not get through even undisturbed: {reason}", hint=hint
        )

    def _judge(self, scenario: Scenario) -> Result:
        """Compared as bytes; the traces only tell how often and how far. A run that is equal is
        removed at once: large checkpoints must not pile up."""
        run, twin = self._ground.run_folder(scenario.name), self._ground.run_folder(TWIN)
        traces = self._ground.traces(scenario.name)
        result = Result(
            scenario=scenario,
            attempts=len(list_claims(run)),
            replayed=replayed(traces),
            once=is_each_sample_once(traces, steps_per_epoch=self._shape.steps_per_epoch),
            comparison=compare_runs(
                run, twin, [self._stage.name], is_same_state=self._ground.is_same_state
            ),
            finding=self._failed(run) or self._not_struck(scenario, run, traces),
        )
        if result.is_equal:
            self._notes |= dict.fromkeys(not_restored(self._twin, traces))
        if result.is_equal and not self._request.keep:
            self._ground.remove(scenario.name)
        return result

    def _failed(self, run: RunFolder) -> Finding | None:
        if run.is_complete():
            return None
        state, reason, hint = self._told(run)
        words = f"the run did not get to its end: it is {state}: {reason}"
        return Finding(cause="failed", words=words, advice=hint)

    def _told(self, run: RunFolder) -> tuple[str, str, str]:
        """(state, reason, what to do). Hints for runs of the user's own do not fit these."""
        told = describe_run(run, now=self._request.clock.wall())
        hint = told["hint"] if "RUN" not in told["hint"] else ""
        return told["state"], told["reason"], hint or f"read `tasuki logs {run.path} --err`"

    def _not_struck(
        self, scenario: Scenario, run: RunFolder, traces: Sequence[AttemptTrace]
    ) -> Finding | None:
        """A drill that did not disturb proves nothing, and must not pass."""
        told = {event["kind"] for event in read_events(run)}
        attempts = len(list_claims(run))
        resumed_at = next((trace.begin for trace in traces if trace.claim == 2), None)
        if attempts < scenario.attempts:
            missing = f"{attempts} attempts instead of {scenario.attempts}"
        elif scenario.must_tell not in ("", *told):
            missing = f"no event `{scenario.must_tell}`"
        elif scenario.resumes_at not in (None, resumed_at):
            missing = f"attempt 2 went on from step {resumed_at} instead of {scenario.resumes_at}"
        else:
            return None
        return Finding(
            cause="not-struck",
            words=f"the run was not disturbed as planned ({'; '.join(scenario.struck)}): {missing}",
            advice="drill again when less is going on here; if it comes again, please report it "
            "with the kept folder",
        )

    def _explain(self, result: Result) -> Result:
        name = result.scenario.name
        traces, ops = self._ground.traces(name), self._nondeterministic_ops()
        finding = diagnose(self._twin, traces, self._second, nondeterministic_ops=ops)
        finding = finding or first_row_difference(self._rows(name), self._rows(TWIN))
        return replace(result, finding=finding or _unexplained(result))

    def _rows(self, name: str) -> list[dict[str, Any]]:
        return [
            {key: value for key, value in row.items() if key not in TIMING_KEYS}
            for row in read_metrics(self._ground.run_folder(name))
        ]

    def _nondeterministic_ops(self) -> list[str]:
        """As torch names them in its warnings."""
        found = [
            op
            for path in sorted(self._ground.path.glob("*/logs/*.err"))
            for op in _OP.findall(path.read_text(errors="replace"))
        ]
        return list(dict.fromkeys(found))

    def _report(self, results: Sequence[Result]) -> dict[str, Any]:
        shape = self._shape
        done = [result for result in results if not result.scenario.not_here]
        frozen = read_json(self._ground.run_folder(TWIN).frozen)
        facts = self._twin[0].facts
        spec = self._request.plan.spec
        return {
            "format": FORMAT,
            "equal": bool(done) and all(result.is_equal for result in done),
            "drilled_at": utc(self._request.clock.wall()),
            "spec": spec.file,
            "experiment": self._experiment.name,
            "stage": self._stage.name,
            "recipe": self._stage.recipe,
            "command": list(self._stage.command) if self._stage.command is not None else None,
            "data": self._stage.data,
            "exact": self._stage.exact,
            "other_stages": [s.name for s in self._experiment.stages if s.name != self._stage.name],
            "shortened": {
                "steps": shape.steps,
                "steps_per_epoch": shape.steps_per_epoch,
                "samples": facts["samples"],
                "buckets": facts["buckets"],
                "effective_batch": facts["effective_batch"] or None,
            },
            "validates": self._stage.validate is not None,
            "machine": {
                "tasuki": version("tasuki"),
                **{key: value for key, value in frozen.items() if key != "format"},
            },
            "scenarios": [result.as_json() for result in results],
            "notes": list(self._notes),
            "folder": None,
        }


def shape_of(twin: Sequence[AttemptTrace]) -> Shape:
    if not twin:
        raise RunError(
            "the undisturbed run left no trace of its steps",
            hint="does the script go through `run.steps` of `tasuki.open_run`, or an adapter? Is "
            "`cluster.python` of another tasuki?",
        )
    facts = twin[0].facts
    return Shape(
        steps=facts["total_steps"],
        steps_per_epoch=facts["steps_per_epoch"],
        has_border=facts["has_border"],
        world=facts["world"],
        is_coarse=facts.get("accumulation", 1) > 1,
    )


def _disturbance(scenario: Scenario) -> Disturbance:
    return Disturbance(
        name=scenario.name, failpoints=scenario.failpoints, is_damaged=scenario.is_damaged
    )


def _unexplained(result: Result) -> Finding:
    assert result.comparison is not None
    if result.comparison.is_equal:
        words = "everything is equal, but samples were not used exactly once per epoch"
    else:
        what = next(what for what, is_equal in result.comparison.checks if not is_equal)
        words = f"every step is the same, but not the {what}"
    return Finding(cause="unseen", words=words, advice="please report it with the kept folder")

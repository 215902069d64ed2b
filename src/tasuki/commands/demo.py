"""`tasuki demo`: a progressive run through time limits and a preemption, and its undisturbed twin.

Recipe and generator are those of examples/matrix_gnn (templates/demo links to them). Four steps:
make the data; measure, so that the limit is certain to need three jobs; run with one preemption;
run the twin and compare bytes.
"""

from __future__ import annotations

import shlex
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, replace
from importlib import resources
from itertools import pairwise
from pathlib import Path
from typing import Any

from tasuki.clock import Clock
from tasuki.commands.compare import Comparison, compare_runs
from tasuki.commands.measure import Bench, measure_stages
from tasuki.commands.plan import PlanRequest, request_plan
from tasuki.commands.run import RunRequest, run_here
from tasuki.commands.status import brief_run, ledger_of, read_status
from tasuki.errors import RunError, UsageError
from tasuki.jobs.local import Preemption
from tasuki.planning.cut import LEAD_S
from tasuki.planning.values import Plan
from tasuki.runs.atomic import FORMAT
from tasuki.runs.attempts import read_attempt_ends, read_holder
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedCluster, ResolvedSpec

EXPERIMENT = "progressive"
_FILES = ("tasuki.yaml", "recipe.py", "generate.py")
_SIZES = ("16:480", "32:360", "128:160")
_TOGETHER = "small=16,32"
_GENERATE_WITHIN_S = 120.0
_GRACE_S = 20.0
_MARK = ".tasuki-demo"
_TRIES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoWatchers:
    """Who looks on."""

    on_step: Callable[[str], None] = lambda _: None
    on_plan: Callable[[Plan], None] = lambda _: None
    on_tick: Callable[[Path], None] = lambda _: None
    on_event: Callable[[str, str], None] = lambda _kind, _text: None


def run_demo(
    folder: Path, *, clock: Clock, python: str, environment: dict[str, str], watchers: DemoWatchers
) -> dict[str, Any]:
    """Returns the report's values; raises if the run did not complete."""
    spec = _write_project(folder, environment)
    watchers.on_step("making the data: matrices of three sizes in two HDF5 files per split")
    _make_data(folder, python, environment)
    request = request_plan(spec, python=python, environment=environment)
    watchers.on_step("measuring a few steps of each stage")
    measured, limit = _measure_until_even(request)
    limited = replace(
        request,
        spec=_with_cluster(spec, limit_s=limit, runs=spec.runs),
        measured={EXPERIMENT: measured},
    )
    watchers.on_step("the run: three stages under a time limit, preempted once")
    run = _run(limited, clock, watchers, _preempt_in_second_stage(Path(spec.runs), clock))
    watchers.on_step("its twin: the same spec, no limit, no preemption")
    twin_runs = str(folder / "undisturbed")
    plain = replace(request, spec=_with_cluster(spec, limit_s=None, runs=twin_runs), measure=False)
    twin = _run(plain, clock, replace(watchers, on_plan=lambda _: None), None)
    stages = [stage.name for stage in request.experiments[0].stages]
    return _report(run, twin, stages, compare_runs(run, twin, stages), limit, now=clock.wall())


def _measure_until_even(request: PlanRequest) -> tuple[dict[str, dict[str, Any]], float]:
    """On a busy machine one stage may look many times slower than the others: look again."""
    experiment = request.experiments[0]
    bench = Bench(
        runs=Path(request.spec.runs),
        folder=request.spec.folder,
        ranks=1,
        cpus=1,
        device="cpu",
        python=request.python,
        environment=request.environment,
    )
    for _ in range(_TRIES):
        measured = measure_stages(experiment, experiment.stages, bench)
        limit = limit_for_three_jobs(list(measured.values()))
        if limit is not None:
            return measured, limit
    raise RunError(
        "this machine is too busy for the demo: the times of its stages differ too much",
        hint="try again when less is going on",
    )


def limit_for_three_jobs(measured: list[dict[str, Any]]) -> float | None:
    """A limit in which each stage fits and no two together: `cut: stage` then makes a job each."""
    needs: list[float] = [
        2 * facts["start_s"] + facts["step_s"] * facts["total_steps"] + facts["save_s"]
        for facts in measured
    ]
    slowest_save = max(float(facts["save_s"]) for facts in measured)
    reserve = LEAD_S + 1.5 * slowest_save + max(float(facts["step_s"]) for facts in measured)
    two = min(a + b for a, b in pairwise(needs))
    longest = max(needs)
    if two <= 1.05 * longest:
        return None
    # Nearer to two stages than to one: a busy machine may be slow, but the cut stays certain.
    return longest + 0.8 * (two - longest) + reserve


def _write_project(folder: Path, environment: dict[str, str]) -> ResolvedSpec:
    """Fresh each time; a folder that is not a demo's is never touched."""
    if folder.exists() and any(folder.iterdir()) and not (folder / _MARK).exists():
        raise UsageError(f"{folder} is not empty", hint="name another folder: tasuki demo DIR")
    if folder.exists():
        shutil.rmtree(folder)
    folder.mkdir(parents=True)
    (folder / _MARK).touch()
    template = resources.files("tasuki.templates") / "demo"
    for name in _FILES:
        (folder / name).write_text((template / name).read_text())
    return load_spec(str(folder / "tasuki.yaml"), environ=_without_overrides(environment))


def _make_data(folder: Path, python: str, environment: dict[str, str]) -> None:
    words = [python, "generate.py", "--sizes", *_SIZES, "--together", _TOGETHER, "--val", "24"]
    try:
        done = subprocess.run(
            words,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            timeout=_GENERATE_WITHIN_S,
            check=False,
        )
        told = done.stderr.strip().splitlines()[-1:] if done.returncode else None
    except subprocess.TimeoutExpired:
        told = [f"not done after {_GENERATE_WITHIN_S:.0f} s"]
    if told is not None:
        raise RunError(
            f"the demo's data could not be made: {' '.join(told) or 'no reason was given'}",
            hint=f"see for yourself: cd {shlex.quote(str(folder))} && {shlex.join(words)}",
        )


def _without_overrides(environment: dict[str, str]) -> dict[str, str]:
    kept = {key: value for key, value in environment.items() if not key.startswith("TASUKI_")}
    return {**kept, "TASUKI_SITE": ""}


def _with_cluster(spec: ResolvedSpec, *, limit_s: float | None, runs: str) -> ResolvedSpec:
    import msgspec

    cluster = ResolvedCluster(time_limit_s=limit_s, grace_s=_GRACE_S, gpu="cpu", gpus=1, cpus=1)
    return msgspec.structs.replace(spec, cluster=cluster, runs=runs)


def _preempt_in_second_stage(runs: Path, clock: Clock) -> Preemption:
    def is_time() -> bool:
        folder = RunFolder(runs / EXPERIMENT)
        if not folder.spec.exists():
            return False
        now = brief_run(folder, now=clock.wall())
        if not now["done"] or now["stage"] in now["done"] or not now["step"]:
            return False
        return len(now["done"]) > 1 or now["step"] >= 0.3 * now["total_steps"]

    return Preemption(when=is_time)


def _run(
    request: PlanRequest, clock: Clock, watchers: DemoWatchers, preemption: Preemption | None
) -> RunFolder:
    runs = Path(request.spec.runs)
    result = run_here(
        RunRequest(
            plan=request,
            clock=clock,
            preemption=preemption,
            on_plan=watchers.on_plan,
            on_tick=lambda: watchers.on_tick(runs),
            on_event=watchers.on_event,
        )
    )
    run = result.runs[0]
    if not run.is_complete():
        state = read_status([run], now=clock.wall())["runs"][0]
        raise RunError(
            f"the demo's run is {state['state']}: {state['reason']}",
            hint=f"read `tasuki logs {run.path} --err`",
        )
    return run


def _report(
    run: RunFolder,
    twin: RunFolder,
    stages: list[str],
    comparison: Comparison,
    limit: float,
    *,
    now: float,
) -> dict[str, Any]:
    status = read_status([run], now=now)["runs"][0]
    ledger = ledger_of(run)
    return {
        "format": FORMAT,
        "run": str(run.path),
        "twin": str(twin.path),
        "limit_s": limit,
        "jobs": status["jobs"],
        "attempts": _attempts(run),
        "preemptions": status["preemptions"],
        "stages": status["stages"],
        "error_before": _error(run, stages[0], step=0),
        "error_after": (status["stages"][-1]["metrics"] or {}).get("error"),
        "error_of_guess": (status["stages"][-1]["metrics"] or {}).get("guess"),
        "ledger": ledger.parts,
        "wall_s": ledger.wall_s,
        "goodput": ledger.goodput,
        "gpu_hours": status["gpu_hours"],
        "cost": status["cost"],
        "equal": comparison.is_equal,
        "checks": comparison.as_json(),
    }


def _error(run: RunFolder, stage: str, *, step: int) -> float | None:
    for row in read_metrics(run):
        if (row["stage"], row["step"], row["split"]) == (stage, step, "val"):
            return float(row["error"])
    return None


def _attempts(run: RunFolder) -> list[dict[str, Any]]:
    attempts = []
    for claim, end in read_attempt_ends(run).items():
        holder = read_holder(run, claim)
        attempts.append(
            {
                "attempt": claim,
                "job": holder.job if holder else None,
                "ending": end["ending"] if end else None,
                "cause": end["cause"] if end else None,
                "seconds": end["at"] - holder.at if end and holder else None,
            }
        )
    return attempts

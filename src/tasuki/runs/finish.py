"""The end of a run: final metrics, final results, then the marker; last, and once."""

from __future__ import annotations

from typing import Any

from tasuki.clock import Clock, utc
from tasuki.failpoints import failpoint
from tasuki.runs.atomic import FORMAT, create_exclusive, read_json, read_json_or_none, to_json
from tasuki.runs.atomic import write_json as write
from tasuki.runs.claims import sweep_temps
from tasuki.runs.cost import add_up_spent, price_of
from tasuki.runs.events import read_events
from tasuki.runs.metrics import write_metrics_history
from tasuki.runs.runs import RunFolder


def finish_run(run: RunFolder, *, claim: int, clock: Clock) -> None:
    """Idempotent: an attempt that was killed in here is repeated by the next one."""
    sweep_temps(run, claim=claim)  # of one that was: no rank starts any more
    spec = read_json(run.spec)
    stages = [stage["name"] for stage in spec["stages"]]
    trained = {name: read_json(run.stage(name).metrics) for name in stages}
    write_metrics_history(run)
    write(run.final_metrics, _final_metrics(run, spec, trained, now=clock.wall()))
    write(run.final_results, _results(run, stages[-1], trained[stages[-1]]))
    failpoint("finish.marker")
    finished = clock.wall()
    create_exclusive(
        run.marker,
        to_json(
            {
                "format": FORMAT,
                "experiment": run.name,
                "attempt": claim,
                "completed_at": utc(finished),
                "sha256": trained[stages[-1]].get("sha256"),
            }
        ),
    )


def _final_metrics(
    run: RunFolder, spec: dict[str, Any], trained: dict[str, dict[str, Any]], *, now: float
) -> dict[str, Any]:
    spent = add_up_spent(read_events(run), now=now, price=price_of(spec))
    return {
        "format": FORMAT,
        "experiment": run.name,
        "stages": _brief(trained),
        **spent.as_json(),
    }


def _brief(trained: dict[str, dict[str, Any]]) -> dict[str, Any]:
    keys = ("steps", "epochs", "samples", "last", "best")
    return {
        name: {key: value.get(key) for key in keys}
        | ({"command": value["command"], "wall_s": value["wall_s"]} if "command" in value else {})
        for name, value in trained.items()
    }


def _results(run: RunFolder, stage: str, trained: dict[str, Any]) -> dict[str, Any]:
    """A command leaves no weights that we know of."""
    evaluation = read_json_or_none(run.stage(stage).evaluation)
    weights = run.stage(stage).weights
    is_known = trained.get("sha256") is not None
    return {
        "format": FORMAT,
        "experiment": run.name,
        "stage": stage,
        "weights": str(weights.relative_to(run.path)) if is_known else None,
        "sha256": trained.get("sha256"),
        "data": evaluation.get("data") if evaluation else None,
        "metrics": evaluation.get("metrics") if evaluation else None,
    }

"""The table of results: what stages came to, one row each. For the page, Markdown and CSV. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

_Values = Mapping[str, Any]


def result_rows(report: _Values) -> list[dict[str, Any]]:
    """A row per stage, with what is known of its run: values by column; None: unknown."""
    rows = [
        {**_about_stage(run, stage), **(_about_run(run) if is_last else {})}
        for run in report["runs"]
        for stage, is_last in _stages(run)
    ]
    return _squared(rows)


def stage_rows(report: _Values) -> list[dict[str, Any]]:
    """What stages came to, alone."""
    return _squared([_about_stage(run, s) for run in report["runs"] for s, _ in _stages(run)])


def run_rows(report: _Values) -> list[dict[str, Any]]:
    """What runs took."""
    return [
        {"run": run["experiment"], "state": run["state"], **_about_run(run)}
        for run in report["runs"]
    ]


def known_columns(rows: Sequence[_Values]) -> list[dict[str, Any]]:
    """Without those of which nothing is known in any row; for people, as scripts count on all."""
    empty = {key for key in rows[0] if all(row[key] is None for row in rows)} if rows else set()
    return [{key: value for key, value in row.items() if key not in empty} for row in rows]


def _squared(rows: Sequence[_Values]) -> list[dict[str, Any]]:
    """The same columns in each row; what a run took comes last."""
    columns = dict.fromkeys(key for row in rows for key in row if key not in _OF_RUNS)
    columns |= dict.fromkeys(key for key in _OF_RUNS if any(key in row for row in rows))
    return [{key: row.get(key) for key in columns} for row in rows]


def _stages(run: _Values) -> Iterator[tuple[_Values, bool]]:
    """(result, is it the run's last stage); a run that cannot be read has one, too."""
    results: Sequence[_Values] = run["results"] or [{}]
    for number, stage in enumerate(results):
        yield stage, number == len(results) - 1


_OF_RUNS = ("wall_s", "goodput", "attempts", "preemptions", "gpu_hours", "cost")


def _about_run(run: _Values) -> dict[str, Any]:
    return {key: run[key] for key in _OF_RUNS}


def _about_stage(run: _Values, stage: _Values) -> dict[str, Any]:
    best = stage.get("best") or {}
    return {
        "run": run["experiment"],
        "stage": stage.get("stage"),
        "state": stage.get("state"),
        "steps": stage.get("steps"),
        "epochs": stage.get("epochs"),
        "loss": stage.get("loss"),
        **({f"best {best.get('metric')}": best.get("value")} if best else {}),
        **{f"{whose_result(stage)} {key}": value for key, value in _evaluation(stage).items()},
    }


def _evaluation(stage: _Values) -> _Values:
    return stage.get("evaluation") or {}


def whose_result(stage: _Values) -> str:
    """What a script says it came to (`run.finish`) need be no test."""
    return "result" if stage.get("is_own") else "test"

"""`tasuki history`: what past stages took, newest first. No torch, no numpy, no YAML.

Shows the lines that estimates learn from, so that one can see what they know; says which lines were
left out, and why.
"""

from __future__ import annotations

import calendar
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tasuki.clock import utc
from tasuki.errors import UsageError
from tasuki.estimation.past import EVALUATION, is_stage
from tasuki.runs.atomic import FORMAT
from tasuki.runs.history import look_at_history
from tasuki.units import Duration

_AS_THEY_ARE = (
    *(
        "run",
        "experiment",
        "stage",
        "recipe",
        "command",
        "data",
        "gpu",
        "device",
        "device_model",
        "ranks",
    ),
    *("samples", "data_bytes", "effective_batch", "steps", "step_s", "step_s_p10", "step_s_p90"),
    *("train_s", "start_s", "save_s", "saves", "queue_s", "attempts", "preemptions", "buckets"),
)
_DAY = re.compile(r"\d{4}-\d{2}-\d{2}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Filter:
    """Which stages are wanted; everything that is empty lets all through."""

    experiments: tuple[str, ...] = ()
    recipe: str | None = None
    """As in the spec, or its class alone."""
    gpu: str | None = None
    """As in the spec, or a part of what the driver calls it."""
    since: float | None = None
    """Seconds since the epoch."""

    @classmethod
    def read(
        cls,
        experiments: Sequence[str],
        *,
        recipe: str | None,
        gpu: str | None,
        since: str | None,
        now: float,
    ) -> Filter:
        at = None if since is None else _read_since(since, now=now)
        return cls(experiments=tuple(experiments), recipe=recipe, gpu=gpu, since=at)

    def lets_through(self, fact: Mapping[str, Any]) -> bool:
        names = (fact.get("experiment"), fact.get("run"))
        if self.experiments and not set(names) & set(self.experiments):
            return False
        recipe = str(fact.get("recipe") or "")
        if self.recipe is not None and self.recipe not in (recipe, recipe.rpartition(":")[2]):
            return False
        if self.since is not None and float(fact.get("at") or 0.0) < self.since:
            return False
        return self.gpu is None or self._is_of_gpu(fact, self.gpu.lower())

    @staticmethod
    def _is_of_gpu(fact: Mapping[str, Any], gpu: str) -> bool:
        named = (str(fact.get("gpu") or "").lower(), str(fact.get("device") or "").lower())
        return gpu in named or gpu in str(fact.get("device_model") or "").lower()


def _read_since(text: str, *, now: float) -> float:
    """`7d` ago, or the beginning of a day (UTC)."""
    if _DAY.fullmatch(text):
        try:
            return float(calendar.timegm(time.strptime(text, "%Y-%m-%d")))
        except ValueError:
            raise UsageError(f"`{text}` is no day", hint="write for example 2026-11-17") from None
    try:
        return now - Duration.parse(text).seconds
    except UsageError as error:
        hint = "write a span as `7d` or `36h`, or a day as `2026-11-17`"
        raise UsageError(f"`--since {text}`: {error.message}", hint=hint) from None


def list_history(runs: Path, wanted: Filter) -> dict[str, Any]:
    """The values of `--json`; what is unknown is null."""
    found = look_at_history(runs)
    evaluated = {
        (fact.get("run"), fact.get("stage"), fact.get("sha256")): fact.get("evaluate_s")
        for fact in found.facts
        if fact.get("kind") == EVALUATION
    }
    stages = [fact for fact in found.facts if is_stage(fact)]
    chosen = [fact for fact in stages if wanted.lets_through(fact)]
    chosen.sort(key=lambda fact: float(fact.get("at") or 0.0), reverse=True)
    return {
        "format": FORMAT,
        "stages": [_describe(fact, evaluated) for fact in chosen],
        "all": len(stages),
        "left_out": [asdict(one) for one in found.left_out],
    }


def _describe(fact: Mapping[str, Any], evaluated: Mapping[Any, Any]) -> dict[str, Any]:
    memory, parts = fact.get("memory") or {}, fact.get("parts") or {}
    peaks = (memory.get(key) for key in ("reserved_bytes", "peak_bytes", "tensor_bytes"))
    wall_s = sum(parts.values()) + (fact.get("other_s") or 0.0) if parts else None
    at = fact.get("at")
    return {
        "at": utc(float(at)) if at else None,
        **{key: fact.get(key) for key in _AS_THEY_ARE},
        "peak_bytes": next((peak for peak in peaks if peak), None),
        "host_bytes": memory.get("host_bytes"),
        "wall_s": None if wall_s is None else round(wall_s, 3),
        "data_wait_s": parts.get("data_wait"),
        "validate_s": parts.get("validate"),
        "evaluate_s": evaluated.get((fact.get("run"), fact.get("stage"), fact.get("sha256"))),
    }

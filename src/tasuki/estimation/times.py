"""How long a stage takes, and from where that is known. Pure: readers hand in what they found.

In order: given (`expect`); this run's own events; history of the same work; history of its family
(facts.py) with other data or batches, scaled (scale.py); measured here by a child; predicted from
a data sheet (roofline.py); else nothing. History that would have to be stretched far gives way to
a measurement, and to a prediction that is surer.

A median and what nine of ten runs keep to. How far past runs of one family lie from what the others
foretold of them says how wide that is; few runs say little, so their word is widened.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

from tasuki.estimation.facts import family_key, stage_key
from tasuki.estimation.intervals import SaveCost, num_saves, num_validations
from tasuki.estimation.past import Past, read_pasts
from tasuki.estimation.scale import Shape, scale_steps, shape_of
from tasuki.spec.resolved import ResolvedStage

DEFAULT_START_S = 8.0
"""Interpreter, torch, data: where nothing was measured."""
DEFAULT_SAVE_S = 1.0
FEW_RUNS = 0.25
"""Nine of ten runs take at most so much longer than one that was seen; of n runs a √n-th of it."""
OWN_ERROR = 0.1
"""Of this run's own steps, and of those that were measured here."""
LEAST_SPREAD = 0.05
STRETCHED = 0.3
"""History that is scaled with a larger error is not better than a measurement."""
_MOST_PASTS = 20
"""The newest of a family; older ones tell of older code."""
_NAMED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StageTimes:
    """What is known about a stage's time; None where nothing is."""

    wall_s: float | None
    """Training only: steps and the data they wait for."""
    step_s: float | None
    """The median; slow steps and waits for data make `wall_s` longer."""
    total_steps: int | None
    start_s: float = DEFAULT_START_S
    save_s: float = DEFAULT_SAVE_S
    evaluate_s: float | None = None
    source: str = "unknown"
    """given, this run, history, history (scaled), measured here, predicted, or unknown."""
    wall_s_p90: float | None = None
    """Nine of ten runs take no longer."""
    error: float | None = None
    """Of `wall_s`, as a relative half-width; None: nobody knows."""
    used: tuple[str, ...] = ()
    """Past runs that it was learnt from, as `run/stage`."""
    saves_s: float = 0.0
    """What all saves add: training stands still, and at the end it waits for the last one."""
    validate_s: float = 0.0
    """All validations."""
    other_s: float = 0.0
    """The end of the process."""
    evaluate_start_s: float | None = None
    """Of the evaluation's process; None: as the training's."""
    measured_ago_s: float | None = None
    """Of what was measured here and kept; None: it was not, or just now."""

    def whole_s(self, *, evaluates: bool) -> float | None:
        """From the start of the first process to the end of the last: start, steps, saves,
        validation, and the evaluation, which is a process of its own."""
        if self.wall_s is None:
            return None
        saves_s = self.saves_s or self.save_s  # how many is not known, but the last is waited for
        whole = self.start_s + self.wall_s + saves_s + self.validate_s + self.other_s
        if not evaluates:
            return whole
        start_s = self.start_s if self.evaluate_start_s is None else self.evaluate_start_s
        return whole + start_s + (self.evaluate_s or 0.0)

    def whole_s_p90(self, *, evaluates: bool) -> float | None:
        whole = self.whole_s(evaluates=evaluates)
        if whole is None or not self.wall_s or self.wall_s_p90 is None:
            return None
        return whole * self.wall_s_p90 / self.wall_s


UNKNOWN = StageTimes(wall_s=None, step_s=None, total_steps=None)


def estimate_stage(
    stage: ResolvedStage,
    *,
    device: str,
    ranks: int,
    own_events: Sequence[dict[str, Any]],
    history: Iterable[Mapping[str, Any]],
    measured: dict[str, Any] | None,
    shape: Shape | None = None,
    predicted: StageTimes | None = None,
    gpu: str | None = None,
) -> StageTimes:
    """The best known times of one stage. `shape`: of its data, where somebody looked; `predicted`:
    by data sheet (fitted.py); `gpu`: the card as the spec names it, and history of another does not
    count."""
    pasts = [past for past in read_pasts(history) if past.may_be_of(gpu)]
    same, family = _relatives(stage, pasts, device=device, ranks=ranks)
    if stage.command is not None:
        return _of_command(stage, same)
    shape = shape or _shape_from(stage, measured)
    steps = _total_steps(stage, shape, measured)
    scaled = _from_family(stage, family, shape, steps)
    is_sure = scaled is not None and (scaled.error or 0.0) <= STRETCHED
    found = (
        _from_events(stage, own_events)
        or _from_history(stage, same, family, shape)
        or (scaled if is_sure else None)
        or _from_measured(measured)
        or _surest(scaled, predicted)
    )
    if stage.expect_wall_s is not None:
        return _given(stage.expect_wall_s, found or UNKNOWN, steps)
    return found or replace(UNKNOWN, total_steps=steps)


def _of_command(stage: ResolvedStage, same: Sequence[Past]) -> StageTimes:
    """Whole: what its starts and saves take is in it, and how many steps it has nobody knows."""
    bare = replace(UNKNOWN, start_s=0.0, save_s=0.0)
    if same:
        newest = same[0]
        bare = replace(
            bare,
            wall_s=newest.step_s,
            source="history",
            used=_names(same),
            evaluate_s=newest.evaluate_s if stage.evaluate is not None else None,
            evaluate_start_s=0.0,
        )
        ratios = [past.step_s / newest.step_s for past in same[1:]]
        bare = _with_spread(bare, ratios, runs=len(same))
    if stage.expect_wall_s is not None:
        return _given(stage.expect_wall_s, bare, None)
    return bare


def needs_measuring(times: StageTimes) -> bool:
    return times.source == "unknown"


def _given(wall_s: float, known: StageTimes, steps: int | None) -> StageTimes:
    steps = known.total_steps or steps
    step_s = wall_s / steps if steps else None
    return replace(
        known,
        wall_s=wall_s,
        step_s=step_s,
        total_steps=steps,
        source="given",
        wall_s_p90=None,
        error=None,
        used=(),
    )


def _surest(*found: StageTimes | None) -> StageTimes | None:
    """Whose whole time is known, before those of which only a step is."""
    known = [times for times in found if times is not None]
    return min(known, key=lambda t: (t.wall_s is None, t.error or 0.0), default=None)


# -- steps ----------------------------------------------------------------------------------------


def _shape_from(stage: ResolvedStage, measured: Mapping[str, Any] | None) -> Shape | None:
    """What a measurement tells of the data: how many, of one size at the most."""
    told = measured or {}
    batch, per_epoch = told.get("effective_batch"), told.get("steps_per_epoch")
    sizes = stage.size.values if stage.size is not None else (None,)
    if not batch or not per_epoch or len(sizes) != 1:
        return None
    return Shape(buckets=((sizes[0], int(batch) * int(per_epoch)),), effective_batch=int(batch))


def _total_steps(
    stage: ResolvedStage, shape: Shape | None, measured: Mapping[str, Any] | None
) -> int | None:
    told = (measured or {}).get("total_steps")
    if told is not None:
        return int(told)
    per_epoch = shape.steps_per_epoch if shape else None
    batch = shape.effective_batch if shape else stage.effective_batch
    return _steps_of(stage, per_epoch, batch)


def _steps_of(stage: ResolvedStage, per_epoch: int | None, batch: int | None) -> int | None:
    match stage.length.unit:
        case "steps":
            return stage.length.count
        case "epochs":
            return stage.length.count * per_epoch if per_epoch else None
        case _:
            return -(-stage.length.count // batch) if batch else None


# -- sources --------------------------------------------------------------------------------------


def _from_events(stage: ResolvedStage, events: Sequence[dict[str, Any]]) -> StageTimes | None:
    told = [
        event
        for event in events
        if event.get("kind") == "progress"
        and event.get("stage") == stage.name
        and event.get("step_s")
    ]
    if not told:
        return None
    last = told[-1]
    step_s, steps = float(last["step_s"]), int(last["total_steps"])
    parts = last.get("parts", {})
    start = parts.get("start", 0.0) + parts.get("restore", 0.0)
    return StageTimes(
        wall_s=step_s * steps,
        step_s=step_s,
        total_steps=steps,
        start_s=start or DEFAULT_START_S,
        source="this run",
        wall_s_p90=step_s * steps * (1 + OWN_ERROR),
        error=OWN_ERROR,
    )


def _relatives(
    stage: ResolvedStage, pasts: Sequence[Past], *, device: str, ranks: int
) -> tuple[list[Past], list[Past]]:
    """(of the same work, of its family), newest first."""
    key = stage_key(stage, device=device, ranks=ranks)
    family = family_key(stage, device=device, ranks=ranks)
    same = [past for past in pasts if past.key == key]
    related = [past for past in pasts if past.family == family or past.key == key]
    return same[:_MOST_PASTS], related[:_MOST_PASTS]


def _from_history(
    stage: ResolvedStage, same: Sequence[Past], family: Sequence[Past], shape: Shape | None
) -> StageTimes | None:
    """The newest of the same work counts. The length may be another one than in the past; the steps
    of an epoch are the same, unless somebody looked and the data are others now."""
    if not same:
        return None
    newest = same[0]
    has_grown = shape is not None and shape != shape_of(newest)
    per_epoch = shape.steps_per_epoch if shape and has_grown else newest.steps_per_epoch
    steps = _steps_of(stage, per_epoch, newest.effective_batch)
    ratios = [past.mean_step_s / newest.mean_step_s for past in same[1:]]
    times = StageTimes(
        wall_s=newest.mean_step_s * steps if steps else None,
        step_s=newest.step_s,
        total_steps=steps,
        source="history",
        used=_names(same),
    )
    more = shape.samples / newest.samples if shape and newest.samples else 1.0
    times = _with_rest(times, stage, same, per_epoch, more_samples=more)
    return _with_spread(times, [*ratios, *_foretold(family)], runs=len(same))


def _from_family(
    stage: ResolvedStage, family: Sequence[Past], shape: Shape | None, steps: int | None
) -> StageTimes | None:
    """None: nothing of the kind was ever done, or nobody knows how much is to be done."""
    if shape is None or steps is None:
        return None
    scaled = scale_steps(family, shape)
    if scaled is None:
        return None
    newest = family[0]
    times = StageTimes(
        wall_s=scaled.step_s * steps,
        step_s=scaled.step_s * newest.step_s / newest.mean_step_s,
        total_steps=steps,
        source="history (scaled)",
        used=_names(family),
    )
    more = shape.samples / newest.samples if newest.samples else 1.0
    times = _with_rest(times, stage, family, shape.steps_per_epoch, more_samples=more)
    return _with_spread(times, _foretold(family), runs=len(family), error=scaled.error)


def _from_measured(measured: dict[str, Any] | None) -> StageTimes | None:
    if not measured or not measured.get("step_s"):
        return None
    wall_s = measured["step_s"] * measured["total_steps"]
    return StageTimes(
        wall_s=wall_s,
        step_s=measured["step_s"],
        total_steps=measured["total_steps"],
        start_s=measured["start_s"],
        save_s=measured["save_s"],
        evaluate_s=measured.get("evaluate_s"),
        source="measured here",
        measured_ago_s=measured.get("ago_s"),
        wall_s_p90=wall_s * (1 + FEW_RUNS),
        error=OWN_ERROR,
    )


# -- what comes beside the steps ------------------------------------------------------------------


def _with_rest(
    times: StageTimes,
    stage: ResolvedStage,
    pasts: Sequence[Past],
    per_epoch: int | None,
    *,
    more_samples: float,
) -> StageTimes:
    """Start, saves, validation and evaluation, as past runs took them. What goes through data of
    the stage's own takes as much longer as there are more of them."""
    save_s = _typical([past.save_s for past in pasts])
    blocked_s = _typical([past.blocked_s for past in pasts])
    times = replace(
        times,
        start_s=_typical([past.start_s for past in pasts]) or DEFAULT_START_S,
        save_s=save_s or DEFAULT_SAVE_S,
        other_s=_typical([past.other_s for past in pasts]) or 0.0,
        evaluate_s=_grown(pasts[0].evaluate_s, stage.evaluate, more_samples),
        evaluate_start_s=_typical([past.evaluate_start_s for past in pasts]),
    )
    if times.wall_s is None or times.total_steps is None or not per_epoch:
        return times
    each = _grown(pasts[0].validate_s, stage.validate, more_samples)
    validations = 0
    if stage.validate is not None:
        every = stage.validate.every
        validations = num_validations(every, steps=times.total_steps, steps_per_epoch=per_epoch)
    saves = num_saves(
        stage.save.every,
        steps=times.total_steps,
        steps_per_epoch=per_epoch,
        train_s=times.wall_s,
        cost=SaveCost(blocked_s=blocked_s or 0.0, total_s=times.save_s),
    )
    saves_s = saves * (blocked_s or 0.0) + times.save_s
    return replace(times, saves_s=saves_s, validate_s=(each or 0.0) * validations)


def _grown(seconds: float | None, asked: Any, more_samples: float) -> float | None:
    """`asked` is the stage's `validate` or `evaluate`: data that it names itself stay the same."""
    if seconds is None or asked is None:
        return None
    return seconds * more_samples if asked.data is None else seconds


def _typical(values: Sequence[float | None]) -> float | None:
    """The median of the newest: a start waits now and then for a cold disk."""
    known = [value for value in values if value is not None][:_NAMED]
    return median(known) if known else None


def _names(pasts: Sequence[Past]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(past.name for past in pasts[:_NAMED]))


# -- how sure -------------------------------------------------------------------------------------


def _foretold(family: Sequence[Past]) -> list[float]:
    """For each past stage what it took, as a multiple of what the earlier ones foretold of it."""
    ratios = []
    for number, past in enumerate(family):
        shape, earlier = shape_of(past), family[number + 1 :]
        scaled = scale_steps(earlier, shape) if shape is not None else None
        if scaled is not None and scaled.error <= STRETCHED:
            ratios.append(past.mean_step_s / scaled.step_s)
    return ratios


def _with_spread(
    times: StageTimes, ratios: Sequence[float], *, runs: int, error: float = 0.0
) -> StageTimes:
    """`error`: of the scaling, which comes on top."""
    unseen = FEW_RUNS / math.sqrt(max(1, runs))
    longer = max(unseen, LEAST_SPREAD, _nine_of_ten([ratio - 1 for ratio in ratios]))
    apart = max(unseen, LEAST_SPREAD, _nine_of_ten([abs(ratio - 1) for ratio in ratios]))
    wall_s = times.wall_s
    return replace(
        times,
        wall_s_p90=None if wall_s is None else wall_s * (1 + longer) * (1 + error),
        error=apart + error,
    )


def _nine_of_ten(values: Sequence[float]) -> float:
    """With fewer than nine: the largest."""
    if not values:
        return 0.0
    place = min(len(values), math.ceil(0.9 * (len(values) + 1)))
    return sorted(values)[place - 1]

"""Why is a resumed run not the undisturbed one? Pure: from traces to the first step and entry that
differ, the likely cause, and what to do about it.

A step's trace says what it began with, what went in and what came out, so the first entry that
differs narrows the cause down; the state that no checkpoint holds, compared at the first step of
the resumed attempt, names it. A second undisturbed run tells a bad resume from a run that is never
twice the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tasuki.commands.drill_trace import AttemptTrace, Entries, StepTrace
from tasuki.commands.drill_words import (
    advice_on,
    in_words,
    kind_of,
    never_twice,
    root_of,
    say_suspect,
)

Cause = Literal[
    "random", "hidden", "loader", "data", "order", "not-restored", "nondeterministic", "unseen",
    "validation", "failed", "not-struck",
]  # fmt: skip

_GROUPS = ("batch", "loss", "model", "optimizer", "schedule", "random")
_SUSPECTS = {
    "batch": ("data", "recipe", "module", "model", "optimizer", "schedule"),
    "loss": ("recipe", "model", "module", "data", "optimizer", "schedule"),
    "model": ("optimizer", "schedule", "model", "recipe", "module", "data"),
}
"""Whose state to suspect first, by what differs first."""
_KINDS = ("generator", "tensor", "number", "other")
_MOST_NAMED = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """The first thing that differs, and why."""

    cause: Cause
    step: int | None = None
    """Counts from 1; None where no step differs."""
    entry: str = ""
    """What differs first: `loss`, `model.head.weight`, `random.torch`."""
    suspect: str = ""
    """What is likely to blame: `recipe.noise`."""
    words: str
    advice: str = ""
    attempt: int | None = None
    rank: int = 0
    resumed_at: int | None = None
    """The step from which that attempt went on."""
    others: tuple[str, ...] = ()
    """More that was not restored."""

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Place:
    """Where two runs part."""

    trace: AttemptTrace
    step: int
    entry: str
    is_restored_state: bool
    """The state differs before any step: it did not come back."""
    own: StepTrace | None
    reference: StepTrace | None


def diagnose(
    twin: Sequence[AttemptTrace],
    disturbed: Sequence[AttemptTrace],
    second: Sequence[AttemptTrace] = (),
    *,
    nondeterministic_ops: Sequence[str] = (),
) -> Finding | None:
    """None: every step is the same. `second` is another undisturbed run."""
    found = diagnose_twins(twin, second, nondeterministic_ops=nondeterministic_ops)
    if found is not None:
        return found
    place = _first_difference(twin, disturbed)
    if place is None:
        return None
    if place.is_restored_state:
        return _not_restored(place)
    if place.trace.claim == min(trace.claim for trace in disturbed):
        once = f"it differs from step {place.step} on, before anything interrupted it: "
        return _nondeterministic(place, {}, nondeterministic_ops, once)
    return _resumed_wrongly(place, _flaky(place, second))


def diagnose_twins(
    twin: Sequence[AttemptTrace],
    second: Sequence[AttemptTrace],
    *,
    nondeterministic_ops: Sequence[str] = (),
) -> Finding | None:
    """Are two undisturbed runs the same? If not, no resume can be exact."""
    place = _first_difference(twin, second)
    if place is None:
        return None
    once = f"two undisturbed runs differ too, from step {place.step} on: "
    return _nondeterministic(place, _hidden_differences(place), nondeterministic_ops, once)


def not_restored(
    twin: Sequence[AttemptTrace], disturbed: Sequence[AttemptTrace]
) -> tuple[str, ...]:
    """Hidden state that was not as in the undisturbed run when an attempt went on, in words."""
    steps = _steps_of(twin)
    found: dict[str, str] = {}
    for trace in disturbed:
        if not trace.begin or not trace.steps:
            continue
        first = trace.steps[0]
        reference = steps.get((trace.rank, first.step))
        if reference is not None:
            for name in _differing(first.hidden, reference.hidden):
                if kind_of(first.hidden, reference.hidden, name) != "other":
                    said = say_suspect(name, first.hidden, reference.hidden, trace.facts)
                    found.setdefault(root_of(name), said)
    return tuple(found.values())


# -- where ----------------------------------------------------------------------------------------


def _first_difference(twin: Sequence[AttemptTrace], other: Sequence[AttemptTrace]) -> _Place | None:
    """In the order of attempts, then steps, then ranks."""
    places = [place for trace in other if (place := _first_of(trace, twin)) is not None]
    return min(places, key=lambda p: (p.trace.claim, p.step, p.trace.rank), default=None)


def _first_of(trace: AttemptTrace, twin: Sequence[AttemptTrace]) -> _Place | None:
    states, steps = _states_of(twin), _steps_of(twin)
    expected = states.get((trace.rank, trace.begin))
    if expected is not None and trace.rank:
        # DDP hands rank 0's buffers on before each step: until then the others' may be anything.
        expected = {**trace.state, **_of_group(expected, "random")}
    if expected is not None and trace.facts.get("sets_lr"):
        # tasuki's own schedule has set that of the coming step already.
        rates = {name: text for name, text in trace.state.items() if name.endswith(".lr")}
        expected = {**expected, **rates}
    if expected is not None and (entry := _first_entry(trace.state, expected)):
        return _Place(
            trace=trace,
            step=trace.begin,
            entry=entry,
            is_restored_state=True,
            own=trace.steps[0] if trace.steps else None,
            reference=steps.get((trace.rank, trace.begin + 1)),
        )
    for own in trace.steps:
        reference = steps.get((trace.rank, own.step))
        if reference is not None and (entry := _first_entry_of_step(own, reference)):
            return _Place(
                trace=trace,
                step=own.step,
                entry=entry,
                is_restored_state=False,
                own=own,
                reference=reference,
            )
    return None


def _states_of(traces: Sequence[AttemptTrace]) -> dict[tuple[int, int], Entries]:
    """By rank and step: model, optimizer, schedule and random states after it."""
    states: dict[tuple[int, int], Entries] = {}
    for trace in traces:
        states[trace.rank, trace.begin] = trace.state
        for step in trace.steps:
            states[trace.rank, step.step] = {
                name: text
                for name, text in step.after.items()
                if _group(name) not in ("batch", "loss")
            }
    return states


def _steps_of(traces: Sequence[AttemptTrace]) -> dict[tuple[int, int], StepTrace]:
    return {(trace.rank, step.step): step for trace in traces for step in trace.steps}


def _first_entry_of_step(own: StepTrace, reference: StepTrace) -> str:
    if own.ids != reference.ids:
        return "ids"
    return _first_entry(own.before, reference.before) or _first_entry(own.after, reference.after)


def _first_entry(own: Entries, reference: Entries) -> str:
    """The earliest in a step's own order: batches come before the loss, the loss before weights."""
    differing = _differing(own, reference)
    return min(differing, key=lambda name: _GROUPS.index(_group(name)), default="")


def _differing(own: Entries, reference: Entries) -> list[str]:
    names = dict.fromkeys([*reference, *own])
    return [name for name in names if own.get(name) != reference.get(name)]


def _of_group(entries: Entries, group: str) -> dict[str, str]:
    return {name: text for name, text in entries.items() if _group(name) == group}


def _group(entry: str) -> str:
    return entry.partition(".")[0].partition(" ")[0].partition("[")[0]


# -- why ------------------------------------------------------------------------------------------


def _not_restored(place: _Place) -> Finding:
    """The state itself did not come back."""
    where = _where(place)
    if _group(place.entry) == "random":
        return Finding(
            cause="random",
            words=f"{in_words(place.entry)} are not where they were when the run went on from step "
            f"{place.trace.begin}: they were not captured, or were seeded anew after the resume",
            advice="seed random numbers before the loop, not in it"
            if place.trace.facts.get("is_loop")
            else "do not seed random numbers in the recipe after `build_model`",
            **where,
        )
    return Finding(
        cause="not-restored",
        suspect=place.entry,
        words=f"{in_words(place.entry)} did not come back as it was when the run went on from step "
        f"{place.trace.begin}",
        advice="its `load_state_dict` must put back all that its `state_dict` gives",
        **where,
    )


def _resumed_wrongly(place: _Place, flaky: Mapping[str, str]) -> Finding:
    """Two undisturbed runs are the same, and this one is not after it was resumed."""
    differing = {n: k for n, k in _hidden_differences(place).items() if n not in flaky}
    suspects = _ranked(differing, place.entry)
    is_batch = _group(place.entry) == "batch"
    if place.entry == "ids":
        return Finding(
            cause="order",
            words="the resumed run took other samples: the data are not the same at every start",
            advice="let `build_dataset` list its files in a fixed order (`sorted`)",
            **_where(place),
        )
    if suspects:
        return _blamed(place, suspects, is_batch=is_batch)
    if is_batch:
        return _unseen_batch(place)
    return Finding(
        cause="unseen",
        words=f"{in_words(place.entry)} differs, although batch, weights, optimizer and random "
        "numbers were the same: it hangs on something that no checkpoint holds and the drill does "
        "not see (a closure, a file, another module, a library's own state)",
        advice="look at what the loop reads and changes beside what is tracked: `run.track` it"
        if place.trace.facts.get("is_loop")
        else "look at what the recipe's `loss` reads beside the model and the batch",
        **_where(place),
    )


def _blamed(place: _Place, suspects: list[str], *, is_batch: bool) -> Finding:
    assert place.own is not None and place.reference is not None
    own, reference, facts = place.own.hidden, place.reference.hidden, place.trace.facts
    top = suspects[0]
    one_of_each = {root_of(name): name for name in reversed(suspects)}
    others = [name for root, name in reversed(one_of_each.items()) if root != root_of(top)]
    cause: Cause = "hidden"
    if is_batch and _group(top) == "data":
        cause = "loader" if facts.get("is_foreign") else "data"
    return Finding(
        cause=cause,
        suspect=top,
        words=f"{say_suspect(top, own, reference, facts)} is not part of any checkpoint: it was "
        f"not as before when the run went on from step {place.trace.begin}, and in step "
        f"{place.step} {in_words(place.entry)} came out differently",
        advice=advice_on(top, kind_of(own, reference, top), facts),
        others=tuple(say_suspect(name, own, reference, facts) for name in others[:_MOST_NAMED]),
        **_where(place),
    )


def _unseen_batch(place: _Place) -> Finding:
    if place.trace.facts.get("is_foreign"):
        return Finding(
            cause="loader",
            words="the loader that `build_dataset` returned gave another batch in step "
            f"{place.step}: what it shuffles or draws with is not part of any checkpoint",
            advice=advice_on("data", "other", place.trace.facts),
            **_where(place),
        )
    return Finding(
        cause="data",
        words=f"the same samples, but another batch in step {place.step}: the data draw from "
        "random numbers that tasuki does not seed, or hang on something outside",
        advice=advice_on("data", "generator", place.trace.facts),
        **_where(place),
    )


def _nondeterministic(
    place: _Place, differing: Mapping[str, str], ops: Sequence[str], once: str
) -> Finding:
    """Undisturbed runs differ: nothing is wrong with the resume, as far as one can see."""
    group = _group(place.entry)
    suspects = [n for n in _ranked(differing, place.entry) if differing[n] == "generator"]
    words, advice = never_twice(group, place.trace.facts, ops)
    if suspects and place.own is not None and place.reference is not None:
        top = suspects[0]
        said = say_suspect(top, place.own.hidden, place.reference.hidden, place.trace.facts)
        return Finding(
            cause="nondeterministic",
            suspect=top,
            words=f"{once}{said} begins differently in every process: nobody seeds it",
            advice=advice_on(top, "generator", place.trace.facts),
            **_where(place),
        )
    return Finding(cause="nondeterministic", words=once + words, advice=advice, **_where(place))


# -- suspects -------------------------------------------------------------------------------------


def _hidden_differences(place: _Place) -> dict[str, str]:
    """Name and kind of what no checkpoint holds and was not the same when the step began."""
    if place.own is None or place.reference is None:
        return {}
    own, reference = place.own.hidden, place.reference.hidden
    return {name: kind_of(own, reference, name) for name in _differing(own, reference)}


def _flaky(place: _Place, second: Sequence[AttemptTrace]) -> dict[str, str]:
    """What differs between undisturbed runs already, such as a time: not to blame."""
    again = _steps_of(second).get((place.trace.rank, place.step))
    if again is None or place.reference is None:
        return {}
    return dict.fromkeys(_differing(again.hidden, place.reference.hidden), "")


def _ranked(differing: Mapping[str, str], entry: str) -> list[str]:
    group = _group(entry)
    owners = _SUSPECTS.get(group, _SUSPECTS["model" if group in _GROUPS[3:5] else "loss"])

    def rank(name: str) -> tuple[int, int]:
        return owners.index(_group(name)), _KINDS.index(differing[name])

    return sorted(differing, key=rank)


def _where(place: _Place) -> dict[str, Any]:
    return {
        "step": place.step,
        "entry": place.entry,
        "attempt": place.trace.claim,
        "rank": place.trace.rank,
        "resumed_at": place.trace.begin,
    }


def first_row_difference(
    rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> Finding | None:
    """Every step is the same, but lines of metrics are not."""
    for own, other in _paired(rows, others):
        keys = [key for key in dict.fromkeys([*own, *other]) if own.get(key) != other.get(key)]
        if keys:
            step = own.get("step", other.get("step"))
            split = own.get("split", other.get("split"))
            what = f"`{keys[0]}` of the {'validation' if split == 'val' else 'metrics'}"
            return Finding(
                cause="validation",
                step=step,
                entry=keys[0],
                words=f"every step is the same, but {what} at step {step} is not: "
                f"{own.get(keys[0])} against {other.get(keys[0])}",
                advice="let `evaluate` hang on the model and the data alone",
            )
    return None


def _paired(
    rows: Sequence[Mapping[str, Any]], others: Sequence[Mapping[str, Any]]
) -> Iterator[tuple[Mapping[str, Any], Mapping[str, Any]]]:
    for number in range(max(len(rows), len(others))):
        yield (
            rows[number] if number < len(rows) else {},
            others[number] if number < len(others) else {},
        )

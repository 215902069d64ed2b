"""May these experiments be compared? What differs between them, on purpose and by accident.

Two results say something about an idea only if nothing but the idea differs. Pure: resolved
experiments and what is known of their runs go in, rows of keys and values come out. Stages are
compared by their place in the chain, chains by their sums. What experiments are made to vary
(`params`, `recipe`, the keys of `each`, and what the person names) is intended, and so is what
follows from it; what decides only when, where and in which pieces work is done is harmless. All
else is not meant.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tasuki.data.split import resolve_batch
from tasuki.errors import UsageError
from tasuki.spec.check import hints_of, nearest
from tasuki.spec.resolved import (
    ResolvedExperiment,
    ResolvedStage,
    stage_leaves,
    start_of,
    to_plain,
)
from tasuki.spec.written import Layer

ALWAYS_INTENDED = ("params", "recipe")
LENGTH = "length"
_LENGTHS = ("epochs", "steps", "samples")
_TRADE = "the same gradient in other pieces: `tasuki equiv` proves it"
_MANNER = "decides when and where, not what is learnt"
_BITS = "changes the last bits only"
_HARMLESS = {
    **dict.fromkeys(
        ("micro_batch", "accumulation", "gradient_checkpointing", "offload", "gpus"), _TRADE
    ),
    **dict.fromkeys(
        ("save", "loader", "log_every", "export", "expect", "evaluate.reserve", "allocator"),
        _MANNER,
    ),
    **dict.fromkeys(("safety_factor", "ranks", "world", "threads", "device_model"), _MANNER),
    **dict.fromkeys(("compile", "exact"), _BITS),
}
_FOLLOWS = {
    "optimizer_steps": ("data", "size", "split", "effective_batch", LENGTH, "stages", "buckets"),
    "samples_seen": ("data", "size", "split", LENGTH, "stages"),
    "epochs_in_all": (LENGTH, "stages"),
    "data_fingerprint": ("data", "size", "split", "buckets"),
    "evaluation": ("evaluate", "data"),
}
"""What else differs where one of these was meant to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Of one experiment, beside its spec; what is not there is not known."""

    code: str | None = None
    stages: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """By stage: `steps`, `samples`, `data`."""
    machine: Mapping[str, Any] = field(default_factory=dict)
    """Of a run: device, versions, ranks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    name: str
    experiment: ResolvedExperiment
    ranks: int
    facts: Facts = Facts()


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One key that is not the same everywhere."""

    key: str
    stage: int | None
    """Its place in the chain, from 1; None: of the whole."""
    values: tuple[Any, ...]
    """As the contenders are ordered."""
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fairness:
    names: tuple[str, ...]
    unintended: tuple[Row, ...]
    intended: tuple[Row, ...]
    harmless: tuple[Row, ...]
    unknown: tuple[str, ...]
    """What could not be compared."""
    sums: tuple[Row, ...]
    """Steps, samples and epochs of whole chains, equal or not."""

    @property
    def is_fair(self) -> bool:
        return not self.unintended

    def as_json(self) -> dict[str, Any]:
        rows = {
            kind: [_row_as_json(row, self.names) for row in getattr(self, kind)]
            for kind in ("unintended", "intended", "harmless", "sums")
        }
        return {
            "fair": self.is_fair,
            "experiments": list(self.names),
            **rows,
            "unknown": list(self.unknown),
        }


def _row_as_json(row: Row, names: Sequence[str]) -> dict[str, Any]:
    values = dict(zip(names, row.values, strict=True))
    return {"key": row.key, "stage": row.stage, "values": values, "why": row.why or None}


def compare_fairly(contenders: Sequence[Contender], *, intended: Iterable[str] = ()) -> Fairness:
    """Everything that differs between the contenders."""
    refuse_alone(contenders)
    meant = (*ALWAYS_INTENDED, *(LENGTH if key in _LENGTHS else key for key in intended))
    rows = [row for row in [*_of_stages(contenders), *_of_chains(contenders)] if _differs(row)]
    on_purpose = {_short(row.key) for row in rows if _is_under(row.key, meant)}
    others = {_short(row.key) for row in rows} - on_purpose
    sorted_rows: dict[str, list[Row]] = {"unintended": [], "intended": [], "harmless": []}
    for row in rows:
        kind, why = _judge(row, meant, on_purpose, others)
        sorted_rows[kind].append(Row(key=row.key, stage=row.stage, values=row.values, why=why))
    return Fairness(
        names=tuple(contender.name for contender in contenders),
        unintended=tuple(sorted_rows["unintended"]),
        intended=tuple(sorted_rows["intended"]),
        harmless=tuple(sorted_rows["harmless"]),
        unknown=tuple(_unknown(contenders)),
        sums=tuple(_sums(contenders)),
    )


def refuse_alone(contenders: Sequence[object]) -> None:
    if len(contenders) < 2:
        raise UsageError(
            "a comparison needs two experiments at least",
            hint="name several with --experiment A B, or give several run folders",
        )


def refuse_unknown(contenders: Sequence[Contender], intended: Iterable[str]) -> None:
    """Keys that no experiment has, and none could have: a typing error would intend nothing."""
    rows = [*_of_stages(contenders), *_of_chains(contenders)]
    known = {*ALWAYS_INTENDED, *_LENGTHS, *hints_of(Layer)}
    for row in rows:
        parts = row.key.split(".")
        known |= {".".join(parts[:end]) for end in range(1, len(parts) + 1)}
    for key in intended:
        if key not in known:
            near = nearest(key, known)
            raise UsageError(
                f"--intended {key}: there is no such key",
                hint=f"did you mean `{near}`?"
                if near
                else "keys of a stage (`lr`, `params.width`, `epochs`), or as the comparison "
                "names them",
            )


def _judge(
    row: Row, meant: Sequence[str], on_purpose: set[str], others: set[str]
) -> tuple[str, str]:
    """The kind of a difference, and why."""
    if _is_under(row.key, meant):
        return "intended", ""
    roots = [key for key in _FOLLOWS.get(row.key, ()) if key != row.key]
    for key in roots:
        if key in others:
            return "unintended", f"follows from `{key}`"
    for key in roots:
        if key in on_purpose:
            return "intended", f"follows from `{key}`"
    for key, why in _HARMLESS.items():
        if _is_under(row.key, (key,)):
            return "harmless", why
    return "unintended", ""


def _is_under(key: str, words: Iterable[str]) -> bool:
    return any(key == word or key.startswith(f"{word}.") for word in words)


def _short(key: str) -> str:
    return key.partition(".")[0]


def _differs(row: Row) -> bool:
    """Of those that are known."""
    known = {_canonical(value) for value in row.values if value is not UNKNOWN}
    return len(known) > 1


UNKNOWN = None
"""Where something is not known, it does not differ: `unknown` tells of it."""
_ABSENT = "–"
"""A key that a stage does not have is a value like any other."""


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, default=str)


# -- stages by their place -----------------------------------------------------------------------


def _of_stages(contenders: Sequence[Contender]) -> Iterator[Row]:
    shortest = min(len(contender.experiment.stages) for contender in contenders)
    for place in range(shortest):
        leaves = [dict(_leaves(contender, place)) for contender in contenders]
        for key in dict.fromkeys(key for one in leaves for key in one):
            values = tuple(one.get(key, _ABSENT) for one in leaves)
            yield Row(key=key, stage=place + 1, values=values)
        for key, fact in (
            ("optimizer_steps", "steps"),
            ("samples_seen", "samples"),
            ("data_fingerprint", "data"),
        ):
            values = tuple(_fact(contender, place, fact) for contender in contenders)
            yield Row(key=key, stage=place + 1, values=values)


def _leaves(contender: Contender, place: int) -> Iterator[tuple[str, Any]]:
    """The keys of a stage, with what follows from other keys worked out."""
    stage = contender.experiment.stages[place]
    for key, value in stage_leaves(to_plain(stage)):
        if key == "name":
            continue
        if key in _LENGTHS:
            yield LENGTH, f"{value:g} {key}" if isinstance(value, int | float) else str(value)
        elif key == "effective_batch":
            yield key, _effective_batch(stage, contender.ranks)
        elif key == "init_from":
            yield key, _start(contender.experiment, place)
        else:
            yield key, _ABSENT if value is None else value


def _effective_batch(stage: ResolvedStage, ranks: int) -> int:
    if stage.effective_batch is not None:
        return stage.effective_batch
    micro = None if stage.micro_batch == "auto" else stage.micro_batch
    own = stage.gpus if isinstance(stage.gpus, int) else ranks
    return resolve_batch(None, micro, stage.accumulation, own).effective_batch


def _start(experiment: ResolvedExperiment, place: int) -> str:
    """A stage of its own chain by its place: names may differ."""
    word = experiment.stages[place].init_from
    if start_of(word) != "stage":
        return word
    names = [stage.name for stage in experiment.stages]
    number = names.index(word)
    return "previous" if number == place - 1 else f"stage {number + 1}"


def _fact(contender: Contender, place: int, name: str) -> Any:
    stage = contender.experiment.stages[place]
    return contender.facts.stages.get(stage.name, {}).get(name, UNKNOWN)


# -- whole chains --------------------------------------------------------------------------------


def _of_chains(contenders: Sequence[Contender]) -> Iterator[Row]:
    lengths = tuple(len(contender.experiment.stages) for contender in contenders)
    yield Row(key="stages", stage=None, values=lengths)
    if len(set(lengths)) > 1:
        yield Row(key="evaluation", stage=None, values=tuple(map(_last_evaluation, contenders)))
        yield from _sums(contenders)
    codes = tuple(contender.facts.code for contender in contenders)
    yield Row(key="code", stage=None, values=codes)
    for key in dict.fromkeys(key for c in contenders for key in c.facts.machine):
        values = tuple(contender.facts.machine.get(key) for contender in contenders)
        yield Row(key=key, stage=None, values=values)


def _last_evaluation(contender: Contender) -> Any:
    last = contender.experiment.stages[-1]
    if last.evaluate is None:
        return _ABSENT
    what = last.evaluate
    return {"data": what.data or last.data, "split": what.split, "command": what.command}


def _sums(contenders: Sequence[Contender]) -> Iterator[Row]:
    yield Row(key="epochs_in_all", stage=None, values=tuple(map(_epochs, contenders)))
    for key, fact in (("optimizer_steps", "steps"), ("samples_seen", "samples")):
        values = tuple(_sum(contender, fact) for contender in contenders)
        yield Row(key=key, stage=None, values=values)


def _epochs(contender: Contender) -> float | None:
    lengths = [stage.length for stage in contender.experiment.stages]
    if any(length.unit != "epochs" for length in lengths):
        return None
    return sum(length.count for length in lengths)


def _sum(contender: Contender, fact: str) -> int | None:
    found = [_fact(contender, place, fact) for place in range(len(contender.experiment.stages))]
    return None if None in found else sum(found)


def _unknown(contenders: Sequence[Contender]) -> Iterator[str]:
    for key, words in (
        ("steps", "optimizer steps and samples seen"),
        ("data", "fingerprints of data"),
    ):
        names = [c.name for c in contenders if _sum_is_unknown(c, key)]
        if names:
            yield f"{words} of {', '.join(names)}"
    names = [contender.name for contender in contenders if contender.facts.code is None]
    if names and len(names) < len(contenders):
        yield f"the code of {', '.join(names)}"


def _sum_is_unknown(contender: Contender, fact: str) -> bool:
    return any(
        _fact(contender, place, fact) is None for place in range(len(contender.experiment.stages))
    )

"""What is known of stages before they run: asked of a child once, and kept under `runs/.probes`.

An answer is found again by a key of the stage's plain values (estimation/works.py) and holds while
the files of code that the child named, the stage's data (names, sizes, times) and torch's version
are as they were; so neither torch nor the recipe is imported to find it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki import subprocesses
from tasuki.commands.asking import Asking
from tasuki.commands.kept import NO_FILES, Keeper, stamps_of
from tasuki.errors import StoreError
from tasuki.estimation.probes import Probe, read_probe
from tasuki.estimation.works import covers, facts_key, is_of_data, probe_work, sizes_in
from tasuki.spec.resolved import ResolvedStage, to_plain


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """Of one stage."""

    facts: dict[str, Any]
    """Of its data, as train/survey.py tells them."""
    probe: Probe | None
    small: Probe | None = None
    """By cost: of even samples, where `probe` is of the dearest (estimation/by_cost.py)."""
    untraced: dict[str, str] | None = None
    """What stands in the way of a trace: {"op", "reason"}; then `probe` was measured, if any."""
    unmeasured: str | None = None
    """Why real steps told nothing either."""


@dataclass(slots=True)
class Oracle:
    """Asks about the stages of one spec."""

    folder: str
    runs: Path
    device: str
    """cuda or cpu."""
    ranks: int
    asking: Asking | None
    """None: only what is kept counts."""
    measures_on: str | None = None
    """cuda or cpu, what is here: the child may take real steps where it cannot trace. None: it must
    not."""
    notes: list[str] = field(default_factory=list)
    """About what was kept and does not count."""
    keeper: Keeper = field(init=False)
    _facts: dict[str, dict[str, Any]] = field(default_factory=dict)
    _probes: dict[str, dict[str, Any]] = field(default_factory=dict)
    _looked: set[str] = field(default_factory=set)
    _measured: set[str] = field(default_factory=set)
    """Probes that were asked for, with leave to measure: there is no more to know."""

    def __post_init__(self) -> None:
        self.keeper = Keeper(self.runs, self.notes)

    def foretell(self, stages: Sequence[ResolvedStage]) -> list[Foretold | None]:
        """In the order of the stages; None: not known, and nobody may be asked. Stages without a
        recipe are nobody's business here."""
        missing = {
            str({**to_plain(stage), "name": ""}): stage
            for stage in stages
            if self._known(stage) is None
        }
        if missing and self.asking is not None:
            self._ask(list(missing.values()), self.asking)
        found = [self._known(stage) for stage in stages]
        assert self.asking is None or None not in found, "the child has answered"
        return [None if one is None else Foretold(**one) for one in found]

    def _known(self, stage: ResolvedStage) -> dict[str, Any] | None:
        facts = self._facts_of(stage)
        if facts is None:
            return None
        kept = self._probe_of(stage, facts)
        if kept is None or not _tells_of(kept, facts):
            return None
        if self._is_to_measure(self._probe_key(stage, facts)):
            return None
        names = {"probe": "read", "small": "read_small", "untraced": "untraced"}
        known = {name: kept[key] for name, key in names.items()}
        return {"facts": facts, **known, "unmeasured": kept.get("unmeasured")}

    def _is_to_measure(self, key: str) -> bool:
        """What could not be traced may be measured now; what a CPU told, by a GPU. What failed is
        tried again: memory that was short may be free."""
        kept = self._probes[key]
        if self.measures_on is None or kept["untraced"] is None or key in self._measured:
            return False
        if kept["read"] is None:
            return True
        return kept["read"].measured_on == "cpu" and self.device == self.measures_on == "cuda"

    def _facts_of(self, stage: ResolvedStage) -> dict[str, Any] | None:
        key = self._facts_key(stage)
        if key not in self._facts and key not in self._looked:
            self._looked.add(key)
            kept = self.keeper.read(key, data=stamps_of(stage, self.folder))
            if kept is not None:
                self._facts[key] = kept["value"]
        return self._facts.get(key)

    def _probe_of(self, stage: ResolvedStage, facts: Mapping[str, Any]) -> dict[str, Any] | None:
        key = self._probe_key(stage, facts)
        if key not in self._probes and key not in self._looked:
            self._looked.add(key)
            data = stamps_of(stage, self.folder) if is_of_data(facts) else NO_FILES
            kept = self.keeper.read(key, data=data)
            if kept is not None:
                self._take(key, kept["value"])
        return self._probes.get(key)

    def _take(self, key: str, value: dict[str, Any]) -> None:
        """A probe's value, read once; a damaged one is as good as none."""
        try:
            read, small = (
                None if plain is None else read_probe(plain, source=f"the probe {key}")
                for plain in (value["probe"], value.get("small"))
            )
            self._probes[key] = {**value, "read": read, "read_small": small}
        except StoreError as error:
            self.notes.append(f"{error.message}: it is made anew")

    def _ask(self, stages: Sequence[ResolvedStage], asking: Asking) -> None:
        stamps = [stamps_of(stage, self.folder) for stage in stages]
        known = [self._facts_of(stage) for stage in stages]
        for stage in stages:
            self._look_for_probes(stage)
        found = subprocesses.run(
            "tasuki.train.survey:survey",
            {
                "folder": self.folder,
                "device": self.device,
                "ranks": self.ranks,
                "may_measure": self.measures_on is not None,
                "have": self._have(),
                "stages": [
                    {"stage": to_plain(stage), "facts": facts}
                    for stage, facts in zip(stages, known, strict=True)
                ],
            },
            python=asking.python,
            environment=asking.environment,
            cwd=self.folder,
            progress=asking.on_progress,
            result=dict[str, Any],
        )
        for stage, facts, stamp in zip(stages, found["facts"], stamps, strict=True):
            key = self._facts_key(stage)
            if key not in self._facts:
                self._facts[key] = facts
                self.keeper.keep(key, facts, code=found["code"], data=stamp)
            key = self._probe_key(stage, facts)
            if (value := found["probes"].pop(key, None)) is not None:
                is_less = value["probe"] is None and self._has_probe(key)
                self._take(key, value)
                self._measured.add(key)
                data = stamp if is_of_data(facts) else NO_FILES
                if not is_less:
                    self.keeper.keep(key, value, code=found["code"], data=data)

    def _look_for_probes(self, stage: ResolvedStage) -> None:
        """Of a stage whose data are not known yet, whatever they will turn out to be: what is there
        need not be traced again, and must not be replaced by less."""
        for buckets in ([], [{"largest": 0}]):
            self._probe_of(stage, {"has_example": True, "buckets": buckets})

    def _has_probe(self, key: str) -> bool:
        return key in self._probes and self._probes[key]["read"] is not None

    def _have(self) -> dict[str, Any]:
        return {
            key: {
                "sizes": value["sizes"],
                "is_exact": value["read"] is None or value["read"].is_exact,
            }
            for key, value in self._probes.items()
            if not self._is_to_measure(key)
        }

    def _facts_key(self, stage: ResolvedStage) -> str:
        return facts_key(stage, folder=self.folder, ranks=self.ranks)

    def _probe_key(self, stage: ResolvedStage, facts: Mapping[str, Any]) -> str:
        return probe_work(stage, facts, folder=self.folder, device=self.device, ranks=self.ranks)


def _tells_of(kept: Mapping[str, Any], facts: Mapping[str, Any]) -> bool:
    if is_of_data(facts):
        return True  # made of these data, with all their sizes
    probe = kept["read"]
    is_exact = probe is None or probe.is_exact
    return covers(kept["sizes"], sizes_in(facts), is_exact=is_exact)

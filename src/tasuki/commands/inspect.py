"""`tasuki inspect`: what data hold, told by a child process that opens them. Writes nothing.

HDF5 files are read as they are (tasuki.data.hdf5.inspect); the data of a spec are opened by its
recipes (tasuki.train.inspect), each distinct combination of recipe, params, data and split once.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from tasuki import subprocesses
from tasuki.commands.asking import Asking
from tasuki.commands.data import DataWork, check_files
from tasuki.commands.inspect_batches import add_batches
from tasuki.commands.plan import choose_experiments
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT, read_json
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, ResolvedStage

_NUM_LARGEST = 10

Result = TypeVar("Result")


def which_spec(sources: Sequence[str]) -> str | None:
    """The spec that is meant; None: these are data."""
    if not sources:
        if not Path("tasuki.yaml").is_file():
            raise UsageError(
                "there is no ./tasuki.yaml, and no data are named",
                hint="name data or a spec, for example `tasuki inspect data/small.h5`",
            )
        return "tasuki.yaml"
    specs = [source for source in sources if is_spec(source)]
    if specs and len(sources) > 1:
        raise UsageError(
            f"`{specs[0]}` is a spec: it cannot be looked at together with other data",
            hint="name one spec, or data only",
        )
    return specs[0] if specs else None


def is_spec(word: str) -> bool:
    is_file = word.endswith((".yaml", ".yml", ".py")) or ".py:" in word
    return is_file or (Path(word) / "tasuki.yaml").is_file()


def inspect_files(sources: Sequence[str], *, check: bool, asking: Asking) -> dict[str, Any]:
    """What HDF5 files hold: files, folders and patterns."""
    for source in sources:
        _refuse_tokens(source)
    found = _ask(
        "tasuki.data.hdf5.inspect:work", {"sources": list(sources)}, asking, dict[str, Any]
    )
    answer = {"format": FORMAT, "source": shlex.join(sources), **found}
    if check:
        answer["check"] = _check([file["file"] for file in found["files"]], asking)
    return answer


def _refuse_tokens(source: str) -> None:
    """They have one size, and no padding: their index says it all."""
    index = Path(source) / "index.json"
    if not index.is_file():
        return
    told = read_json(index)
    if "tokens" in told:
        raise UsageError(
            f"`{source}` is a folder of tokens: {told['tokens']:,} tokens of "
            f"{told['documents']:,} documents, in {told['chunks']:,} chunks of {told['chunk']:,}; "
            f"vocabulary {told['vocab']:,} ({told['dtype']})",
            hint=f"`tasuki data check {source}` looks whether it is whole; `tasuki.TokenDataset` "
            "reads it",
        )


def inspect_spec(
    spec: ResolvedSpec,
    experiments: Sequence[str],
    stages: Sequence[str],
    *,
    check: bool,
    asking: Asking,
    gpu: str | None = None,
) -> dict[str, Any]:
    """What the data of a spec's stages hold, as its recipes open them; on a GPU with this name (or
    the spec's own, if that is known already) also which micro-batch fits."""
    chosen = choose_experiments(spec, experiments, tuple(stages) or spec.only_stages)
    parts = list(_parts_of(chosen, tuple(stages) or spec.only_stages))
    order = {"folder": spec.folder, "parts": [part.order() for part in parts]}
    kind = list[dict[str, Any] | None]
    target = "tasuki.train.inspect:work"
    answers = _ask(target, order, asking, kind, folder=spec.folder) if parts else []
    pairs = [(part, facts) for part, facts in zip(parts, answers, strict=True) if facts]
    if not pairs:
        raise UsageError(
            "no stage of the spec has a recipe that opens data with numbered samples",
            hint="name the data instead: `tasuki inspect FILE…`",
        )
    described = _merge_equal(pairs)
    about_batches = list(add_batches(described, spec, gpu=gpu, asking=asking))
    answer = {
        "format": FORMAT,
        "source": spec.file,
        **_all_together(described),
        "parts": described,
        "warnings": [*spec.warnings, *_not_looked_at(parts, answers), *about_batches],
    }
    if check:
        files = dict.fromkeys(
            str(Path(spec.folder, file["file"]))
            for part in described
            for file in part["files"]
            if file["samples"] is not None
        )
        answer["check"] = _check(list(files), asking)
    return answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """Data that some stages open in the same way."""

    stage: ResolvedStage
    stages: list[tuple[int, str, ResolvedStage]] = field(default_factory=list)
    """(place in the spec, experiment, stage)"""

    def order(self) -> dict[str, Any]:
        stage = self.stage
        return {
            "stage": stage.name,
            "recipe": stage.recipe,
            "params": stage.params,
            "data": stage.data,
            "split": stage.split,
        }


def _parts_of(experiments: Sequence[ResolvedExperiment], wanted: Sequence[str]) -> Iterator[_Part]:
    parts: dict[str, _Part] = {}
    written = [(one.name, stage) for one in experiments for stage in one.stages]
    for place, (name, stage) in enumerate(written):
        if stage.recipe is None or (wanted and stage.name not in wanted):
            continue
        key = json.dumps([stage.recipe, stage.params, stage.data, stage.split], sort_keys=True)
        parts.setdefault(key, _Part(stage=stage)).stages.append((place, name, stage))
    yield from parts.values()


def _not_looked_at(parts: Sequence[_Part], answers: Sequence[Any]) -> Iterator[str]:
    for part, facts in zip(parts, answers, strict=True):
        if facts is None:
            yield (
                f"stage `{part.stage.name}` brings a loader of its own: its samples are not "
                "looked at"
            )


def _merge_equal(pairs: Sequence[tuple[_Part, dict[str, Any]]]) -> list[dict[str, Any]]:
    """Params that do not change the data give one description, with the stages of both."""
    merged: dict[str, dict[str, Any]] = {}
    for part, facts in pairs:
        stage = part.stage
        head = {"source": _label(stage), "recipe": stage.recipe, "split": stage.split}
        one = merged.setdefault(json.dumps([head, facts]), {**head, "stages": [], **facts})
        one["stages"] += [(at, _stage_facts(name, stage, facts)) for at, name, stage in part.stages]
    described = list(merged.values())
    for one in described:
        one["stages"] = [stage for _, stage in sorted(one["stages"], key=lambda pair: pair[0])]
        one["notes"] = [*one["notes"], *_without_samples(one["stages"])]
    return described


def _label(stage: ResolvedStage) -> str | None:
    return shlex.join(stage.data) if isinstance(stage.data, list) else stage.data


def _stage_facts(experiment: str, stage: ResolvedStage, facts: dict[str, Any]) -> dict[str, Any]:
    """A stage, and how many samples its `size` leaves to it."""
    sizes = stage.size
    buckets = facts["buckets"]
    if sizes is not None:
        buckets = [b for b in buckets if b["size"] is not None and sizes.contains(b["size"])]
    return {
        "experiment": experiment,
        "stage": stage.name,
        "size": sizes.label() if sizes is not None else None,
        "samples": sum(bucket["samples"] for bucket in buckets),
    }


def _without_samples(stages: Sequence[dict[str, Any]]) -> Iterator[str]:
    for stage in stages:
        if not stage["samples"]:
            yield f"stage `{stage['stage']}` takes size {stage['size']}, which no sample has"


def _all_together(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums over the parts; data that several recipes open count once."""
    distinct = {(part["source"], part["split"]): part for part in reversed(parts)}
    counted = list(distinct.values())[::-1]
    disk = [part["disk_bytes"] for part in counted]
    buckets: dict[int | None, dict[str, Any]] = {}
    for bucket in (bucket for part in counted for bucket in part["buckets"]):
        one = buckets.setdefault(bucket["size"], {"size": bucket["size"], "samples": 0, "bytes": 0})
        one["samples"] += bucket["samples"]
        one["bytes"] += bucket["bytes"]
        if (micro := bucket.get("micro_batch")) is not None and micro <= one.get(
            "micro_batch", micro
        ):
            one |= {name: bucket[name] for name in ("gpu", "micro_batch", "peak_bytes")}
    largest = [sample for part in counted for sample in part["largest"]]
    return {
        "samples": sum(part["samples"] for part in counted),
        "bytes": sum(part["bytes"] for part in counted),
        "disk_bytes": sum(disk) if None not in disk else None,
        "buckets": sorted(buckets.values(), key=lambda one: one["size"] or 0),
        "largest": sorted(largest, key=lambda one: (-one["size"], -one["bytes"]))[:_NUM_LARGEST],
    }


def _check(files: Sequence[str], asking: Asking) -> dict[str, Any]:
    """The answer of `tasuki data check`."""
    if not files:
        raise UsageError(
            "`--check` reads HDF5 files, and these data are none",
            hint="leave `--check` out, or name the files",
        )
    work = DataWork(
        python=asking.python, environment=asking.environment, on_progress=asking.on_progress
    )
    return check_files(files, work=work)


def _ask(
    target: str,
    order: Mapping[str, Any],
    asking: Asking,
    result: type[Result],
    folder: str | None = None,
) -> Result:
    return subprocesses.run(
        target,
        order,
        python=asking.python,
        environment=asking.environment,
        cwd=folder,
        progress=asking.on_progress,
        result=result,
    )

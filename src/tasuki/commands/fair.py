"""`tasuki equiv --compare`: may these experiments, or these runs, be compared?

Gathers what is known of each (its spec, its run, its data) and lets planning/fairness.py judge.
Steps and samples of stages that have not ended are asked of a child process, which opens the data.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from tasuki.answers import ChildFailed, ask
from tasuki.commands.asking import Asking
from tasuki.commands.equiv import ranks_of
from tasuki.commands.finished import open_run
from tasuki.commands.plan import choose_experiments
from tasuki.planning.fairness import (
    Contender,
    Facts,
    compare_fairly,
    refuse_alone,
    refuse_unknown,
)
from tasuki.runs.atomic import FORMAT, read_json, read_json_or_none
from tasuki.runs.find import latest_run
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedExperiment, ResolvedSpec, fingerprint, to_plain

_OF_A_RUN = ("device", "torch", "numpy", "python", "world", "threads", "device_model")


def compare_experiments(
    spec: ResolvedSpec,
    experiments: Sequence[str],
    *,
    intended: Sequence[str] = (),
    asking: Asking,
) -> dict[str, Any]:
    """The values of `tasuki equiv --compare --json`, of the experiments of a spec."""
    chosen = choose_experiments(spec, experiments, ())
    refuse_alone(chosen)
    notes: list[str] = []
    contenders = [_of_spec(experiment, spec, notes) for experiment in chosen]
    refuse_unknown(contenders, intended)
    varied = [key for e in chosen for key in spec.varied.get(e.name, ())]
    contenders = _with_lengths(contenders, spec.folder, asking, notes)
    found = compare_fairly(contenders, intended=[*intended, *varied])
    return {
        "format": FORMAT,
        "source": spec.file,
        **found.as_json(),
        "notes": notes,
        "warnings": list(spec.warnings),
    }


def compare_runs(
    names: Sequence[str], runs: Path, *, intended: Sequence[str] = (), asking: Asking
) -> dict[str, Any]:
    """The same of runs, each with the spec it was begun with."""
    refuse_alone(names)
    notes: list[str] = []
    opened = [open_run(name, runs)[0] for name in names]
    bare = [
        Contender(
            name=run.folder.name,
            experiment=run.experiment,
            ranks=run.cluster.gpus * run.cluster.nodes,
            facts=_of_run(run.folder),
        )
        for run in opened
    ]
    refuse_unknown(bare, intended)
    contenders = []
    for run, contender in zip(opened, bare, strict=True):
        project = run.project if run.project.is_dir() else run.folder.code
        contenders += _with_lengths([contender], str(project), asking, notes)
    contenders = _named_apart(contenders, names)
    found = compare_fairly(contenders, intended=intended)
    return {
        "format": FORMAT,
        "source": str(runs),
        **found.as_json(),
        "notes": notes,
        "warnings": [],
    }


def _named_apart(contenders: Sequence[Contender], words: Sequence[str]) -> list[Contender]:
    """Runs of one name in two folders are called as the person calls them."""
    names = [contender.name for contender in contenders]
    return [
        contender if names.count(contender.name) == 1 else replace(contender, name=word)
        for contender, word in zip(contenders, words, strict=True)
    ]


def _of_spec(experiment: ResolvedExperiment, spec: ResolvedSpec, notes: list[str]) -> Contender:
    run = latest_run(Path(spec.runs), experiment.name)
    facts = Facts()
    if run.spec.exists():
        begun_with = read_json(run.spec)["fingerprints"]["spec"]
        if begun_with == fingerprint(experiment):
            facts = _of_run(run)
        else:
            notes.append(f"the run of `{experiment.name}` was begun with another spec: left out")
    ranks = ranks_of(experiment.stages[0], spec)
    return Contender(name=experiment.name, experiment=experiment, ranks=ranks, facts=facts)


def _of_run(run: RunFolder) -> Facts:
    frozen: Mapping[str, Any] = read_json_or_none(run.frozen) or {}
    stages = {}
    for folder in sorted(run.stages.iterdir()) if run.stages.is_dir() else []:
        metrics = read_json_or_none(run.stage(folder.name).metrics)
        if metrics:
            stages[folder.name] = {key: metrics.get(key) for key in ("steps", "samples")}
    return Facts(
        code=str(read_json(run.spec)["fingerprints"]["code"])[:12],
        stages=stages,
        machine={key: frozen[key] for key in _OF_A_RUN if key in frozen},
    )


def _with_lengths(
    contenders: Sequence[Contender], folder: str, asking: Asking, notes: list[str]
) -> list[Contender]:
    """With steps, samples and fingerprints of the data as they are now, where they can be opened;
    what a run has done goes before."""
    asked = [(c, stage) for c in contenders for stage in c.experiment.stages if stage.recipe]
    order = {
        "folder": folder,
        "stages": [{"stage": to_plain(s), "ranks": _ranks(s.gpus, c.ranks)} for c, s in asked],
    }
    try:
        answers: list[dict[str, Any]] = ask(
            "tasuki.train.lengths",
            order,
            python=asking.python,
            environment={**asking.environment, "CUDA_VISIBLE_DEVICES": ""},
            folder=folder,
            on_progress=asking.on_progress,
        )
    except ChildFailed as error:
        notes.append(f"the data were not looked at: {error.message}")
        return list(contenders)
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for (contender, stage), facts in zip(asked, answers, strict=True):
        if "error" in facts:
            notes.append(f"{contender.name}/{stage.name}: {facts['error']}")
        found[contender.name, stage.name] = {k: v for k, v in facts.items() if k != "error"}
    return [_joined(contender, found) for contender in contenders]


def _ranks(own: object, ranks: int) -> int:
    return own if isinstance(own, int) else ranks


def _joined(contender: Contender, found: Mapping[tuple[str, str], Mapping[str, Any]]) -> Contender:
    stages = {
        stage.name: {
            **found.get((contender.name, stage.name), {}),
            **contender.facts.stages.get(stage.name, {}),
        }
        for stage in contender.experiment.stages
    }
    return replace(contender, facts=replace(contender.facts, stages=stages))

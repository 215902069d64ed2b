"""Load a spec: the one way from what people wrote to what everybody else works with.

Read → include files → settings → check → put over the site → expand → merge → resolve. The
environment is an argument. Nothing here knows a cluster, a data set or torch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from tasuki.errors import SpecError
from tasuki.spec.alerts import parse_alerts
from tasuki.spec.check import check_mapping, check_spec, check_stage, nearest
from tasuki.spec.commands import IdleKeys, name_of, parse_command, refuse_odd_commands
from tasuki.spec.discover import LookAtData, find_stages
from tasuki.spec.expand import (
    Draft,
    apply_late,
    draft_experiments,
    name_stage,
    pick_weaker_layers,
    rename,
)
from tasuki.spec.export import parse_export
from tasuki.spec.layers import expand_path, merge_layers
from tasuki.spec.positions import Mark, Node, locate
from tasuki.spec.resolve import Surroundings, resolve_cluster, resolve_stage
from tasuki.spec.resolved import (
    ResolvedCluster,
    ResolvedExperiment,
    ResolvedSpec,
    ResolvedStage,
    start_of,
)
from tasuki.spec.settings import apply_early, read_settings
from tasuki.spec.site import Site, load_site
from tasuki.spec.source import (
    RunPython,
    Source,
    absolute,
    include_files,
    read_source,
    unlisted_files,
)
from tasuki.spec.starts import Names, refuse_circles
from tasuki.spec.written import Experiment


def load_spec(
    source: str,
    *,
    settings: Sequence[str] = (),
    config: str | None = None,
    environ: Mapping[str, str],
    run_python: RunPython | None = None,
    look: LookAtData | None = None,
) -> ResolvedSpec:
    """Read, check and complete a spec: a YAML file, a folder with one, or `file.py:function`.

    `look` is asked which sizes the data have, for `stages: auto`.
    """
    read = read_source(source, environ=environ, run_python=run_python)
    root = include_files(read, _not_empty(read.root))
    return _complete(read, root, settings=settings, config=config, environ=environ, look=look)


def _complete(
    read: Source,
    root: Node,
    *,
    settings: Sequence[str],
    config: str | None,
    environ: Mapping[str, str],
    look: LookAtData | None,
) -> ResolvedSpec:
    root, late = apply_early(root, read_settings(settings, environ=environ))
    root = include_files(read, root)
    check_spec(root)
    site = load_site(environ=environ)
    read.warnings.extend([*unlisted_files(read), *site.warnings])
    root = site.under(root)
    weaker = pick_weaker_layers(root, config=config)
    drafts = apply_late(draft_experiments(root, weaker), late)
    drafts = [find_stages(draft, weaker, look=look, source=read) for draft in drafts]
    if name := environ.get("TASUKI_NAME"):
        drafts = rename(drafts, name)
    cluster = resolve_cluster(root.entries().get("cluster"), environ=environ)
    work = _Work(weaker=weaker, cluster=cluster, environ=environ)
    experiments = work.resolve(drafts)
    spec = _assemble(read, root, cluster, experiments, work)
    varied = {draft.name: draft.varied for draft in drafts if draft.varied}
    return msgspec.structs.replace(spec, varied=varied)


_OF_A_COMMAND_LINE = ("project", "runs", "cluster")
"""What a command that is typed takes from the spec beside it."""


def load_command(
    words: Sequence[str], *, settings: Sequence[str] = (), environ: Mapping[str, str]
) -> ResolvedSpec:
    """A spec of one experiment, which runs this command in the folder we are in. `project`, `runs`
    and `cluster` are taken from ./tasuki.yaml if it is there."""
    command = list(parse_command(list(words)))
    here = Source(Path("tasuki.yaml"), environ)
    if here.path.is_file():
        here = read_source(str(here.path), environ=environ, run_python=None)
    mark = Mark("the command line")
    kept = {key: node for key, node in here.root.entries().items() if key in _OF_A_COMMAND_LINE}
    typed = {"experiments": {name_of(command): {"command": command}}}
    root = merge_layers(Node(kept, mark), locate(typed, at=lambda _: mark))
    return _complete(here, root, settings=settings, config=None, environ=environ, look=None)


def load_runs_folder(source: str, *, environ: Mapping[str, str]) -> str:
    """Only where the runs are: for verbs that need nothing else of a spec."""
    read = read_source(source, environ=environ, run_python=None)
    root, _ = apply_early(_not_empty(read.root), read_settings((), environ=environ))
    return _runs(root.entries().get("runs"), read.absolute.parent, read.environ)


def load_cluster(source: str, *, environ: Mapping[str, str]) -> ResolvedCluster:
    """Only the cluster: for a run whose experiment is frozen. No data are looked at."""
    read = read_source(source, environ=environ, run_python=None)
    root = include_files(read, _not_empty(read.root))
    root, _ = apply_early(root, read_settings((), environ=environ))
    check_spec(root)
    root = load_site(environ=environ).under(root)
    return resolve_cluster(root.entries().get("cluster"), environ=environ)


def cluster_of_site(site: Site, *, environ: Mapping[str, str]) -> ResolvedCluster:
    """The cluster as it is without any spec."""
    root = site.under(Node({}, Mark("")))
    return resolve_cluster(root.entries().get("cluster"), environ=environ)


def _not_empty(root: Node) -> Node:
    if root.content is None:
        raise SpecError(
            f"{root.mark}: the spec is empty", hint="write at least `recipe:` and `experiments:`"
        )
    return root


@dataclass(slots=True)
class _Work:
    """What is needed, and gathered, while experiments are resolved."""

    weaker: Node
    cluster: ResolvedCluster
    environ: Mapping[str, str]
    warnings: dict[str, str] = field(default_factory=dict)
    """key → warning: each key is mentioned once."""
    starts: dict[tuple[str, str], Node] = field(default_factory=dict)
    """(experiment, stage) → its written `init_from`"""
    idle: IdleKeys = field(default_factory=IdleKeys)

    def resolve(self, drafts: Sequence[Draft]) -> tuple[ResolvedExperiment, ...]:
        for draft in drafts:
            where = f"experiment `{draft.name}`"
            check_mapping(draft.layer, Experiment, where=where)
            for number, stage in enumerate(draft.stages, start=1):
                check_stage(stage, where=f"stage {number} of {where}")
        names = {draft.name: _name_stages(draft) for draft in drafts}
        experiments = tuple(self._experiment(draft, names) for draft in drafts)
        refuse_circles(experiments, self.starts)
        _refuse_without_recipe(experiments, drafts)
        _refuse_shared_exports(experiments, drafts)
        places = {
            (draft.name, stage.name): node
            for draft, experiment in zip(drafts, experiments, strict=True)
            for stage, node in zip(experiment.stages, draft.stages, strict=True)
        }
        refuse_odd_commands(experiments, places)
        return experiments

    def _experiment(self, draft: Draft, names: Mapping[str, tuple[str, ...]]) -> ResolvedExperiment:
        stages = []
        for index, stage in enumerate(draft.stages):
            merged = merge_layers(self.weaker, draft.layer, stage)
            around = Surroundings(
                names=Names(draft.name, names),
                index=index,
                cluster=self.cluster,
                environ=self.environ,
            )
            name = names[draft.name][index]
            resolved = resolve_stage(merged, name=name, around=around)
            stages.append(resolved)
            self._note(merged, draft.name, resolved, is_own="init_from" in stage.entries())
        return ResolvedExperiment(name=draft.name, stages=tuple(stages))

    def _note(self, merged: Node, experiment: str, stage: ResolvedStage, *, is_own: bool) -> None:
        """Remember what the user should hear about this stage."""
        entries = merged.entries()
        self._note_command(entries, stage)
        if not 0.3 <= stage.safety_factor <= 0.7:
            self.warnings.setdefault(
                "safety_factor outside",
                f"{entries['safety_factor'].mark}: `safety_factor: {stage.safety_factor}` lies "
                "outside 0.3 to 0.7: low wastes memory, high risks running out of it",
            )
        if stage.command is None:
            self._note_batch(entries, stage)
        start = entries.get("init_from")
        if start is None or start.content is None:
            return
        self.starts[experiment, stage.name] = start
        if not is_own and start_of(stage.init_from) in ("stage", "experiment", "file"):
            self._note_shared_start(start, experiment)

    def _note_command(self, entries: Mapping[str, Node], stage: ResolvedStage) -> None:
        self.idle.add(entries, stage)
        own, ranks = entries.get("command"), entries.get("ranks")
        if own is not None and isinstance(own.content, str):
            words = ", ".join(stage.command or ())
            self.warnings.setdefault(
                f"command {own.mark}",
                f"{own.mark}: `command` is one text: it is split into words and no shell reads it, "
                f"as if it were `[{words}]`",
            )
        if ranks is not None and stage.command is None and stage.ranks != "tasuki":
            self.warnings.setdefault(
                "ranks",
                f"{ranks.mark}: `ranks: {stage.ranks}` has no effect on stage `{stage.name}`: the "
                "ranks of a recipe are started by tasuki, one for each GPU",
            )

    def _note_batch(self, entries: Mapping[str, Node], stage: ResolvedStage) -> None:
        """Nothing is fitted where nothing is open, or where memory has no end of its own."""
        for key in ("safety_factor", "micro_batch"):
            node = entries.get(key)
            if node is None or node.content is None:
                continue
            why = self._why_not_fitted(key, stage)
            if why:
                what = f"{node.mark}: `{key}: {node.plain()}` has no effect on stage"
                self.warnings.setdefault(f"{key} idle", f"{what} `{stage.name}`: {why}")

    def _why_not_fitted(self, key: str, stage: ResolvedStage) -> str:
        if key == "micro_batch" and stage.micro_batch != "auto":
            return ""
        if stage.micro_batch != "auto":
            return "it never touches a given `micro_batch`"
        if stage.accumulation is not None:
            return "the micro-batch follows from `accumulation`"
        if stage.buckets.given_budget is not None:
            return "the `budget` of `buckets` bounds a micro-batch"
        if self.cluster.gpu == "cpu":
            return "the memory of a CPU has no end that a batch could be fitted to"
        return ""

    def _note_shared_start(self, start: Node, experiment: str) -> None:
        self.warnings.setdefault(
            f"init_from {experiment}",
            f"{start.mark}: `init_from` holds for every stage of `{experiment}`; to go on from "
            "stage to stage write it into the first stage only",
        )


def _name_stages(draft: Draft) -> tuple[str, ...]:
    names: list[str] = []
    for number, stage in enumerate(draft.stages, start=1):
        name = name_stage(stage, where=f"stage {number} of experiment `{draft.name}`")
        if name in names:
            raise SpecError(
                f"{stage.entries()['name'].mark}: two stages of `{draft.name}` are called `{name}`",
                hint="rename one of them",
            )
        names.append(name)
    return tuple(names)


def _refuse_without_recipe(
    experiments: tuple[ResolvedExperiment, ...], drafts: Sequence[Draft]
) -> None:
    """Only a spec in which every stage says what to expect can be planned without a recipe."""
    idle: list[tuple[bool, str]] = []
    is_everywhere_expected = True
    for experiment, draft in zip(experiments, drafts, strict=True):
        for stage, node in zip(experiment.stages, draft.stages, strict=True):
            is_expected = stage.expect_wall_s is not None or stage.expect_peak_bytes is not None
            is_everywhere_expected &= is_expected
            if stage.recipe is None and stage.command is None:
                where = f"{node.mark}: stage `{stage.name}` of `{experiment.name}`"
                idle.append((is_expected, where))
    if idle and not is_everywhere_expected:
        raise SpecError(
            f"{min(idle, key=lambda one: one[0])[1]} has neither `recipe` nor `command`",
            hint="write `recipe: module.sub:Class` at the top of the spec, or "
            "`command: [python, train.py]` for a script of its own",
        )


def _refuse_shared_exports(
    experiments: tuple[ResolvedExperiment, ...], drafts: Sequence[Draft]
) -> None:
    """Of one experiment's stages the last one's weights stay; two experiments would race."""
    writers: dict[str, str] = {}
    for experiment, draft in zip(experiments, drafts, strict=True):
        files = {e.to for stage in experiment.stages for e in parse_export(stage.export) if e.to}
        for file in sorted(files):
            other = writers.setdefault(file, experiment.name)
            if other != experiment.name:
                raise SpecError(
                    f"{draft.mark}: `{other}` and `{experiment.name}` would both export to "
                    f"`{file}`",
                    hint="give each experiment an `export` of its own, or leave `to` out",
                )


def _only_stages(
    experiments: tuple[ResolvedExperiment, ...], environ: Mapping[str, str]
) -> tuple[str, ...]:
    """TASUKI_STAGE: one name, or several with commas between them."""
    wanted = environ.get("TASUKI_STAGE", "").replace(",", " ").split()
    known = {stage.name: None for experiment in experiments for stage in experiment.stages}
    for name in wanted:
        if name not in known:
            near = nearest(name, known)
            raise SpecError(
                f"TASUKI_STAGE={name}: there is no such stage",
                hint=f"did you mean `{near}`?" if near else f"choose one of {', '.join(known)}",
            )
    return tuple(wanted)


def _assemble(
    read: Source,
    root: Node,
    cluster: ResolvedCluster,
    experiments: tuple[ResolvedExperiment, ...],
    work: _Work,
) -> ResolvedSpec:
    entries = root.entries()
    folder = read.absolute.parent
    given: dict[str, Any] = {
        key: entries[key].plain()
        for key in ("cut", "deadline", "on", "sinks")
        if key in entries and entries[key].content is not None
    }
    if "on" in given:
        given["on"] = parse_alerts(given["on"])
    if "deadline" in given:
        given["deadline"] = str(given["deadline"])
    project = entries.get("project", Node(None, Mark(""))).content
    return ResolvedSpec(
        project=str(project or folder.name or "tasuki"),
        file=str(read.absolute),
        folder=str(folder),
        runs=_runs(entries.get("runs"), folder, read.environ),
        cluster=cluster,
        experiments=experiments,
        only_stages=_only_stages(experiments, read.environ),
        warnings=tuple(
            dict.fromkeys([*read.warnings, *work.warnings.values(), *work.idle.warnings()])
        ),
        **given,
    )


def _runs(node: Node | None, folder: Path, environ: Mapping[str, str]) -> str:
    if node is None or node.content is None:
        return str(folder / "runs")
    return absolute(folder / expand_path(node, str(node.content), environ=environ))

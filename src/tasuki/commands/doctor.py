"""`tasuki doctor`: what this machine and its Slurm give a job, and what to change beforehand.

Reads only, but for `--write-site` and the probe job of `--live`. The rules are in doctor_rules.py.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tasuki.clock import Clock, utc
from tasuki.commands.discover import look_with
from tasuki.commands.doctor_live import Probe, run_probe
from tasuki.commands.doctor_machine import describe_machine, describe_runs
from tasuki.commands.doctor_rules import (
    COMMANDS,
    Finding,
    Treatment,
    check_cluster,
    check_commands,
    check_live,
    check_machine,
    check_paths,
    choose_partition,
    treat,
    trusted_wait,
)
from tasuki.commands.doctor_site import refuse_existing, render_site, write_site
from tasuki.commands.doctor_wishes import check_wishes
from tasuki.errors import TasukiError, UsageError
from tasuki.runs.atomic import FORMAT
from tasuki.slurm.client import NoSlurm, Slurm, SlurmError
from tasuki.slurm.text import (
    ShownNodes,
    ShownPartition,
    UnknownWords,
    most_gpus,
)
from tasuki.spec.load import cluster_of_site, load_spec
from tasuki.spec.resolved import ResolvedCluster, ResolvedSpec
from tasuki.spec.site import Site, load_site, users_file

_SHOWN = (
    *("ClusterName", "KillWait", "PreemptType", "PreemptMode", "PreemptParameters", "JobRequeue"),
    *("MaxArraySize", "MaxJobCount", "OverTimeLimit", "SlurmctldParameters", "MinJobAge"),
)
"""Settings that decide what becomes of our jobs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorRequest:
    """What is to be looked at."""

    source: str | None
    """The spec; None: without one."""
    here: Path
    python: str
    environment: Mapping[str, str]
    clock: Clock
    settings: Sequence[str] = ()
    config: str | None = None
    runs: Path | None = None
    """None: as the spec says, else `runs` here."""
    is_live: bool = False
    partition: str | None = None
    """None: as the spec or the site says, else Slurm's default."""
    within_s: float = 600.0
    writes_site: bool = False
    site_file: Path | None = None
    """None: the user's own."""
    is_forced: bool = False
    on_progress: Callable[[str], None] = lambda _: None


@dataclass(slots=True)
class _Case:
    """What is known so far."""

    request: DoctorRequest
    environment: Mapping[str, str]
    site: Site
    cluster: ResolvedCluster
    spec: ResolvedSpec | None = None
    slurm: Slurm | None = None
    version: tuple[int, int, int] | None = None
    settings: dict[str, str] = field(default_factory=dict)
    partitions: list[ShownPartition] = field(default_factory=list)
    nodes: list[ShownNodes] = field(default_factory=list)
    live: dict[str, Any] | None = None
    findings: list[Finding] = field(default_factory=list)

    @property
    def runs(self) -> Path:
        if self.request.runs is not None:
            return self.request.runs
        return Path(self.spec.runs) if self.spec is not None else self.request.here / "runs"

    @property
    def python(self) -> str:
        return self.cluster.python or self.request.python

    @property
    def setup(self) -> Path | None:
        if self.cluster.setup is None:
            return None
        return Path(self.spec.folder if self.spec else self.request.here) / self.cluster.setup

    @property
    def partition(self) -> str | None:
        return self.request.partition or self.cluster.partition


def examine(request: DoctorRequest) -> dict[str, Any]:
    """The values of `--json`; `ok` where nothing would stop a job."""
    target = _target(request) if request.writes_site else None
    case = _begin(request, target)
    _ask_slurm(case)
    if request.is_live:
        _send_probe(case)
    machine = describe_machine(python=request.python, environment=request.environment)
    runs = describe_runs(case.runs)
    treatments = _treatments(case)
    case.findings += _judge(case, machine, runs, treatments)
    slurm = _slurm_as_json(case, treatments) if case.slurm is not None else None
    if target is not None:
        if slurm is None or not case.partitions:
            raise UsageError(
                "there is nothing to write into a site file: Slurm says nothing here",
                hint="run this on a login node of the cluster",
            )
        text = render_site(slurm, at=utc(request.clock.wall()), live=case.live)
        write_site(target, text, is_forced=request.is_forced)
    return {
        "format": FORMAT,
        "ok": not any(finding.is_problem for finding in case.findings),
        "machine": machine,
        "runs": runs,
        "spec": _spec_as_json(case),
        "site": {
            "files": list(case.site.files),
            "written": str(target) if target is not None else None,
        },
        "slurm": slurm,
        "live": case.live,
        "findings": [finding.as_json() for finding in case.findings],
    }


# -- reading ------------------------------------------------------------------------------------


def _target(request: DoctorRequest) -> Path:
    path = request.site_file or users_file(request.environment)
    if path is None:
        raise UsageError("no home to write a site file into", hint="name it: --write-site FILE")
    path = request.here / path
    refuse_existing(path, is_forced=request.is_forced)
    return path


def _begin(request: DoctorRequest, target: Path | None) -> _Case:
    environ = request.environment
    named = environ.get("TASUKI_SITE")
    if named and target == request.here / named and not target.exists():
        environ = {**environ, "TASUKI_SITE": ""}  # it is about to be written
    site = load_site(environ=environ)
    case = _Case(request, environ, site, cluster_of_site(site, environ=environ))
    if request.source is None:
        return case
    look = look_with(python=request.python, environment=dict(environ))
    try:
        case.spec = load_spec(
            request.source,
            settings=request.settings,
            config=request.config,
            environ=environ,
            look=look,
        )
        case.cluster = case.spec.cluster
    except TasukiError as error:
        words = f"the spec cannot be used: {error.message}"
        case.findings.append(Finding(is_problem=True, what=words, hint=error.hint))
    return case


def _ask_slurm(case: _Case) -> None:
    slurm = Slurm(environment=case.environment, clock=case.request.clock)
    if shutil.which("sinfo", path=case.environment.get("PATH")) is not None:
        case.slurm = slurm  # whether it answers is another matter
    try:
        case.version = slurm.version()
        case.settings = slurm.settings()
        case.partitions = slurm.partitions()
        case.nodes = slurm.nodes()
    except NoSlurm as error:
        if case.request.is_live:
            raise
        if case.slurm is None and case.cluster.backend == "slurm":
            words = f"the spec wants Slurm (`backend: slurm`), but {error.message}"
            case.findings.append(Finding(is_problem=True, what=words, hint=error.hint))
    except (SlurmError, UnknownWords) as error:
        if case.request.is_live:
            raise
        case.findings.append(Finding(is_problem=True, what=error.message, hint=error.hint))


def _send_probe(case: _Case) -> None:
    assert case.slurm is not None
    chosen = choose_partition(case.partition, case.partitions)
    if chosen is None and case.partitions:
        return  # said among the findings
    case.live = run_probe(
        Probe(
            cluster=case.cluster,
            partition=chosen.name if chosen is not None else case.partition,
            longest_s=chosen.longest_s if chosen is not None else None,
            runs=case.runs,
            python=case.python,
            setup=case.setup,
            recipe=_recipe(case.spec),
            folder=case.spec.folder if case.spec is not None else str(case.request.here),
            within_s=case.request.within_s,
        ),
        slurm=case.slurm,
        clock=case.request.clock,
        on_progress=case.request.on_progress,
    )


def _recipe(spec: ResolvedSpec | None) -> str | None:
    """The first one; others are imported as alike."""
    stages = [stage for one in spec.experiments for stage in one.stages] if spec else []
    return next((stage.recipe for stage in stages if stage.recipe is not None), None)


# -- judging ------------------------------------------------------------------------------------


def _measured(case: _Case, partition: ShownPartition) -> float | None:
    """KillWait as the probe met it there: a cancelled job has no grace."""
    if case.live is None or case.live["partition"] != partition.name:
        return None
    seconds: float | None = case.live["kill_after_s"]["step"]
    return seconds


def _treatments(case: _Case) -> dict[str, Treatment]:
    return {
        one.name: treat(one, case.partitions, case.settings, measured_s=_measured(case, one))
        for one in case.partitions
    }


def _judge(
    case: _Case,
    machine: Mapping[str, Any],
    runs: Mapping[str, Any],
    treatments: Mapping[str, Treatment],
) -> Iterator[Finding]:
    live = case.live
    is_seen = live is not None and bool(live["runs"]) and not live["runs"]["words"]
    has_slurm = case.slurm is not None
    if has_slurm:
        yield from check_commands(_commands(case))
    if case.partitions:
        from msgspec.structs import replace

        cluster = replace(case.cluster, partition=case.partition)
        is_of_spec = case.spec is not None
        yield from check_cluster(cluster, case.partitions, treatments, is_of_spec=is_of_spec)
        yield from _judge_wishes(case, cluster)
    setup, python = case.setup, case.python
    yield from check_paths(
        setup=str(setup) if setup is not None and not setup.is_file() else None,
        python=python if shutil.which(python, path=case.environment.get("PATH")) is None else None,
    )
    yield from check_machine(runs, machine, has_slurm=has_slurm, is_seen=is_seen)
    if live is not None:
        yield from check_live(live)


def _judge_wishes(case: _Case, cluster: ResolvedCluster) -> Iterator[Finding]:
    chosen = choose_partition(cluster.partition, case.partitions)
    if chosen is None:
        return  # said already
    wanted = case.site.gpus.get(cluster.gpu or "")
    yield from check_wishes(
        cluster,
        chosen,
        case.nodes,
        gres=wanted.gres if wanted is not None else None,
        # A site that says nothing of GPUs asks for none; a spec does.
        asks_for_gpus=cluster.gpu != "cpu" and (case.spec is not None or cluster.gpu is not None),
    )


def _commands(case: _Case) -> dict[str, str | None]:
    path = case.environment.get("PATH")
    return {name: shutil.which(name, path=path) for name in COMMANDS}


# -- telling ------------------------------------------------------------------------------------


def _spec_as_json(case: _Case) -> dict[str, Any] | None:
    if case.spec is None:
        return None
    return {
        "file": case.spec.file,
        "partition": case.cluster.partition,
        "time_limit_s": case.cluster.time_limit_s,
        "grace_s": case.cluster.grace_s,
        "gpus": case.cluster.gpus,
        "gpu": case.cluster.gpu,
        "python": case.python,
        "setup": str(case.setup) if case.setup is not None else None,
        "recipe": _recipe(case.spec),
    }


def _slurm_as_json(case: _Case, treatments: Mapping[str, Treatment]) -> dict[str, Any]:
    return {
        "version": _version(case.version),
        "answers": bool(case.partitions),
        "commands": _commands(case),
        "settings": {
            key: case.settings[key]
            for key in _SHOWN
            if case.settings.get(key, "(null)") != "(null)"
        },
        "partitions": [
            _partition_as_json(case, one, treatments[one.name]) for one in case.partitions
        ],
    }


def _version(version: tuple[int, int, int] | None) -> str | None:
    if version is None:
        return None
    major, minor, patch = version
    return f"{major}.{minor:02d}.{patch}"


def _partition_as_json(case: _Case, one: ShownPartition, treatment: Treatment) -> dict[str, Any]:
    measured = _measured(case, one)
    return {
        "name": one.name,
        "is_default": one.is_default,
        "is_up": one.is_up,
        "nodes": one.nodes,
        "gpus": most_gpus(case.nodes).get(one.name, {}),
        "longest_s": one.longest_s,
        "preempt_mode": one.preempt_mode,
        "grace_s": one.grace_s,
        "kill_wait_s": trusted_wait(case.settings, measured),
        "measured_s": measured,
        "after_preemption": treatment.after,
        "save_s": treatment.save_s,
        "words": treatment.words,
    }

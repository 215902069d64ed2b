"""Check this machine, Slurm and the site file: the function behind `tasuki doctor`."""

import json
import os
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from tasuki.clock import SystemClock, utc
from tasuki.commands.discover import load_resolved_spec
from tasuki.commands.doctor_job import JobReport, Work, run_test_job
from tasuki.commands.machine import look_around, memory_here
from tasuki.errors import SpecError, TasukiError, UsageError
from tasuki.runs.atomic import FORMAT, free_bytes, translated, write_bytes
from tasuki.slurm.client import NoSlurm, Slurm
from tasuki.slurm.fit import check_partition, choose_partition
from tasuki.slurm.script import job_for_cluster, sbatch_options
from tasuki.slurm.text import ShownPartition, most_gpus, parse_seconds
from tasuki.spec.load import cluster_of_site
from tasuki.spec.resolved import ResolvedCluster, ResolvedSpec
from tasuki.spec.site import Site, load_site, users_file
from tasuki.units import format_bytes, format_seconds

SETTINGS = ("ClusterName", "KillWait", "PreemptType", "PreemptMode", "JobRequeue")
MIN_FREE_BYTES = 10 << 30
MIN_SHM_BYTES = 512 << 20

Preemption = Literal["never", "requeued", "requeues_itself", "cancelled", "suspended", "qos"]
PREEMPTION_MESSAGES: Mapping[Preemption, str] = {
    "never": "never preempted; before the time limit tasuki saves and requeues the job",
    "requeued": "Slurm requeues a preempted job",
    "requeues_itself": "a preempted job requeues itself in its grace time, as Slurm would not",
    "cancelled": "preemption cancels a job; it requeues itself, or submits a follow-up job",
    "suspended": "a preempted job is suspended without a signal and continues later",
    "qos": "preemption depends on the job's QOS: `sacctmgr show qos format=name,preemptmode`",
}


class Finding(msgspec.Struct, frozen=True):
    """Something to change before a job is submitted."""

    level: Literal["problem", "advice"]  # a problem stops a job from working
    message: str
    hint: str = ""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    cpus: int
    gpus: int
    memory_bytes: int
    shm_bytes: int | None
    python: str
    python_version: str
    runs_dir: str
    free_bytes: int  # for the runs folder
    is_writable: bool


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_default: bool
    is_up: bool
    num_nodes: int
    max_gpus: dict[str, int]  # of one node, by type ("" without one)
    max_time_s: float | None
    preempt_mode: str
    preemption: Preemption  # what becomes of a preempted job
    grace_time_s: float  # as a preempted job gets it
    kill_wait_s: float
    save_s: float  # from the first signal to SIGKILL
    message: str


class SlurmFacts(msgspec.Struct, frozen=True, kw_only=True):
    version: str | None = None
    settings: dict[str, str] = {}
    partitions: list[PartitionFacts] = []  # empty: Slurm does not answer


class DoctorReport(msgspec.Struct, frozen=True, kw_only=True):
    ok: bool  # no finding is a problem
    findings: list[Finding]
    machine: MachineFacts
    slurm: SlurmFacts | None  # None: not installed here
    test_job: JobReport | None
    site_files: list[str]
    saved: str | None  # the site file that was written
    format: int = FORMAT


def doctor(
    spec: str | Path | None = None,
    *,
    overrides: Sequence[str] = (),
    preset: str | None = None,
    runs_dir: str | Path | None = None,
    test_job: bool = False,
    timeout_s: float = 600.0,
    save: bool = False,
    progress: Callable[[str], None] | None = None,
) -> DoctorReport:
    """Check this machine, Slurm and the site file, and say what to change before you submit.

    Args:
        spec: The spec file. None: ./tasuki.yaml, if it exists.
        overrides: Settings as `cluster.partition=gpu`, which replace those of the spec.
        preset: Name of an overlay of the spec.
        runs_dir: Folder of all runs. None: as in the spec, else ./runs.
        test_job: Send a short job that tries Python, torch, the GPU, the folder and the signals.
        timeout_s: Cancel the test job after this many seconds.
        save: Write the site file that TASUKI_SITE names, else ~/.config/tasuki/site.yaml.
        progress: Called with a line of text when the state of the test job changes.

    Raises:
        UsageError: The site file exists, or Slurm does not answer and cannot fill it.

    Example:
        >>> tasuki.doctor().ok
        True
    """
    environ = dict(os.environ)
    target = _find_target(environ) if save else None
    if target is not None and "TASUKI_SITE" in environ:
        environ["TASUKI_SITE"] = ""  # it names the file that is written below
    resolved, site, findings = _read_spec_and_site(spec, overrides, preset, environ)
    cluster = resolved.cluster if resolved else cluster_of_site(site, environ=environ)
    work = _read_work(resolved, cluster, site, runs_dir)
    slurm = Slurm(environment=environ, clock=SystemClock())
    job, facts = None, None
    try:
        shown = slurm.partitions()
        facts = _describe_slurm(slurm, shown)
        chosen = choose_partition(cluster, shown)
        if chosen is not None:
            check_partition(cluster, chosen)
            own = next(one for one in facts.partitions if one.name == chosen.name)
            findings += check_times(cluster, own)
        # Slurm also knows what nodes have, limits of accounts, and whether a job needs a partition.
        slurm.test(sbatch_options(work.job))
        if test_job:
            job = run_test_job(work, chosen, timeout_s, slurm, progress)
            findings += check_test_job(job)
    except TasukiError as error:
        if facts is None and not isinstance(error, NoSlurm):
            facts = SlurmFacts()
        if facts is not None or test_job or cluster.backend == "slurm":
            findings.append(Finding("problem", error.message, error.hint))
    machine = describe_machine(work.runs_dir)
    findings += check_machine(machine, work.setup)
    if target is not None:
        _write_site(target, facts)
    return DoctorReport(
        ok=not any(one.level == "problem" for one in findings),
        findings=findings,
        machine=machine,
        slurm=facts,
        test_job=job,
        site_files=list(site.files),
        saved=str(target) if target else None,
    )


def _read_spec_and_site(
    source: str | Path | None,
    overrides: Sequence[str],
    preset: str | None,
    environ: dict[str, str],
) -> tuple[ResolvedSpec | None, Site, list[Finding]]:
    """Read both, and turn what is wrong with them into findings."""
    site, findings = Site(), []
    try:
        site = load_site(environ=environ)
    except SpecError as error:
        findings.append(Finding("problem", f"site file: {error.message}", error.hint))
        environ["TASUKI_SITE"] = ""  # check the spec without it
    # Without a spec an override would have no effect. So it asks for one.
    if source is None and not (overrides or preset or Path("tasuki.yaml").exists()):
        return None, site, findings
    try:
        spec = load_resolved_spec(source or "tasuki.yaml", overrides, preset, environment=environ)
    except TasukiError as error:
        message = f"the spec cannot be used: {error.message}"
        return None, site, [*findings, Finding("problem", message, error.hint)]
    return spec, site, findings


def _read_work(
    spec: ResolvedSpec | None, cluster: ResolvedCluster, site: Site, runs_dir: str | Path | None
) -> Work:
    folder = Path(spec.folder) if spec else Path.cwd()
    runs = Path(runs_dir or (spec.runs if spec else "runs")).absolute()
    stages = [stage for one in spec.experiments for stage in one.stages] if spec else []
    has_gpus = spec is not None if cluster.gpu is None else cluster.gpu != "cpu"
    gpus = cluster.gpus if has_gpus else 0
    return Work(
        job=job_for_cluster(cluster, site, name="tasuki-doctor", folder=runs, gpus=gpus),
        python=cluster.python or sys.executable,
        setup=folder / cluster.setup if cluster.setup else None,
        recipe=next((stage.recipe for stage in stages if stage.recipe), None),
        folder=folder,
        runs_dir=runs,
    )


def describe_machine(runs_dir: Path) -> MachineFacts:
    """Describe this machine, and the disk of a folder that may not exist yet."""
    machine = look_around(dict(os.environ))
    shm = Path("/dev/shm")
    existing = next(one for one in [runs_dir, *runs_dir.parents] if os.access(one, os.F_OK))
    return MachineFacts(
        cpus=machine.cpus,
        gpus=machine.gpus,
        memory_bytes=memory_here(),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        python=sys.executable,
        python_version=sys.version.split()[0],
        runs_dir=str(runs_dir),
        free_bytes=free_bytes(runs_dir),
        is_writable=os.access(existing, os.W_OK | os.X_OK),
    )


def _describe_slurm(slurm: Slurm, shown: Sequence[ShownPartition]) -> SlurmFacts:
    settings, gpus = slurm.settings(), most_gpus(slurm.nodes())
    partitions = [describe_partition(one, shown, gpus.get(one.name, {}), settings) for one in shown]
    return SlurmFacts(
        version="{}.{:02}.{}".format(*slurm.version()),
        settings={key: settings[key] for key in SETTINGS if key in settings},
        partitions=partitions,
    )


def describe_partition(
    partition: ShownPartition,
    partitions: Sequence[ShownPartition],
    max_gpus: dict[str, int],
    settings: Mapping[str, str],
) -> PartitionFacts:
    """Find out what becomes of a preempted job, and how long it has to save."""
    preemption = find_preemption(partition, partitions, settings)
    # Where Slurm requeues or never preempts, GraceTime has no effect.
    grace_time_s = partition.grace_s if preemption in ("requeues_itself", "cancelled") else 0.0
    kill_wait_s = parse_seconds(settings.get("KillWait", "30 sec")) or 0.0  # Slurm's default
    grace = f"GraceTime {format_seconds(grace_time_s)} + " if grace_time_s else ""
    return PartitionFacts(
        name=partition.name,
        is_default=partition.is_default,
        is_up=partition.is_up,
        num_nodes=partition.nodes,
        max_gpus=max_gpus,
        max_time_s=partition.longest_s,
        preempt_mode=partition.preempt_mode,
        preemption=preemption,
        grace_time_s=grace_time_s,
        kill_wait_s=kill_wait_s,
        save_s=grace_time_s + kill_wait_s,
        message=f"{'' if partition.is_up else 'NOT UP, no job starts there; '}"
        f"{PREEMPTION_MESSAGES[preemption]}; {format_seconds(grace_time_s + kill_wait_s)} to "
        f"save ({grace}KillWait {format_seconds(kill_wait_s)})",
    )


def find_preemption(
    partition: ShownPartition, partitions: Sequence[ShownPartition], settings: Mapping[str, str]
) -> Preemption:
    preempt_type = settings.get("PreemptType", "")
    mode = partition.preempt_mode.upper()
    if preempt_type.endswith("qos"):
        return "qos"
    has_higher_tier = any(other.tier > partition.tier for other in partitions)
    if preempt_type.endswith("none") or mode == "OFF" or not has_higher_tier:
        return "never"
    if "SUSPEND" in mode:
        return "suspended"
    if "CANCEL" in mode:
        return "cancelled"
    # A job that exits in its grace time counts as COMPLETED, so Slurm does not requeue it.
    return "requeues_itself" if partition.grace_s else "requeued"


def check_machine(machine: MachineFacts, setup: Path | None) -> list[Finding]:
    findings, folder, shm_bytes = [], machine.runs_dir, machine.shm_bytes
    if not machine.is_writable:
        hint = "set `runs:` in the spec to a folder of yours"
        findings.append(Finding("problem", f"the runs folder {folder} is not writable", hint))
    elif machine.free_bytes < MIN_FREE_BYTES:
        message = f"only {format_bytes(machine.free_bytes)} are free for {folder}"
        hint = "checkpoints need several times the model: free space, or set `runs:` elsewhere"
        findings.append(Finding("advice", message, hint))
    if shm_bytes is not None and shm_bytes < MIN_SHM_BYTES:
        message = f"/dev/shm has {format_bytes(shm_bytes)}; loader workers pass batches through it"
        hint = "enlarge it (containers: `--shm-size`), or set `loader: {workers: 0}`"
        findings.append(Finding("advice", message, hint))
    if setup is not None and not setup.is_file():
        hint = "correct the path: it is relative to the file in which it is written"
        findings.append(Finding("problem", f"`cluster.setup`: no file {setup}", hint))
    return findings


def check_times(cluster: ResolvedCluster, facts: PartitionFacts) -> list[Finding]:
    findings = []
    if cluster.time_limit_s is None and facts.max_time_s is not None:
        message = "without `cluster.time_limit` the plan ignores Slurm's time limits"
        limit = format_seconds(facts.max_time_s)
        hint = f"write `cluster: {{time_limit: {limit}}}`, the maximum on `{facts.name}`"
        findings.append(Finding("advice", message, hint))
    if cluster.grace_s > facts.save_s:
        grace, save = format_seconds(cluster.grace_s), format_seconds(facts.save_s)
        message = (
            f"`cluster.grace` is {grace}; a preempted job on `{facts.name}` is killed after {save}"
        )
        hint = f"write `cluster: {{grace: {save}}}`, or let `tasuki doctor --save` do it"
        findings.append(Finding("advice", message, hint))
    return findings


def check_test_job(job: JobReport) -> list[Finding]:
    hint = "set `cluster.python`, or prepare the environment in `cluster.setup`"
    findings = [
        Finding("problem", f"{one.name} does not work on node {job.node}: {one.error}", hint)
        for one in job.checks
        if one.error
    ]
    if job.kill_wait_s is None:
        message = "a cancelled job was killed without a SIGTERM to its srun step"
        findings.append(Finding("advice", message, "save often: `save: {every: 5m}`"))
    return findings


def _find_target(environ: Mapping[str, str]) -> Path:
    path = users_file(environ)
    if path is None:
        raise UsageError("no home folder for a site file", hint="set TASUKI_SITE to its path")
    if path.exists():
        hint = "move it away, or write another one: `TASUKI_SITE=FILE tasuki doctor --save`"
        raise UsageError(f"the site file {path} exists", hint=hint)
    return path.absolute()


def _write_site(path: Path, slurm: SlurmFacts | None) -> None:
    if slurm is None or not slurm.partitions:
        hint = "run this on a login node of the cluster"
        raise UsageError("Slurm does not answer here: no site file is written", hint=hint)
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes(path, render_site(slurm).encode())
        path.chmod(0o644)  # contains nothing private, and may be meant for all users


def render_site(slurm: SlurmFacts) -> str:
    types = [kind for one in slurm.partitions for kind in one.max_gpus if kind]
    gpus = {kind: {"gres": f"gpu:{kind}"} for kind in types}
    rows = ""
    for one in slurm.partitions:
        times = {"grace": one.grace_time_s, "kill_wait": one.kill_wait_s, "longest": one.max_time_s}
        values = {key: f"{time:.0f}s" for key, time in times.items() if time is not None}
        values["preempt_mode"] = one.preempt_mode
        # JSON is valid YAML, also for the name `123` and for `OFF`, which is false in YAML 1.1.
        rows += f"  {json.dumps(one.name)}: {json.dumps(values)}\n"
    return f"""\
# `tasuki doctor --save` wrote this at {utc(SystemClock().wall())}.
# Every spec starts with these values; the spec itself wins. You may add for example:
# cluster: {{account: lab, partition: gpu, setup: env.sh, price_per_gpu_hour: 2}}
gpus: {json.dumps(gpus)}
partitions:
{rows}"""

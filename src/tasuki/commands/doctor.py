"""Check this machine, Slurm and the site file: the function behind `tasuki doctor`."""

import json
import os
import platform
import shutil
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal

import msgspec
import psutil

from tasuki.clock import SystemClock, utc
from tasuki.commands.discover import look_with
from tasuki.commands.doctor_job import JobReport, Work, run_test_job
from tasuki.commands.machine import look_around, memory_here
from tasuki.errors import SpecError, TasukiError, UsageError
from tasuki.runs.atomic import FORMAT, translated, write_bytes
from tasuki.slurm.client import NoSlurm, Slurm
from tasuki.slurm.fit import check_partition, choose_partition
from tasuki.slurm.script import SlurmJob, sbatch_options
from tasuki.slurm.text import ShownNodes, ShownPartition, most_gpus, parse_seconds
from tasuki.spec.load import cluster_of_site, load_spec
from tasuki.spec.resolved import ResolvedCluster, ResolvedSpec
from tasuki.spec.site import Site, SiteGpu, load_site, users_file
from tasuki.units import Duration, format_bytes, format_seconds

SETTINGS = (
    *("ClusterName", "KillWait", "PreemptType", "PreemptMode", "JobRequeue", "MaxJobCount"),
    *("MaxArraySize", "OverTimeLimit", "MinJobAge", "SlurmctldParameters"),
)
LOCAL_FILE_SYSTEMS = {"ext2", "ext3", "ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs", "ramfs"}
MIN_FREE_BYTES = 10 << 30
MIN_SHM_BYTES = 512 << 20

Preemption = Literal["never", "requeued", "requeues_itself", "cancelled", "suspended", "qos"]
PREEMPTION_MESSAGES: Mapping[Preemption, str] = {
    "never": "never preempted; before the time limit tasuki saves and requeues the job",
    "requeued": "Slurm requeues a preempted job",
    "requeues_itself": "a preempted job requeues itself in its grace time, as Slurm would not",
    "cancelled": "preemption cancels a job; it requeues itself, or submits a follow-up job where "
    "Slurm refuses that",
    "suspended": "a preempted job is suspended without a signal and continues later",
    "qos": "preemption depends on the job's QOS: `sacctmgr show qos format=name,preemptmode`",
}


class Finding(msgspec.Struct, frozen=True):
    """Something to change before a job is submitted."""

    level: Literal["problem", "advice"]  # a problem stops a job from working
    message: str
    hint: str = ""


class MachineFacts(msgspec.Struct, frozen=True, kw_only=True):
    host: str
    cpus: int
    gpus: int
    memory_bytes: int
    shm_bytes: int | None
    python: str
    python_version: str
    runs_dir: str
    file_system: str  # of the runs folder, as the next two
    free_bytes: int
    is_writable: bool


class PartitionFacts(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_default: bool
    is_up: bool
    num_nodes: int
    max_cpus: int  # of one node, as the next two
    max_memory_bytes: int
    max_gpus: dict[str, int]  # by type ("" without one)
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
    partition: str | None = None,
    test_job: bool = False,
    timeout_s: float = 600.0,
    save: bool | str | Path = False,
    force: bool = False,
    progress: Callable[[str], None] | None = None,
) -> DoctorReport:
    """Check this machine, Slurm and the site file, and say what to change before you submit.

    Args:
        spec: The spec file. None: ./tasuki.yaml, if it exists.
        overrides: Settings as `cluster.partition=gpu`, which replace those of the spec.
        preset: Name of an overlay of the spec.
        runs_dir: Folder of all runs. None: as in the spec, else ./runs.
        partition: Check this one. None: as in the spec or site file, else Slurm's default.
        test_job: Send a short job that tries Python, torch, the GPU, the folder and the signals.
        timeout_s: Cancel the test job after this many seconds.
        save: Write a site file: True for ~/.config/tasuki/site.yaml, or its path.
        force: Replace a site file that exists. The old one stays as `.old`.
        progress: Called with a line of text when the state of the test job changes.

    Raises:
        UsageError: The site file exists, or Slurm does not answer and cannot fill it. Or the
            test job has a partition that is not there.
        SlurmError: Slurm does not take the test job, or is not here.

    Example:
        >>> tasuki.doctor().ok
        True
    """
    environ = dict(os.environ)
    target = _find_target(save, environ, force=force) if save else None
    resolved, site, findings = _read_spec_and_site(
        spec, overrides, preset, environ, is_site_replaced=target is not None
    )
    cluster = resolved.cluster if resolved else cluster_of_site(site, environ=environ)
    if partition is not None:
        cluster = msgspec.structs.replace(cluster, partition=partition)
    work = _read_work(resolved, cluster, site, runs_dir)
    slurm = Slurm(environment=environ, clock=SystemClock())
    job, facts, shown = None, None, []
    try:
        shown = slurm.partitions()
        if test_job:
            chosen = choose_partition(cluster, shown)
            job = run_test_job(work, chosen, timeout_s=timeout_s, slurm=slurm, progress=progress)
        facts = _describe_slurm(slurm, shown, job)
    except TasukiError as error:
        if test_job:
            raise
        if not isinstance(error, NoSlurm):
            facts = SlurmFacts()
        if facts is not None or cluster.backend == "slurm":
            findings.append(Finding("problem", error.message, error.hint))
    machine = describe_machine(work.runs_dir)
    is_shared = facts is None or job is not None
    findings += check_machine(machine, work.setup, work.python, is_shared=is_shared)
    if facts is not None and facts.partitions:
        findings += _check_cluster(cluster, work.job, shown, facts.partitions, slurm)
    if job is not None:
        findings += check_test_job(job)
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
    *,
    is_site_replaced: bool,
) -> tuple[ResolvedSpec | None, Site, list[Finding]]:
    """Read both, and turn what is wrong with them into findings."""
    site, findings = Site(), []
    try:
        site = load_site(environ=environ)
    except SpecError as error:
        if not is_site_replaced:
            findings.append(Finding("problem", f"site file: {error.message}", error.hint))
        environ["TASUKI_SITE"] = ""  # check the spec without it
    source = source or ("tasuki.yaml" if Path("tasuki.yaml").exists() else None)
    if source is None:
        return None, site, findings
    look = look_with(python=sys.executable, environment=environ)
    try:
        spec = load_spec(str(source), settings=overrides, config=preset, environ=environ, look=look)
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
    gpu = site.gpus.get(cluster.gpu or "", SiteGpu())
    is_on_cpu = cluster.gpu == "cpu" or (spec is None and cluster.gpu is None)
    job = SlurmJob(
        name="tasuki-doctor",
        folder=runs,
        command=(),
        limit_s=cluster.time_limit_s,
        nodes=cluster.nodes,
        gres=None if is_on_cpu else f"{gpu.gres or 'gpu'}:{cluster.gpus}",
        cpus=cluster.cpus or (cluster.gpus if cluster.gpu == "cpu" else None),
        memory_bytes=cluster.memory_bytes,
        partition=cluster.partition,
        account=cluster.account,
        qos=cluster.qos,
        constraint=cluster.constraint or gpu.constraint,
        is_requeued=cluster.requeue is not False,
        extra=cluster.extra,
    )
    return Work(
        job=job,
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
    with translated(runs_dir):
        existing = next(one for one in [runs_dir, *runs_dir.parents] if one.exists())
        free_bytes = shutil.disk_usage(existing).free
    mounts = psutil.disk_partitions(all=True)  # type: ignore[no-untyped-call]
    inside = [one for one in mounts if existing.resolve().is_relative_to(one.mountpoint)]
    # Of two mounts at one point the later one hides the earlier. The sort is stable.
    inside.sort(key=lambda one: len(one.mountpoint))
    return MachineFacts(
        host=socket.gethostname(),
        cpus=machine.cpus,
        gpus=machine.gpus,
        memory_bytes=memory_here(),
        shm_bytes=shutil.disk_usage(shm).total if shm.is_dir() else None,
        python=sys.executable,
        python_version=platform.python_version(),
        runs_dir=str(runs_dir),
        file_system=inside[-1].fstype if inside else "unknown",
        free_bytes=free_bytes,
        is_writable=existing.is_dir() and os.access(existing, os.W_OK | os.X_OK),
    )


def _describe_slurm(
    slurm: Slurm, shown: Sequence[ShownPartition], job: JobReport | None
) -> SlurmFacts:
    settings, nodes = slurm.settings(), slurm.nodes()
    return SlurmFacts(
        version="{}.{:02}.{}".format(*slurm.version()),
        settings={key: settings[key] for key in SETTINGS if key in settings},
        partitions=[describe_partition(one, shown, nodes, settings, job) for one in shown],
    )


def describe_partition(
    partition: ShownPartition,
    partitions: Sequence[ShownPartition],
    nodes: Sequence[ShownNodes],
    settings: Mapping[str, str],
    test_job: JobReport | None = None,
) -> PartitionFacts:
    """Find out what becomes of a preempted job, and how long it has to save."""
    preemption = find_preemption(partition, partitions, settings)
    # Where Slurm requeues or never preempts, GraceTime has no effect.
    has_grace = preemption in ("requeues_itself", "cancelled")
    grace_time_s = partition.grace_s if has_grace else 0.0
    kill_wait_s = parse_seconds(settings.get("KillWait", "30 sec")) or 0.0  # Slurm's default
    if test_job and test_job.kill_wait_s is not None and test_job.partition == partition.name:
        # Slurm often kills some seconds late. That is luck, so the shorter time counts.
        kill_wait_s = min(kill_wait_s, test_job.kill_wait_s)
    grace = f"GraceTime {format_seconds(grace_time_s)} + " if grace_time_s else ""
    own_nodes = [one for one in nodes if one.partition == partition.name]
    return PartitionFacts(
        name=partition.name,
        is_default=partition.is_default,
        is_up=partition.is_up,
        num_nodes=partition.nodes,
        max_cpus=max((one.cpus for one in own_nodes), default=0),
        max_memory_bytes=max((one.memory_bytes for one in own_nodes), default=0),
        max_gpus=most_gpus(own_nodes).get(partition.name, {}),
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


def check_machine(
    machine: MachineFacts, setup: Path | None, python: str | None, *, is_shared: bool
) -> Iterator[Finding]:
    """Check disk, memory and paths. `is_shared`: nodes see the runs folder, or do not matter."""
    folder, shm_bytes = machine.runs_dir, machine.shm_bytes
    if not machine.is_writable:
        hint = "set `runs:` in the spec to a folder of yours"
        yield Finding("problem", f"the runs folder {folder} is not writable", hint)
    elif machine.free_bytes < MIN_FREE_BYTES:
        hint = "checkpoints need several times the model: free space, or set `runs:` elsewhere"
        message = f"only {format_bytes(machine.free_bytes)} are free for {folder}"
        yield Finding("advice", message, hint)
    if not is_shared and machine.file_system in LOCAL_FILE_SYSTEMS:
        message = f"the runs folder is on {machine.file_system}, which nodes usually do not share"
        hint = "`tasuki doctor --test-job` finds out whether the nodes see it"
        yield Finding("advice", message, hint)
    if shm_bytes is not None and shm_bytes < MIN_SHM_BYTES:
        message = f"/dev/shm has {format_bytes(shm_bytes)}; loader workers pass batches through it"
        hint = "enlarge it (containers: `--shm-size`), or set `loader: {workers: 0}`"
        yield Finding("advice", message, hint)
    if setup is not None and not setup.is_file():
        hint = "correct the path: it is relative to the file in which it is written"
        yield Finding("problem", f"`cluster.setup`: no file {setup}", hint)
    if python is not None and shutil.which(python) is None:
        hint = "`tasuki doctor --test-job` finds out whether the nodes have it"
        yield Finding("advice", f"no Python of jobs on this machine: {python}", hint)


def _check_cluster(
    cluster: ResolvedCluster,
    job: SlurmJob,
    shown: Sequence[ShownPartition],
    partitions: Sequence[PartitionFacts],
    slurm: Slurm,
) -> Iterator[Finding]:
    """Check the job that `submit` would send."""
    try:
        chosen = choose_partition(cluster, shown)
        if chosen is None:
            names = ", ".join(one.name for one in shown)
            message = "no partition is set, and Slurm has no default"
            raise UsageError(message, hint=f"set `cluster.partition` to one of {names}")
        check_partition(cluster, chosen)
        slurm.test(sbatch_options(job))  # also knows what nodes have, and limits of accounts
    except TasukiError as error:
        yield Finding("problem", error.message, error.hint)
        return
    facts = next(one for one in partitions if one.name == chosen.name)
    if cluster.time_limit_s is None and facts.max_time_s is not None:
        limit = format_seconds(facts.max_time_s)
        message = "without `cluster.time_limit` the plan ignores Slurm's time limits"
        hint = f"write `cluster: {{time_limit: {limit}}}`, the maximum on `{facts.name}`"
        yield Finding("advice", message, hint)
    if cluster.grace_s > facts.save_s:
        save = format_seconds(facts.save_s)
        message = f"`cluster.grace` is {format_seconds(cluster.grace_s)}, but a preempted job"
        hint = f"write `cluster: {{grace: {save}}}`, or let `tasuki doctor --save` do it"
        yield Finding("advice", f"{message} on `{facts.name}` is killed after {save}", hint)


def check_test_job(job: JobReport) -> Iterator[Finding]:
    if job.error:
        yield Finding("problem", job.error, job.hint)
    failed = [check for check in job.checks if check.error]
    for check in failed:
        if check.name == "requeue":
            message = f"a job cannot requeue itself: {check.error}"
            yield Finding("advice", message, "nothing to do: follow-up jobs continue the run")
        else:
            message = f"{check.name} does not work on node {job.node}: {check.error}"
            hint = "set `cluster.python`, or prepare the environment in `cluster.setup`"
            yield Finding("problem", message, hint)
    if not job.error and job.kill_wait_s is None:
        message = "a cancelled job was killed without a SIGTERM to its srun step"
        yield Finding("advice", message, "save often: `save: {every: 5m}`")


def _find_target(save: bool | str | Path, environ: Mapping[str, str], *, force: bool) -> Path:
    path = users_file(environ) if isinstance(save, bool) else Path(save)
    if path is None:
        raise UsageError("no home folder for a site file", hint="name the file: --save FILE")
    if path.exists() and not force:
        hint = "`--force` replaces it and keeps the old one as .old; or name another: --save FILE"
        raise UsageError(f"the site file {path} exists", hint=hint)
    return path.absolute()


def _write_site(path: Path, slurm: SlurmFacts | None) -> None:
    if slurm is None or not slurm.partitions:
        hint = "run this on a login node of the cluster"
        raise UsageError("Slurm does not answer here: no site file is written", hint=hint)
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if path.exists():
            write_bytes(path.with_name(f"{path.name}.old"), path.read_bytes())
        write_bytes(path, render_site(slurm).encode())
        path.chmod(0o644)  # contains nothing private, and may be meant for all users


def render_site(slurm: SlurmFacts) -> str:
    """Write one line per name. JSON is valid YAML, also for names such as `on` and `123`."""
    cluster = json.dumps(slurm.settings.get("ClusterName", ""))
    lines = [
        f"# `tasuki doctor --save` wrote this on cluster {cluster}, {utc(SystemClock().wall())}.",
        "# Every spec starts with these values; the spec itself wins. You may add for example:",
        "# cluster: {account: lab, partition: gpu, setup: env.sh, price_per_gpu_hour: 2}",
    ]
    gpu_types = sorted({kind for one in slurm.partitions for kind in one.max_gpus if kind})
    if gpu_types:
        lines.append("gpus:")
    for kind in gpu_types:
        lines.append(f"  {json.dumps(kind)}: {json.dumps({'gres': f'gpu:{kind}'})}")
    lines.append("partitions:")
    for one in slurm.partitions:
        times = {"grace": one.grace_time_s, "kill_wait": one.kill_wait_s, "longest": one.max_time_s}
        values = {
            key: format_duration(time_s) for key, time_s in times.items() if time_s is not None
        }
        values["preempt_mode"] = one.preempt_mode
        lines.append(f"  {json.dumps(one.name)}: {json.dumps(values)}")
    return "\n".join([*lines, ""])


def format_duration(seconds: float) -> str:
    """Format as `8h` where that is exact, else as `4.87s`."""
    text = format_seconds(seconds)
    return text if Duration.parse(text).seconds == seconds else f"{seconds}s"

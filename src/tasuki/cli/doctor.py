"""`tasuki doctor`: options and text."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tasuki.cli.options import json_option, print_json, runs_option
from tasuki.errors import EXIT_DONE, EXIT_FAILED
from tasuki.units import Duration, format_bytes, format_seconds
from tasuki.views.text import neutral, width_of, wrap

if TYPE_CHECKING:
    from tasuki.commands.doctor import DoctorReport, PartitionFacts


@click.command(epilog="Example:  tasuki doctor --test-job --save")
@click.argument("spec", required=False, metavar="[SPEC]")
@click.option("--config", "preset", help="A named overlay of the spec's `configs`.")
@click.option("--set", "overrides", multiple=True, metavar="KEY=VALUE", help="Override.")
@runs_option
@click.option("--test-job", is_flag=True, help="Send a short job that tries a node.")
@click.option("--timeout", default="10m", metavar="10m", help="Cancel the test job after this.")
@click.option("--save", is_flag=True, help="Write a site file: $TASUKI_SITE, else your own.")
@json_option
def command(timeout: str, runs: Path | None, as_json: bool, **options: Any) -> int:
    """Check this machine, Slurm and the site file.

    Shows for each partition what becomes of a preempted job and how long it has to save. Then
    lists what to change before you submit SPEC (default ./tasuki.yaml, if it exists). With
    --test-job a job of one core tries Python, torch, the GPU, your recipe and the runs folder on a
    node. It is then cancelled, which shows the signals and the seconds until the kill.

    Exit code 1 if something would stop a job from working.
    """
    import msgspec

    from tasuki.commands.doctor import doctor

    report = doctor(
        **options,
        runs_dir=runs,
        timeout_s=Duration.parse(timeout).seconds,
        progress=lambda text: click.echo(f"{text} …", err=True),
    )
    if as_json:
        print_json(msgspec.to_builtins(report))
    else:
        for line in _describe(report):
            click.echo(wrap(neutral(line), width_of(sys.stdout)))
    return EXIT_DONE if report.ok else EXIT_FAILED


def _describe(report: DoctorReport) -> Iterator[str]:
    machine, slurm, job = report.machine, report.slurm, report.test_job
    yield f"machine      {machine.cpus} CPUs, {machine.gpus} GPUs"
    shm = "no" if machine.shm_bytes is None else format_bytes(machine.shm_bytes)
    yield f"memory       {format_bytes(machine.memory_bytes)}, {shm} /dev/shm"
    yield f"Python       {machine.python_version}, {machine.python}"
    yield f"runs folder  {machine.runs_dir}, {format_bytes(machine.free_bytes)} free"
    yield from (f"site file    {file}" for file in report.site_files)
    if slurm is None:
        yield "Slurm        not installed here: jobs run on this machine (`tasuki run`)"
    elif not slurm.partitions:
        yield "Slurm        is installed, but does not answer: see below"
    else:
        settings = (f"{key} {value}" for key, value in slurm.settings.items())
        yield f"Slurm        {slurm.version}; {'; '.join(settings)}"
        yield from (_describe_partition(partition) for partition in slurm.partitions)
    if job is not None:
        yield f"test job     {job.job} on {job.partition}, node {job.node}"
        for check in job.checks:
            yield f"  {check.name:<12} {check.output or f'FAILED: {check.error}'}"
        if job.kill_wait_s is not None:
            yield f"  {'signals':<12} {', '.join(job.signals)}; killed after {job.kill_wait_s} s"
    for finding in report.findings:
        yield f"\n{finding.level}: {finding.message}"
        if finding.hint:
            yield f"  hint: {finding.hint}"
    if report.ok:
        yield "\nNothing here stops a job."
    if report.saved is not None:
        yield f"Written: {report.saved}"


def _describe_partition(partition: PartitionFacts) -> str:
    limit_s = partition.max_time_s
    facts = [
        *(["default"] if partition.is_default else []),
        "no time limit" if limit_s is None else f"up to {format_seconds(limit_s)}",
        f"{partition.num_nodes} nodes",
        *(f"{number} GPUs {kind}".strip() for kind, number in partition.max_gpus.items()),
    ]
    return f"  {partition.name:<12} {', '.join(facts)}; {partition.message}"

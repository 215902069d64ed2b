"""One rank of one phase, from its first line to its exit code."""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import os
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from tasuki.clock import Clock, SystemClock
from tasuki.errors import (
    EXIT_DONE,
    EXIT_FAILED,
    TasukiError,
    place_of,
)
from tasuki.failpoints import arm, failpoint
from tasuki.loop.ending import ending_of, explain_error
from tasuki.loop.limits import SILENCE_S
from tasuki.loop.stopwatch import Stopwatch, process_age_s
from tasuki.loop.watch import Watch, leave
from tasuki.runs.atomic import read_json
from tasuki.runs.events import EventLog
from tasuki.runs.jobs import JobFolder
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Ending
from tasuki.runs.wire import Wire
from tasuki.signals import STACKS
from tasuki.subprocesses import importing
from tasuki.train.orders import Orders

if TYPE_CHECKING:
    from tasuki.spec.resolved import ResolvedStage
    from tasuki.train.task import Task


_LOST_PEER = (
    *("Connection closed by peer", "Connection reset", "Broken pipe", "gloo", "NCCL"),
    *("Failed to recv", "Connection was likely closed", "Socket Timeout", "socketPoll"),
)
"""What torch says when another rank is gone: a consequence, not the cause."""


def main(arguments: list[str], clock: Clock | None = None) -> int:
    """Handlers and the watch come first: a notice may come while torch is imported."""
    faulthandler.register(STACKS, file=2, all_threads=True)
    clock = clock or SystemClock()
    orders = _parse(arguments)
    arm(os.environ, rank=orders.rank, claim=orders.claim)
    wire = Wire(socket.socket(fileno=orders.fd)) if orders.fd is not None else None
    shortest = float(os.environ.get("TASUKI_STEP_LIMIT_S") or SILENCE_S)
    watch = Watch(wire, clock, shortest_silence_s=shortest)
    watch.install_handlers()
    watch.start()
    watch.tell("hello")
    failpoint("worker.hello")
    try:
        _work(orders, watch, clock)
    except BaseException as error:
        error = explain_error(error, RunFolder(orders.run), orders.claim)
        _fail(watch, error, world=orders.world)
    leave(watch, ending=Ending.DONE, status=EXIT_DONE)
    return EXIT_DONE


def _work(orders: Orders, watch: Watch, clock: Clock) -> None:
    age = process_age_s()
    stopwatch = Stopwatch(clock, lived_s=age)
    stopwatch.add("start", age)
    with stopwatch.part("start"):
        task = _make_task(orders, watch, stopwatch, clock)
        with importing():
            from tasuki.train.advice import setup_advice

            run = _import_phase(orders.phase)
    with setup_advice(task.stage), _memory_cap(os.environ.get("TASUKI_MEMORY_CAP")):
        run(task)
    task.ranks.say_goodbye()


def _memory_cap(limit: str | None) -> contextlib.AbstractContextManager[object]:
    """For tests: run out of memory on any machine."""
    if not limit:
        return contextlib.nullcontext()
    from tasuki.testing.memory import memory_cap

    return memory_cap(limit)


def _import_phase(phase: str) -> Callable[[Task], None]:
    if phase == "evaluate":
        from tasuki.train.evaluate import run_evaluation

        return run_evaluation
    import torch._dynamo  # noqa: F401  (the first optimizer imports it)

    from tasuki.train.training import run_training

    return run_training


def _make_task(orders: Orders, watch: Watch, stopwatch: Stopwatch, clock: Clock) -> Task:
    run, job = RunFolder(orders.run), JobFolder(orders.job)
    note = _set_variables(orders, run, job)  # torch reads them when it is imported
    with importing():
        from tasuki.loop.exact import apply_settings
        from tasuki.loop.ranks import join_ranks
        from tasuki.spec.export import parse_export
        from tasuki.train.fingerprints import refuse_edited_code
        from tasuki.train.precision import apply_precision
        from tasuki.train.switches import without_gain
        from tasuki.train.task import Task, choose_device, cpus_of_rank, read_experiment

    if orders.rank == 0:
        refuse_edited_code(run)
    experiment, folder = read_experiment(run)
    names = [stage.name for stage in experiment.stages]
    stage = experiment.stages[names.index(orders.stage)]
    parse_export(stage.export)  # a mistake shows now, not when the stage is done
    device = choose_device(job, orders.rank)
    cpus = orders.cpus or cpus_of_rank(job, world=orders.world)
    threads, spare = _share(stage, run, cpus, is_gpu=device.type == "cuda")
    apply_settings(threads=threads, exact=stage.exact)
    warnings = apply_precision(stage.precision, device)
    warnings += without_gain(stage, device=device.type)
    ranks = join_ranks(
        rank=orders.rank,
        world=orders.world,
        device=device,
        rendezvous=job.rendezvous(run.name, orders.claim, orders.number),
        host=orders.host,
        clock=clock,
    )
    task = Task(
        orders=orders,
        run=run,
        claim=orders.claim,
        job_name=job.name,
        job=job,
        experiment=experiment,
        stage=stage,
        stage_number=names.index(orders.stage) + 1,
        folder=folder,
        device=device,
        threads=threads,
        spare_cpus=spare,
        ranks=ranks,
        watch=watch,
        stopwatch=stopwatch,
        events=EventLog(run, claim=orders.claim, node=0, who=f"rank{orders.rank}", clock=clock),
        clock=clock,
        grace_s=read_json(job.lanes).get("grace_s"),
        is_profiled=bool(read_json(job.lanes).get("profile")),
    )
    if orders.phase == "train":
        _say_switches(task, [note] if note else [], warnings)
    return task


def _share(stage: ResolvedStage, run: RunFolder, cpus: int, *, is_gpu: bool) -> tuple[int, int]:
    """Threads of this rank, and CPUs left for its loader workers."""
    from tasuki.data.tempo import share_cpus
    from tasuki.loop.exact import frozen_threads

    workers = stage.loader.workers if isinstance(stage.loader.workers, int) else None
    if stage.exact and (frozen := frozen_threads(run)):
        return frozen, max(0, cpus - frozen)
    return share_cpus(cpus, is_gpu=is_gpu, workers=workers)


def _say_switches(task: Task, notes: list[str], warnings: list[str]) -> None:
    """How this stage computes, once per attempt."""
    from tasuki.train.switches import in_force

    words = in_force(task.stage, device=task.device.type)
    for line in [*notes, words, *(f"WARNING: {warning}" for warning in warnings)]:
        task.say(line)


def _set_variables(orders: Orders, run: RunFolder, job: JobFolder) -> str:
    """Into this process's environment; what is to be said about it."""
    from tasuki.train.allocator import choose_allocator
    from tasuki.train.kernels import keep_kernels

    stages = read_json(run.spec)["spec"]["stages"]
    stage = next(s for s in stages if s["name"] == orders.stage)
    device = read_json(job.lanes).get("device", "cpu")
    chosen = choose_allocator(stage.get("allocator"), os.environ, device=device)
    os.environ.update(chosen.variables)
    if stage.get("compile"):
        cpus = len(os.sched_getaffinity(0))
        keep_kernels(run.compiled, os.environ, cpus=min(cpus, orders.cpus or cpus))
    return chosen.note


def _fail(watch: Watch, error: BaseException, *, world: int) -> None:
    """Translate an exception into an ending; a traceback goes to the .err log for our eyes only."""
    watch.begin_handover()  # where a held state is being published, that is the end
    ending = ending_of(error)
    if isinstance(error, TasukiError):
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{hint}\n")
        if error.__cause__ is not None:
            traceback.print_exception(error.__cause__)
        leave(
            watch,
            ending=ending,
            status=EXIT_FAILED,
            message=error.message,
            hint=error.hint,
            is_peer=getattr(error, "is_peer", False),
        )
    traceback.print_exception(error)
    words = f"{type(error).__name__}: {error}{place_of(error)}"
    is_peer = world > 1 and any(word in str(error) for word in _LOST_PEER)
    leave(watch, ending=ending, status=EXIT_FAILED, message=words[:2000], is_peer=is_peer)


def _parse(arguments: list[str]) -> Orders:
    parser = argparse.ArgumentParser(prog="python -m tasuki.train")
    for name, kind in (
        ("job", Path),
        ("run", Path),
        ("claim", int),
        ("phase", str),
        ("stage", str),
        ("number", int),
        ("rank", int),
        ("world", int),
    ):
        parser.add_argument(f"--{name}", type=kind, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    for name in ("fd", "cpus"):
        parser.add_argument(f"--{name}", type=int, default=None)
    return Orders(**vars(parser.parse_args(arguments)))

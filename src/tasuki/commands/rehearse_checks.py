"""What a rehearsal looks at without running anything: room on the disk, sinks, setup, commands.

Rules about room are pure; facts about the machine and the disk come from `doctor`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasuki.commands.doctor_machine import describe_machine, describe_runs
from tasuki.commands.doctor_rules import Finding, check_machine, check_paths
from tasuki.commands.plan import PlanRequest
from tasuki.commands.rehearse_cells import Cell
from tasuki.commands.sinks import check_sinks
from tasuki.errors import TasukiError
from tasuki.units import format_bytes


def look_at_place(request: PlanRequest) -> tuple[list[Finding], dict[str, Any]]:
    """(what is wrong with folder, sinks, setup and Python; facts of the runs folder)."""
    spec, cluster = request.spec, request.spec.cluster
    runs = describe_runs(Path(spec.runs))
    machine = describe_machine(python=request.python, environment=request.environment)
    found = list(check_machine(runs, machine, has_slurm=False, is_seen=True))
    setup = Path(spec.folder) / cluster.setup if cluster.setup else None
    is_missing = setup is not None and not setup.is_file()
    python = cluster.python
    is_away = python is not None and shutil.which(python) is None
    found += check_paths(
        setup=str(setup) if is_missing else None, python=python if is_away else None
    )
    try:
        check_sinks(spec)
    except TasukiError as error:
        found.append(Finding(is_problem=True, what=error.message, hint=error.hint))
    return found, runs


def check_command(command: tuple[str, ...], *, folder: str, environment: Mapping[str, str]) -> Cell:
    """Only whether it is there."""
    word = command[0]
    path = Path(folder, word)
    if shutil.which(word, path=environment.get("PATH")) or os.access(path, os.X_OK):
        return Cell(state="ok")
    return Cell(
        state="failed",
        message=f"there is no command `{word}`",
        hint="a job finds commands by its PATH (`cluster.setup` may extend it) or by a path "
        "relative to the spec's folder",
    )


def judge_room(needs: Mapping[str, int], *, free: int, where: str) -> dict[str, Cell]:
    """By experiment: those for whose checkpoints there is no room; where only all together have
    none, all of them. `needs` is what each keeps at once."""
    total = sum(needs.values())
    if total <= free:
        return {}
    alone = {name for name, need in needs.items() if need > free}
    found = {}
    for name in alone or needs:
        words = f"its checkpoints need {format_bytes(needs[name])}"
        if not alone:
            words = f"the checkpoints of {len(needs)} experiments need {format_bytes(total)}"
        found[name] = Cell(
            state="failed",
            message=f"{words} (`save.keep` and two more), {format_bytes(free)} are free on {where}",
            hint="keep fewer (`save: {keep: 1}`), make room, or set `runs:` elsewhere",
        )
    return found


def not_checked(
    request: PlanRequest, *, is_stand_in: bool, ranks: int, is_online: bool
) -> Iterator[str]:
    """What a rehearsal leaves to the real run."""
    cluster, stages = request.spec.cluster, [s for e in request.experiments for s in e.stages]
    if is_stand_in:
        yield f"`gpu: {cluster.gpu}` is not here: memory, speed and kernels of the GPU"
    whole = cluster.gpus * cluster.nodes
    if ranks != whole:
        yield f"{whole} ranks: {_ranks(ranks)} rehearsed (`--ranks N`)"
    if any(stage.micro_batch == "auto" and stage.recipe for stage in stages):
        yield "`micro_batch: auto`: the batch is found at a stage's first start"
    if cluster.setup:
        yield "`cluster.setup` is not sourced here"
    if request.spec.sinks:
        yield "sinks get nothing from a rehearsal"
    if is_online:
        yield "`--online`: whether it can do without the network"
    yield "whether the loss falls, later samples, the queue, interruptions (`tasuki verify resume`)"


def _ranks(number: int) -> str:
    return f"{number} rank" if number == 1 else f"{number} ranks"

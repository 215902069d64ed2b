"""Submit the jobs of a plan, each exactly once, however often this is tried.

What is to be submitted is written into every job's folder first; a number that sbatch gave is
written down at once. An answer that got lost is looked for in the queue by the job's comment, which
no other job has; so is what a process had submitted that was killed before it could write. So a
plan of which only a part was submitted can be finished by anybody.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from tasuki.clock import Clock
from tasuki.runs.atomic import (
    FORMAT,
    read_json,
    read_json_or_none,
    shaped,
    write_bytes,
    write_json,
)
from tasuki.runs.jobs import JobFolder
from tasuki.slurm.client import Slurm, SlurmError, SlurmSilent
from tasuki.slurm.script import (
    SCRIPT,
    SUBMIT,
    SlurmJob,
    dependency,
    render_script,
    render_submit,
    sbatch_options,
    submit_arguments,
)
from tasuki.slurm.succession import COMMENT

_LOOK_FOR_S = 30.0
_LOOK_EVERY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """A job as it lies in its folder, ready to be submitted."""

    folder: JobFolder
    after: tuple[str, ...]
    """Names of the jobs of its plan that must have ended."""
    options: tuple[str, ...]
    arguments: tuple[str, ...]

    @property
    def comment(self) -> str:
        return f"{COMMENT}{self.folder.name}"


def write_order(job: SlurmJob) -> Order:
    """Script, command and order, into the job's folder."""
    order = Order(
        folder=JobFolder(job.folder),
        after=job.after,
        options=tuple(sbatch_options(job)),
        arguments=tuple(submit_arguments(job)),
    )
    write_bytes(job.folder / SCRIPT, render_script().encode())
    write_bytes(job.folder / SUBMIT, render_submit(job).encode())
    parts = {"after": order.after, "options": order.options, "arguments": order.arguments}
    write_json(order.folder.order, {"format": FORMAT, **parts})
    return order


def read_order(folder: JobFolder) -> Order:
    value = read_json(folder.order)
    with shaped(folder.order):
        return Order(
            folder=folder,
            after=tuple(map(str, value["after"])),
            options=tuple(map(str, value["options"])),
            arguments=tuple(map(str, value["arguments"])),
        )


def linked_with(queued: Collection[str], orders: Sequence[Order]) -> set[str]:
    """Names of the jobs that are in the queue, wait for one of these, or are waited for by one."""
    linked = set(queued)
    while True:
        found = set()
        for order in orders:
            names = {order.folder.name, *order.after}
            if order.folder.name in linked or not linked.isdisjoint(order.after):
                found |= names
        if found <= linked:
            return linked
        linked |= found


def withdraw(folder: JobFolder) -> None:
    """Should Slurm start this job all the same, it ends at once."""
    write_json(folder.withdrawn, {"format": FORMAT})


def submit_jobs(
    slurm: Slurm,
    orders: Sequence[Order],
    *,
    user: str,
    clock: Clock,
    on_submitted: Callable[[Order, str], None] = lambda _order, _number: None,
) -> dict[str, str]:
    """Numbers by name. `after` of each order names jobs that come before it here."""
    queued = {job.comment: job.number for job in slurm.queue(user)}
    numbers: dict[str, str] = {}
    for order in orders:
        try:
            number = _submit_once(slurm, order, numbers, queued, user=user, clock=clock)
        except SlurmError as error:
            done = f"{len(numbers)} of {len(orders)} jobs were submitted before"
            error.message = f"{error.message} ({done})"
            raise
        numbers[order.folder.name] = number
        on_submitted(order, number)
    return numbers


def known_number(folder: JobFolder) -> str | None:
    """Under which Slurm knows a job; None: it was not submitted, as far as is written down."""
    value = read_json_or_none(folder.submitted)
    return None if value is None else str(value.get("number"))


def _submit_once(
    slurm: Slurm,
    order: Order,
    numbers: Mapping[str, str],
    queued: Mapping[str, str],
    *,
    user: str,
    clock: Clock,
) -> str:
    known = known_number(order.folder)
    if known is not None:
        return known
    after = dependency([numbers[name] for name in order.after])
    words = [*order.options, *after, *order.arguments]
    number = queued.get(order.comment) or _submit(slurm, words, order, user=user, clock=clock)
    write_json(order.folder.submitted, {"format": FORMAT, "number": number})
    return number


def _submit(slurm: Slurm, words: Sequence[str], order: Order, *, user: str, clock: Clock) -> str:
    try:
        return slurm.submit(words)
    except SlurmSilent:
        number = _look_for(slurm, order, user=user, clock=clock)
        if number is None:
            raise
        return number


def _look_for(slurm: Slurm, order: Order, *, user: str, clock: Clock) -> str | None:
    """The controller may have heard us and its answer got lost."""
    until = clock.monotonic() + _LOOK_FOR_S
    while True:
        for queued in slurm.queue(user):
            if queued.comment == order.comment:
                return queued.number
        if clock.monotonic() >= until:
            return None
        clock.sleep(_LOOK_EVERY_S)

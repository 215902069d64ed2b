"""Parameters that a loss does not use, with several ranks.

DDP waits for the gradient of every parameter; one that gets none on some rank stops it. So one
micro-batch is tried alone, before any state: where a parameter gets no gradient, or did not in an
earlier attempt, DDP is told to look for such parameters in every step. Then a parameter that no
rank used keeps the gradient None, as on one rank, and no optimizer touches it. One that goes unused
only later ends the attempt, named, and the next attempt looks for it.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from tasuki.errors import RunError
from tasuki.runs.events import read_events

if TYPE_CHECKING:
    from tasuki.train.task import Task

_EVENT = "unused"
_MOST_NAMES = 5
_INDICES = re.compile(r"did not receive grad for rank \d+: ([\d ]+)")
_PREFIX = re.compile(r"^((module|model|_orig_mod)\.)+")
_DECLARED = "unused_parameters"
"""`unused_parameters = True` in a recipe: not every step uses all."""


class UnusedParameters(RunError):
    """Some parameters got no gradient in a step, and DDP was not told to expect that."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(
            f"a step did not use {in_words(names)}, which earlier ones did: ranks cannot add up "
            "their gradients; the next attempt expects it",
            hint=f"`{_DECLARED} = True` in the recipe expects it from the beginning",
        )
        self.names = list(names)


def in_words(names: Sequence[str]) -> str:
    shown = ", ".join(f"`{name}`" for name in names[:_MOST_NAMES])
    more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
    return f"{'parameter' if len(names) == 1 else 'parameters'} {shown}{more}"


def has_to_look(task: Task, recipe: Any) -> bool:
    """Is it known already that steps do not use all parameters?"""
    if getattr(recipe, _DECLARED, False):
        return True
    return any(
        event.get("kind") == _EVENT and event.get("stage") == task.stage.name
        for event in read_events(task.run)
    )


def find_unused(
    model: nn.Module, *, is_known: bool, device: torch.device
) -> tuple[list[str], bool]:
    """After a backward pass of each rank alone: who got no gradient on some rank, and whether any
    rank knew; the same on all ranks."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    flags = [is_known, *(p.grad is None for _, p in named)]
    counts = torch.tensor(flags, dtype=torch.int32, device=device)
    dist.all_reduce(counts)
    knowing, *missing = counts.tolist()
    names = [name for (name, _), number in zip(named, missing, strict=True) if number]
    return names, bool(knowing)


def say_unused(task: Task, names: Sequence[str]) -> None:
    task.say(
        f"WARNING: the loss does not use {in_words(names)} of the first batch: with several ranks "
        "each step looks anew for what it uses, which takes time; requires_grad=False for what is "
        "never trained saves it"
    )
    task.event(_EVENT, stage=task.stage.name, parameters=list(names))


@contextlib.contextmanager
def noting_unused(task: Task) -> Iterator[None]:
    """What ends this attempt is expected by the next; whichever rank met it writes it down."""
    try:
        yield
    except UnusedParameters as error:
        task.events.add(_EVENT, stage=task.stage.name, parameters=error.names)
        raise


def refuse_missing(module: DistributedDataParallel) -> None:
    """The same where gradients are not added up by DDP."""
    missing = [n for n, p in module.named_parameters() if p.requires_grad and p.grad is None]
    if missing:
        raise UnusedParameters([_PREFIX.sub("", name) for name in missing])


def refuse_unfinished(module: DistributedDataParallel) -> None:
    """A rank that went on without its sum would train on its own samples alone."""
    check = getattr(module, "_check_reducer_finalized", None)  # not in every torch
    if check is None:
        return
    try:
        check()
    except RuntimeError as error:
        found = _INDICES.search(str(error))
        if found is None:
            raise
        names = [name for name, p in module.named_parameters() if p.requires_grad]
        chosen = [_PREFIX.sub("", names[int(index)]) for index in found[1].split()]
        raise UnusedParameters(chosen) from error

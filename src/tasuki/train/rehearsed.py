"""What `tasuki rehearse` asks of a rank: few steps and samples, no network, and where it is.

Read once from the environment, as failpoints are. A line in a file for every place on the way of a
phase, and one more if it fails, tells commands/rehearse.py what passed. Outside of a rehearsal
every function here does nothing.
"""

from __future__ import annotations

import faulthandler
import json
import os
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from tasuki.data.buckets import Bucket, BucketPlan
from tasuki.data.foreign import is_loader, num_batches
from tasuki.data.short import ShortLoader, may_be_left_early
from tasuki.errors import RecipeError, RunError, TasukiError, place_of
from tasuki.runs.atomic import FILE_MODE, make_folder
from tasuki.runs.lines import LineWriter
from tasuki.train.orders import Orders

_FEW = 8
"""Samples that a recipe's own `evaluate` gets."""
_WALK_S = 3.0
"""A schedule of millions of steps is not gone through to its end."""
_LOOPBACK = ("127.", "::1", "localhost", "0.0.0.0")
_OFFLINE_HINT = (
    "nodes often have no network: fetch it beforehand into a folder of yours, and name that; "
    "`tasuki rehearse --online` lets it through"
)
_ABOUT_NETWORK = ("something wants to reach", "huggingface.co", "HF_HUB_OFFLINE", "offline mode")
"""Of our own refusal, and of libraries that were told to ask nobody."""
_SHORTLY_S = 0.5
STACKS = ".stacks"
"""Beside the lines: read by commands/rehearse.py."""
_lines: list[LineWriter] = []


class Offline(RunError, OSError):
    """Something wants to reach the network; whoever can do without it may catch an OSError."""


REHEARSAL = "TASUKI_REHEARSAL"
"""The environment variable with a `Rehearsal` as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rehearsal:
    """Only some steps of a stage that is otherwise as it will be, its largest samples."""

    steps: int
    trace: Path
    """The folder for the places that were reached."""
    is_offline: bool = True
    smallest: frozenset[str] = frozenset()
    """Stages whose largest samples do not fit this machine: their smallest are taken."""
    effective_batches: Mapping[str, int] = field(default_factory=dict)
    """By stage: those of the whole, where a rehearsed step has fewer samples."""
    until: float | None = None
    """By the wall clock: what is not done by then is left."""


_rehearsal: list[Rehearsal] = []


def read_rehearsal(environment: Mapping[str, str]) -> None:
    """Called once by a rank, before it works."""
    _rehearsal.clear()
    if told := json.loads(environment.get(REHEARSAL) or "{}"):
        trace, smallest = Path(told.pop("trace")), frozenset(told.pop("smallest"))
        _rehearsal.append(Rehearsal(trace=trace, smallest=smallest, **told))


def rehearsal() -> Rehearsal | None:
    """None: this is a run."""
    return _rehearsal[0] if _rehearsal else None


def begin_rehearsal(orders: Orders) -> None:
    """Before anything of the user's is imported."""
    rehearsed = rehearsal()
    _lines.clear()
    if rehearsed is None:
        return
    if rehearsed.is_offline:
        be_offline()
    if orders.claim > 1:
        raise RunError("a rehearsal tries nothing twice")
    if orders.rank == 0:
        path = rehearsed.trace / f"{orders.stage}.{orders.phase}.jsonl"
        _lines.append(LineWriter(path))
        _tell_at_the_end(path.with_suffix(STACKS), rehearsed.until)


def _tell_at_the_end(path: Path, until: float | None) -> None:
    """Where it stands shortly before the budget is used up, if it still runs then: written by a
    thread without Python, so that it does not matter in what it hangs."""
    if until is None:
        return
    make_folder(path.parent)
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, FILE_MODE)
    left_s = max(_SHORTLY_S, until - time.time() - _SHORTLY_S)
    faulthandler.dump_traceback_later(left_s, file=descriptor)


def reached(place: str, **facts: Any) -> None:
    """From here on what goes wrong belongs to this place."""
    for lines in _lines:
        lines.append({"t": time.time(), "place": place, **facts})


def failed(error: BaseException) -> bool:
    """Written down; False: nobody rehearses."""
    if rehearsal() is None:
        return False
    words, hint = in_words(error)
    for lines in _lines:
        kind = type(error).__name__
        lines.append({"t": time.time(), "failed": words, "hint": hint, "kind": kind})
    return True


def in_words(error: BaseException) -> tuple[str, str]:
    """(what went wrong, what to do), as a rehearsal tells it: there are no logs to look into."""
    words = f"{type(error).__name__}: {error}{place_of(error)}"
    hint = ""
    if isinstance(error, TasukiError):
        words, hint = error.message, "" if ".err log" in error.hint else error.hint
    is_about_network = any(word in words for word in _ABOUT_NETWORK)
    return words, _OFFLINE_HINT if is_about_network else hint


def be_offline() -> None:
    """Connections to other machines fail in this process, in words."""
    own = {socket.gethostname(), "", "None", "localhost"}

    def refuse(event: str, details: tuple[Any, ...]) -> None:
        if event == "socket.getaddrinfo":
            host = _text(details[0])
        elif event == "socket.connect" and isinstance(details[1], tuple):
            host = _text(details[1][0])
        else:
            return
        if host not in own and not host.startswith(_LOOPBACK):
            raise Offline(f"something wants to reach `{host}`", hint=_OFFLINE_HINT)

    sys.addaudithook(refuse)


def _text(host: object) -> str:
    return host.decode(errors="replace") if isinstance(host, bytes) else str(host)


def walk_schedule(schedule: Any, planned: int | None, *, done: int) -> None:
    """In a rehearsal, at its end: the steps that are left of a recipe's own schedule, as training
    would take them."""
    if rehearsal() is None:
        return
    reached("schedule")
    until = time.monotonic() + _WALK_S
    for step in range(done, (planned or done) if schedule is not None else done):
        if time.monotonic() > until:
            break
        try:
            schedule.step()
        except Exception as error:
            raise RecipeError(
                f"the schedule fails after step {step + 1} of {planned}: "
                f"{type(error).__name__}: {error}{place_of(error)}",
                hint="build_schedule(self, optimizer, total_steps) has to bear `total_steps` calls "
                "of step()",
            ) from error
    reached("done")


def fewer_samples(
    plan: BucketPlan,
    *,
    batch: int,
    stage: str = "",
    weights: Callable[[], Any] = lambda: None,
) -> BucketPlan:
    """In a rehearsal the largest samples of the largest bucket (by `weights`, one number per
    sample); otherwise the plan as it is."""
    rehearsed = rehearsal()
    if rehearsed is None:
        return plan
    most, is_small = rehearsed.steps * batch, stage in rehearsed.smallest
    return largest_samples(plan, weights(), most=most, is_small=is_small)


def largest_samples(
    plan: BucketPlan, weights: Any, *, most: int, is_small: bool = False
) -> BucketPlan:
    """One bucket of so many samples: the largest there are, or the smallest; of equal ones the
    first."""
    number = 0 if is_small else len(plan.buckets) - 1
    bucket, index = plan.buckets[number], plan.index(number)
    members = np.arange(bucket.samples) if index is None else np.asarray(index)
    if weights is not None:
        own = np.asarray(weights)[members]
        members = members[np.argsort(own if is_small else -own, kind="stable")]
    kept = np.sort(members[:most]).astype(np.int64)
    return BucketPlan(buckets=(Bucket(bucket.size, len(kept)),), members=kept, waste=plan.waste)


def few_steps(planned: int) -> int:
    """How many of the steps that a stage has are taken."""
    rehearsed = rehearsal()
    return planned if rehearsed is None else min(planned, rehearsed.steps)


def fewer_batches(loader: Any) -> Any:
    """In a rehearsal: a loader of the user's own that ends its passes early."""
    rehearsed = rehearsal()
    if rehearsed is None or not may_be_left_early(loader):
        return loader
    batches = num_batches(loader)
    return loader if batches is None else ShortLoader(loader, min(batches, rehearsed.steps))


def few_to_evaluate(dataset: Any) -> Any:
    """What a recipe's own `evaluate` gets: in a rehearsal some samples, the last among them."""
    rehearsed = rehearsal()
    if rehearsed is None:
        return dataset
    if is_loader(dataset):
        return fewer_batches(dataset)
    places = np.linspace(0, len(dataset) - 1, min(_FEW, len(dataset))).round()
    return FewSamples(dataset, [int(place) for place in np.unique(places)])


class FewSamples(Dataset[Any]):
    """Some samples of a data set; for the rest it is that data set."""

    def __init__(self, whole: Any, indices: Sequence[int]) -> None:
        self._whole, self._indices = whole, list(indices)
        if (sizes := getattr(whole, "sizes", None)) is not None:
            self.sizes = np.asarray([sizes[index] for index in self._indices])

    def __len__(self) -> int:
        return len(self._indices)

    def __getitem__(self, index: int) -> Any:
        return self._whole[self._indices[index]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        return [self[index] for index in indices]

    def __iter__(self) -> Iterator[Any]:
        return (self[index] for index in range(len(self)))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.__dict__["_whole"], name)

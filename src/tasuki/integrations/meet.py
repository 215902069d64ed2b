"""The ranks of a loop find each other, however they were started.

Rank 0 opens a key-value store of our own and tells the others where, and which attempt this is:
through the script's process group if it is there already, else through torchrun's store, else by a
file that only this start knows. If rank 0 cannot begin, the others hear why. A script that opens
several runs, one after another, meets anew for each: meetings are numbered.
"""

from __future__ import annotations

import itertools
import json
import os
import socket
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch.distributed as dist
from torch.distributed import Store, TCPStore

from tasuki.clock import Clock
from tasuki.errors import RunError, TasukiError
from tasuki.integrations.place import Place
from tasuki.loop.ranks import ALONE, Ranks
from tasuki.runs.atomic import FORMAT, make_folder, read_json_or_none, write_json

_MEET_WITHIN_S = 300.0
_numbers = itertools.count()
"""Of the meetings of this process: each rank of a script opens the same runs in the same order."""
_FOLDER = ".ranks"
"""In the folder of all runs, for ranks that srun started."""


@dataclass(frozen=True, slots=True)
class Met:
    ranks: Ranks
    run: Path
    claim: int


@dataclass(frozen=True, slots=True)
class _Way:
    tell: Callable[[dict[str, Any]], object]
    """Of rank 0."""
    hear: Callable[[], dict[str, Any]]
    file: Path | None = None
    """To be removed when all have met."""


def meet(place: Place, begin: Callable[[], tuple[Path, int]], *, runs: Path, clock: Clock) -> Met:
    """`begin` is called on rank 0 alone: it opens the run and takes the claim."""
    if place.world == 1:
        run, claim = begin()
        return Met(ALONE, run, claim)
    way = _find_way(place, runs, clock, number=next(_numbers))
    met = _lead(place, begin, way.tell) if place.rank == 0 else _follow(place, way.hear())
    # Rank 0 hosts the store. Where its run is complete it leaves at once, and a rank that has not
    # connected yet would try for five minutes.
    met.ranks.report_to_first("met")
    if way.file is not None and place.rank == 0:
        way.file.unlink(missing_ok=True)
    return met


def _follow(place: Place, told: dict[str, Any]) -> Met:
    if "error" in told:
        raise RunError(f"rank 0 could not begin: {told['error']}", hint=told["hint"])
    address = (told["host"], int(told["port"]))
    store = TCPStore(*address, place.world, is_master=False, wait_for_workers=False)
    return Met(Ranks(place.rank, place.world, store, address), Path(told["run"]), told["claim"])


def _lead(
    place: Place, begin: Callable[[], tuple[Path, int]], tell: Callable[[dict[str, Any]], object]
) -> Met:
    try:
        run, claim = begin()
    except TasukiError as error:
        tell({"error": error.message, "hint": error.hint})
        raise
    except BaseException as error:
        tell({"error": f"{type(error).__name__}: {error}", "hint": ""})
        raise
    host = place.host or socket.gethostname()
    store = TCPStore(host, 0, place.world, is_master=True, wait_for_workers=False)
    tell({"host": host, "port": store.port, "run": str(run), "claim": claim})
    ranks = Ranks(0, place.world, store, (host, store.port))
    return Met(ranks, run, claim)


def _find_way(place: Place, runs: Path, clock: Clock, *, number: int) -> _Way:
    if dist.is_available() and dist.is_initialized():
        return _Way(_broadcast, lambda: _broadcast({}))
    if place.agent is not None:
        store = TCPStore(*place.agent, is_master=False, wait_for_workers=False)
        return _by_store(store, number)
    if place.launch:
        folder = place.job.files.path if place.job is not None else runs / _FOLDER
        return _by_file(folder / f"{place.launch}.{number}.json", clock)
    raise RunError(
        f"this is rank {place.rank} of {place.world}, and the ranks have no way to meet",
        hint="call torch.distributed.init_process_group before open_run, or start with torchrun",
    )


def _broadcast(value: dict[str, Any]) -> dict[str, Any]:
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    found: dict[str, Any] = box[0]
    return found


def _by_store(store: Store, number: int) -> _Way:
    key = f"tasuki/meet/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}/{number}"

    def hear() -> dict[str, Any]:
        store.wait([key], timedelta(seconds=_MEET_WITHIN_S))
        found: dict[str, Any] = json.loads(store.get(key))
        return found

    return _Way(lambda value: store.set(key, json.dumps(value)), hear)


def _by_file(path: Path, clock: Clock) -> _Way:
    def tell(value: dict[str, Any]) -> None:
        make_folder(path.parent)
        write_json(path, {"format": FORMAT, **value})

    def hear() -> dict[str, Any]:
        until = clock.monotonic() + _MEET_WITHIN_S
        while clock.monotonic() < until:
            value = read_json_or_none(path)
            if value is not None:
                return value
            clock.sleep(0.02)
        raise RunError(f"rank 0 did not open a meeting point within {_MEET_WITHIN_S:.0f} s")

    return _Way(tell, hear, path)

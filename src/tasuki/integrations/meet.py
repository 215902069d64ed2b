"""The ranks of a loop find each other, however they were started.

Rank 0 opens a key-value store of our own and tells the others where, and which attempt this is:
through the script's process group if it is there already, else through torchrun's store, else by a
file that only this start knows. If rank 0 cannot begin, the others hear why.
"""

from __future__ import annotations

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
from tasuki.runtime.ranks import ALONE, Ranks
from tasuki.store.atomic import FORMAT, make_folder, read_json_or_none, write_json

_MEET_WITHIN_S = 300.0
_FOLDER = ".ranks"
"""In the folder of all runs, for ranks that srun started."""


@dataclass(frozen=True, slots=True)
class Met:
    ranks: Ranks
    run: Path
    claim: int


def meet(place: Place, begin: Callable[[], tuple[Path, int]], *, runs: Path, clock: Clock) -> Met:
    """`begin` is called on rank 0 alone: it opens the run and takes the claim."""
    if place.world == 1:
        run, claim = begin()
        return Met(ALONE, run, claim)
    tell, hear = _ways(place, runs, clock)
    if place.rank == 0:
        return _lead(place, begin, tell)
    told = hear()
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


def _ways(
    place: Place, runs: Path, clock: Clock
) -> tuple[Callable[[dict[str, Any]], object], Callable[[], dict[str, Any]]]:
    """(how rank 0 tells, how the others hear)."""
    if dist.is_available() and dist.is_initialized():
        return _broadcast, lambda: _broadcast({})
    if place.agent is not None:
        return _by_store(TCPStore(*place.agent, is_master=False, wait_for_workers=False))
    if place.launch:
        folder = place.job.files.path if place.job is not None else runs / _FOLDER
        return _by_file(folder / f"{place.launch}.json", clock)
    raise RunError(
        f"this is rank {place.rank} of {place.world}, and the ranks have no way to meet",
        hint="call torch.distributed.init_process_group before open_run, or start with torchrun",
    )


def _broadcast(value: dict[str, Any]) -> dict[str, Any]:
    box: list[Any] = [value]
    dist.broadcast_object_list(box, src=0)
    found: dict[str, Any] = box[0]
    return found


def _by_store(
    store: Store,
) -> tuple[Callable[[dict[str, Any]], object], Callable[[], dict[str, Any]]]:
    key = f"tasuki/meet/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"

    def hear() -> dict[str, Any]:
        store.wait([key], timedelta(seconds=_MEET_WITHIN_S))
        found: dict[str, Any] = json.loads(store.get(key))
        return found

    return lambda value: store.set(key, json.dumps(value)), hear


def _by_file(
    path: Path, clock: Clock
) -> tuple[Callable[[dict[str, Any]], object], Callable[[], dict[str, Any]]]:
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

    return tell, hear

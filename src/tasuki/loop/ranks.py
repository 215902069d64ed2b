"""Several ranks: how they find each other, and how model + loss become one DDP module."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed import Store, TCPStore
from torch.nn.parallel import DistributedDataParallel

from tasuki.clock import Clock
from tasuki.errors import RunError
from tasuki.runs.atomic import FORMAT, read_json_or_none, write_json

_MEET_WITHIN_S = 300.0
_GOODBYE = timedelta(seconds=10)
_COLLECTIVE = timedelta(hours=12)
"""Rank 0 validates alone while the others wait; a dead rank is noticed at once all the same."""


@dataclass(frozen=True, slots=True)
class Ranks:
    """This rank among all."""

    rank: int
    world: int
    store: Store | None
    address: tuple[str, int] | None

    def connect(self) -> Store:
        """A further connection to the key-value store."""
        assert self.address is not None
        host, port = self.address
        return TCPStore(host, port, is_master=False, wait_for_workers=False)

    def await_all(self, place: str) -> None:
        """Until every rank has come to this place."""
        if self.store is None:
            return
        self.store.set(f"tasuki/{place}/{self.rank}", "1")
        self.store.wait([f"tasuki/{place}/{rank}" for rank in range(self.world)], _COLLECTIVE)

    def report_to_first(self, place: str) -> None:
        """Rank 0 waits until every rank has come to this place; the others go on at once, and ask
        nothing of a store that may be gone a moment later."""
        if self.rank == 0:
            self.await_all(place)
        elif self.store is not None:
            self.store.set(f"tasuki/{place}/{self.rank}", "1")

    def say_goodbye(self) -> None:
        """Rank 0 hosts the store: it leaves last, or the others' last questions fail."""
        if self.store is None:
            return
        with contextlib.suppress(RuntimeError):
            self.store.set(f"tasuki/bye/{self.rank}", "1")
            if self.rank == 0:
                others = [f"tasuki/bye/{rank}" for rank in range(1, self.world)]
                self.store.wait(others, _GOODBYE)


ALONE = Ranks(0, 1, None, None)


def join_ranks(
    *, rank: int, world: int, device: torch.device, rendezvous: Path, host: str, clock: Clock
) -> Ranks:
    """Meet the other ranks: rank 0 opens the store and writes down where."""
    if world == 1:
        return ALONE
    store: Store
    if rank == 0:
        store = TCPStore(host, 0, world, is_master=True, wait_for_workers=False)
        port = store.port
        write_json(rendezvous, {"format": FORMAT, "host": host, "port": port})
    else:
        host, port = _await_address(rendezvous, clock)
        store = TCPStore(host, port, world, is_master=False, wait_for_workers=False)
    backend = "nccl" if device.type == "cuda" else "gloo"
    dist.init_process_group(backend, store=store, rank=rank, world_size=world, timeout=_COLLECTIVE)
    return Ranks(rank, world, store, (host, port))


def _await_address(rendezvous: Path, clock: Clock) -> tuple[str, int]:
    until = clock.monotonic() + _MEET_WITHIN_S
    while clock.monotonic() < until:
        value = read_json_or_none(rendezvous)
        if value is not None:
            return str(value["host"]), int(value["port"])
        clock.sleep(0.02)
    raise RunError(f"rank 0 did not open a meeting point within {_MEET_WITHIN_S:.0f} s")


def wrap_module(
    module: nn.Module, ranks: Ranks, device: torch.device, *, looks_for_unused: bool = False
) -> nn.Module:
    """`looks_for_unused`: steps need not use every parameter; costs a walk through their graph."""
    if ranks.world == 1:
        return module
    device_ids = [device.index] if device.type == "cuda" else None
    return DistributedDataParallel(
        module, device_ids=device_ids, find_unused_parameters=looks_for_unused
    )

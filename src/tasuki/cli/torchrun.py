"""Started by torchrun: `torchrun --nproc-per-node 4 -m tasuki run` is `cluster.gpus: 4`.

torchrun starts one process per rank. The first one does what `tasuki run` does, and its supervisor
starts the ranks; the others have nothing to do and leave. What torchrun sets for its processes
(RANK, MASTER_ADDR, one thread …) is taken out of the environment, so that ranks are the same
whoever started them. Nodes are the business of `tasuki submit`.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import click

from tasuki.errors import UsageError

if TYPE_CHECKING:
    from tasuki.commands.plan import PlanRequest

_MARK = "TORCHELASTIC_RUN_ID"
_OF_RANKS = (
    *("RANK", "LOCAL_RANK", "GROUP_RANK", "ROLE_RANK", "ROLE_NAME"),
    *("WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE", "ROLE_WORLD_SIZE"),
    *("MASTER_ADDR", "MASTER_PORT"),
)
_DEFAULTS = {"OMP_NUM_THREADS": "1", "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1"}
"""Set by torchrun where the user has not; any other value is the user's."""
_HANDS_OVER_WITHIN_S = 30.0
"""Beyond the grace: what is left of an attempt whose `tasuki run` was killed saves and leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Torchrun:
    """This process among those of torchrun."""

    rank: int
    local_rank: int
    ranks: int
    """Of this node."""
    world: int
    restarts: int = 0
    """How often torchrun has started its processes anew."""

    @property
    def leads(self) -> bool:
        return self.local_rank == 0

    def put_ranks(self, request: PlanRequest) -> PlanRequest:
        """As many ranks as torchrun was asked for, whatever the spec says."""
        from msgspec import structs

        cluster = request.spec.cluster
        words = f"torchrun: {self.ranks} ranks here"
        if cluster.gpus != self.ranks:
            words += f"; `cluster.gpus: {cluster.gpus}` of the spec does not count"
        click.echo(words, err=True)
        cluster = structs.replace(cluster, gpus=self.ranks)
        # Started anew, the run that `--new` asked for is there.
        is_new = request.is_new and not self.restarts
        return replace(request, spec=structs.replace(request.spec, cluster=cluster), is_new=is_new)

    def waits_s(self, request: PlanRequest) -> float:
        """Started anew, after a kill of the process before: its attempt is about to hand over."""
        return request.spec.cluster.grace_s + _HANDS_OVER_WITHIN_S if self.restarts else 0.0


def read_torchrun(environ: Mapping[str, str]) -> Torchrun | None:
    """None: not started by torchrun."""
    if _MARK not in environ:
        return None
    try:
        return Torchrun(
            rank=int(environ["RANK"]),
            local_rank=int(environ["LOCAL_RANK"]),
            ranks=int(environ["LOCAL_WORLD_SIZE"]),
            world=int(environ["WORLD_SIZE"]),
            restarts=int(environ.get("TORCHELASTIC_RESTART_COUNT", "0")),
        )
    except (KeyError, ValueError):
        return None


def clear_torchrun(environ: MutableMapping[str, str]) -> None:
    """Take out what torchrun has put in."""
    for name in list(environ):
        is_default = _DEFAULTS.get(name) == environ[name]
        if name in _OF_RANKS or name.startswith("TORCHELASTIC_") or is_default:
            del environ[name]


def enter_torchrun(environ: MutableMapping[str, str]) -> Torchrun | None:
    """Who this process is to torchrun, if anybody; the environment is then as without it."""
    torchrun = read_torchrun(environ)
    if torchrun is None:
        return None
    clear_torchrun(environ)
    if torchrun.world > torchrun.ranks and torchrun.leads:
        raise UsageError(
            f"torchrun was asked for {torchrun.world} ranks on several nodes",
            hint="`tasuki submit` starts the ranks of several nodes (`cluster.nodes`); with "
            "torchrun tasuki trains on one",
        )
    if torchrun.rank == 1:
        click.echo("the first process of torchrun starts the ranks; the others leave", err=True)
    return torchrun

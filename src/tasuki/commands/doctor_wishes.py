"""Can any node of the partition give a job what the spec wishes? Pure.

Slurm refuses some of these wishes in words of its own, and takes others for jobs that wait for
ever.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tasuki.commands.doctor_rules import Finding, listed
from tasuki.slurm.text import ShownNodes, ShownPartition, most_gpus
from tasuki.spec.resolved import ResolvedCluster
from tasuki.units import format_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wish:
    """For each node."""

    key: str
    number: int
    has: Callable[[ShownNodes], int]
    show: Callable[[int], str]


def check_wishes(
    cluster: ResolvedCluster,
    chosen: ShownPartition,
    nodes: Sequence[ShownNodes],
    *,
    gres: str | None,
    asks_for_gpus: bool,
) -> Iterator[Finding]:
    """`gres`: what the site calls the GPUs that are wanted, such as `gpu:a100`; None: any."""
    own = [one for one in nodes if one.partition == chosen.name and one.count]
    if not own:
        return  # nothing is known of them
    if asks_for_gpus and not any(one.gpus for one in own):
        yield _no_gpus(cluster, chosen, most_gpus(nodes))
        return
    wishes = list(_wishes(cluster, gres=gres, asks_for_gpus=asks_for_gpus))
    singly = [finding for wish in wishes for finding in _check_alone(wish, chosen, own)]
    if cluster.nodes > chosen.nodes:
        singly.append(
            Finding(
                is_problem=True,
                what=f"`cluster.nodes` is {cluster.nodes}, but `{chosen.name}` has {chosen.nodes}",
                hint="ask for fewer nodes, or write another `cluster.partition`",
            )
        )
    yield from singly
    if not singly:
        yield from _check_together(cluster, wishes, chosen, own)


def _wishes(cluster: ResolvedCluster, *, gres: str | None, asks_for_gpus: bool) -> Iterator[_Wish]:
    cpus = cluster.cpus or (cluster.gpus if cluster.gpu == "cpu" else None)
    if cpus is not None:
        key = "cpus" if cluster.cpus else "gpus"  # each rank on the CPU has one
        yield _Wish(key=key, number=cpus, has=lambda one: one.cpus, show=lambda n: f"{n} CPUs")
    if cluster.memory_bytes is not None:
        yield _Wish(
            key="memory",
            number=cluster.memory_bytes,
            has=lambda one: one.memory_bytes,
            show=lambda n: f"{format_bytes(n)} of memory",
        )
    if asks_for_gpus:
        kind = gres.partition(":")[2] if gres else ""
        yield _Wish(
            key="gpus",
            number=cluster.gpus,
            has=lambda one: _gpus_of(one, kind),
            show=lambda n: f"{n} GPUs{f' ({kind})' if kind else ''}",
        )


def _gpus_of(nodes: ShownNodes, kind: str) -> int:
    """Slurm gives GPUs of several kinds to who names none."""
    return nodes.gpus.get(kind, 0) if kind else sum(nodes.gpus.values())


def _check_alone(
    wish: _Wish, chosen: ShownPartition, nodes: Sequence[ShownNodes]
) -> Iterator[Finding]:
    most = max(wish.has(one) for one in nodes)
    if wish.number > most:
        yield Finding(
            is_problem=True,
            what=f"`cluster.{wish.key}` asks for {wish.show(wish.number)} on a node, but a node of "
            f"`{chosen.name}` has {wish.show(most)} at most",
            hint=f"ask for less: `cluster.{wish.key}` is per node (`cluster.nodes` takes more of "
            "them); or write another `cluster.partition`",
        )


def _check_together(
    cluster: ResolvedCluster,
    wishes: Sequence[_Wish],
    chosen: ShownPartition,
    nodes: Sequence[ShownNodes],
) -> Iterator[Finding]:
    fit = sum(one.count for one in nodes if all(wish.number <= wish.has(one) for wish in wishes))
    if fit < cluster.nodes:
        wanted = ", ".join(wish.show(wish.number) for wish in wishes)
        yield Finding(
            is_problem=True,
            what=f"{wanted} at once: {fit or 'none'} of the {chosen.nodes} nodes of "
            f"`{chosen.name}` have that, and {cluster.nodes} are asked for",
            hint="ask for less of one of them, or write another `cluster.partition`",
        )


def _no_gpus(
    cluster: ResolvedCluster, chosen: ShownPartition, gpus: Mapping[str, Mapping[str, int]]
) -> Finding:
    names = [name for name, kinds in gpus.items() if kinds]
    kind = f"`cluster.gpu` is `{cluster.gpu}`" if cluster.gpu else "GPUs are asked for"
    return Finding(
        is_problem=True,
        what=f"{kind}, but partition `{chosen.name}` has no GPUs",
        hint=f"set `cluster.partition` to {listed(names, 'or')}, or write `cluster: {{gpu: cpu}}`"
        if names
        else "no partition has any: write `cluster: {gpu: cpu}`",
    )

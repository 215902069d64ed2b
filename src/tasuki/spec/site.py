"""The site file: what holds for every spec on a cluster, written once.

`/etc/tasuki/site.yaml` by whoever runs the cluster, `~/.config/tasuki/site.yaml` by a user or by
`tasuki doctor --save`; the later one wins, key by key, and the spec wins over both.
TASUKI_SITE names one file that replaces both (empty: none at all).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from msgspec import UNSET

from tasuki.errors import SpecError
from tasuki.spec import rules
from tasuki.spec.check import check_mapping, quote, refuse_non_finite
from tasuki.spec.layers import expand_path, merge_layers
from tasuki.spec.positions import Mark, Node
from tasuki.spec.source import Source, absolute, read_file
from tasuki.spec.values import (
    read_bandwidth,
    read_card_bytes,
    read_duration,
    read_positive_duration,
)
from tasuki.spec.written import Cluster, Unset

EVERYBODYS = Path("/etc/tasuki/site.yaml")
POLL_S = 15.0
_WHERE = "a site file"


class WrittenTflops(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much a GPU computes in a second, dense, in 10¹² operations."""

    fp32: rules.Tflops | Unset = UNSET
    tf32: rules.Tflops | Unset = UNSET
    fp16: rules.Tflops | Unset = UNSET
    bf16: rules.Tflops | Unset = UNSET


class WrittenGpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How Slurm calls a GPU, and what it can do where tasuki does not know or knows better."""

    gres: rules.Text | Unset = UNSET
    constraint: rules.Text | Unset = UNSET
    memory: rules.CardBytes | Unset = UNSET
    bandwidth: rules.Bandwidth | Unset = UNSET
    tflops: WrittenTflops | Unset = UNSET
    price_per_gpu_hour: rules.NotNegative | Unset = UNSET


class WrittenPartition(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What was found out about a partition."""

    grace: rules.GraceText | Unset = UNSET
    kill_wait: rules.GraceText | Unset = UNSET
    longest: rules.DurationText | Unset = UNSET
    preempt_mode: rules.Text | Unset = UNSET


class WrittenQueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the queue bears."""

    max_jobs: rules.Count | Unset = UNSET


class WrittenSite(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Everything in one site file."""

    cluster: Cluster | Unset = UNSET
    gpus: rules.Mapping | Unset = UNSET
    partitions: rules.Mapping | Unset = UNSET
    queue: WrittenQueue | Unset = UNSET
    poll: rules.DurationText | Unset = UNSET


_NAMED: Mapping[str, tuple[str, type[msgspec.Struct]]] = {
    "gpus": ("GPU", WrittenGpu),
    "partitions": ("partition", WrittenPartition),
}
"""Mappings from names of the site's own."""
_PLACES: Mapping[str, type[msgspec.Struct]] = {
    "`cluster`": Cluster,
    "`queue`": WrittenQueue,
    "a partition of `partitions`": WrittenPartition,
    "a GPU of `gpus`": WrittenGpu,
    "`tflops`": WrittenTflops,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class SiteGpu:
    """What to ask Slurm for, for one of `cluster.gpu`'s names, and what the card can do."""

    gres: str | None = None
    """Without the number: `gpu:a100`."""
    constraint: str | None = None
    memory_bytes: int | None = None
    bandwidth: int | None = None
    """Bytes per second."""
    tflops: Mapping[str, float] = field(default_factory=dict)
    """By precision, dense. Of these three: what is not written is as estimation/gpus.py has it."""
    price_per_gpu_hour: float | None = None

    @property
    def is_named(self) -> bool:
        """Can Slurm be asked for it?"""
        return self.gres is not None or self.constraint is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class SitePartition:
    """What was found out about a partition; None: not known."""

    grace_s: float | None = None
    kill_wait_s: float | None = None
    longest_s: float | None = None
    preempt_mode: str | None = None

    @property
    def save_s(self) -> float | None:
        """From the notice to the kill."""
        if self.kill_wait_s is None:
            return None
        return (self.grace_s or 0.0) + self.kill_wait_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the site files say together."""

    files: tuple[str, ...] = ()
    """Those that were read, the strongest last."""
    cluster: Node = field(default_factory=lambda: Node({}, Mark("")))
    """Defaults for the spec's `cluster`, with their places."""
    gpus: Mapping[str, SiteGpu] = field(default_factory=dict)
    partitions: Mapping[str, SitePartition] = field(default_factory=dict)
    max_jobs: int | None = None
    poll_s: float = POLL_S
    warnings: tuple[str, ...] = ()

    def under(self, root: Node) -> Node:
        """A written spec over this site: what the spec says stays."""
        written = root.entries().get("cluster")
        layers = [self.cluster]
        if written is not None and written.content is not None:
            layers.append(written)
        cluster = merge_layers(*layers[:1], *self._price_of_card(layers), *layers[1:])
        cluster = self._with_grace(cluster)
        if not cluster.entries():
            return root
        return Node({**root.entries(), "cluster": cluster}, root.mark)

    def _price_of_card(self, layers: Sequence[Node]) -> list[Node]:
        """Of the card that is meant: it says more than one price for all, and less than a spec."""
        gpu = merge_layers(*layers).entries().get("gpu")
        known = None if gpu is None else self.gpus.get(str(gpu.content))
        if gpu is None or known is None or known.price_per_gpu_hour is None:
            return []
        return [Node({"price_per_gpu_hour": Node(known.price_per_gpu_hour, gpu.mark)}, gpu.mark)]

    def _with_grace(self, cluster: Node) -> Node:
        """Nobody says how long the grace is, but it is known of the partition."""
        entries = cluster.entries()
        partition = entries.get("partition")
        if partition is None or "grace" in entries:
            return cluster
        known = self.partitions.get(str(partition.content))
        if known is None or known.save_s is None:
            return cluster
        grace = Node(f"{known.save_s:.3f}s", partition.mark)
        return Node({**entries, "grace": grace}, cluster.mark)


def users_file(environ: Mapping[str, str]) -> Path | None:
    """Where a user's own site file is, or would be; None without a home."""
    if (named := environ.get("TASUKI_SITE")) is not None:
        return Path(named) if named else None
    config = environ.get("XDG_CONFIG_HOME", "")
    if not config.startswith("/"):  # others are to be ignored, says their standard
        home = environ.get("HOME")
        config = f"{home}/.config" if home else ""
    return Path(config) / "tasuki" / "site.yaml" if config else None


def load_site(*, environ: Mapping[str, str]) -> Site:
    """Read, check and join the site files. One that is not there says nothing."""
    own = users_file(environ)
    if environ.get("TASUKI_SITE") and own is not None and _is_missing(own):
        raise SpecError(
            f"TASUKI_SITE names {own}, but there is no such file",
            hint="`tasuki doctor --save` writes it; or unset TASUKI_SITE",
        )
    files = [own] if "TASUKI_SITE" in environ else [EVERYBODYS, own]
    roots, names, warnings = [], [], []
    for path in files:
        if path is not None and not _is_missing(path):
            read = Source(path, environ)
            roots.append(_read(read))
            names.append(absolute(path))
            warnings += read.warnings
    if not roots:
        return Site()
    merged = merge_layers(*roots)
    return _site(merged, tuple(names), tuple(warnings))


def _is_missing(path: Path) -> bool:
    try:
        path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        pass  # reading it says what is wrong
    return False


def _read(read: Source) -> Node:
    """One file, checked, with nothing in it that hangs on where it lies."""
    root = read_file(read, read.path)
    if root.content is None:
        return Node({}, root.mark)
    refuse_non_finite(root)
    check_mapping(root, WrittenSite, where=_WHERE, places=_PLACES)
    for key, (what, shape) in _NAMED.items():
        for name, child in root.entries().get(key, Node({}, root.mark)).entries().items():
            if not name.strip():
                raise SpecError(f"{child.mark}: {quote(child)} has no name", hint="give it one")
            check_mapping(child, shape, where=f"{what} `{name}`", places=_PLACES)
    return _with_paths(root, read)


def _with_paths(root: Node, read: Source) -> Node:
    """A path in a site file is relative to that file, wherever the spec lies."""
    entries = dict(root.entries())
    if (cluster := entries.get("cluster")) is not None and "setup" in cluster.entries():
        setup = _beside(cluster.entries()["setup"], read)
        entries["cluster"] = Node({**cluster.entries(), "setup": setup}, cluster.mark)
    return Node(entries, root.mark)


def _beside(node: Node, read: Source) -> Node:
    if node.content is None:
        return node
    path = expand_path(node, str(node.content), environ=read.environ)
    return Node(absolute(read.absolute.parent / path), node.mark)


def _site(root: Node, files: tuple[str, ...], warnings: tuple[str, ...]) -> Site:
    entries = root.entries()
    written = msgspec.convert(
        {k: v.plain() for k, v in entries.items() if v.content is not None}, WrittenSite
    )
    queue = written.queue if isinstance(written.queue, WrittenQueue) else WrittenQueue()
    cluster = entries.get("cluster")
    is_written = cluster is not None and cluster.content is not None
    return Site(
        files=files,
        cluster=cluster if cluster is not None and is_written else Node({}, root.mark),
        gpus={name: _gpu(child) for name, child in _named(entries.get("gpus"))},
        partitions={name: _partition(child) for name, child in _named(entries.get("partitions"))},
        max_jobs=queue.max_jobs or None,
        poll_s=read_positive_duration(written.poll) if written.poll else POLL_S,
        warnings=warnings,
    )


def _named(node: Node | None) -> list[tuple[str, Node]]:
    return list(node.entries().items()) if node is not None else []


def _gpu(node: Node) -> SiteGpu:
    given = {k: c for k, c in node.entries().items() if c.content is not None}
    rates = given["tflops"].entries() if "tflops" in given else {}
    return SiteGpu(
        gres=str(given["gres"].content) if "gres" in given else None,
        constraint=str(given["constraint"].content) if "constraint" in given else None,
        memory_bytes=read_card_bytes(given["memory"].plain()) if "memory" in given else None,
        bandwidth=read_bandwidth(given["bandwidth"].plain()) if "bandwidth" in given else None,
        tflops={k: float(c.plain()) for k, c in rates.items() if c.content is not None},  # type: ignore[arg-type]
        price_per_gpu_hour=_number(given.get("price_per_gpu_hour")),
    )


def _number(node: Node | None) -> float | None:
    return None if node is None else float(str(node.content))


def _partition(node: Node) -> SitePartition:
    given = {k: c.content for k, c in node.entries().items() if c.content is not None}
    seconds = {
        f"{key}_s": read_duration(given[key])
        for key in ("grace", "kill_wait", "longest")
        if key in given
    }
    mode = str(given["preempt_mode"]) if "preempt_mode" in given else None
    return SitePartition(**seconds, preempt_mode=mode)

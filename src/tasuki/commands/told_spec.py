"""A run's frozen spec and environment, as they may be shown and handed on.

By allow-list: what a job's cluster is like, what its stages are; nothing of the environment but
versions and devices. Values that are named like keys and passwords are left out (hiding.py), and so
are the arguments of sinks. Of a command only what differs from the defaults is told: its script
decides on batches, rates and saves, and nobody knows what it took.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from tasuki.runs.atomic import read_json, read_json_or_none, shaped
from tasuki.runs.runs import RunFolder
from tasuki.spec.hiding import hide
from tasuki.spec.resolved import ResolvedCluster, ResolvedStage
from tasuki.units import format_bytes, format_seconds

_CLUSTER = ("backend", "time_limit_s", "grace_s", "nodes", "gpus", "gpu", "cpus", "memory_bytes",
            "partition", "qos", "requeue", "price_per_gpu_hour")  # fmt: skip
_ENVIRONMENT = ("torch", "python", "numpy", "device", "device_model", "world", "threads", "cuda",
                "cudnn", "nccl")  # fmt: skip
_STAGE_AS_IS = msgspec.json.decode(msgspec.json.encode(ResolvedStage(name="")))
_CLUSTER_AS_IS = msgspec.json.decode(msgspec.json.encode(ResolvedCluster()))


def read_told_spec(run: RunFolder) -> dict[str, Any]:
    """{project, cluster, all, stages}: what holds for all stages once, then each one's own."""
    value = read_json(run.spec)
    with shaped(run.spec):
        frozen = value["spec"]["stages"]
        stages = [hide(_plain(_given(stage))) for stage in frozen]
        shared = _shared(stages)
        is_ours = any(stage.get("command") is None for stage in frozen)
        cluster = value["cluster"] if is_ours else _but_defaults(value["cluster"], _CLUSTER_AS_IS)
        return {
            "project": value.get("project"),
            "cluster": _told_cluster(cluster),
            "sinks": [str(name) for name in value.get("sinks") or ()],
            "all": shared,
            "stages": [{k: v for k, v in stage.items() if k not in shared} for stage in stages],
        }


def read_environment(run: RunFolder) -> dict[str, Any]:
    """Versions and devices of the first attempt; empty before it."""
    value = read_json_or_none(run.frozen) or {}
    return {key: value[key] for key in _ENVIRONMENT if value.get(key) is not None}


def _given(stage: Mapping[str, Any]) -> dict[str, Any]:
    is_command = stage.get("command") is not None
    return _but_defaults(stage, _STAGE_AS_IS) if is_command else dict(stage)


def _but_defaults(values: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    return {
        key: value for key, value in values.items() if key not in defaults or value != defaults[key]
    }


def _plain(value: Any) -> Any:
    """As one would write it, without what says nothing."""
    if not isinstance(value, dict):
        return value
    if set(value) == {"unit", "count"}:
        return "auto" if value["unit"] == "auto" else f"{value['count']:g} {value['unit']}"
    if set(value) == {"values", "low", "high"}:
        if value["low"] is not None or value["high"] is not None:
            return f"{value['low']}..{value['high']}"
        return value["values"][0] if len(value["values"]) == 1 else value["values"]
    plain = {key: _plain(entry) for key, entry in value.items()}
    return {key: entry for key, entry in plain.items() if entry not in (None, {}, [])}


def _told_cluster(cluster: Mapping[str, Any]) -> dict[str, Any]:
    """Seconds and bytes as people write them."""
    told: dict[str, Any] = {}
    for key in _CLUSTER:
        value = cluster.get(key)
        if value is None:
            continue
        if key.endswith("_s"):
            told[key.removesuffix("_s")] = format_seconds(value)
        elif key.endswith("_bytes"):
            told[key.removesuffix("_bytes")] = format_bytes(value)
        else:
            told[key] = value
    return told


def _shared(stages: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    if len(stages) < 2:
        return {}
    first, *rest = stages
    return {
        key: value
        for key, value in first.items()
        if key != "name" and all(key in other and other[key] == value for other in rest)
    }

"""`tasuki doctor --write-site`: what was found out, as a site file for all specs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tasuki.commands.doctor_rules import exact_seconds
from tasuki.errors import UsageError
from tasuki.runs.atomic import create_exclusive, translated, write_bytes

_READABLE = 0o644
"""A site file may be for everybody, and holds nothing that is private."""


def refuse_existing(path: Path, *, is_forced: bool) -> None:
    """Before anything is measured: somebody may have written it by hand."""
    if path.exists() and not is_forced:
        raise UsageError(
            f"there is a site file already: {path}",
            hint="`--force` replaces it (the old one stays beside it, as .old), or name another: "
            "--write-site FILE",
        )


def write_site(path: Path, text: str, *, is_forced: bool) -> None:
    with translated(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        if is_forced and path.exists():
            old = path.with_name(f"{path.name}.old")
            write_bytes(old, path.read_bytes())
            write_bytes(path, text.encode())
        elif not create_exclusive(path, text.encode()):
            refuse_existing(path, is_forced=False)
        path.chmod(_READABLE)


def render_site(slurm: Mapping[str, Any], *, at: str, live: Mapping[str, Any] | None) -> str:
    """The values of `--json` as YAML, with what a person may want to add."""
    name = slurm["settings"].get("ClusterName", "")
    return "\n".join(
        [
            f"# What `tasuki doctor` found out about cluster {json.dumps(name)}, {at}.",
            "# Every spec here begins with this; what a spec says itself wins.",
            "# cluster: {account: …, partition: …, setup: env.sh, price_per_gpu_hour: …}",
            *_gpus(slurm),
            "partitions:",
            *(_partition(one, live) for one in slurm["partitions"]),
            "",
        ]
    )


def _gpus(slurm: Mapping[str, Any]) -> Iterator[str]:
    kinds = {kind for one in slurm["partitions"] for kind in one["gpus"] if kind}
    if kinds:
        yield "gpus:"
    for kind in sorted(kinds):
        yield f"  {_word(kind)}: {{gres: {_word(f'gpu:{kind}')}}}"


def _partition(one: Mapping[str, Any], live: Mapping[str, Any] | None) -> str:
    # Only the grace that a job gets: one without preemption has none, whatever GraceTime is.
    grace_s = one["save_s"] - one["kill_wait_s"]
    found = {"grace": exact_seconds(grace_s), "kill_wait": exact_seconds(one["kill_wait_s"])}
    if one["longest_s"] is not None:
        found["longest"] = exact_seconds(one["longest_s"])
    found["preempt_mode"] = _word(one["preempt_mode"])
    words = ""
    if live is not None and one["measured_s"] is not None:
        words = f"  # {exact_seconds(one['measured_s'])} measured on {json.dumps(live['node'])}"
    listed = ", ".join(f"{key}: {value}" for key, value in found.items())
    return f"  {_word(one['name'])}: {{{listed}}}{words}"


def _word(text: str) -> str:
    """Quoted as JSON, which YAML reads alike, where a plain word would mean something else."""
    is_plain = text.isascii() and text.replace("_", "").replace("-", "").isalnum()
    is_name = is_plain and text[0].isalpha()
    is_taken = text.lower() in ("true", "false", "null", "yes", "no", "on", "off", "y", "n")
    return text if is_name and not is_taken else json.dumps(text)

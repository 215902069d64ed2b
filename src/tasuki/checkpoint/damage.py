"""What a drill does to a checkpoint, to see whether it is found out."""

from __future__ import annotations

from tasuki.checkpoint.lineage import lineage
from tasuki.runs.runs import RunFolder


def damage_newest(run: RunFolder) -> str:
    """Turn one bit over in the largest file of the newest checkpoint; its name."""
    name = lineage(run)[0]
    files = [path for path in (run.checkpoints / name).iterdir() if path.name != "manifest.json"]
    victim = max(files, key=lambda path: path.stat().st_size)
    data = bytearray(victim.read_bytes())
    data[len(data) // 2] ^= 1
    # A new file in its place: other checkpoints may share the old one.
    fresh = victim.with_name(f".{victim.name}.tmp")
    fresh.write_bytes(data)
    fresh.replace(victim)
    return name

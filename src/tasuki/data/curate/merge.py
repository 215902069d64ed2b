"""`tasuki data merge`: the samples of several files in one, in the order of the files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tasuki.data.curate.contents import BLOCK_BYTES
from tasuki.data.curate.duplicates import find_duplicates, told_pair
from tasuki.data.curate.scan import Scan
from tasuki.data.curate.sources import (
    FIRST,
    find,
    open_alike,
    refuse_name,
    scan_usable,
    warn_of_nan,
    working,
)
from tasuki.data.curate.talk import Talk
from tasuki.data.curate.writer import (
    least_bytes,
    make_plan,
    refuse_existing,
    refuse_sources,
    refuse_too_little_room,
    write,
)
from tasuki.data.hdf5.reader import Ints
from tasuki.runs.atomic import FORMAT


def merge(order: dict[str, Any], talk: Talk) -> dict[str, Any]:
    """{files, output, unique, force, dry_run} → the values of `tasuki data merge --json`."""
    block_bytes = order.get("block_bytes", BLOCK_BYTES)
    paths, output = find(order["files"]), Path(order["output"])
    refuse_name(output)
    refuse_sources([output], paths)
    folder = output.with_name(f".{output.name}.partial")
    with working(folder, talk, is_dry=order["dry_run"]) as work:
        refuse_existing([output], work, force=order["force"])
        files = open_alike(paths, block_bytes=block_bytes)
        if not order["unique"]:
            refuse_too_little_room(least_bytes(files), [output], work)
        scans = scan_usable(files, work=work, talk=talk, block_bytes=block_bytes)
        pairs = find_duplicates(scans, work=work, on_progress=talk.progress)
        parts = np.zeros(sum(len(file) for file in files), dtype=np.int8)
        if order["unique"]:
            parts[pairs[:, 0]] = -1
        plan = make_plan(files, [output], parts)
        report = _report(scans, pairs, order) | {"bytes": plan.num_bytes}
        if work is not None:
            report["warnings"] += write(
                plan, work, block_bytes=block_bytes, force=order["force"], talk=talk
            )
            report["bytes"] = output.stat().st_size
        return report


def _report(scans: Sequence[Scan], pairs: Ints, order: dict[str, Any]) -> dict[str, Any]:
    left_out = len(pairs) if order["unique"] else 0
    return {
        "format": FORMAT,
        "output": order["output"],
        "samples": sum(len(scan) for scan in scans) - left_out,
        "files": [{"path": str(scan.contents.path), "samples": len(scan)} for scan in scans],
        "duplicates": {
            "samples": len(pairs),
            "left_out": left_out,
            "first": [told_pair(scans, pair) for pair in pairs[:FIRST]],
        },
        "warnings": warn_of_nan(scans),
        "dry_run": order["dry_run"],
    }

"""Changes under a run that a person has accepted: `--accept-change data`.

Written into `spec.json` with the highest claim of that moment. It holds for going on from a
checkpoint of that claim or an earlier one, so it is used up by the next commit: a second change has
to be accepted anew. Written by commands/freeze.py, read by every rank's start.
"""

from __future__ import annotations

from typing import Any

from tasuki.runs.atomic import read_json, shaped, write_json
from tasuki.runs.runs import RunFolder

DATA = "data"
CODE = "code"


def write_accepted(run: RunFolder, key: str, *, claim: int, at: str) -> None:
    value = read_json(run.spec)
    accepted: dict[str, Any] = {**value.get("accepted", {}), key: {"claim": claim, "at": at}}
    write_json(run.spec, value | {"accepted": accepted})


def is_accepted(run: RunFolder, key: str, *, written_by: int) -> bool:
    """Has a person accepted this change since that claim wrote its checkpoint?"""
    with shaped(run.spec):
        told = read_json(run.spec).get("accepted", {}).get(key)
        return told is not None and written_by <= int(told["claim"])

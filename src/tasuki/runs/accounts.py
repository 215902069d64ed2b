"""What a run came to: goodput, GPU-hours, cost. From its events; kept when it is finished.

`accounts.json` spares whoever looks at a thousand finished runs their events. It is derived: where
it is missing, or of another tasuki, the events are added up as for any other run. Written by the
supervisor behind the last event of a finished run, read by `tasuki status`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from tasuki.errors import StoreError
from tasuki.runs.atomic import FORMAT, read_json, read_json_or_none, write_json
from tasuki.runs.brief import read_brief_events
from tasuki.runs.cost import add_up_spent, price_of
from tasuki.runs.ledger import make_ledger
from tasuki.runs.runs import RunFolder

_KEYS = ("goodput", "gpu_hours", "cost")


def read_accounts(
    run: RunFolder, spec: Mapping[str, Any], *, now: float | None
) -> dict[str, float | None]:
    """`now` is the end of an attempt that still goes on."""
    if run.is_complete() and (kept := _kept(run)) is not None:
        return kept
    return _add_up(run, spec, now=now)


def keep_accounts(run: RunFolder) -> None:
    """Of a finished run. Never raises: it can be made again at any time."""
    with contextlib.suppress(StoreError, KeyError, TypeError, ValueError):
        value = _add_up(run, read_json(run.spec), now=None)
        write_json(run.accounts, {"format": FORMAT, **value})


def _kept(run: RunFolder) -> dict[str, float | None] | None:
    with contextlib.suppress(StoreError):
        kept = read_json_or_none(run.accounts) or {}
        if all(kept.get(key, "") is None or isinstance(kept.get(key), float) for key in _KEYS):
            return {key: kept[key] for key in _KEYS}
    return None


def _add_up(
    run: RunFolder, spec: Mapping[str, Any], *, now: float | None
) -> dict[str, float | None]:
    events = read_brief_events(run)
    goodput = make_ledger(events, now=now).goodput
    return {
        "goodput": round(goodput, 4) if goodput is not None else None,
        **add_up_spent(events, now=now, price=price_of(spec)).as_json(),
    }

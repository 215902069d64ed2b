"""Values as JSON that every browser takes, whatever a run wrote into its files."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec


def encode(value: Any) -> bytes:
    """NaN and infinities become null: for one of them a browser refuses the whole answer."""
    try:
        return msgspec.json.encode(value)
    except (ValueError, OverflowError, TypeError):  # half a character, a number of 30 digits
        return json.dumps(_plain(value), ensure_ascii=True, default=str).encode()


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(entry) for key, entry in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(entry) for entry in value]
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    return None if isinstance(value, float) and not math.isfinite(value) else value

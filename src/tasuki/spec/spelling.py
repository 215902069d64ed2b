"""Plain values as YAML that reads back as the same values, here and with PyYAML.

Pure. For specs that tasuki writes itself (`translated.py`); a file of the user's is changed by
`edit.py`, which leaves everything else as it was.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_./-]*( [A-Za-z0-9_./-]+)*|\d{1,15} (?:steps?|epochs?)")
_OTHER_MEANING = {"true", "false", "null", "yes", "no", "on", "off", "y", "n"}


def spell(value: object) -> str:
    """A value on one line."""
    if isinstance(value, bool):
        return str(value).lower()
    if value is None:
        return "null"
    if isinstance(value, float):
        return _spell_float(value)
    if isinstance(value, Mapping):
        inner = ", ".join(f"{spell_text(str(key))}: {spell(v)}" for key, v in value.items())
        return f"{{ {inner} }}" if inner else "{}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(spell(item) for item in value)}]"
    return str(value) if isinstance(value, int) else spell_text(str(value))


def spell_text(text: str) -> str:
    """Bare where no reader can take it for anything else; else in quotes."""
    if _PLAIN.fullmatch(text) and text.lower() not in _OTHER_MEANING:
        return text
    # YAML calls some characters unprintable that JSON leaves as they are.
    return json.dumps(text, ensure_ascii=not text.isprintable())


def _spell_float(value: float) -> str:
    text = repr(value)
    mantissa, e, exponent = text.partition("e")
    # PyYAML takes 1e-05 for a text, and 1.0e5 without a sign too.
    if not e:
        return text
    mantissa = mantissa if "." in mantissa else f"{mantissa}.0"
    sign = "-" if exponent.startswith("-") else "+"
    return f"{mantissa}e{sign}{exponent.lstrip('+-')}"

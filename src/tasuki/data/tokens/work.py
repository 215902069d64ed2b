"""Tokenise, or check tokens, for `tasuki data`.

A child process, as the command line itself imports neither numpy nor tokenizers.
"""

from __future__ import annotations

from typing import Any

from tasuki.data.curate.talk import Talk
from tasuki.data.tokens.check import check
from tasuki.data.tokens.tokenize import tokenize
from tasuki.subprocesses import ProgressCallback

_VERBS = {"tokenize": tokenize, "check": check}


def work(order: dict[str, Any], progress: ProgressCallback) -> dict[str, Any]:
    return _VERBS[order["verb"]](order, Talk(progress))

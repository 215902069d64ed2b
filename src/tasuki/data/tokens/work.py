"""`python -m tasuki.data.tokens.work FD`: tokenise, or check tokens, for `tasuki data`.

A child process (answers.py): the command line itself imports neither numpy nor tokenizers.
"""

from __future__ import annotations

from typing import Any

from tasuki.answers import Told, answer
from tasuki.data.curate.talk import Talk
from tasuki.data.tokens.check import check
from tasuki.data.tokens.tokenize import tokenize

_VERBS = {"tokenize": tokenize, "check": check}


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    return _VERBS[order["verb"]](order, Talk(told))


if __name__ == "__main__":
    answer(work)

"""`python -m tasuki.train.survey FD`: what can be known of stages before they run (surveyed.py).

A child process (answers.py) of `estimate`, `plan` and `inspect`: one for all stages that are asked
for, since importing torch takes longer than most of what follows.

The order: {"folder", "device", "ranks", "may_measure": may real steps be taken where none can be
traced?, "have": {key of a probe: {"sizes", "is_exact"}}, "stages": [{"stage": plain values,
"facts": null or what was answered before}]}. The answer: {"code": {file: sha256}, "facts": [one for
each stage], "probes": {key: {"probe", "untraced", "unmeasured", "sizes"}}}.
"""

from __future__ import annotations

from typing import Any

from tasuki.answers import Told, answer
from tasuki.train.importing import importing


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    with importing():
        from tasuki.train.surveyed import survey
    return survey(order, told)


if __name__ == "__main__":
    answer(work)

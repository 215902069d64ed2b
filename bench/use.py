"""How tasuki feels to whoever uses it: seconds to look, what a look costs, what logging costs.

Run as `python bench/use.py`; some of its parts alone by name: `python bench/use.py watch status`
(nothing is written then). A part is a file `_use_<name>.py` with `measure()`, which gives rows of
(what, figure, unit, goal); a goal is a figure not to be passed, or None where it is only reported.
Exit code 1 when one is passed.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from _measure import Spread, machine_facts, print_facts, print_table, write_results

BENCH = Path(__file__).parent
PREFIX = "_use_"


class Row(NamedTuple):
    what: str
    figure: float | Spread
    unit: str
    goal: float | None

    @property
    def value(self) -> float:
        return self.figure.median if isinstance(self.figure, Spread) else self.figure

    @property
    def is_met(self) -> bool | None:
        return None if self.goal is None else self.value <= self.goal

    def show(self) -> list[str]:
        figure = self.figure.show(3) if isinstance(self.figure, Spread) else f"{self.figure:.3g}"
        goal = "–" if self.goal is None else f"≤ {self.goal:g}"
        return [
            self.what,
            figure,
            self.unit,
            goal,
            {None: "", True: "yes", False: "NO"}[self.is_met],
        ]


def main(words: Sequence[str]) -> int:
    names = sorted(path.stem.removeprefix(PREFIX) for path in BENCH.glob(f"{PREFIX}*.py"))
    unknown = [word for word in words if word not in names]
    if unknown:
        print(f"error: no part `{unknown[0]}`; there are: {', '.join(names)}", file=sys.stderr)
        return 2
    facts = machine_facts("tasuki", "rich", "msgspec")
    print_facts(facts)
    parts: dict[str, list[Row]] = {}
    for name in words or names:
        print(f"{name} …", file=sys.stderr)
        parts[name] = [Row(*row) for row in importlib.import_module(PREFIX + name).measure()]
        head = [name, "figure", "unit", "goal", "kept"]
        print_table(name, head, [row.show() for row in parts[name]])
    if not words:
        write_results("use", {"machine": facts, "parts": {n: _plain(r) for n, r in parts.items()}})
    return 1 if any(row.is_met is False for rows in parts.values() for row in rows) else 0


def _plain(rows: Sequence[Row]) -> list[dict[str, Any]]:
    return [{**row._asdict(), "kept": row.is_met} for row in rows]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""`docs/reference/files.md`: every file of a run and of a job.

Names and words are those of the block in `docs/design.md`, which lives beside the code that writes
them; what is inside the files that people and scripts read is recorded from a real run.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tools.docs.json_page import FILE, shape_block
from tools.docs.pages import DOCS
from tools.docs.shapes import read_recorded

HEAD = """\
# Files

Generated from [the design](../design.md#folders-and-files) and from the files of a real run. Everything is private to
you (folders 0700, files 0600). Nothing needs to be backed up but `runs/<experiment>/`; nothing in it is a pickle.

Scripts read: `training_complete.marker` (is it done?), `training_state.json` (where is it?), `metrics_history.jsonl` (numbers),
`final_metrics.json`, `final_results.json`, `stages/<stage>/weights.safetensors`. The rest is tasuki's own: read it as you
like, change nothing.
"""


@dataclass
class Row:
    """A name and its words."""

    name: str
    words: str


def files_page() -> str:
    parts = [HEAD]
    for title, rows in (
        ("A run", [r for r in _rows() if not r.name.startswith("runs/.")]),
        ("Jobs, plans, history", [r for r in _rows() if r.name.startswith("runs/.")]),
    ):
        lines = [f"| `{row.name}` | {_safe(row.words)} |" for row in rows]
        parts.append(f"## {title}\n\n| file | |\n| --- | --- |\n" + "\n".join(lines) + "\n")
    parts.append("## What is in them\n")
    for name, shape in sorted(read_recorded().items()):
        if name.startswith(FILE):
            parts += [f"### {name.removeprefix(FILE)}\n", shape_block(shape)]
    return "\n".join(parts)


def _rows() -> list[Row]:
    """The lines of the block, with the folder above in front of each name."""
    text = (DOCS / "design.md").read_text(encoding="utf-8")
    block = text.split("## Folders and files", 1)[1].split("```")[1]
    rows: list[Row] = []
    above = ""
    for line in block.strip("\n").splitlines():
        name, words = _split(line)
        if not name.strip():  # goes on with the words of the line before
            if not words.startswith("and on Slurm"):
                rows[-1].words += f" {words}"
            continue
        is_top = not name.startswith(" ")
        shown = ", ".join(name.split("  ")) if is_top else ", ".join(name.strip().split("  "))
        if is_top:
            above = shown if shown.endswith("/") else ""
        rows.append(Row(shown if is_top else f"{above}{shown}", words))
    return rows


_WORDS_AT = 40
"""The column where words begin; longer names push them on."""


def _split(line: str) -> tuple[str, str]:
    if line[_WORDS_AT - 1 : _WORDS_AT] in (" ", ""):
        return line[:_WORDS_AT].rstrip(), line[_WORDS_AT:].strip()
    found = re.match(r"^(\s*\S+)\s+(.*)$", line)
    assert found is not None, line
    return found[1], found[2]


def _safe(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")

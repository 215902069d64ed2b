"""Print how many lines of each package the tests ran: `make coverage` calls it.

python tools/coverage_table.py .work/coverage
"""

from __future__ import annotations

import io
import json
import sys
from collections import defaultdict
from pathlib import Path

import coverage

SOURCE = Path(__file__).resolve().parents[1] / "src" / "tasuki"
SAMPLE_ORDER = ("data/order.py", "data/permutation.py", "data/split.py", "data/boundaries.py")


def main(folder: Path) -> None:
    """Combine the data of all processes, write `coverage.json` next to it, and print the table."""
    measured = coverage.Coverage(data_file=str(folder / "data"))
    measured.combine([str(folder)], keep=True)
    out = folder / "coverage.json"
    measured.json_report(outfile=str(out), ignore_errors=True)
    print(format_table(json.loads(out.read_text())["files"]))


def format_table(files: dict[str, dict[str, dict[str, int]]]) -> str:
    counts: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for name, found in files.items():
        path = Path(name).resolve().relative_to(SOURCE)
        groups = [path.parts[0] if len(path.parts) > 1 else "(top)", "all"]
        if path.as_posix() in SAMPLE_ORDER:
            groups.append("sample order")
        for group in groups:
            counts[group][0] += found["summary"]["covered_lines"]
            counts[group][1] += found["summary"]["num_statements"]
    out = io.StringIO()
    for group, (covered, total) in sorted(counts.items()):
        print(f"{group:<14}{covered:7,} of {total:7,} {covered / max(1, total):7.1%}", file=out)
    return out.getvalue()


if __name__ == "__main__":
    main(Path(sys.argv[1]))

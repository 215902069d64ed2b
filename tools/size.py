"""How large the source is, package by package: `make size`.

Code lines are lines without blanks, comments and docstrings. The caps that the project sets itself
are of all lines. A module is a .py file that is not `__init__.py`, `__main__.py` or a template.
"""

from __future__ import annotations

import ast
import io
import subprocess
import tokenize
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = "src/tasuki"
_NOT_MODULES = ("__init__.py", "__main__.py")
_LAYOUT_TOKENS = (
    tokenize.ENCODING,
    tokenize.ENDMARKER,
    tokenize.NEWLINE,
    tokenize.NL,
    tokenize.INDENT,
    tokenize.DEDENT,
)


@dataclass
class Size:
    """Totals of some Python files."""

    code: int = 0
    lines: int = 0
    modules: int = 0
    comments: int = 0

    def add(self, other: Size) -> None:
        self.code += other.code
        self.lines += other.lines
        self.modules += other.modules
        self.comments += other.comments

    @property
    def comments_per_100(self) -> float:
        return 100 * self.comments / self.code if self.code else 0.0


def measure(text: str, *, is_module: bool) -> Size:
    """Measure one Python file."""
    docstrings = _docstring_lines(ast.parse(text))
    code: set[int] = set()
    comments = 0
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments += 1
        elif token.type not in _LAYOUT_TOKENS:
            code.update(range(token.start[0], token.end[0] + 1))
    return Size(len(code - docstrings), text.count("\n"), int(is_module), comments)


def _docstring_lines(tree: ast.Module) -> set[int]:
    """Lines of docstrings, also of those below an attribute: statements that are only a string."""
    lines: set[int] = set()
    for node in ast.walk(tree):
        is_string = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if is_string and isinstance(node.value.value, str):
            lines.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return lines


def list_files() -> list[Path]:
    """Files that git tracks or would add, as they are in the working tree."""
    command = ["git", "ls-files", "-co", "--exclude-standard", SOURCE, "tests", "bench", "tools"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout
    return [Path(name) for name in found.splitlines() if (ROOT / name).is_file()]


def _row_name(path: Path) -> str:
    """The package of a source file, else the top folder."""
    if not path.is_relative_to(SOURCE):
        return f"{path.parts[0]}/"
    inside = path.relative_to(SOURCE)
    return inside.parts[0] if len(inside.parts) > 1 else "(top)"


def _is_module(path: Path) -> bool:
    is_template = path.is_relative_to(f"{SOURCE}/templates")
    return not is_template and path.name not in _NOT_MODULES


def _count_assets(files: list[Path]) -> dict[str, Size]:
    """Lines of files that ship with the source and are not Python. Vendored ones are left out."""
    rows: dict[str, Size] = defaultdict(Size)
    for path in files:
        is_vendored = "vendor" in path.parts or ".min." in path.name
        if not path.is_relative_to(SOURCE) or is_vendored:
            continue
        is_template = path.is_relative_to(f"{SOURCE}/templates")
        if is_template or path.suffix in (".js", ".css", ".html"):
            kind = "templates" if is_template else path.suffix
            rows[kind].lines += (ROOT / path).read_text().count("\n")
    return rows


def main() -> None:
    files = list_files()
    packages: dict[str, Size] = defaultdict(Size)
    source = Size()
    for path in files:
        if path.suffix != ".py":
            continue
        size = measure((ROOT / path).read_text(), is_module=_is_module(path))
        packages[_row_name(path)].add(size)
        if path.is_relative_to(SOURCE):
            source.add(size)
    print(f"{'package':14}{'code':>8}{'lines':>8}{'modules':>9}{'comments per 100':>18}")
    inside = sorted(name for name in packages if not name.endswith("/"))
    for name in inside:
        _print_row(name, packages[name])
    _print_row("source", source)
    print()
    for name, size in sorted(_count_assets(files).items()):
        print(f"{name:14}{'':>8}{size.lines:>8,}")
    print()
    for name in sorted(set(packages) - set(inside)):
        _print_row(name, packages[name])


def _print_row(name: str, size: Size) -> None:
    print(
        f"{name:14}{size.code:>8,}{size.lines:>8,}{size.modules:>9,}{size.comments_per_100:>18.1f}"
    )


if __name__ == "__main__":
    main()

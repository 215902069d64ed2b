"""Run a Python spec: `python -m tasuki.spec.python FILE FUNCTION` prints it as one line of JSON.

A process of its own, started by `source.py`. What the user's code prints goes to stderr; the
answer is `{"spec": …}` or `{"error": …, "where": line or function, "hint": …}`.
"""

from __future__ import annotations

import difflib
import json
import os
import runpy
import sys
import traceback
from pathlib import Path
from typing import Any

import msgspec

_HINT = "a Python spec is a function without arguments that returns a Spec or a dict"


def main(file: str, function: str) -> None:
    """Answer on the real stdout, whatever the user's code prints."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    answer = _answer(file, function)
    sys.stdout.flush()
    with os.fdopen(answer_fd, "w", encoding="utf-8") as stream:
        json.dump(answer, stream)


def _answer(file: str, function: str) -> dict[str, object]:
    sys.path.insert(0, str(Path(file).parent))
    sys.argv = [file]
    try:
        names = runpy.run_path(file, run_name=Path(file).stem)
        if not callable(names.get(function)):
            return _no_function(names, function)
        spec = msgspec.to_builtins(names[function](), enc_hook=_encode, str_keys=True)
        json.dumps(spec)
    except BaseException as error:  # also SystemExit: a script may call sys.exit
        traceback.print_exc()
        return {
            "error": "".join(traceback.format_exception_only(error)).strip().splitlines()[-1],
            "where": _line_in(file, error) or function,
            "hint": _HINT,
        }
    return {"spec": spec}


def _no_function(names: dict[str, Any], function: str) -> dict[str, object]:
    functions = [n for n, value in names.items() if callable(value) and not n.startswith("_")]
    near = difflib.get_close_matches(function, functions, n=1)
    return {
        "error": f"there is no function `{function}`",
        "where": function,
        "hint": f"did you mean `{near[0]}`?" if near else _HINT,
    }


def _line_in(file: str, error: BaseException) -> int | None:
    """The deepest line of the user's own file."""
    if isinstance(error, SyntaxError) and error.filename == file:
        return error.lineno
    lines = [
        frame.lineno
        for frame in traceback.extract_tb(error.__traceback__)
        if frame.filename == file
    ]
    return lines[-1] if lines else None


def _encode(value: object) -> str:
    if isinstance(value, Path):
        return str(value)
    raise TypeError(f"a {type(value).__name__} cannot be part of a spec")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])

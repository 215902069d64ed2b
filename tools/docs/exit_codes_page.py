"""`docs/reference/exit-codes.md`: exit codes and classes of errors, from `tasuki/errors.py`."""

from __future__ import annotations

import inspect

from tasuki import errors

_MEANINGS = {
    "EXIT_DONE": "done; nothing left to do",
    "EXIT_FAILED": "failed or held; also a proof that does not hold, or damage that was found",
    "EXIT_USAGE": "usage: the command line, the spec or the plan is wrong; nothing was changed",
    "EXIT_RESUME_ME": "not finished, or cancelled: the same command goes on",
}

HEAD = """\
# Exit codes

Generated from `tasuki/errors.py`. Scripts may rely on them.

| code | means |
| --- | --- |
"""

MORE = """
A loop around a run needs one line: `until tasuki run; do [ $? -eq 75 ] || break; done`.

`submit`: 0 submitted, or nothing to do; 1 Slurm refused or cannot be asked, or a run is live or held; 2 usage. `verify`,
`checkpoint verify`, `check`, `data check`, `doctor`: 1 where something does not hold. A Slurm job exits
likewise, but 0 when a successor goes on, and one that requeued itself is killed by that: only
`training_complete.marker` proves a run complete.

## Kinds of errors

As Python they are classes; each has `message`, `hint` and the exit code of the command line.

| class | code | means |
| --- | --- | --- |
"""


def exit_codes_page() -> str:
    codes = {n: v for n, v in vars(errors).items() if n.startswith("EXIT_")}
    rows = [f"| {value} | {_MEANINGS[name]} |" for name, value in codes.items()]
    classes = [
        f"| `{name}` | {value.exit_code} | {(inspect.getdoc(value) or '').splitlines()[0]} |"
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.TasukiError)
    ]
    return HEAD + "\n".join(rows) + "\n" + MORE + "\n".join(classes) + "\n"

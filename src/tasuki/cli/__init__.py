"""Arguments, help with examples, tables or `--json`, exit codes. No decisions.

`main` is the entry point; verbs are imported when they are called, so that `--help` is quick.
"""

from __future__ import annotations


def main() -> int:
    try:
        from tasuki.cli.main import run

        return run()
    except KeyboardInterrupt:  # before anything was begun
        return 75

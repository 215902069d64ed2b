"""Several runs in one script, one after another: what is done is passed over, and nothing else is.

A script that meets its complete run has nothing to do and ends with 0. Where it has more runs than
that one, an end would leave them out in silence; so what this process has opened, and asked about,
is kept here, and decides between an end, an error and going on. Free of torch.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

from tasuki.errors import EXIT_DONE, RunError
from tasuki.integrations.asked import ask
from tasuki.integrations.place import Place, find_place
from tasuki.runs.control import Word, say
from tasuki.runs.runs import RunFolder

_opened: dict[Path, str | Path | None] = {}
"""By this process: as what, by their folders."""
_asked_about: set[Path] = set()
_completed: set[Path] = set()
"""By this process, as far as this rank is concerned: rank 0 may still be writing the end."""


class PassedOver(SystemExit):
    """A run turned out to be complete inside of its `with` block, in a script that asks for that:
    it goes on behind the block."""


def is_complete(run: str | Path | None = None) -> bool:
    """Is the run that `open_run` would open complete? With several runs in one script it is asked
    before each: open_run of a complete one ends the script. Imports no torch."""
    place = find_place(os.environ)
    if place.job is not None:
        folder = place.job.run
    else:
        asked = ask(run, world=place.world, environ=os.environ, orig_argv=sys.orig_argv)
        folder = asked.folder(asked.read_spec())
    path = folder.path.absolute()
    _asked_about.add(path)
    # Under a job all names are its run, which is complete when its supervisor says so.
    return folder.is_complete() or (place.job is None and path in _completed)


def note_completed(run: RunFolder) -> None:
    _completed.add(run.path.absolute())


def has_opened_any() -> bool:
    return bool(_opened)


def refuse_second_of_job(place: Place) -> None:
    """All that a script under a job opens is the job's run: a second one would be the first again,
    which is done, and would learn nothing. One that failed before its end may be tried again."""
    job = place.job
    if job is None or not _completed:
        return
    reason = "a script under a job has one run, and this one opens a second"
    hint = (
        "start each as a job of its own: the name as an argument of the script, experiments of a "
        "spec (`each:`), or stages; by itself, as `python train.py`, a script may have several"
    )
    if place.rank == 0:  # else the next attempt finds the first one done, and calls all complete
        say(job.run, Word.HOLD, reason=reason, hint=hint, claim=job.claim)
    raise RunError(reason, hint=hint)


def note_opened(run: RunFolder, name: str | Path | None) -> str | None:
    """A warning, where the script would not come so far when it is started again."""
    before = [path for path in _opened if path not in _asked_about]
    _opened.setdefault(run.path.absolute(), name)
    ends_at = next((path for path in before if RunFolder(path).is_complete()), None)
    if ends_at is None or ends_at == run.path.absolute():
        return None
    return (
        f"WARNING: started again, this script would end at run `{ends_at.name}`, which is "
        f"complete, and not come to `{run.name}`: write `{_guard(_opened[ends_at])}` before the "
        "first, and the same before each"
    )


def leave_complete(
    run: RunFolder,
    words: str,
    name: str | Path | None,
    *,
    another: str,
    more: str = "",
    is_kernel: bool,
    is_first_rank: bool,
) -> NoReturn:
    """Nothing is left to do for this run. With `another` a further one would be opened; `more` is
    worth knowing about this one."""
    folder = run.path.absolute()
    if is_kernel:
        raise RunError(words, hint=f"more epochs are another run: {another}")
    if folder in _opened:
        raise RunError(
            f"{words}; this script has trained it already",
            hint=f"a second training is another run: {another}",
        )
    if _opened:
        raise RunError(
            f"{words}; this script has opened another run before it",
            hint=f"pass over it: `{_guard(name)}`, and the same before each run of the script",
        )
    _opened[folder] = name
    if is_first_rank:
        sys.stderr.write(
            f"{words}; nothing is left to train, and the script ends here\n"
            f"hint: where more follows in the script, `{_guard(name)}`; more epochs are another "
            f"run: {another}, or TASUKI_NAME=other{more}\n"
        )
    raise SystemExit(EXIT_DONE)


def leave_block(run: RunFolder, words: str, *, is_first_rank: bool) -> NoReturn:
    """The same inside of its `with` block, which it has been opened for."""
    folder = run.path.absolute()
    if folder in _asked_about:
        raise PassedOver(EXIT_DONE)
    name = _opened.get(folder)
    if len(_opened) > 1:
        raise RunError(
            f"{words}; this script has opened another run before it",
            hint=f"`{_guard(name)}` before it, and the same before each run of the script: it then "
            "goes on behind the block",
        )
    if is_first_rank:
        sys.stderr.write(
            f"{words}; the script ends here\n"
            f"hint: where more follows in the script, `{_guard(name)}` before the run\n"
        )
    raise SystemExit(EXIT_DONE)


def _guard(name: str | Path | None) -> str:
    """What passes over a complete run."""
    words = "" if name is None else f'"{name}"'
    return f"if not tasuki.is_complete({words}):"

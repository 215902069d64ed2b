"""`tasuki cancel`: end a run, saved. It stays cancelled until a person says go on."""

from __future__ import annotations

import contextlib
import os
import signal
from typing import Any

from tasuki.actions.status import state_of
from tasuki.clock import Clock
from tasuki.errors import RunError
from tasuki.relay.values import Cause
from tasuki.scheduler.local import give_cause
from tasuki.store.atomic import FORMAT
from tasuki.store.claims import highest_claim
from tasuki.store.control import Word, say
from tasuki.store.jobs import job_folder
from tasuki.store.runs import RunFolder
from tasuki.telemetry.view import live_holder

_LOOK_EVERY_S = 0.1


def cancel_run(
    run: RunFolder, *, clock: Clock, wait_s: float = 90.0, is_dry: bool = False
) -> dict[str, Any]:
    """First the word, so that nobody starts it again; then the notice to who works on it."""
    state, _ = state_of(run, now=clock.wall())
    if state == "complete":
        raise RunError(
            f"run `{run.name}` is complete: there is nothing to cancel",
            hint="`tasuki run --new` begins another one",
        )
    holder = live_holder(run, now=clock.wall())
    if is_dry:
        return _answer(run, state, holder is not None)
    if state not in ("cancelled", "held", "failed"):  # only `resume` lifts a hold
        say(run, Word.CANCEL, reason="cancelled by a person", claim=highest_claim(run))
    if holder is not None and holder.is_alive():
        # Other runs of the same job are interrupted too; the job comes back for them.
        give_cause(
            job_folder(run.path.parent, holder.job), start=holder.start, cause=Cause.CANCELLED
        )
        with contextlib.suppress(ProcessLookupError):
            os.kill(holder.pid, signal.SIGTERM)
        until = clock.monotonic() + wait_s
        while holder.is_alive() and clock.monotonic() < until:
            clock.sleep(_LOOK_EVERY_S)
    return _answer(run, state_of(run, now=clock.wall())[0], holder is not None)


def _answer(run: RunFolder, state: str, was_live: bool) -> dict[str, Any]:
    return {"format": FORMAT, "experiment": run.name, "state": state, "was_live": was_live}

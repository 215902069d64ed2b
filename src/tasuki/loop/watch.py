"""The end of an attempt, seen from a rank: the supervisor's notice, a signal, or our own clock.

Signal handlers only set a flag. A thread listens to the supervisor, to the pipe of signals and to
the clock; the training loop looks at one attribute per step. Before the first step there is nothing
to save, so the thread leaves at once; from then on only a step boundary acts. Where the notice is
too short for the step that runs, the thread publishes the last snapshot instead.

The other way round, the loop's words go to the supervisor through here, each with how long it may
wait for the next one.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import sys
import threading
import traceback
from collections import deque
from collections.abc import Callable
from typing import Any

from tasuki.clock import Clock
from tasuki.errors import EXIT_RESUME_ME
from tasuki.loop.limits import (
    SILENCE_S,
    should_publish,
    silence_limit_s,
    time_for_leaving_s,
)
from tasuki.runs.values import Cause, Ending
from tasuki.runs.wire import Wire
from tasuki.signals import SignalPipe

_LOOK_EVERY_S = 0.1
_KNOWN_STEPS = 512
_KNOWN_SAVES = 16


class Watch(threading.Thread):
    """Knows when this attempt must end, and says that it lives."""

    def __init__(
        self,
        wire: Wire | None,
        clock: Clock,
        *,
        grace_s: float | None = None,
        shortest_silence_s: float = SILENCE_S,
    ) -> None:
        super().__init__(name="tasuki-watch", daemon=True)
        self.notice: Cause = Cause.NONE
        """Looked at by the training loop at each step boundary."""
        self.is_interruptible = True
        """Nothing would be lost by leaving now: start-up, evaluation."""
        self.before_leaving: Callable[[], None] = lambda: None
        self.on_notice: Callable[[], None] = lambda: None
        self.publish: Callable[[float | None], None] | None = None
        """Commits the last snapshot and leaves; gets what is left of the notice. Called once, in
        this thread, and only while the loop has not begun to hand over. If it returns (there is no
        snapshot), the loop's next boundary is waited for."""
        self.step_began_at: float | None = None
        """Set by the loop at each step."""
        self.step_s: deque[float] = deque(maxlen=_KNOWN_STEPS)
        self.save_s: deque[float] = deque(maxlen=_KNOWN_SAVES)
        self.knows_every_bucket: Callable[[], bool] = lambda: True
        """Has a step of each been seen? Before that nobody knows how long one may take."""
        self.grace_s = grace_s
        """How long a rank lives after a signal that came to it directly."""
        self.signalled_as = Cause.INTERRUPTED if wire is None else Cause.PREEMPTED
        """What such a signal is taken for. Why it came is the supervisor's to say; where that got
        none itself, it is a preemption."""
        self.leaving = threading.Lock()
        """Taken for good by who says the last word: two threads may want to."""
        self._wire = wire
        self._clock = clock
        self._shortest_silence_s = shortest_silence_s
        self._deadline: float | None = None
        self._notice_ends: float | None = None
        self._signals: SignalPipe | None = None
        self._has_told_signal = False
        self._must_publish = False
        self._is_guessed = False
        """Why the notice came is not known: it was a signal to a rank."""
        self._lock = threading.Lock()
        self._hearing = threading.Lock()
        self._last_act = threading.RLock()
        """Taken for good by the loop's handover, for a while by `publish`."""

    def install_handlers(self) -> None:
        """Flags only. Called from the main thread, before anything slow."""
        self._signals = SignalPipe()
        self._signals.install()

    def run(self) -> None:
        while True:
            self.turn()

    def turn(self) -> None:
        """Listen for a moment, then act."""
        self._listen()
        self._look()
        if self.notice is Cause.NONE:
            return
        if self.is_interruptible:
            self._leave()
        else:
            self._publish_if_too_late()

    # -- the loop's side --------------------------------------------------------------------

    def hold_on(self) -> None:
        """From here on, work would be lost by leaving: only a step boundary may."""
        self._look()  # what came a moment ago, and the thread has not seen yet
        with self._lock:
            if self.notice is not Cause.NONE and self.is_interruptible:
                leave(self, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)
            self.is_interruptible = False

    def see_through(self) -> None:
        """What follows is the very end: a notice that comes now would only cost another attempt.
        Does not come back where the thread is leaving already: half of it must not be done."""
        with self._lock:
            self.is_interruptible = False

    def begin_handover(self) -> None:
        """The loop stands at its last boundary: nothing is published any more. Does not come back
        where a snapshot is being published, as that leaves."""
        self._last_act.acquire()

    def end_handover(self) -> None:
        """It was not the last boundary after all: the stage rolls back."""
        with contextlib.suppress(RuntimeError):  # it had not begun
            self._last_act.release()

    def tell(self, kind: str, **facts: Any) -> None:
        if self._wire is not None:
            self._wire.send(kind, **facts)

    def tell_step(self, step: int, total: int, *, samples: int) -> None:
        """A sign of life from the loop."""
        at, limit_s = self._clock.monotonic(), self._limit_s("train")
        self.tell("step", step=step, total=total, samples=samples, at=at, limit_s=limit_s)

    def enter(self, doing: str) -> None:
        """From now on the loop is at something else: `validate`, `save`, `finish`, `evaluate`; or
        back at its steps: `train`."""
        self.tell("phase", phase=doing, limit_s=self._limit_s(doing))

    def flush(self) -> None:
        if self._wire is not None:
            self._wire.flush(within_s=2.0)

    # -- what is known ----------------------------------------------------------------------

    @property
    def has_notice(self) -> bool:
        """Must the loop stop at this step boundary? A signal to this process counts from the
        moment its handler has run: on a busy machine the thread may get its turn many steps
        later."""
        if self.notice is Cause.NONE:
            self._hear_signal()
        return self.notice is not Cause.NONE

    @property
    def p99_step_s(self) -> float:
        steps = sorted(self.step_s)
        return steps[min(len(steps) - 1, int(len(steps) * 0.99))] if steps else 0.0

    @property
    def longest_save_s(self) -> float:
        return max(self.save_s, default=0.0)

    @property
    def lead_s(self) -> float:
        """How long before the end the last step must be over: one step, one save, and a bit."""
        return self.p99_step_s + time_for_leaving_s(self.longest_save_s)

    @property
    def signal_name(self) -> str:
        """Of the signal that was the notice; empty: it was none."""
        number = self._signals.first if self._signals is not None else None
        return "" if number is None else signal.Signals(number).name

    def remaining_s(self) -> float | None:
        return None if self._deadline is None else self._deadline - self._clock.monotonic()

    def notice_remaining_s(self) -> float | None:
        """What is left of the notice, or of the job where that is less; None: not known."""
        ends = [end for end in (self._notice_ends, self._deadline) if end is not None]
        return min(ends) - self._clock.monotonic() if ends else None

    def _limit_s(self, doing: str) -> float | None:
        return silence_limit_s(
            doing,
            shortest_s=self._shortest_silence_s,
            num_steps=len(self.step_s),
            knows_every_bucket=self.knows_every_bucket(),
            p99_step_s=self.p99_step_s,
            longest_save_s=max(self.save_s) if self.save_s else None,
        )

    # -- the thread's side ------------------------------------------------------------------

    def _listen(self) -> None:
        """Until something comes, or it is time to look at the clock again."""
        ears: list[Any] = [] if self._signals is None else [self._signals.reader]
        if self._wire is not None and not self._wire.is_closed:
            ears.append(self._wire)
        ready = select.select(ears, [], [], _LOOK_EVERY_S)[0]
        if self._signals is not None and self._signals.reader in ready:
            self._signals.drain()
        if self._wire in ready:
            self._hear_all()

    def _hear_all(self) -> None:
        assert self._wire is not None
        messages = self._wire.receive()
        if messages is None:
            self._give(Cause.INTERRUPTED)  # a rank without supervisor hands over
            return
        for message in messages:
            self._hear(message)

    def _hear(self, message: dict[str, Any]) -> None:
        remaining = message.get("remaining_s")
        end = None if remaining is None else self._clock.monotonic() + float(remaining)
        if message["kind"] == "deadline":
            self._deadline = end if end is not None else self._deadline
            self.grace_s = message.get("grace_s", self.grace_s)
        elif message["kind"] == "publish":
            self._must_publish = True  # another rank has given up: a checkpoint needs all
        elif message["kind"] == "notice":
            self._hear_notice(Cause(message["cause"]), end, is_guess=bool(message.get("is_guess")))

    def _hear_notice(self, cause: Cause, ends: float | None, *, is_guess: bool) -> None:
        if self.notice is Cause.NONE:
            self._is_guessed = is_guess
        elif self._is_guessed and not is_guess:
            self.notice, self._is_guessed = cause, False
        self._give(cause, ends=ends)

    def _look(self) -> None:
        self._hear_signal()
        remaining = self.remaining_s()
        if remaining is not None and remaining <= self.lead_s:
            self._give(Cause.LIMIT)

    def _hear_signal(self) -> None:
        """Once, by the thread or by the loop at a step boundary."""
        if self._signals is None or not self._signals.has_notice:
            return
        with self._hearing:  # the other one has heard it only when `notice` is set
            if self._has_told_signal:
                return
            self._has_told_signal = True
            end = None if self.grace_s is None else self._clock.monotonic() + self.grace_s
            self._is_guessed = self.notice is Cause.NONE
            self._give(self.signalled_as, ends=end)
            self.tell("signalled")  # it may have come to this rank alone

    def _give(self, cause: Cause, *, ends: float | None = None) -> None:
        """The first notice counts; a later one may only bring the end nearer."""
        if ends is not None and (self._notice_ends is None or ends < self._notice_ends):
            self._notice_ends = ends
        if self.notice is Cause.NONE:
            self.notice = cause
            self.on_notice()

    def _publish_if_too_late(self) -> None:
        publish, began_at = self.publish, self.step_began_at
        is_due = self._must_publish or should_publish(
            remaining_s=self.notice_remaining_s(),
            running_s=None if began_at is None else self._clock.monotonic() - began_at,
            shortest_step_s=min(self.step_s, default=0.0),
            longest_save_s=self.longest_save_s,
        )
        if publish is None or not is_due:
            return
        self.publish = None
        if not self._last_act.acquire(blocking=False):
            return  # the loop has come to its boundary after all
        try:
            self.tell("publishing")
            publish(self.notice_remaining_s())
        except Exception:
            traceback.print_exc()  # the boundary may still come
        finally:
            self._last_act.release()

    def _leave(self) -> None:
        with self._lock:
            if self.is_interruptible:
                leave(self, ending=Ending.HANDED_OVER, status=EXIT_RESUME_ME)


def leave(
    watch: Watch,
    *,
    ending: Ending,
    status: int,
    message: str = "",
    hint: str = "",
    is_peer: bool = False,
) -> None:
    """Say the last word and go, without interpreter teardown: with torch that takes 2 s."""
    watch.leaving.acquire()
    try:
        watch.before_leaving()
        _kill_daemons()
    except Exception:
        traceback.print_exc()
    watch.tell(
        "done", ending=ending, cause=watch.notice, message=message, hint=hint, is_peer=is_peer
    )
    watch.flush()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()
    os._exit(status)


def _kill_daemons() -> None:
    """What multiprocessing would end at interpreter exit, such as the workers of a validation's
    loader: orphans of torch's live on for 5 s."""
    # Not imported here, and perhaps only half imported yet: a notice may come at any time.
    process = sys.modules.get("multiprocessing.process")
    for child in getattr(process, "active_children", tuple)():
        if child.daemon and child._parent_pid == os.getpid():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child.pid, signal.SIGKILL)

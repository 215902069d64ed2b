"""Ask a child process to do what needs torch, numpy or the user's code, and hear its answer.

Both ends of one small protocol: the order goes to the child's stdin as JSON; lines of JSON come
back on a descriptor of their own (the user's code may print), progress first, the answer last. The
command line stays free of heavy imports this way, and a crash in there is a message here.
"""

from __future__ import annotations

import contextlib
import faulthandler
import json
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from tasuki.errors import EXIT_FAILED, TasukiError, is_users, place_of

_TELL_EVERY_S = 0.1
_LOOK_EVERY_S = 0.2
_STACKS = signal.SIGQUIT
"""Lets a child write where it stands, as ranks do."""
_STACK_WITHIN_S = 1.0
_LAST_ERRORS = 1000
"""Lines of its stderr that are kept: it may print for hours."""
_FEW_FRAMES = 3
_STACK = "(most recent call first):"
"""The head of a stack, as faulthandler writes it."""
_FIRST = "importing"
"""What a child does for seconds before it can say anything."""


class ChildFailed(TasukiError):
    """What the child says went wrong."""


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a child is; without a count, what it has begun."""

    what: str
    done: int
    total: int | None


OnProgress = Callable[[Progress], None]


class ChildLate(TimeoutError):
    """It took longer than it may: what it was at, and where it stood."""

    def __init__(self, message: str, *, progress: Progress, place: str, doing: str) -> None:
        super().__init__(message)
        self.progress = progress
        self.place = place
        self.doing = doing


def ask(
    module: str,
    order: Mapping[str, Any],
    *,
    python: str,
    environment: Mapping[str, str],
    folder: str | None = None,
    within_s: float | None = None,
    on_progress: OnProgress = lambda _: None,
) -> Any:
    """Run `python -m MODULE FD`; its answer, or ChildFailed with its words. Leaves no child behind,
    nor what that has forked.

    Raises ChildLate when it takes longer than `within_s`; KeyboardInterrupt says where it stood.
    """
    reader, writer = os.pipe()
    interrupt = _HeldInterrupt()
    try:
        child = subprocess.Popen(
            [python, "-P", "-B", "-m", module, str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONHASHSEED": "0"},
            cwd=folder,
            pass_fds=[writer],
            # All that it forks ends with it; and who asks a terminal fails instead of waiting.
            start_new_session=True,
        )
    except BaseException:
        interrupt.let_go()
        os.close(reader)
        raise
    finally:
        os.close(writer)
    asked = _Asked(child, reader, module, folder, on_progress)
    try:
        interrupt.let_go()
        return asked.hear(json.dumps(order).encode(), within_s)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(asked.describe()) from None
    finally:
        os.close(reader)
        _kill_session(child)
        child.wait()


class _HeldInterrupt:
    """Ctrl-C waits until it is let go: in the middle of a start it would leave a child behind that
    nobody knows."""

    def __init__(self) -> None:
        self._is_pressed = False
        is_ours = threading.current_thread() is threading.main_thread()
        self._before = signal.getsignal(signal.SIGINT) if is_ours else None
        if callable(self._before):  # else nobody would hear it anyway
            signal.signal(signal.SIGINT, self._press)

    def _press(self, _number: int, _frame: object) -> None:
        self._is_pressed = True

    def let_go(self) -> None:
        """Raises what the handler before would have, if it was pressed meanwhile."""
        if callable(self._before):
            signal.signal(signal.SIGINT, self._before)
        if self._is_pressed:
            signal.raise_signal(signal.SIGINT)


def _kill_session(child: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(child.pid, signal.SIGKILL)


class _Asked:
    """A child that was started, and what is known of it."""

    def __init__(
        self,
        child: subprocess.Popen[bytes],
        reader: int,
        module: str,
        folder: str | None,
        on_progress: OnProgress,
    ) -> None:
        self._child, self._reader, self._module = child, reader, module
        self._folder, self._on_progress = folder, on_progress
        self._progress = Progress(_FIRST, 0, None)
        self._began = time.monotonic()
        self._errors: deque[bytes] = deque(maxlen=_LAST_ERRORS)
        self._listener = threading.Thread(target=self._drain, daemon=True)

    def hear(self, order: bytes, within_s: float | None) -> Any:
        assert self._child.stdin is not None
        self._listener.start()
        with contextlib.suppress(BrokenPipeError):
            self._child.stdin.write(order)
            self._child.stdin.close()
        self._on_progress(self._progress)
        for line in self._lines(within_s):
            told = json.loads(line)
            if "progress" in told:
                self._progress, self._began = Progress(*told["progress"]), time.monotonic()
                self._on_progress(self._progress)
            elif "error" in told:
                failed = ChildFailed(told["error"], hint=told["hint"])
                failed.exit_code = told["exit_code"]
                raise failed
            else:
                return told["answer"]
        raise self._no_answer()

    def _lines(self, within_s: float | None) -> Iterator[bytes]:
        """Whole ones, until it ends: a fork of it may keep the pipe open for ever."""
        until = None if within_s is None else time.monotonic() + within_s
        rest = b""
        while True:
            is_over = self._child.poll() is not None  # what it wrote before is there by now
            if select.select([self._reader], [], [], 0.0 if is_over else _LOOK_EVERY_S)[0]:
                data = os.read(self._reader, 1 << 16)
                if not data:
                    return
                *lines, rest = (rest + data).split(b"\n")
                yield from lines
            elif is_over:
                return
            if until is not None and time.monotonic() > until:
                raise self._late(within_s)

    def _late(self, within_s: float | None) -> ChildLate:
        place = self.place()
        doing = self._describe(place)
        message = f"{self._module} took longer than {within_s:g} s: {doing}"
        return ChildLate(message, progress=self._progress, place=place, doing=doing)

    def _no_answer(self) -> ChildFailed:
        code = self._child.wait()
        _kill_session(self._child)
        self._listener.join(timeout=5)
        words = b"".join(self._errors).decode(errors="replace").strip().splitlines()
        hint = "killed processes often mean too little memory" if code == -signal.SIGKILL else ""
        return ChildFailed(
            f"a helper process ({self._module}) ended without an answer, at "
            f"`{self._progress.what}`: " + (words[-1] if words else f"exit code {code}"),
            hint="code of yours seems to end the process: look for os._exit" if not code else hint,
        )

    def describe(self) -> str:
        """What it has been at, for how long, and where in the user's code."""
        return self._describe(self.place())

    def _describe(self, place: str) -> str:
        took = time.monotonic() - self._began
        return f"`{self._progress.what}` for {took:.0f} s" + (f", {place}" if place else "")

    def place(self) -> str:
        """Asked of itself; only before it is ended: a signal may disturb what it does."""
        before = self._num_stacks()
        with contextlib.suppress(ProcessLookupError):
            self._child.send_signal(_STACKS)
        until, seen = time.monotonic() + _STACK_WITHIN_S, -1
        while time.monotonic() < until:
            if self._num_stacks() > before and len(self._errors) == seen:
                break
            seen = len(self._errors)
            time.sleep(_LOOK_EVERY_S / 4)
        words = b"".join(list(self._errors)).decode(errors="replace")
        return standing(words, (self._folder,) if self._folder else ())

    def _num_stacks(self) -> int:
        return sum(_STACK.encode() in line for line in list(self._errors))

    def _drain(self) -> None:
        assert self._child.stderr is not None
        with self._child.stderr as stream:
            self._errors.extend(stream)


def standing(stacks: str, folders: Sequence[str]) -> str:
    """Where the newest stack that faulthandler wrote stands in files of the user's, the innermost
    first: `in wait (data.py:7), from build_dataset (recipes.py:31)`. Empty: in none of them."""
    newest = stacks.rpartition(_STACK)[2]
    frames = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', newest, re.MULTILINE)
    own = [
        f"{name} ({Path(file).name}:{line})"
        for file, line, name in frames
        if is_users(file) and any(Path(file).is_relative_to(folder) for folder in folders)
    ]
    return f"in {', from '.join(own[:_FEW_FRAMES])}" if own else ""


class Told:
    """A child's way to say how far it is; cheap enough to be called for every sample."""

    def __init__(self, fd: int, about: str = "") -> None:
        self._fd = fd
        self._about = f" {about}" if about else ""
        self._next = 0.0
        self._what = ""

    def about(self, what: str) -> Told:
        """Says of all its progress which part of the whole it is."""
        return Told(self._fd, what)

    def begin(self, what: str) -> None:
        """What may take seconds and cannot be counted."""
        self.progress(what, 0, None)

    def progress(self, what: str, done: int, total: int | None) -> None:
        now = time.monotonic()
        if now >= self._next or done == total or what != self._what:
            self._next, self._what = now + _TELL_EVERY_S, what
            self._write({"progress": [f"{what}{self._about}", done, total]})

    def answer(self, value: object) -> None:
        self._write({"answer": value})

    def error(self, message: str, hint: str, exit_code: int) -> None:
        self._write({"error": message, "hint": hint, "exit_code": exit_code})

    def _write(self, value: object) -> None:
        data = json.dumps(value).encode() + b"\n"
        while data:
            data = data[os.write(self._fd, data) :]


def answer(
    work: Callable[[dict[str, Any], Told], object], argv: Sequence[str] = sys.argv
) -> NoReturn:
    """The child's whole `main`: read the order, work, say how it went, leave."""
    told = Told(int(argv[1]))
    faulthandler.register(_STACKS, file=2, all_threads=False)
    threading.Thread(target=_leave_with, args=(int(argv[1]),), daemon=True).start()
    order = json.load(sys.stdin)
    with _quietly_gone():
        try:
            told.answer(work(order, told))
        except TasukiError as error:
            told.error(error.message, error.hint, error.exit_code)
        except BrokenPipeError:
            raise
        except SystemExit as error:
            told.error(
                f"code of yours ends the process: exit({error.code!r}){place_of(error)}",
                "a recipe is imported and called, not run: let it raise an error instead",
                EXIT_FAILED,
            )
        except Exception as error:
            import traceback

            traceback.print_exc()
            told.error(f"{type(error).__name__}: {error}", "", EXIT_FAILED)
    # Threads of the user's code must not keep the answer waiting.
    sys.stderr.flush()
    os._exit(0)


def _leave_with(fd: int) -> None:
    """Whoever asked is gone, even by SIGKILL: no answer is wanted, and forks must not stay."""
    end = select.poll()
    end.register(fd, 0)  # of a pipe whose reader is closed: POLLERR, which needs no asking
    end.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_FAILED)


@contextlib.contextmanager
def _quietly_gone() -> Iterator[None]:
    """Whoever asked is gone (Ctrl-C): nobody is left to tell."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(EXIT_FAILED)

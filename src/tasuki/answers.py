"""Ask a child process to do what needs torch, numpy or the user's code, and hear its answer.

Both ends of one small protocol: the order goes to the child's stdin as JSON; lines of JSON come
back on a descriptor of their own (the user's code may print), progress first, the answer last. The
command line stays free of heavy imports this way, and a crash in there is a message here.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO, Any, NoReturn

from tasuki.errors import EXIT_FAILED, TasukiError

_TELL_EVERY_S = 0.1
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
    """Run `python -m MODULE FD`; its answer, or ChildFailed with its words. Leaves no child behind.

    Raises TimeoutError when it takes longer than `within_s`.
    """
    reader, writer = os.pipe()
    try:
        child = subprocess.Popen(
            [python, "-P", "-B", "-m", module, str(writer)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**environment, "PYTHONHASHSEED": "0"},
            cwd=folder,
            pass_fds=[writer],
        )
    except BaseException:
        os.close(reader)
        raise
    finally:
        os.close(writer)
    is_late = threading.Event()
    timer = threading.Timer(within_s, _end, (child, is_late)) if within_s is not None else None
    if timer is not None:
        timer.start()
    try:
        return _hear(child, reader, json.dumps(order).encode(), module, on_progress)
    except ChildFailed:
        if is_late.is_set():
            raise TimeoutError(f"{module} took longer than {within_s} s") from None
        raise
    finally:
        if timer is not None:
            timer.cancel()
        child.kill()
        child.wait()


def _end(child: subprocess.Popen[bytes], is_late: threading.Event) -> None:
    is_late.set()
    child.kill()


def _hear(
    child: subprocess.Popen[bytes], reader: int, order: bytes, module: str, on_progress: OnProgress
) -> Any:
    errors: list[bytes] = []
    assert child.stdin is not None and child.stderr is not None
    listener = threading.Thread(target=_drain, args=(child.stderr, errors), daemon=True)
    listener.start()
    with contextlib.suppress(BrokenPipeError):
        child.stdin.write(order)
        child.stdin.close()
    with os.fdopen(reader, "rb") as lines:
        on_progress(Progress(_FIRST, 0, None))
        for line in lines:
            if not line.endswith(b"\n"):
                break  # it ended in the middle of a word
            told = json.loads(line)
            if "progress" in told:
                on_progress(Progress(*told["progress"]))
            elif "error" in told:
                failed = ChildFailed(told["error"], hint=told["hint"])
                failed.exit_code = told["exit_code"]
                raise failed
            else:
                return told["answer"]
    child.wait()
    listener.join(timeout=5)
    words = b"".join(errors).decode(errors="replace").strip().splitlines()
    raise ChildFailed(
        f"a helper process ({module}) ended without an answer: "
        + (words[-1] if words else f"exit code {child.returncode}"),
        hint="killed processes often mean too little memory" if child.returncode == -9 else "",
    )


def _drain(stream: IO[bytes], lines: list[bytes]) -> None:
    with stream:
        lines.extend(stream)


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
    order = json.load(sys.stdin)
    with _quietly_gone():
        try:
            told.answer(work(order, told))
        except TasukiError as error:
            told.error(error.message, error.hint, error.exit_code)
        except BrokenPipeError:
            raise
        except Exception as error:
            import traceback

            traceback.print_exc()
            told.error(f"{type(error).__name__}: {error}", "", EXIT_FAILED)
    # Threads of the user's code must not keep the answer waiting.
    sys.stderr.flush()
    os._exit(0)


@contextlib.contextmanager
def _quietly_gone() -> Iterator[None]:
    """Whoever asked is gone (Ctrl-C): nobody is left to tell."""
    try:
        yield
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(EXIT_FAILED)

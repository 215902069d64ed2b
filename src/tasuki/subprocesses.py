"""Call a function in a child process: for work that needs torch, h5py or the user's code.

The caller names the function as text and so imports none of them. A crash there is an error here:

    result = run("tasuki.train.tune:measure", stage, 30.0, result=TuneResult, timeout_s=600.0)

Arguments and the result are values that msgspec can encode: numbers, text, bytes, paths, lists,
dicts, dataclasses, structs. The child reads its arguments as the function's annotations say. A
function with a parameter `progress` gets a callback that takes a `Progress`, as the caller has.
"""

from __future__ import annotations

import contextlib
import faulthandler
import gc
import importlib
import inspect
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import typing
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from tasuki import errors
from tasuki.errors import EXIT_FAILED, TasukiError, is_users, place_of
from tasuki.signals import STACKS

_POLL_S = 0.2
_REPORT_EVERY_S = 0.1
_STACK_TIMEOUT_S = 1.0
_MAX_STDERR_LINES = 1000
_MAX_FRAMES = 3
_STACK_HEAD = b"(most recent call first):"  # as faulthandler writes it
_STACK_ENDS = (b'  File "<string>", line 1 in <module>', b"  ...")  # `_CHILD`, or too many frames
_CHILD = "import sys; from tasuki.subprocesses import _serve; _serve(int(sys.argv[1]))"

Result = TypeVar("Result")


class SubprocessError(TasukiError):
    """The child process failed; the message says how, and where in the user's code."""


class SubprocessTimeoutError(SubprocessError):
    """The child process took longer than `timeout_s`."""


class Progress(msgspec.Struct, frozen=True):
    """What a child process is doing. Without `total` its end is not known."""

    what: str
    done: int = 0
    total: int | None = None


ProgressCallback = Callable[[Progress], None]


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import without looking for garbage. Torch makes a million objects that all stay."""
    before = gc.get_threshold()
    gc.set_threshold(0)
    try:
        yield
    finally:
        gc.freeze()
        if gc.get_threshold()[0] == 0:  # else what was imported has chosen its own
            gc.set_threshold(*before)


class _Call(msgspec.Struct, frozen=True):
    target: str
    arguments: list[msgspec.Raw]


class _Reported(msgspec.Struct, frozen=True, tag="progress"):
    progress: Progress


class _Returned(msgspec.Struct, frozen=True, tag="returned"):
    value: msgspec.Raw


class _Raised(msgspec.Struct, frozen=True, tag="raised"):
    kind: str
    message: str
    hint: str
    exit_code: int
    traceback: str


_Message = _Reported | _Returned | _Raised


def run(
    target: str,
    *arguments: Any,
    result: type[Result],
    progress: ProgressCallback | None = None,
    timeout_s: float | None = None,
    cwd: str | Path | None = None,
    python: str = sys.executable,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Call `module:function` in a new process and return its result.

    The child has a session of its own. It ends, with all that it started, when this returns or when
    this process dies. What it prints to stdout is dropped.

    Args:
        target: The function, as `module:function`.
        arguments: Its positional arguments.
        result: The type that it returns.
        progress: Called with each `Progress` that the function reports.
        timeout_s: Seconds until the child is killed. None: no limit.
        cwd: Its working folder. None: that of this process.
        python: The interpreter that runs it.
        environment: Its environment variables. None: those of this process.

    Raises:
        SubprocessTimeoutError: It took longer than `timeout_s`.
        TasukiError: It raised an error, with the same class where that is one of `tasuki.errors`;
            or it ended without a result.

    Example:
        >>> run("tasuki.units:format_bytes", 2**30, result=str)
        '1.07 GB'
    """
    call = _Call(target, [msgspec.Raw(_encode(argument)) for argument in arguments])
    # A hash seed of its own would give each child another order of sets, and so other results.
    variables = {**(os.environ if environment is None else environment), "PYTHONHASHSEED": "0"}
    reader, writer = os.pipe()
    try:
        # A file and not a pipe as stdin: a child that hangs before it reads cannot block us.
        with tempfile.TemporaryFile() as request:
            request.write(_encode(call))
            request.seek(0)
            try:
                process = subprocess.Popen(
                    [python, "-P", "-B", "-c", _CHILD, str(writer)],
                    stdin=request,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.PIPE,
                    env=variables,
                    cwd=cwd,
                    pass_fds=[writer],
                    start_new_session=True,
                )
            except OSError as error:
                raise SubprocessError(f"cannot start '{python}': {error.strerror}") from error
            finally:
                os.close(writer)
        with process:
            try:
                value = _Child(process, reader, target, progress).wait_for_result(timeout_s)
            finally:
                _kill_session(process)
    finally:
        # A child that Ctrl-C hid from us in the middle of its start ends when this is closed.
        os.close(reader)
    return msgspec.msgpack.decode(value, type=result, dec_hook=_decode_other)


class _Child:
    """A started child, and what has come from it."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        reader: int,
        target: str,
        progress: ProgressCallback | None,
    ) -> None:
        assert process.stderr is not None
        self._process, self._reader, self._stderr = process, reader, process.stderr.fileno()
        self._target, self._progress = target, progress
        self._last, self._last_began = Progress("starting"), time.monotonic()
        self._received = bytearray()
        self._stderr_lines: deque[bytes] = deque([b""], maxlen=_MAX_STDERR_LINES)
        self._poll = select.poll()
        self._poll.register(self._reader, select.POLLIN)
        self._poll.register(self._stderr, select.POLLIN)

    def wait_for_result(self, timeout_s: float | None) -> msgspec.Raw:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        try:
            if self._progress is not None:
                self._progress(self._last)  # imports alone may take seconds
            while True:
                # Before the last read: what a dead child wrote is in the pipes. Their end of file
                # is not waited for, as a fork of the child may keep them open.
                is_dead = self._process.poll() is not None
                has_read = self._read(0.0 if is_dead else _POLL_S)
                for message in self._take_messages():
                    if isinstance(message, _Returned):
                        return message.value
                    self._handle(message)
                if is_dead and not has_read:
                    raise self._error_of_dead_child()
                if deadline is not None and time.monotonic() > deadline:
                    text = f"{self._target} took longer than {timeout_s:g} s: {self._describe()}"
                    raise SubprocessTimeoutError(text)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(self._describe()) from None

    def _read(self, timeout_s: float) -> bool:
        """Read what has come; false if there was nothing."""
        has_read = False
        for descriptor, _ in self._poll.poll(timeout_s * 1000):
            data = os.read(descriptor, 1 << 16)
            has_read = has_read or bool(data)
            if not data:
                self._poll.unregister(descriptor)
            elif descriptor == self._reader:
                self._received += data
            else:
                first, *others = data.split(b"\n")
                self._stderr_lines[-1] += first
                self._stderr_lines.extend(others)
        return has_read

    def _take_messages(self) -> list[_Message]:
        messages = []
        while len(self._received) >= 8:
            end = 8 + int.from_bytes(self._received[:8], "big")
            if len(self._received) < end:
                break
            messages.append(msgspec.msgpack.decode(self._received[8:end], type=_Message))
            del self._received[:end]
        return messages

    def _handle(self, message: _Reported | _Raised) -> None:
        if isinstance(message, _Raised):
            raise _error_from(message)
        if message.progress.what != self._last.what:
            self._last_began = time.monotonic()
        self._last = message.progress
        if self._progress is not None:
            self._progress(message.progress)

    def _error_of_dead_child(self) -> SubprocessError:
        code = self._process.returncode
        lines = [line for line in self._stderr_lines if line.strip()]
        last = lines[-1].decode(errors="replace").strip() if lines else f"exit code {code}"
        hint = ""
        if code == -signal.SIGKILL:
            hint = "killed processes often mean too little memory"
        elif code == 0:
            hint = "your code seems to end the process: look for os._exit"
        return SubprocessError(
            f"a child process ({self._target}) ended without a result, "
            f"during '{self._last.what}': {last}",
            hint=hint,
        )

    def _describe(self) -> str:
        """What the child does, for how long, and where in the user's code."""
        took_s = time.monotonic() - self._last_began
        where = self._find_user_frames()
        return f"'{self._last.what}' for {took_s:.0f} s" + (f", {where}" if where else "")

    def _find_user_frames(self) -> str:
        """Ask the child for its stack: `in wait (data.py:7), from build_dataset (recipe.py:31)`."""
        before = self._count_stacks()
        with contextlib.suppress(ProcessLookupError):
            self._process.send_signal(STACKS)
        deadline = time.monotonic() + _STACK_TIMEOUT_S
        while time.monotonic() < deadline and not self._has_whole_stack(before):
            self._read(_POLL_S / 4)
        text = b"\n".join(self._stderr_lines).decode(errors="replace")
        newest = text.rpartition(_STACK_HEAD.decode())[2]
        frames = re.findall(r'^  File "(.+)", line (\d+) in (.+)$', newest, re.MULTILINE)
        users = [
            f"{name} ({Path(file).name}:{line})"
            for file, line, name in frames
            if is_users(file) and not file.startswith("<")
        ]
        return f"in {', from '.join(users[:_MAX_FRAMES])}" if users else ""

    def _has_whole_stack(self, num_before: int) -> bool:
        # It comes line by line, on a busy machine with pauses; the child's first frame is last.
        last = list(self._stderr_lines)[-2:]
        return self._count_stacks() > num_before and any(
            line.startswith(_STACK_ENDS) for line in last
        )

    def _count_stacks(self) -> int:
        return sum(_STACK_HEAD in line for line in self._stderr_lines)


def _kill_session(process: subprocess.Popen[bytes]) -> None:
    # Before `wait` has given the process id back: after it, another process may have it.
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)


def _error_from(message: _Raised) -> TasukiError:
    kind: Any = getattr(errors, message.kind, None)
    is_known = isinstance(kind, type) and issubclass(kind, TasukiError)
    error_class: type[TasukiError] = kind if is_known else SubprocessError
    error = error_class(message.message, hint=message.hint)
    error.exit_code = message.exit_code
    error.add_note(f"In the child process:\n{message.traceback}")  # for `--debug`
    return error


def _serve(descriptor: int) -> NoReturn:
    """The child: read the call, make it, write how it went, exit."""
    faulthandler.register(STACKS, file=2, all_threads=False)
    threading.Thread(target=_exit_with_parent, args=(descriptor,), daemon=True).start()
    try:
        _send(descriptor, _call(sys.stdin.buffer.read(), descriptor))
    except (KeyboardInterrupt, BrokenPipeError):
        os._exit(EXIT_FAILED)  # the caller is gone
    # Threads of the user's code must not keep the caller waiting.
    sys.stderr.flush()
    os._exit(0)


def _call(request: bytes, descriptor: int) -> _Returned | _Raised:
    try:
        call = msgspec.msgpack.decode(request, type=_Call)
        module, _, name = call.target.partition(":")
        with importing():
            function = getattr(importlib.import_module(module), name)
        parameters = inspect.signature(function).parameters
        names = inspect.signature(function).bind_partial(*call.arguments).arguments
        hints = typing.get_type_hints(function)
        arguments = [
            msgspec.msgpack.decode(raw, type=hints.get(name, Any), dec_hook=_decode_other)
            for name, raw in names.items()
        ]
        options = {"progress": _Reporter(descriptor)} if "progress" in parameters else {}
        return _Returned(msgspec.Raw(_encode(function(*arguments, **options))))
    except BrokenPipeError:
        raise
    except TasukiError as error:
        return _raised(error, error.message, error.hint, error.exit_code)
    except SystemExit as error:
        text = f"your code ends the process: exit({error.code!r}){place_of(error)}"
        hint = "a recipe is imported and called, not run: raise an error instead"
        return _raised(error, text, hint, EXIT_FAILED)
    except Exception as error:
        text = f"{type(error).__name__}: {error}{place_of(error)}"
        return _raised(error, text, "", EXIT_FAILED)


def _raised(error: BaseException, message: str, hint: str, exit_code: int) -> _Raised:
    text = "".join(traceback.format_exception(error))
    return _Raised(type(error).__name__, message, hint, exit_code, text)


class _Reporter:
    """The `progress` of a function in the child; cheap enough to be called for every sample."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor, self._next_s, self._what = descriptor, 0.0, ""

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        is_last = progress.done == progress.total
        if now >= self._next_s or is_last or progress.what != self._what:
            self._next_s, self._what = now + _REPORT_EVERY_S, progress.what
            _send(self._descriptor, _Reported(progress))


def _send(descriptor: int, message: _Message) -> None:
    encoded = _encode(message)
    data = memoryview(len(encoded).to_bytes(8, "big") + encoded)
    while data:
        data = data[os.write(descriptor, data) :]


def _exit_with_parent(descriptor: int) -> None:
    """Wait until the caller closes its end, even by SIGKILL, then end all that was started."""
    reader_gone = select.poll()
    reader_gone.register(descriptor, 0)  # POLLERR needs no asking
    reader_gone.poll()
    if os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(EXIT_FAILED)


def _encode(value: Any) -> bytes:
    # Not JSON: it has no NaN, no infinity and no bytes.
    return msgspec.msgpack.encode(value, enc_hook=_encode_other)


def _encode_other(value: Any) -> Any:
    if isinstance(value, Path):
        return str(value)
    for kind in (str, float, int):  # of which TorchVersion, or numpy's float64, is a subclass
        if isinstance(value, kind):
            return kind(value)
    raise TypeError(f"a {type(value).__name__} cannot be sent to or from a child process")


def _decode_other(kind: type, value: Any) -> Any:
    if issubclass(kind, Path):
        return Path(value)
    raise TypeError(f"a {kind.__name__} cannot be sent to or from a child process")

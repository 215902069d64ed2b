"""Stop a forked child at each of its system calls on a folder, and decide what becomes of the call.

Seccomp's user notifications: the kernel holds the call until this process answers: go on, fail with
an errno, be short, or never return because the child was killed. Unlike strace's `inject` this sees
paths, not only counts, is exact with threads, and makes short writes that really wrote that much.
Every call is held but those that cannot touch a file, so that a kind nobody has thought of is found
(`Uncovered`), not missed. test_harness.py compares what is seen here with what strace sees.

x86-64 Linux 5.19 or newer, no privileges; elsewhere `why_not` says what is missing.
"""

from __future__ import annotations

import array
import ctypes
import errno
import fcntl
import os
import platform
import select
import signal
import socket
import struct
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

# -- system calls: numbers, and which arguments are paths or descriptors --------------------------

# fmt: off
# `P0` path in argument 0; `A0,1` path in argument 1 relative to the descriptor in argument 0;
# `F0` descriptor in argument 0. A kind that is not here and touches the folder is `Uncovered`.
KINDS: dict[str, tuple[int, str]] = {
    "read": (0, "F0"), "write": (1, "F0"), "open": (2, "P0"), "close": (3, "F0"),
    "stat": (4, "P0"), "fstat": (5, "F0"), "lstat": (6, "P0"), "lseek": (8, "F0"),
    "mmap": (9, "F4"), "ioctl": (16, "F0"), "pread64": (17, "F0"), "pwrite64": (18, "F0"),
    "readv": (19, "F0"), "writev": (20, "F0"), "access": (21, "P0"), "dup": (32, "F0"),
    "dup2": (33, "F0"), "fcntl": (72, "F0"), "dup3": (292, "F0"),
    "fsync": (74, "F0"), "fdatasync": (75, "F0"), "truncate": (76, "P0"), "ftruncate": (77, "F0"),
    "rename": (82, "P0 P1"), "mkdir": (83, "P0"), "rmdir": (84, "P0"), "link": (86, "P0 P1"),
    "unlink": (87, "P0"), "symlink": (88, "P1"), "readlink": (89, "P0"), "chmod": (90, "P0"),
    "fchmod": (91, "F0"), "statfs": (137, "P0"), "fstatfs": (138, "F0"), "getdents64": (217, "F0"),
    "fadvise64": (221, "F0"), "openat": (257, "A0,1"), "mkdirat": (258, "A0,1"),
    "newfstatat": (262, "A0,1"), "unlinkat": (263, "A0,1"), "renameat": (264, "A0,1 A2,3"),
    "linkat": (265, "A0,1 A2,3"), "readlinkat": (267, "A0,1"), "fchmodat": (268, "A0,1"),
    "faccessat": (269, "A0,1"), "fallocate": (285, "F0"), "renameat2": (316, "A0,1 A2,3"),
    "preadv": (295, "F0"), "pwritev": (296, "F0"), "preadv2": (327, "F0"), "pwritev2": (328, "F0"),
    "statx": (332, "A0,1"), "faccessat2": (439, "A0,1"),
}
# Cannot touch a file: memory, time, signals, threads, this process; sockets and pipes by nature.
_HARMLESS = [
    7, 10, 11, 12, 13, 14, 15, 23, 24, 25, 26, 27, 28, 34, 35, 36, 37, 38, 39, 41, 42, 43, 44, 45,
    46, 47, 48, 49, 50, 51, 52, 53, 54, 55, 56, 57, 58, 60, 61, 62, 63, 95, 96, 97, 98, 99, 100,
    102, 104, 107, 108, 110, 111, 112, 115, 121, 124, 127, 128, 130, 131, 140, 141, 142, 143,
    144, 145, 146, 147, 157, 158, 160, 186, 200, 201, 202, 203, 204, 213, 218, 219, 222, 223, 224,
    225, 226, 227, 228, 229, 230, 231, 232, 233, 234, 237, 238, 239, 247, 270, 271, 273, 274, 281,
    284, 288, 290, 291, 293, 302, 309, 314, 315, 318, 324, 334, 424, 434, 435, 441, 449,
]
# fmt: on
_NAMES = {number: name for name, (number, _) in KINDS.items()}
_MMAP = KINDS["mmap"][0]

_ARCH = 0xC000003E
_ALLOW, _NOTIFY = 0x7FFF0000, 0x7FC00000
_RECEIVE, _SEND = 0xC0502100, 0xC0182101
_CONTINUE = 1
_NOTIFICATION = struct.Struct("=QIIiIQ6Q")
_PIDFD_GETFD, _SECCOMP = 438, 317


class Uncovered(AssertionError):
    """A kind of system call on the folder for which `KINDS` has no entry."""


def why_not() -> str | None:
    """Why calls cannot be held on this machine, if so."""
    if platform.system() != "Linux" or platform.machine() != "x86_64":
        return "needs Linux on x86-64: numbers of system calls are spelled out for it alone"
    if tuple(int(n) for n in platform.release().split(".")[:2]) < (5, 19):
        return "needs Linux 5.19: seccomp notifications that signals do not interrupt"
    if "user_notif" not in Path("/proc/sys/kernel/seccomp/actions_avail").read_text().split():
        return "needs seccomp's user notifications"
    return None


@dataclass(slots=True)
class Call:
    """One system call, held."""

    child: Child
    id: int
    tid: int
    kind: str
    arguments: tuple[int, ...]
    paths: tuple[str, ...]
    """Inside the folder only; empty for calls on other files."""

    def go_on(self) -> None:
        self._answer(0, 0, _CONTINUE)

    def fail(self, number: int) -> None:
        self._answer(0, -number, 0)

    def give(self, value: int) -> None:
        """Return without being done: what it returns has been done by us."""
        self._answer(value, 0, 0)

    def signal(self, number: int) -> None:
        """It waits while the call is done, but for SIGKILL: then the call is not done."""
        self.child.signal(number)
        if number != signal.SIGKILL:
            self.go_on()

    def fail_late(self, number: int) -> None:
        """Do it in the child's name and say that it failed: a server whose answer was lost."""
        kind, paths = self.kind.removesuffix("2").removesuffix("at"), self.paths
        try:
            if kind in ("rename", "link"):
                getattr(os, kind)(*paths)
            elif kind == "mkdir":
                os.mkdir(paths[0], 0o700)  # noqa: PTH102
            elif kind == "unlink":
                is_folder = self.kind == "unlinkat" and self.arguments[2]
                os.rmdir(paths[0]) if is_folder else os.unlink(paths[0])  # noqa: PTH106, PTH108
            elif kind == "rmdir":
                os.rmdir(paths[0])  # noqa: PTH106
        except OSError as error:
            number = error.errno or number
        self.fail(number)

    def shorten(self) -> None:
        """Do a part of a read or write in the child's name, and say so."""
        address, wanted = self.arguments[1:3]
        if self.kind.rstrip("2").endswith("v"):  # the first stretch of memory only
            address, wanted = struct.unpack("=QQ", self.child.peek(address, 16))
        part = max(wanted // 2, min(wanted, 1))
        fd = self.child.borrow(self.arguments[0])
        try:
            if self.kind.startswith(("read", "pread")):
                is_at = self.kind.startswith("p")
                data = os.pread(fd, part, self.arguments[3]) if is_at else os.read(fd, part)
                self.child.poke(address, data)
                done = len(data)
            elif self.kind.startswith("pwrite"):
                done = os.pwrite(fd, self.child.peek(address, part), self.arguments[3])
            else:
                # Past the cache only memory on the boundary of a page could be written.
                flags = fcntl.fcntl(fd, fcntl.F_GETFL)
                fcntl.fcntl(fd, fcntl.F_SETFL, flags & ~os.O_DIRECT)
                done = os.write(fd, self.child.peek(address, part))
                fcntl.fcntl(fd, fcntl.F_SETFL, flags)
        finally:
            os.close(fd)
        self.give(done)

    def _answer(self, value: int, error: int, flags: int) -> None:
        answer = bytearray(struct.pack("=QqiI", self.id, value, error, flags))
        try:
            fcntl.ioctl(self.child.listener, _SEND, answer)
        except OSError as failure:
            if failure.errno != errno.ENOENT:
                raise
            raise ProcessLookupError(failure.errno, "the call is gone") from None


LATE = {"rename", "renameat", "renameat2", "link", "linkat", "mkdir", "mkdirat", "unlink",
        "unlinkat", "rmdir"}  # fmt: skip
END = b"\n.\n"
"""A child that says this has done what it was told, and waits for the next order."""
SHORTENED = {
    "read", "readv", "pread64", "preadv", "preadv2",
    "write", "writev", "pwrite64", "pwritev", "pwritev2",
}  # fmt: skip


@dataclass(slots=True)
class Child:
    """A forked process, seen through its system calls on `root`."""

    root: str
    pid: int
    listener: int
    output: int
    said: bytes = b""
    status: int | None = None
    _memory: int = -1
    _pidfd: int = -1

    def next(self, *, timeout_s: float = 60.0) -> Call | None:
        """The next call on the folder. None when the child has ended, or has said END and waits.

        Calls on other files go on unseen.
        """
        until = time.monotonic() + timeout_s
        while not self.said.endswith(END):
            event = self._wait(until)
            if event is None:
                if not self.said.endswith(END):
                    self._end()
                return None
            if event.paths:
                return event
            with suppress(ProcessLookupError):
                event.go_on()
        return None

    def run(self) -> None:
        """Let it do the rest undisturbed."""
        while (call := self.next()) is not None:
            with suppress(ProcessLookupError):
                call.go_on()

    def kill(self) -> None:
        self.signal(signal.SIGKILL)
        self._end()

    def signal(self, number: int) -> None:
        """By descriptor: a number may be another process's by now."""
        if self._pidfd >= 0:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._pidfd, number)

    @property
    def lines(self) -> list[str]:
        """What it said so far."""
        return [line for line in self.said.decode().splitlines() if line != "."]

    def is_ready(self) -> bool:
        """Whether a call is held, or the child is ending, now."""
        poll = select.poll()
        poll.register(self.listener, select.POLLIN | select.POLLHUP)
        return bool(poll.poll(0))

    def borrow(self, fd: int) -> int:
        """Our own descriptor of the same open file."""
        ours: int = _libc.syscall(_PIDFD_GETFD, self._pidfd, ctypes.c_int(fd & 0xFFFFFFFF), 0)
        _check(ours)
        return ours

    def peek(self, address: int, size: int) -> bytes:
        return os.pread(self._mem(), size, address)

    def poke(self, address: int, data: bytes) -> None:
        os.pwrite(self._mem(), data, address)

    def _mem(self) -> int:
        if self._memory < 0:
            self._memory = os.open(f"/proc/{self.pid}/mem", os.O_RDWR | os.O_CLOEXEC)
        return self._memory

    def _wait(self, until: float) -> Call | None:
        poll = select.poll()
        poll.register(self.listener, select.POLLIN)
        poll.register(self.output, select.POLLIN)
        while True:
            left = until - time.monotonic()
            ready = dict(poll.poll(max(left, 0) * 1000))
            if not ready:
                self.kill()
                raise TimeoutError(f"the child hangs; it said {self.said!r}")
            if ready.get(self.output, 0) & select.POLLIN:
                self.said += os.read(self.output, 65536)
                if self.said.endswith(END):
                    return None
            events = ready.get(self.listener, 0)
            if events & select.POLLIN:
                if (call := self._receive()) is not None:
                    return call
            elif events:  # POLLHUP: nobody is left who could call
                return None

    def _receive(self) -> Call | None:
        raw = bytearray(_NOTIFICATION.size)
        try:
            fcntl.ioctl(self.listener, _RECEIVE, raw)
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINTR):
                return None  # killed in between
            raise
        id_, tid, _, number, _, _, *arguments = _NOTIFICATION.unpack(raw)
        kind = _NAMES.get(number)
        try:
            paths = self._paths(KINDS[kind][1] if kind else None, arguments, tid)
        except OSError:
            paths = []  # gone while we looked; the answer will say so too
        inside = tuple(path for path in paths if self._is_inside(path))
        if kind == "mmap" and inside and arguments[2] & 2 and arguments[3] & 1:
            kind, number = None, f"{number} (mmap, shared and writable)"
        if kind is None and inside:
            self.kill()
            raise Uncovered(f"system call {number} on {inside[0]}: say in KINDS what it does")
        return Call(self, id_, tid, kind or f"#{number}", tuple(arguments), inside)

    def _is_inside(self, path: str) -> bool:
        return path == self.root or path.startswith(self.root + "/")

    def _paths(self, how: str | None, arguments: list[int], tid: int) -> list[str]:
        if how is None:  # any argument may be one
            found = [self._of_fd(value, tid) for value in arguments if value < 1 << 16]
            return found + [self._text(value) for value in arguments if value >= 1 << 16]
        paths = []
        for word in how.split():
            if word[0] == "F":
                paths.append(self._of_fd(arguments[int(word[1])], tid))
            elif word[0] == "P":
                paths.append(self._join("cwd", self._text(arguments[int(word[1])]), tid))
            else:
                base, name = (arguments[int(n)] for n in word[1:].split(","))
                paths.append(self._join(_fd_name(base), self._text(name), tid))
        return paths

    def _of_fd(self, value: int, tid: int) -> str:
        try:
            return os.readlink(f"/proc/{tid}/{_fd_name(value)}")  # noqa: PTH115 (a hot path)
        except OSError:
            return ""

    def _join(self, base: str, name: str, tid: int) -> str:
        if name.startswith("/"):
            return os.path.normpath(name)
        try:
            folder = os.readlink(f"/proc/{tid}/{base}")  # noqa: PTH115
        except OSError:
            return ""
        return os.path.normpath(os.path.join(folder, name)) if name else folder  # noqa: PTH118

    def _text(self, address: int) -> str:
        """The string there; empty if there is none."""
        raw = b""
        with suppress(OSError, OverflowError):
            while b"\0" not in raw and len(raw) < 4096:
                # Not over the end of a page: the next one may not be there.
                raw += self.peek(address + len(raw), 4096 - (address + len(raw)) % 4096)
        text, end, _ = raw.partition(b"\0")
        return os.fsdecode(text) if end else ""

    def _end(self) -> None:
        if self.status is not None:
            return
        _, status = os.waitpid(self.pid, 0)
        self.status = os.waitstatus_to_exitcode(status)
        while more := os.read(self.output, 65536):
            self.said += more
        for fd in (self.listener, self.output, self._memory, self._pidfd):
            if fd >= 0:
                os.close(fd)
        self._pidfd = -1


def fork_watched(act: Callable[[int], None], root: Path) -> Child:
    """Fork; the child calls `act` with a descriptor to which it may write lines, and ends."""
    output, teller = os.pipe()
    ours, theirs = socket.socketpair()
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            _libc.prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: no child outlives the tests
            os.close(output)
            ours.close()
            listener = _install_filter()
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", [listener]))]
            theirs.sendmsg([b"."], rights)
            os.close(listener)
            theirs.close()
            act(teller)
            code = 0
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(code)
    os.close(teller)
    theirs.close()
    _, rights, _, _ = ours.recvmsg(1, socket.CMSG_SPACE(4))
    ours.close()
    if not rights:
        os.waitpid(pid, 0)
        raise OSError("the child could not watch its system calls")
    (listener,) = struct.unpack("i", rights[0][2][:4])
    return Child(os.path.realpath(root), pid, listener, output, _pidfd=os.pidfd_open(pid))


def _fd_name(value: int) -> str:
    number = ctypes.c_int(value & 0xFFFFFFFF).value
    return "cwd" if number == -100 else f"fd/{number}"


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("code", ctypes.c_void_p))


def _install_filter() -> int:
    """From now on every call of this thread, and of those it makes, is held."""
    code = _program()
    buffer = ctypes.create_string_buffer(b"".join(code))
    program = _Filter(len(code), ctypes.cast(buffer, ctypes.c_void_p))
    _check(_libc.prctl(38, 1, 0, 0, 0))  # PR_SET_NO_NEW_PRIVS
    # NEW_LISTENER, WAIT_KILLABLE_RECV: a handler's signal does not end a held call with EINTR.
    listener: int = _libc.syscall(_SECCOMP, 1, 8 | 32, ctypes.byref(program))
    _check(listener)
    return listener


def _program() -> list[bytes]:
    """Classic BPF: allow what cannot touch a file, and anonymous mmap; notify for all else."""

    def op(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    load, equal, give = 0x20, 0x15, 0x06
    code = [op(load, 4), op(equal, _ARCH, 1, 0), op(give, _NOTIFY), op(load, 0)]
    for number in _HARMLESS:
        code += [op(equal, number, 0, 1), op(give, _ALLOW)]
    descriptor = 16 + 8 * 4  # the low half of argument 4
    code += [op(equal, _MMAP, 0, 3), op(load, descriptor), op(equal, 0xFFFFFFFF, 0, 1)]
    return [*code, op(give, _ALLOW), op(give, _NOTIFY)]


def _check(result: int) -> None:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))

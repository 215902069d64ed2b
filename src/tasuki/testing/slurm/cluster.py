"""Start the daemons of a private cluster, and end all that belongs to it.

Every process is found again by its pid in `pids.json`, so that another process may stop what this
one started. A step of a job outlives its slurmd: what is left at the end is found by the cluster's
own SLURM_CONF in its environment, and nothing else is ever touched.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import random
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from tasuki.errors import TasukiError
from tasuki.testing.slurm.conf import Ports, Shape, gres_conf, slurm_conf
from tasuki.testing.slurm.tick import preload_for_a_quick_tick

CONTROLLER = "slurmctld"
MUNGE = "munged"
PROGRAMS = ("slurmctld", "slurmd", "munged", "sbatch", "srun", "squeue", "scontrol", "sinfo")
INSTALL = (
    "apt-get install --no-install-recommends slurmctld slurmd slurm-client munge gcc libc6-dev"
)
_LOOK_EVERY_S = 0.05
_ASK_WITHIN_S = 60.0
_LONGEST_SOCKET = 100
"""A path of a Unix socket has room for 107 bytes; munge appends to it."""
_PORTS = range(12_000, 32_000)
_SYSTEM = "/usr/sbin:/sbin"
"""Where daemons are, and where a plain user's PATH may not look."""


class ClusterError(TasukiError):
    """The private cluster does not come up, or does not answer."""


def missing_programs() -> list[str]:
    """What is needed and not installed."""
    return [name for name in PROGRAMS if _find(name) is None]


def _find(name: str) -> str | None:
    return shutil.which(name, path=f"{os.environ.get('PATH', '')}:{_SYSTEM}")


class Cluster:
    """A Slurm of our own in a folder."""

    def __init__(self, folder: Path, shape: Shape | None = None, *, is_quick: bool = True) -> None:
        """`is_quick`: time limits and graces end within a second instead of on a tick of 30 s,
        where that can be had (x86-64 with a C compiler)."""
        self.folder = folder.absolute()
        self.shape = shape or Shape()
        self._is_quick = is_quick

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    # -- for whoever uses it --------------------------------------------------------------------

    @property
    def environment(self) -> dict[str, str]:
        """In which Slurm's commands mean this cluster, also inside a job of another one."""
        foreign = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_", "SQUEUE_", "SACCT_", "SINFO_")
        own = {key: value for key, value in os.environ.items() if not key.startswith(foreign)}
        own["PATH"] = f"{own.get('PATH', '')}:{_SYSTEM}"
        return {**own, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def run(self, *command: str, within_s: float = _ASK_WITHIN_S) -> str:
        """A command of Slurm's; what it prints."""
        try:
            done = subprocess.run(
                command,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=within_s,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise ClusterError(
                f"`{command[0]}` gave no answer within {within_s:g} s",
                hint=f"look into {self.folder}/log",
            ) from error
        if done.returncode:
            words = done.stderr.strip() or done.stdout.strip()
            raise ClusterError(f"`{' '.join(command)}` failed: {words}")
        return done.stdout

    # -- up -------------------------------------------------------------------------------------

    def start(self, *, within_s: float = 120.0) -> None:
        """Comes back when all nodes are idle."""
        if missing := missing_programs():
            raise ClusterError(f"there is no {', '.join(missing)} here", hint=INSTALL)
        self._write_files()
        until = time.monotonic() + within_s
        try:
            self._start_munge()
            self._wait(until, (self.folder / "munge.sock").exists, "munge does not come up")
            self.start_controller()
            for name in self.shape.node_names:
                self.start_node(name)
            self._wait(until, self._is_idle, "its nodes do not come up")
        except BaseException:
            self.stop()
            raise

    def start_controller(self) -> None:
        preload = preload_for_a_quick_tick(self.folder) if self._is_quick else None
        more = {"LD_PRELOAD": str(preload)} if preload is not None else {}
        self._spawn(CONTROLLER, [CONTROLLER, "-D"], more)

    def start_node(self, name: str) -> None:
        self._spawn(name, ["slurmd", "-D", "-N", name])

    def _start_munge(self) -> None:
        own = {
            "socket": "munge.sock",
            "key-file": "munge.key",
            "log-file": "log/munge.log",
            "pid-file": "munge.pid",
            "seed-file": "munge.seed",
        }
        options = [f"--{key}={self.folder / name}" for key, name in own.items()]
        self._spawn(MUNGE, [MUNGE, "--foreground", "--force", *options])

    def _write_files(self) -> None:
        if len(os.fsencode(self.folder / "munge.sock")) > _LONGEST_SOCKET:
            raise ClusterError(f"the path {self.folder} is too long", hint="use a shorter one")
        for name in ("log", "state", "spool"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.folder.chmod(0o755)  # munge refuses a folder that others may write
        key = self.folder / "munge.key"
        if not key.exists():
            key.touch(mode=0o600)
            key.write_bytes(secrets.token_bytes(128))
        for number in range(self.shape.gpus):
            gpu = self.folder / f"nvidia{number}"
            if not gpu.is_symlink():
                gpu.symlink_to("/dev/null")
        conf = self.folder / "slurm.conf"
        if not conf.exists():  # who comes back to a cluster finds its ports
            host = socket.gethostname().partition(".")[0]
            user = pwd.getpwuid(os.getuid()).pw_name
            ports = _free_ports(self.shape.nodes)
            text = slurm_conf(self.shape, self.folder, ports=ports, host=host, user=user)
            conf.write_text(text)
            (self.folder / "gres.conf").write_text(gres_conf(self.shape, self.folder))

    def _spawn(self, name: str, command: list[str], more: Mapping[str, str] | None = None) -> None:
        path = _find(command[0])
        assert path is not None
        with (self.folder / "log" / f"{name}.out").open("ab") as log:
            process = subprocess.Popen(
                [path, *command[1:]],
                env={**self.environment, **(more or {})},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                cwd=self.folder,
            )
        self._pids = {**self._pids, name: process.pid}

    def _is_idle(self) -> bool:
        try:
            told = self.run("sinfo", "-h", "-N", "-o", "%N %T", within_s=5.0)
        except ClusterError:
            return False
        states = {line.split()[0]: line.split()[1] for line in told.splitlines()}
        return len(states) == self.shape.nodes and set(states.values()) == {"idle"}

    def _wait(self, until: float, is_so: object, words: str) -> None:
        assert callable(is_so)
        while not is_so():
            if time.monotonic() > until:
                raise ClusterError(f"{words} in {self.folder}", hint="look into its `log`")
            time.sleep(_LOOK_EVERY_S)

    # -- down -----------------------------------------------------------------------------------

    def stop(self, *, within_s: float = 15.0) -> None:
        """All jobs, then the daemons, then whatever outlived them."""
        with contextlib.suppress(ClusterError):
            if self.is_alive(CONTROLLER):
                self.run("scancel", "--full", "-u", str(os.getuid()), within_s=5.0)
                until = time.monotonic() + within_s / 2
                while self.run("squeue", "-h", "-t", "R,CG") and time.monotonic() < until:
                    time.sleep(_LOOK_EVERY_S)
        for name in [*self.shape.node_names, CONTROLLER, MUNGE]:
            self.end(name, within_s=within_s)
        until = time.monotonic() + within_s
        while left := list(self._strays()):  # a killed one is there until the kernel is done
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if time.monotonic() > until:
                break
            time.sleep(_LOOK_EVERY_S)

    def end(self, name: str, *, number: int = signal.SIGTERM, within_s: float = 15.0) -> None:
        """One daemon: a node by its name, or the controller."""
        pid = self._pids.get(name)
        if pid is None or not _is_alive(pid):
            return
        os.kill(pid, number)
        until = time.monotonic() + within_s
        while _is_alive(pid):
            if time.monotonic() > until:
                os.kill(pid, signal.SIGKILL)
            time.sleep(_LOOK_EVERY_S)

    def is_alive(self, name: str) -> bool:
        pid = self._pids.get(name)
        return pid is not None and _is_alive(pid)

    def _strays(self) -> Iterator[int]:
        """Daemons and processes of jobs, by this cluster's SLURM_CONF. A shell in which somebody
        has set that variable is none: it is neither Slurm's nor in a job."""
        mark = f"SLURM_CONF={self.folder}/slurm.conf".encode()
        for folder in Path("/proc").iterdir():
            if not folder.name.isdecimal() or int(folder.name) == os.getpid():
                continue
            with contextlib.suppress(OSError):
                told = (folder / "environ").read_bytes().split(b"\0")
                is_slurms = (folder / "comm").read_text().startswith(("slurm", "munge"))
                is_of_a_job = any(word.startswith(b"SLURM_JOB_ID=") for word in told)
                if mark in told and (is_slurms or is_of_a_job):
                    yield int(folder.name)

    # -- pids -----------------------------------------------------------------------------------

    @property
    def _pids(self) -> dict[str, int]:
        try:
            return {str(k): int(v) for k, v in json.loads(self._pid_file.read_text()).items()}
        except FileNotFoundError:
            return {}

    @_pids.setter
    def _pids(self, pids: dict[str, int]) -> None:
        self._pid_file.write_text(json.dumps(pids))

    @property
    def _pid_file(self) -> Path:
        return self.folder / "pids.json"


def _is_alive(pid: int) -> bool:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)  # one of ours that has ended is a zombie until then
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def _free_ports(nodes: int) -> Ports:
    """All bound at once, so that they differ; given back a moment before daemons take them."""
    # Below what the kernel gives to clients: no connection that is made in that moment gets one.
    candidates = random.SystemRandom().sample(_PORTS, len(_PORTS))
    found: list[int] = []
    with contextlib.ExitStack() as stack:
        while len(found) < 1 + nodes:
            listener = stack.enter_context(socket.socket())
            with contextlib.suppress(OSError):
                listener.bind(("127.0.0.1", candidates.pop()))
                found.append(listener.getsockname()[1])
    return Ports(controller=found[0], nodes=tuple(found[1:]))

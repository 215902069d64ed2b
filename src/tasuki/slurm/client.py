"""Asks Slurm: one command per question, with a time limit, and nothing in the environment that
changes what is printed.

The shell around text.py. A question is asked again while the controller is busy; a request that
changes something is not: whether it was heard is for the caller to find out.
"""

from __future__ import annotations

import re
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tasuki.clock import Clock
from tasuki.errors import TasukiError
from tasuki.slurm.text import (
    NODES_FORMAT,
    QUEUE_FORMAT,
    QueuedJob,
    ShownJob,
    ShownNodes,
    ShownPartition,
    parse_job,
    parse_nodes,
    parse_partitions,
    parse_queue,
    parse_settings,
    parse_version,
)

_WITHIN_S = 20.0
_TRIES = 4
_PAUSE_S = 2.0
_BUSY = (
    *("Unable to contact slurm controller", "Socket timed out", "Zero Bytes were transmitted"),
    *("Slurm temporarily unable", "Transport endpoint", "slurm_persist_conn", "Connection refused"),
    "Unexpected message received",  # all that `scontrol requeue` says of a controller that is down
)
"""Words of a controller that is down, restarts, or has too much to do: it may pass."""
_GONE = ("Invalid job id specified", "Invalid job id")
_NOBODY = "Invalid user"
_PROGRAM = re.compile(r"^.*?\berror: ?(?=.)")
"""`sbatch: error: `; 26.05 leaves out a space now and then."""
_FORMATS = ("SQUEUE_", "SINFO_", "SACCT_", "SCONTROL_")
_OF_JOBS = ("SLURM_", "SBATCH_", "SRUN_", "SALLOC_")
_KEPT = (
    *("SLURM_CONF", "SLURM_CLUSTERS"),
    *("SBATCH_ACCOUNT", "SBATCH_QOS", "SBATCH_RESERVATION"),
)
"""Which controller is meant, and on whose account; what the spec says wins."""


class SlurmError(TasukiError):
    """Slurm cannot be asked, or says no."""


class NoSlurm(SlurmError):
    """Its commands are not here."""


class SlurmSilent(SlurmError):
    """The controller gives no answer. It may have heard what it was told."""


class SlurmRefused(SlurmError):
    """The controller said no, in its own words."""


@dataclass(frozen=True, slots=True)
class Answer:
    status: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """What it says about an error, without the program's name in front of each line."""
        lines = (self.err.strip() or self.out.strip()).splitlines()
        return "; ".join(_PROGRAM.sub("", line) for line in lines if line)


Run = Callable[[Sequence[str], Mapping[str, str], float], Answer]
"""(command, environment, seconds) → its answer. Raises FileNotFoundError, TimeoutError."""


def run_command(command: Sequence[str], environment: Mapping[str, str], within_s: float) -> Answer:
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=within_s,
            check=False,
            # The lock of a submit is inheritable: when the submit is killed, its sbatch goes on and
            # may still be heard. The next submit waits for the end of both.
            close_fds=False,
        )
    except subprocess.TimeoutExpired as error:
        raise TimeoutError(f"{command[0]} gave no answer within {within_s:g} s") from error
    return Answer(done.returncode, done.stdout, done.stderr)


class Slurm:
    """One controller, as its commands know it."""

    def __init__(
        self,
        *,
        environment: Mapping[str, str],
        clock: Clock,
        run: Run = run_command,
        tries: int = _TRIES,
        within_s: float = _WITHIN_S,
        on_wait: Callable[[str], None] = lambda _words: None,
    ) -> None:
        self._on_wait = on_wait
        self._tries, self._within_s = tries, within_s
        self._environment = plain_environment(environment)
        self._clock = clock
        self._run = run

    # -- questions ------------------------------------------------------------------------------

    def version(self) -> tuple[int, int, int]:
        return parse_version(self._ask("sinfo", "--version"))

    def partitions(self) -> list[ShownPartition]:
        return parse_partitions(self._ask("scontrol", "show", "partition"))

    def settings(self) -> dict[str, str]:
        return parse_settings(self._ask("scontrol", "show", "config"))

    def nodes(self) -> list[ShownNodes]:
        """What nodes have, partition by partition; those that are alike together."""
        return parse_nodes(self._ask("sinfo", "-h", "-e", "-o", NODES_FORMAT))

    def show(self, job: str) -> ShownJob | None:
        """None: the controller knows no such job (any more)."""
        try:
            return parse_job(self._ask("scontrol", "show", "job", job))
        except SlurmRefused as error:
            if any(words in error.message for words in _GONE):
                return None
            raise

    def queue(self, user: str) -> list[QueuedJob]:
        """All jobs of a user that have not ended, in one call."""
        return parse_queue(self._ask("squeue", "-h", "-r", "-u", user, "-o", QUEUE_FORMAT))

    # -- requests -------------------------------------------------------------------------------

    def submit(self, arguments: Sequence[str]) -> str:
        """The new job's number. Values reach Slurm as arguments, never as text of a script."""
        told = self._tell("sbatch", "--parsable", *arguments)
        return told.strip().partition(";")[0]

    def test(self, options: Sequence[str]) -> None:
        """Would such a job be taken, and could it ever run? Nothing is submitted."""
        self._ask("sbatch", "--test-only", *options, "--wrap=true")

    def cancel(self, job: str) -> None:
        self._tell("scancel", job)

    def signal(self, job: str, name: str) -> None:
        """To the processes of its steps; the job itself goes on."""
        self._tell("scancel", f"--signal={name}", job)

    def requeue(self, job: str) -> None:
        self._tell("scontrol", "requeue", job)

    def set_limit(self, job: str, limit: str) -> None:
        """`limit` as Slurm writes it: `+02:00:00` adds, `24:00:00` sets."""
        self._tell("scontrol", "update", f"jobid={job}", f"TimeLimit={limit}")

    def set_dependency(self, job: str, words: str) -> None:
        """Of a job that waits."""
        self._tell("scontrol", "update", f"JobId={job}", f"Dependency={words}")

    # -- how ------------------------------------------------------------------------------------

    def _ask(self, *command: str) -> str:
        for attempt in range(1, self._tries + 1):
            try:
                return self._tell(*command)
            except SlurmSilent as error:
                if attempt == self._tries:
                    raise
                self._on_wait(f"{error.message}; asking again")
                self._clock.sleep(_PAUSE_S * attempt)
        raise AssertionError("unreachable")

    def _tell(self, *command: str) -> str:
        try:
            answer = self._run(command, self._environment, self._within_s)
        except FileNotFoundError as error:
            raise NoSlurm(
                f"there is no `{command[0]}` here",
                hint="run this on a login node of the cluster (perhaps after `module load slurm`), "
                "or `tasuki run` to train on this machine",
            ) from error
        except TimeoutError as error:
            raise SlurmSilent(
                f"Slurm does not answer: {error}",
                hint="try again later; `sinfo` shows when. Is SLURM_CONF right?",
            ) from error
        # squeue knows no such user, and says so with status 0 and an empty queue.
        if answer.status == 0 and (answer.out or _NOBODY not in answer.err):
            return answer.out
        if any(words in answer.err + answer.out for words in _BUSY):
            raise SlurmSilent(
                f"Slurm does not answer: {answer.words}",
                hint="try again later; `sinfo` shows when. Is SLURM_CONF right?",
            )
        raise SlurmRefused(f"`{command[0]}` says: {answer.words}", hint=_advice(answer.words))


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what changes how Slurm prints, or what it makes of a job: variables of a job that we
    are in (a successor would take our restarts for its own), and a user's defaults for sbatch,
    which nobody has checked and some of which (arrays, waiting) we cannot do with. In English."""
    kept = {
        key: value
        for key, value in environment.items()
        if not key.startswith((*_FORMATS, *_OF_JOBS)) or key in _KEPT
    }
    return {**kept, "LC_ALL": "C"}


def _advice(words: str) -> str:
    """What to change in the spec, by Slurm's words. The first that fits counts: a wrong account is
    an "Invalid account or account/partition combination", and a full quota violates an
    "accounting/QOS policy"."""
    for part, hint in (
        ("policy", "you may not have so much at once: `sacctmgr show assoc user=$USER` shows it"),
        ("account", "`sacctmgr show assoc user=$USER` lists yours; write `cluster.account`"),
        ("partition", "`sinfo -s` lists the partitions; write one into `cluster.partition`"),
        ("qos", "write one of yours into `cluster.qos`"),
        ("time limit", "ask for less: `cluster.time_limit`, or another `cluster.partition`"),
        ("node configuration", "no node has that: look at `cluster.gpus`, `gpu`, `memory`, `cpus`"),
        ("more processors", "the partition has less: look at `cluster.nodes`, `cpus`"),
        ("(gres)", "`sinfo -o '%P %G'` lists what nodes have; look at `cluster.gpus`, `gpu`"),
        ("feature", "`sinfo -o '%P %f'` lists what nodes have; look at `cluster.constraint`"),
        ("configuration source", "is SLURM_CONF right? Else run this on a login node"),
        ("dependency", "the job before is gone: submit again"),
        ("authentication", "munge does not run on this machine: tell those who care for it"),
    ):
        if part in words.lower():
            return hint
    return ""

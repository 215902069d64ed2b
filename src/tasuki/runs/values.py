"""What decisions are made from, and what they are."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Cause(StrEnum):
    """Why a notice was given."""

    NONE = "none"
    PREEMPTED = "preempted"
    LIMIT = "limit"
    """The clock: ours before the scheduler's."""
    CANCELLED = "cancelled"
    INTERRUPTED = "interrupted"
    """A person pressed Ctrl-C, or whoever started the job is gone."""
    LOST = "lost"
    """A part of the job died, such as the supervisor of another node; the rest is taken down."""


class Ending(StrEnum):
    """How a phase (one stage's training, one evaluation) ended."""

    DONE = "done"
    HANDED_OVER = "handed-over"
    FAILED = "failed"
    """By its own fault, or killed: an exception, a lost rank, no answer."""
    MISTAKE = "mistake"
    """The user's recipe, data or spec: trying again changes nothing."""
    STUCK = "stuck"
    """Something a person must look at, such as: no checkpoint verifies any more."""
    SUPERSEDED = "superseded"
    """A newer attempt has taken the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StageView:
    name: str
    is_trained: bool
    wants_evaluation: bool
    is_evaluated: bool
    is_cut_off: bool = False
    """It starts from weights of another run, which was stopped before it had any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunView:
    """What a decision may know about a run."""

    stages: tuple[StageView, ...]
    until: str | None = None
    """The last stage wanted from this job; None: all."""
    trains_only: bool = False
    """Of that last stage: somebody else evaluates it."""
    is_complete: bool = False
    word: str | None = None
    """The last of cancel, hold, fail, lift."""
    failures: int = 0
    """Attempts in a row, this one excluded, that failed without a new checkpoint."""
    preemptions: int = 0
    requeue: bool | int = True


@dataclass(frozen=True, slots=True)
class Started:
    """An attempt has the run, or has just finished one phase of it."""

    cause: Cause = Cause.NONE
    """A notice that came in the meantime."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PhaseEnded:
    """A phase did not finish its work."""

    ending: Ending
    cause: Cause = Cause.NONE
    message: str = ""
    hint: str = ""
    has_progressed: bool = False
    """A checkpoint beyond the one it began from was committed in this attempt."""
    has_stepped: bool = False


Event = Started | PhaseEnded


@dataclass(frozen=True, slots=True)
class Train:
    stage: str


@dataclass(frozen=True, slots=True)
class Evaluate:
    stage: str


@dataclass(frozen=True, slots=True)
class Finish:
    """All the work is done: write the results and the marker."""


@dataclass(frozen=True, slots=True)
class HandOver:
    """This attempt ends; another goes on."""

    cause: Cause
    is_resumed: bool
    """By itself: the job may be requeued for it."""


@dataclass(frozen=True, slots=True)
class Retry:
    """Start again from the last checkpoint, as a new attempt."""

    reason: str


@dataclass(frozen=True, slots=True)
class Hold:
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Fail:
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class Leave:
    """Nothing to do here."""

    state: str
    """complete, done (the wanted stages), cancelled, held, failed, superseded, or blocked (what it
    comes after did not end well)."""


Action = Train | Evaluate | Finish | HandOver | Retry | Hold | Fail | Leave


class Verdict(StrEnum):
    """What becomes of a job when all its lanes have ended."""

    REQUEUE = "requeue"
    SUCCESSOR = "successor"
    """End, and have a smaller job go on with what is left."""
    END = "end"


@dataclass(frozen=True, slots=True, kw_only=True)
class LaneEnd:
    """How a lane, or one item of a packed job, ended; and what it held."""

    gpus: int
    action: Action
    is_continued: bool = False
    """A later job of the plan goes on with this lane's runs."""
    number: int | None = None
    """Of the item; None: the lane of a job that is not packed."""
    after: tuple[int, ...] = ()
    """Items that must end before this one can begin."""


@dataclass(frozen=True, slots=True)
class Settlement:
    verdict: Verdict
    exit_code: int
    gpus: int | None = None
    """Of the smaller job."""

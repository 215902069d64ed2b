"""What can go wrong, in words a person can act on.

Every error of ours says what happened and to what; `hint` says what to do. The command line prints
`error:` and `hint:`; a traceback is shown for our own bugs only (or with --debug).
"""

from __future__ import annotations

import traceback
from pathlib import Path

EXIT_DONE = 0
EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_RESUME_ME = 75
"""Not finished, or cancelled: the same command goes on from here."""


_OURS = str(Path(__file__).parent)
_PYTHONS = str(Path(traceback.__file__).parent)


def is_users(file: str) -> bool:
    """Is this source file the user's own: neither installed, nor Python's, nor ours? Their project
    may well lie in a folder called `tasuki`."""
    if "site-packages" in file or file.startswith("<frozen "):
        return False
    return not file.startswith((f"{_OURS}/", f"{_PYTHONS}/"))


def place_of(error: BaseException) -> str:
    """The last line of the user's own that an error came through."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users(frame.filename)]
    return f" (at {Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""


class TasukiError(Exception):
    """Base of all errors that are not bugs of ours."""

    exit_code = EXIT_FAILED

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return self.message


class UsageError(TasukiError):
    """The command line asks for something that cannot be."""

    exit_code = EXIT_USAGE


class SpecError(UsageError):
    """The spec is wrong; the message names file, line and value."""


class PlanError(TasukiError):
    """What is asked for does not fit the limits."""

    exit_code = EXIT_USAGE


class StoreError(TasukiError):
    """A file or folder of tasuki's own cannot be read or written."""


class DiskFull(StoreError):
    """No room, or no quota, for what is to be written."""


class NewerFormat(StoreError):
    """The file was written by a newer tasuki."""


class CheckpointError(TasukiError):
    """A checkpoint cannot be written or read."""


class StateNotStorable(CheckpointError):
    """The state holds something that the closed codec does not know."""


class DamagedCheckpoint(CheckpointError):
    """A checkpoint is not what its manifest says."""


class ClaimLost(TasukiError):
    """A newer attempt has taken the run: this one must not write any more."""


class RecipeError(TasukiError):
    """The user's recipe cannot be used as it is."""


class DataError(TasukiError):
    """The data cannot be read, or are not what the spec says."""


class WeightsError(TasukiError):
    """Weights that do not fit the model."""


class RunError(TasukiError):
    """A run is not in a state in which this can be done."""


class NotFinite(RunError):
    """The loss or a weight is NaN or infinite; exactness makes trying again pointless."""

    is_mistake = True

"""What an exception means for the run: tried again, failed for good, or held."""

from __future__ import annotations

from tasuki.errors import (
    CheckpointError,
    ClaimLost,
    RunError,
    StateNotStorable,
    StoreError,
    TasukiError,
)
from tasuki.runs.claims import ensure_claim_holds
from tasuki.runs.runs import RunFolder
from tasuki.runs.values import Ending


def explain_error(error: BaseException, run: RunFolder, claim: int) -> BaseException:
    """ClaimLost where a newer attempt has the run: it sweeps what this one was writing, so a rename
    may fail with ENOENT, and nothing is wrong with the run."""
    try:
        ensure_claim_holds(run, claim)
    except ClaimLost as lost:
        lost.__cause__ = error
        return lost
    except StoreError:
        pass
    return error


def ending_of(error: BaseException) -> Ending:
    match error:
        case ClaimLost():
            return Ending.SUPERSEDED
        case StateNotStorable():
            return Ending.MISTAKE
        case StoreError() | CheckpointError():
            return Ending.STUCK
        case RunError() if not getattr(error, "is_mistake", False):
            return Ending.FAILED
        case TasukiError():
            return Ending.MISTAKE
        case NameError() | AttributeError() | TypeError() | ImportError() | SyntaxError():
            return Ending.MISTAKE  # code that cannot work: trying again changes nothing
        case _:
            return Ending.FAILED

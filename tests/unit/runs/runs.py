"""What the tests of `relay` share: runs and events, as short as they can be said."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st

from tasuki.runs.values import Cause, Ending, PhaseEnded, RunView, StageView, Started

WORDS = (None, "lift", "cancel", "hold", "fail")
STOPPING = {"cancel": "cancelled", "hold": "held", "fail": "failed"}


def stage(
    name: str = "one", *, trained: bool = False, evaluates: bool = False, evaluated: bool = False
) -> StageView:
    return StageView(
        name=name, is_trained=trained, wants_evaluation=evaluates, is_evaluated=evaluated
    )


def run(*stages: StageView, **facts: Any) -> RunView:
    return RunView(stages=stages or (stage(),), **facts)


def ended(ending: Ending, cause: Cause = Cause.NONE, **facts: Any) -> PhaseEnded:
    return PhaseEnded(ending=ending, cause=cause, **facts)


STAGES = st.builds(
    StageView,
    name=st.sampled_from(["one", "two", "three"]),
    is_trained=st.booleans(),
    wants_evaluation=st.booleans(),
    is_evaluated=st.booleans(),
    is_cut_off=st.booleans(),
)
RUNS = st.builds(
    RunView,
    stages=st.lists(STAGES, max_size=3, unique_by=lambda s: s.name).map(tuple),
    until=st.sampled_from([None, "one", "two", "three", "elsewhere"]),
    is_complete=st.booleans(),
    word=st.sampled_from(WORDS),
    failures=st.integers(0, 5),
    preemptions=st.integers(0, 10),
    requeue=st.booleans() | st.integers(0, 10),
)
CAUSES = st.sampled_from(Cause)
ENDS = st.builds(
    PhaseEnded,
    ending=st.sampled_from(Ending),
    cause=CAUSES,
    message=st.text(max_size=3),
    hint=st.text(max_size=3),
    has_progressed=st.booleans(),
    has_stepped=st.booleans(),
)
EVENTS = st.builds(Started, CAUSES) | ENDS

quick = settings(max_examples=40)
"""Every transition is tried one by one besides."""

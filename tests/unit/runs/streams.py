"""Event streams as supervisors and workers write them, told in a few words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from hypothesis import strategies as st


@dataclass
class Story:
    """The events of one run, in order of claim, then time (as `read_events` gives them)."""

    events: list[dict[str, Any]] = field(default_factory=list)
    claim: int = 0

    def add(self, t: float, kind: str, *, who: str = "supervisor", **facts: Any) -> Story:
        self.events.append({"t": t, "claim": self.claim, "who": who, "kind": kind, **facts})
        return self

    def submitted(self, t: float) -> Story:
        return self.add(t, "submitted", who="run-x")

    def attempt(self, t: float) -> Story:
        self.claim += 1
        return self.add(t, "attempt-started")

    def worker(self, t: float, *, phase: str = "train", stage: str = "one") -> Story:
        return self.add(t, "worker-started", phase=phase, stage=stage)

    def progress(
        self, t: float, steps: tuple[int, int] = (0, 0), *, kind: str = "progress", **parts: float
    ) -> Story:
        return self.add(
            t, kind, who="rank0", from_step=steps[0], step=steps[1], lived_s=t, parts=parts
        )

    def worker_ended(self, t: float, ending: str = "handed-over") -> Story:
        return self.add(t, "worker-ended", ending=ending)

    def ended(self, t: float) -> Story:
        return self.add(t, "attempt-ended")

    def sorted(self) -> list[dict[str, Any]]:
        return sorted(self.events, key=lambda event: (event["claim"], event["t"]))


WORKER_PARTS = ("start", "restore", "data_wait", "step", "validate", "save", "evaluate", "handover")


def told(parts: Mapping[str, float]) -> dict[str, float]:
    """As an event gives them: rounded."""
    return {name: round(seconds, 4) for name, seconds in parts.items()}


@st.composite
def orderly_stories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Attempts one after another, workers inside them; any of them may die without a word."""
    gap = st.floats(0, 1000).map(lambda seconds: round(seconds, 3))
    story, now = Story(), draw(gap)
    if draw(st.booleans()):
        story.submitted(now)
        now += draw(gap)
    for _ in range(draw(st.integers(0, 4))):
        story.attempt(now)
        is_killed = draw(st.booleans())
        for number in range(draw(st.integers(0, 3))):
            now += draw(gap)
            phase = draw(st.sampled_from(["train", "train", "evaluate"]))
            story.worker(now, phase=phase, stage=draw(st.sampled_from(["one", "two"])))
            for _ in range(draw(st.integers(0, 2))):
                now += draw(gap)
                first = draw(st.integers(0, 50))
                parts = draw(
                    st.dictionaries(st.sampled_from(WORKER_PARTS), st.floats(0, 500), max_size=4)
                )
                steps = (first, first + draw(st.integers(0, 50)))
                kind = "progress" if phase == "train" else "time"
                story.progress(now, steps, kind=kind, **told(parts))
            now += draw(gap)
            if is_killed and number == 2:
                break
            story.worker_ended(now, draw(st.sampled_from(["done", "handed-over", "failed"])))
        now += draw(gap)
        if not is_killed:
            story.ended(now)
        now += draw(gap)
    return story.sorted()


@st.composite
def wild_stories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Anything at any time: overlapping attempts, clocks that go back, ends before beginnings."""
    story = Story()
    when = st.floats(0, 1000).map(lambda seconds: round(seconds, 3))
    for _ in range(draw(st.integers(0, 4))):
        story.attempt(draw(when))
        for _ in range(draw(st.integers(0, 5))):
            match draw(st.integers(0, 5)):
                case 0:
                    story.worker(draw(when), stage=draw(st.sampled_from(["one", "two"])))
                case 1:
                    parts = draw(
                        st.dictionaries(
                            st.sampled_from(WORKER_PARTS), st.floats(0, 500), max_size=3
                        )
                    )
                    steps = (draw(st.integers(0, 50)), draw(st.integers(0, 50)))
                    story.progress(draw(when), steps, **told(parts))
                case 2:
                    story.worker_ended(draw(when), draw(st.sampled_from(["done", "failed"])))
                case 3:
                    story.ended(draw(when))
                case 4:
                    story.add(draw(when), draw(st.sampled_from(["complete", "went-back"])))
                case _:
                    story.submitted(draw(when))
    return story.sorted()


GARBLED = (
    st.none()
    | st.booleans()
    | st.integers(-10, 2**70)
    | st.floats(allow_nan=True)
    | st.text(max_size=5)
    | st.lists(st.integers(), max_size=2)
    | st.dictionaries(st.sampled_from(["step", "start", "queue", "x"]), st.none() | st.text())
)


@st.composite
def garbled_stories(draw: st.DrawFn) -> list[dict[str, Any]]:
    """A stream in which any value but times, claims and kinds may be anything."""
    events = draw(orderly_stories() | wild_stories())
    for event in events:
        for key in [key for key in event if key not in ("t", "claim", "kind")]:
            if draw(st.integers(0, 3)) == 0:
                event[key] = draw(GARBLED)
    return events

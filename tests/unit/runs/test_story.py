"""What is told of attempts: from events and ends to values and one sentence each."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings

from tasuki.runs.story import AttemptStory, Holding, span_stages, tell_attempts
from tests.unit.runs.streams import Story, garbled_stories, orderly_stories, wild_stories


def ended(ending: str, cause: str = "none", message: str = "", at: float = 100.0) -> Holding:
    end = {"ending": ending, "cause": cause, "message": message, "at": at}
    return Holding(job="p-01", node="n1", taken_at=0.0, end=end)


def stepped(*, first: int = 0, last: int = 40, saved: int | None = 40, at: float = 0.0) -> Story:
    """One attempt of stage `one` that went from step to step."""
    story = Story().attempt(at).worker(at)
    name = f"step-{first:09d}.c1"
    story.add(at + 5, "restored", who="rank0", stage="one", step=first, checkpoint=name)
    story.add(
        at + 90, "progress", who="rank0", stage="one", step=last, total_steps=100, from_step=first
    )
    if saved is not None:
        name = f"step-{saved:09d}.c1"
        facts = {"stage": "one", "step": saved, "checkpoint": name, "total_s": 1.8}
        story.add(at + 95, "committed", who="rank0", **facts)
    return story


def tell(story: Story, *holdings: Holding) -> list[AttemptStory]:
    stages = span_stages(["one", "two"], story.events)
    return tell_attempts(story.events, dict(enumerate(holdings, start=1)), stages)


def sentence_of(story: Story, *holdings: Holding) -> str:
    return tell(story, *holdings)[0].as_json()["sentence"]


# -- sentences --------------------------------------------------------------------------------


def test_a_preemption_tells_what_was_saved_how_fast_what_was_lost_and_when_it_went_on() -> None:
    story = stepped()
    story.attempt(460.0).worker(460.0)
    story.add(470, "restored", who="rank0", stage="one", step=40, checkpoint="step-000000040.c1")
    told = tell(story, ended("handed-over", "preempted"), Holding(is_running=True))
    assert told[0].as_json()["sentence"] == (
        "preempted after 1m40s; saved step 40 in 1.8s; 0 steps lost; back after 6m"
    )
    assert told[1].as_json()["sentence"] == "still running"


def test_a_preemption_names_the_partition_only_where_it_is_known() -> None:
    known = Holding(partition="spot", end=ended("handed-over", "preempted").end, taken_at=0.0)
    assert sentence_of(stepped(), known).startswith("preempted in partition `spot` after")
    assert sentence_of(stepped(), ended("handed-over", "preempted")).startswith("preempted after")


@pytest.mark.parametrize(
    ("holding", "words"),
    [
        (ended("handed-over", "limit"), "handed over at its time limit after 1m40s; saved step 40"),
        (ended("handed-over", "cancelled"), "cancelled after 1m40s; saved step 40"),
        (ended("handed-over", "interrupted"), "interrupted (Ctrl-C"),
        (ended("handed-over", "lost"), "handed over when a part of its job was lost"),
        (ended("handed-over", "none"), "handed over by itself"),
        (ended("superseded"), "left the run to a newer attempt"),
        (
            ended("mistake", message="NameError: x\nmore"),
            "failed by a mistake after 1m40s: NameErr",
        ),
        (ended("stuck", message="disk is sick"), "could not go on after 1m40s: disk is sick"),
        (
            ended("failed", message="ValueError: boom\n  at"),
            "crashed after 1m40s: ValueError: boom",
        ),
        (
            ended("failed", message="rank 0 was killed by SIGKILL without a word (SIGKILL: …)"),
            "killed by SIGKILL after 1m40s, often because the node's memory is full",
        ),
        (ended("failed", message="its supervisor died without a word"), "died without a word"),
        (ended("failed", "preempted", "too slow"), "preempted after 1m40s, and did not end well"),
        (Holding(taken_at=0.0), "died without a word after 1m35s"),
    ],
)
def test_every_ending_has_its_own_words(holding: Holding, words: str) -> None:
    assert sentence_of(stepped(), holding).startswith(words)


def test_an_attempt_that_ended_before_its_first_step_had_nothing_to_save() -> None:
    story = Story().attempt(0).worker(0)
    assert "before its first step: nothing to save" in sentence_of(
        story, ended("handed-over", "preempted")
    )


def test_the_attempt_after_which_the_run_was_held_says_so() -> None:
    story = stepped().add(100, "hold", reason="three in a row")
    assert sentence_of(story, ended("failed", message="boom")).endswith("the run is held")


def test_the_last_attempt_of_a_finished_run_is_complete() -> None:
    story = stepped(last=100, saved=100).add(100, "complete")
    assert sentence_of(story, ended("done")) == "complete after 1m40s"


# -- steps ------------------------------------------------------------------------------------


def test_steps_that_the_next_attempt_did_again_are_lost() -> None:
    story = stepped(last=40, saved=28)
    story.attempt(200).worker(200)
    story.add(205, "restored", who="rank0", stage="one", step=28, checkpoint="step-000000028.c1")
    first = tell(story, ended("failed", message="x"), Holding(is_running=True))[0]
    assert (first.to_step, first.saved_step, first.steps_lost) == (40, 28, 12)


def test_where_the_next_attempt_fell_back_to_an_older_checkpoint_more_is_lost() -> None:
    story = stepped(last=40, saved=28)
    story.attempt(200).worker(200)
    story.add(205, "restored", who="rank0", stage="one", step=14, checkpoint="step-000000014.c1")
    first = tell(story, ended("handed-over", "limit"), Holding(is_running=True))[0]
    assert (first.saved_step, first.steps_lost) == (28, 26)


def test_a_killed_attempt_came_as_far_as_its_metrics_tell_not_only_its_last_event() -> None:
    holding = Holding(taken_at=0.0, reached=("one", 47))
    first = tell(stepped(last=40, saved=40), holding)[0]
    assert (first.to_step, first.steps_lost) == (47, 7)


def test_steps_are_counted_over_all_stages() -> None:
    story = Story().attempt(0).worker(0, stage="two")
    story.add(1, "restored", who="rank0", stage="two", step=7, checkpoint="step-000000107.c1")
    story.add(9, "progress", who="rank0", stage="two", step=9, total_steps=50, from_step=7)
    (first,) = tell(story, ended("handed-over", "limit"))
    assert (first.from_step, first.to_step) == (107, 109)
    spans = span_stages(["one", "two", "three"], story.events)
    assert [(span.first_step, span.total_steps) for span in spans] == [
        (0, None),
        (100, 50),
        (150, None),
    ]


def test_where_a_stage_begins_is_open_while_nobody_told_how_long_the_one_before_is() -> None:
    assert [span.first_step for span in span_stages(["one", "two"], [])] == [0, None]


# -- bad input --------------------------------------------------------------------------------


def test_a_clock_that_goes_backwards_makes_no_negative_times() -> None:
    story = stepped(at=1000.0).attempt(10.0)
    told = tell(story, ended("handed-over", "preempted", at=500.0), Holding(is_running=True))
    assert told[0].lasted_s is None and told[0].back_after_s is None
    assert "-" not in told[0].as_json()["sentence"].replace("step-", "")


def test_events_that_hold_nonsense_are_told_as_unknown() -> None:
    story = Story().attempt(0).worker(0)
    for step in ("40", None, -1, True, 2**70, [1]):
        story.add(1, "progress", who="rank0", stage="one", step=step, total_steps=step)
        story.add(2, "committed", who="rank0", stage={}, step=step, checkpoint=step, total_s="x")
    (first,) = tell(story, ended("failed", message="x"))
    assert (first.to_step, first.saved_step, first.save_s) == (None, None, None)


@settings(max_examples=60)
@given(orderly_stories() | wild_stories() | garbled_stories())
def test_any_stream_of_events_has_a_story(events: list[dict[str, Any]]) -> None:
    stages = span_stages(["one", "two"], events)
    for one in (told.as_json() for told in tell_attempts(events, {}, stages)):
        assert one["sentence"]
        for key in ("lasted_s", "back_after_s", "steps_lost"):
            assert one[key] is None or one[key] >= 0

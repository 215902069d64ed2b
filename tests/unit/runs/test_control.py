"""What was said about a run: in order, without a clock; the last word counts."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasuki.errors import NewerFormat
from tasuki.runs.claims import sweep_temps, take_claim
from tasuki.runs.control import Said, Word, everything_said, is_wanted, last_said, say
from tasuki.runs.runs import RunFolder
from tests.unit.runs.processes import NUM_RACERS, race


def test_words_come_back_in_the_order_in_which_they_were_said(run: RunFolder) -> None:
    assert (everything_said(run), last_said(run)) == ([], None)
    words = [Word.HOLD, Word.LIFT, Word.CANCEL, Word.LIFT, Word.FAIL] * 3
    for number, word in enumerate(words):
        say(run, word, reason=f"reason {number}", claim=number)
    assert [said.word for said in everything_said(run)] == words
    assert [said.claim for said in everything_said(run)] == list(range(15))


def test_the_last_word_counts_with_all_that_was_said(run: RunFolder) -> None:
    say(run, Word.CANCEL, reason="enough", claim=1)
    say(run, Word.HOLD, reason="3 attempts", hint="look", claim=7, facts={"by": "relay"})
    assert last_said(run) == Said(Word.HOLD, "3 attempts", "look", 7, {"by": "relay"})


@pytest.mark.parametrize("word", [Word.HOLD, Word.FAIL])
def test_a_hold_or_fail_of_an_attempt_that_has_lost_the_run_does_not_count(
    run: RunFolder, word: Word
) -> None:
    first = take_claim(run)
    say(run, word, reason="full disk", claim=first)
    assert last_said(run) is not None
    second = take_claim(run)
    assert last_said(run) is None and is_wanted(run)
    say(run, Word.CANCEL, reason="enough", claim=second)
    say(run, word, reason="late", claim=first)
    said = last_said(run)
    assert said is not None and said.word is Word.CANCEL
    say(run, word, reason="crashed", claim=second)
    said = last_said(run)
    assert said is not None and said.reason == "crashed"


def test_a_word_is_said_also_when_an_attempt_that_begins_sweeps_its_temporary_file(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    link, attempts = os.link, iter([1])

    def sweep_first(source: Path, target: Path) -> None:
        for _ in attempts:
            sweep_temps(run, claim=take_claim(run))
        link(source, target)

    monkeypatch.setattr(os, "link", sweep_first)
    say(run, Word.CANCEL, reason="enough", claim=0)
    assert [said.reason for said in everything_said(run)] == ["enough"]


def test_a_cancel_counts_whatever_attempt_begins_later(run: RunFolder) -> None:
    say(run, Word.CANCEL, reason="enough", claim=take_claim(run))
    take_claim(run)
    assert not is_wanted(run)


def test_eight_processes_that_speak_at_once_are_all_heard_once(tmp_path: Path) -> None:
    act = """
from tasuki.runs.control import Word, say
for n in range(3):
    say(RunFolder(folder / "exp1"), Word.CANCEL, reason=f"{racer}.{n}", claim=racer)
result = racer"""
    race(tmp_path, act.strip())
    said = [entry.reason for entry in everything_said(RunFolder(tmp_path / "exp1"))]
    assert sorted(said) == sorted(f"{r}.{n}" for r in range(NUM_RACERS) for n in range(3))
    for racer in range(NUM_RACERS):  # and each in its own order
        own = [reason for reason in said if reason.startswith(f"{racer}.")]
        assert own == sorted(own)


def test_leftovers_of_a_killed_speaker_are_passed_over(run: RunFolder) -> None:
    say(run, Word.HOLD, reason="", claim=1)
    (run.control / ".000002.json.99-abcd.tmp").write_text('{"wor')
    say(run, Word.LIFT, reason="", claim=1)
    assert [said.word for said in everything_said(run)] == [Word.HOLD, Word.LIFT]


def test_a_word_of_a_newer_tasuki_is_refused_by_name(run: RunFolder) -> None:
    say(run, Word.HOLD, reason="", claim=1)
    (run.control / "000002.json").write_text('{"format": 99, "word": "pause"}')
    with pytest.raises(NewerFormat, match=r"000002\.json has format 99"):
        last_said(run)

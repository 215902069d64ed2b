"""S1, S2, S7, S8: nothing executes from data, nothing leaves the folder, nothing is unbounded."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure


def test_no_evil_checkpoint_executes_is_believed_or_hangs(bench):
    done = bench.do("tests.resume.storage.evil:take_up_all")
    count, problems = done["count"], done["problems"]
    print(f"S1: {len(problems)} of {count} evil checkpoints executed, were believed or hung")
    assert problems == []
    assert count >= 60


def hostile(bench, *, every: int) -> int:
    done = bench.do("tests.resume.storage.hostile:try_all", every=every)
    count, problems = done["count"], done["problems"]
    refused = count - done["accepted"]
    print(f"S2: {count} hostile names and values, {refused} refused: {len(problems)} did harm")
    assert problems == []
    return int(count)


def test_hostile_names_and_values_neither_execute_nor_leave_the_folder(bench):
    assert hostile(bench, every=3) >= 300


@pytest.mark.long
@pytest.mark.timeout(900)
def test_every_hostile_string_in_every_place_is_harmless(bench):
    assert hostile(bench, every=1) >= 1000


def test_no_file_makes_us_use_much_memory_or_hang(bench):
    told = bench.do("tests.resume.storage.bombs:explode_all")
    slowest, most = max(t["seconds"] for t in told), max(t["mb"] for t in told)
    print(f"S7: {len(told)} resource bombs: at most {slowest:.1f} s and {most:.0f} MB")
    assert [t for t in told if t["end"] != "error"] == []
    assert [t for t in told if t["mb"] > 200] == []
    assert len(told) >= 20


def fuzz(bench, *, examples: int) -> None:
    done = bench.do("tests.resume.storage.fuzz:fuzz_all", examples=examples)
    count, problems = sum(done["counts"].values()), done["problems"]
    print(f"S8: {count} inputs into {len(done['counts'])} parsers: {len(problems)} surprises")
    assert problems == []


def test_parsers_answer_or_raise_their_one_documented_exception(bench):
    fuzz(bench, examples=15)


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_parsers_fed_for_long_raise_nothing_else(bench):
    fuzz(bench, examples=1000)

"""S1, S2, S7, S8: nothing executes from data, nothing leaves the folder, nothing is unbounded."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure


@pytest.mark.parametrize(("every", "least"), [(4, 18), pytest.param(1, 75, marks=pytest.mark.long)])
def test_no_evil_file_executes_is_believed_hangs_or_takes_much_memory(bench, every, least):
    told = bench.do("tests.resume.storage.attacks:carry_out_all", every=every)
    slowest, most = max(t["seconds"] for t in told), max(t["mb"] for t in told)
    print(f"S1, S7: {len(told)} attacks: at most {slowest:.1f} s and {most:.0f} MB")
    assert {t["name"]: t["problems"] for t in told if t["problems"]} == {}
    assert [t for t in told if t["mb"] > 200] == []
    assert len(told) >= least


def test_code_that_is_executed_from_data_and_files_outside_are_noticed(bench):
    """Or the test before would prove nothing."""
    seen = bench.do("tests.resume.storage.attacks:be_careless")
    assert {"pickle.find_class", "os.system", "exec", "open"} <= set(seen)
    assert seen.count("open") == 1


@pytest.mark.parametrize(
    ("every", "least"), [(9, 60), pytest.param(1, 600, marks=pytest.mark.long)]
)
def test_hostile_names_and_values_neither_execute_nor_leave_the_folder(bench, every, least):
    done = bench.do("tests.resume.storage.hostile:try_all", every=every)
    count, problems = done["count"], done["problems"]
    refused = count - done["accepted"]
    print(f"S2: {count} hostile names and values, {refused} refused: {len(problems)} did harm")
    assert problems == []
    assert count >= least


@pytest.mark.timeout(1800)
@pytest.mark.parametrize("examples", [4, pytest.param(1000, marks=pytest.mark.long)])
def test_parsers_answer_or_raise_their_one_documented_exception(bench, examples):
    done = bench.do("tests.resume.storage.fuzz:fuzz_all", examples=examples)
    count, problems = sum(done["counts"].values()), done["problems"]
    print(f"S8: {count} inputs into {len(done['counts'])} parsers: {len(problems)} surprises")
    assert problems == []

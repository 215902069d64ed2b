"""The suites of storage catch what they are there for (R19, the half of storage)."""

from __future__ import annotations

import pytest
from tests.faults.planted.storage import BUGS
from tests.harness.planted import ROOT, Copy, Planted


@pytest.fixture(scope="module")
def copy(tmp_path_factory) -> Copy:
    """Without a bug all those tests pass: else a failure would prove nothing."""
    made = Copy(tmp_path_factory.mktemp("planted"))
    tests = tuple(dict.fromkeys(test for bug in BUGS for test in bug.tests))
    is_green, told = made.run(tests, within_s=1800)
    assert is_green, told[-5000:]
    return made


@pytest.mark.long
@pytest.mark.timeout(2400)
@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug.name)
def test_a_planted_bug_is_caught(copy: Copy, bug: Planted):
    with copy.with_bug(bug):
        is_green, told = copy.run(bug.tests)
    assert not is_green, f"nobody noticed: {bug.name}\n{told[-3000:]}"


def test_there_are_enough_planted_bugs_and_each_is_one_change_of_the_source():
    """Cheap, and always run: a change of the source that moves a bug's place is seen at once."""
    for bug in BUGS:
        text = (ROOT / "src" / "tasuki" / bug.file).read_text()
        assert text.count(bug.old) == 1, f"{bug.name}: {bug.file} has changed; plant it anew"
        assert bug.new != bug.old and bug.tests
    assert len(BUGS) >= 14
    print(f"R19 (storage): {len(BUGS)} planted bugs")

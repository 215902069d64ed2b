"""One writer: no two attempts get the same claim, and only the highest may write."""

from __future__ import annotations

from pathlib import Path

import pytest

from tasuki.errors import ClaimLost, StoreError
from tasuki.runs import claims
from tasuki.runs.claims import (
    claim_folder,
    ensure_claim_holds,
    highest_claim,
    list_claims,
    parent_of,
    record_parent,
    sweep_temps,
    take_claim,
)
from tasuki.runs.runs import RunFolder
from tests.unit.runs.processes import NUM_RACERS, race


def test_claims_are_ordered_by_number_not_by_name(run: RunFolder) -> None:
    assert (list_claims(run), highest_claim(run)) == ([], 0)
    assert [take_claim(run) for _ in range(11)] == list(range(1, 12))
    assert list_claims(run) == list(range(1, 12))
    assert highest_claim(run) == 11


def test_foreign_names_among_the_claims_are_passed_over(run: RunFolder) -> None:
    take_claim(run)
    for name in (".nfs0001", "x", "2x", "-3", "²"):
        (run.claims / name).mkdir()
    assert list_claims(run) == [1]
    assert take_claim(run) == 2


def test_eight_processes_that_take_a_run_at_once_all_get_different_claims(tmp_path: Path) -> None:
    act = """
from tasuki.runs.claims import take_claim
result = [take_claim(RunFolder(folder / "exp1")) for _ in range(5)]"""
    claims = [claim for taken in race(tmp_path, act.strip()) for claim in taken]
    assert sorted(claims) == list(range(1, 5 * NUM_RACERS + 1))


def test_only_the_highest_claim_holds(run: RunFolder) -> None:
    first = take_claim(run)
    ensure_claim_holds(run, first)
    second = take_claim(run)
    ensure_claim_holds(run, second)
    with pytest.raises(ClaimLost) as caught:
        ensure_claim_holds(run, first)
    assert "attempt 2 has taken" in caught.value.message
    assert "attempt 1 must not write" in caught.value.message
    assert caught.value.hint


def test_a_claim_remembers_its_parent(run: RunFolder) -> None:
    claim = take_claim(run)
    assert parent_of(run, claim) == (False, None)
    record_parent(run, claim, parent="step-000000100.c0", facts={"stage": "one"})
    assert parent_of(run, claim) == (True, "step-000000100.c0")
    record_parent(run, take_claim(run), parent=None, facts={})
    assert parent_of(run, 2) == (True, None), "it started from nothing"


def test_a_parent_that_is_no_name_is_damage(run: RunFolder) -> None:
    claim = take_claim(run)
    (claim_folder(run, claim) / "parent.json").write_text('{"parent": 7}')
    with pytest.raises(StoreError, match="damaged"):
        parent_of(run, claim)


def test_a_run_folder_that_cannot_be_made_is_a_store_error(tmp_path: Path) -> None:
    (tmp_path / "exp1").touch()
    with pytest.raises(StoreError, match="ENOTDIR"):
        take_claim(RunFolder(tmp_path / "exp1"))


def test_claims_that_cannot_be_listed_are_a_store_error(run: RunFolder) -> None:
    run.path.mkdir()
    run.claims.touch()
    with pytest.raises(StoreError):
        ensure_claim_holds(run, 1)


def test_a_sweep_takes_no_file_of_an_attempt_that_begins_in_the_middle_of_it(
    run: RunFolder, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = take_claim(run)
    old, new = run.path / ".spec.json.1-a.tmp", run.path / ".spec.json.2-b.tmp"
    old.touch()

    def begin_another(run: RunFolder) -> int:
        highest = highest_claim(run)
        claim_folder(run, highest + 1).mkdir()
        new.touch()
        return highest

    with monkeypatch.context() as patch:
        patch.setattr(claims, "highest_claim", begin_another)
        sweep_temps(run, claim=first)
    assert not old.exists() and new.exists()
    third = take_claim(run)
    sweep_temps(run, claim=first)  # it has lost the run
    assert new.exists()
    sweep_temps(run, claim=third)
    assert not new.exists()

"""R5: damage is found before a weight is used, and the run falls back to the checkpoint before."""

from __future__ import annotations

import pytest

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure
DAMAGE = "tests.resume.storage.damage:damage_all"


def damage(bench, *, flips: int, cuts: int, swaps: int, seed: int) -> list[str]:
    done = bench.do(DAMAGE, flips=flips, cuts=cuts, swaps=swaps, seed=seed)
    count, missed = done["count"], done["missed"]
    kinds = f"{flips} flips, {cuts} cuts, {swaps} swapped, missing or foreign"
    print(f"R5: {kinds}: {count - len(missed)} of {count} found before use")
    return list(missed)


def test_flipped_bits_cuts_and_foreign_files_are_found_before_use(bench):
    assert damage(bench, flips=200, cuts=50, swaps=40, seed=1) == []


@pytest.mark.long
@pytest.mark.timeout(900)
def test_two_thousand_flips_five_hundred_cuts_and_a_hundred_foreign_files_are_found(bench):
    assert damage(bench, flips=2000, cuts=500, swaps=150, seed=0) == []

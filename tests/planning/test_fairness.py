"""A comparison is fair when nothing differs but what is meant to; all else is listed."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasuki.errors import UsageError
from tasuki.planning.fairness import Contender, Facts, Fairness, Row, compare_fairly
from tasuki.spec.resolved import ResolvedEvaluate, ResolvedExperiment, ResolvedStage
from tasuki.spec.values import Length

STAGE = ResolvedStage(name="s", recipe="r:R", data="d.h5", evaluate=ResolvedEvaluate(data="t.h5"))


def contender(name: str, *stages: dict[str, Any], ranks: int = 1, **facts: Any) -> Contender:
    made = tuple(
        msgspec.structs.replace(STAGE, **{"name": f"{name}{number}", **keys})
        for number, keys in enumerate(stages or ({},))
    )
    experiment = ResolvedExperiment(name=name, stages=made)
    return Contender(name=name, experiment=experiment, ranks=ranks, facts=Facts(**facts))


def keys(rows: tuple[Row, ...]) -> list[str]:
    return [row.key for row in rows]


def test_experiments_that_differ_in_params_and_recipe_alone_are_fair():
    found = compare_fairly(
        [
            contender("a", {"params": {"width": 4}}),
            contender("b", {"params": {"width": 8, "depth": 2}, "recipe": "r:Other"}),
        ]
    )
    assert found.is_fair and found.unintended == ()
    assert keys(found.intended) == ["recipe", "params.width", "params.depth"]
    assert found.intended[1].values == (4, 8)


UNINTENDED: list[tuple[str, dict[str, Any]]] = [
    ("effective_batch", {"effective_batch": 16}),
    ("seed", {"seed": 1}),
    ("precision", {"precision": "bf16"}),
    ("lr", {"lr": 0.1}),
    ("schedule", {"schedule": "cosine"}),
    ("warmup", {"warmup": 0.2}),
    ("weight_decay", {"weight_decay": 0.0}),
    ("clip", {"clip": None}),
    ("length", {"length": Length(unit="epochs", count=2)}),
    ("length", {"length": Length(unit="steps", count=1)}),
    ("data", {"data": "other.h5"}),
    ("split", {"split": "all"}),
    ("evaluate.data", {"evaluate": ResolvedEvaluate(data="u.h5")}),
    ("evaluate.split", {"evaluate": ResolvedEvaluate(data="t.h5", split="val")}),
    ("init_from", {"init_from": "./base.safetensors"}),
    ("order", {"order": "largest_first"}),
]


@pytest.mark.parametrize(("key", "change"), UNINTENDED)
def test_every_other_key_that_decides_what_is_learnt_is_listed_with_its_values(key, change):
    found = compare_fairly([contender("a"), contender("b"), contender("c", change)])
    assert not found.is_fair and key in keys(found.unintended)
    (row,) = [row for row in found.unintended if row.key == key]
    assert row.stage == 1 and row.values[0] == row.values[1] != row.values[2]
    meant = compare_fairly([contender("a"), contender("c", change)], intended=[key])
    assert meant.is_fair and keys(meant.intended) == [key]


def test_other_pieces_of_the_same_batch_do_no_harm():
    changes = {"micro_batch": 2, "gradient_checkpointing": True, "offload": True, "compile": True}
    found = compare_fairly([contender("a"), contender("b", changes)])
    assert found.is_fair and len(found.harmless) == 4
    assert "tasuki equiv" in found.harmless[0].why


def test_an_effective_batch_that_follows_from_ranks_is_worked_out():
    product = {"effective_batch": None, "micro_batch": 4, "accumulation": 2}
    same = compare_fairly(
        [contender("a", product, ranks=2), contender("b", {"effective_batch": 16})]
    )
    assert "effective_batch" not in keys(same.unintended)
    other = compare_fairly([contender("a", product, ranks=2), contender("b", product, ranks=4)])
    (row,) = other.unintended
    assert (row.key, row.values) == ("effective_batch", (16, 32))


def test_what_runs_did_is_compared_too():
    a = contender("a", code="c1", stages={"a0": {"steps": 10, "samples": 80, "data": "x"}})
    b = contender("b", code="c2", stages={"b0": {"steps": 12, "samples": 96, "data": "y"}})
    found = compare_fairly([a, b])
    assert keys(found.unintended) == ["optimizer_steps", "samples_seen", "data_fingerprint", "code"]


def test_what_follows_from_an_intended_key_is_intended_and_says_so():
    a = contender("a", stages={"a0": {"steps": 10, "samples": 80, "data": "x"}})
    b = contender("b", {"data": "e.h5"}, stages={"b0": {"steps": 12, "samples": 96, "data": "y"}})
    found = compare_fairly([a, b], intended=["data"])
    assert found.is_fair
    whys = {row.key: row.why for row in found.intended}
    assert whys["optimizer_steps"] == whys["data_fingerprint"] == "follows from `data`"


def test_chains_are_compared_by_place_and_by_their_sums():
    two = [{"length": Length(unit="epochs", count=2)}, {"length": Length(unit="epochs", count=4)}]
    a, b = contender("a", *two), contender("b", *reversed(two))
    found = compare_fairly([a, b])
    assert [(row.key, row.stage) for row in found.unintended] == [("length", 1), ("length", 2)]
    assert found.sums[0].values == (6, 6)
    short = compare_fairly([a, contender("c", two[0])])
    assert keys(short.unintended) == ["stages", "epochs_in_all"]
    assert compare_fairly([a, contender("c", two[0])], intended=["stages"]).is_fair


def test_stages_of_other_names_that_start_alike_are_alike():
    a = contender("a", {}, {"init_from": "previous"})
    b = contender("b", {}, {"init_from": "b0"})
    assert compare_fairly([a, b]).is_fair


def test_what_is_not_known_is_said_and_is_no_difference():
    known = contender("a", code="c1", stages={"a0": {"steps": 10, "samples": 80, "data": "x"}})
    found = compare_fairly([known, contender("b")])
    assert found.is_fair
    told = "; ".join(found.unknown)
    assert "optimizer steps" in told and "data" in told and "the code of b" in told


def test_one_alone_cannot_be_compared():
    with pytest.raises(UsageError, match="two experiments"):
        compare_fairly([contender("a")])


@given(st.lists(st.sampled_from(UNINTENDED), max_size=4), st.permutations(range(3)))
def test_what_differs_does_not_hang_on_the_order_of_experiments(changes, order):
    merged = {k: v for _, change in changes for k, v in change.items()}
    three = [contender("a"), contender("b", {"params": {"x": 1}}), contender("c", merged)]

    def told(found: Fairness) -> set[tuple[str, int | None]]:
        return {(row.key, row.stage) for row in found.unintended}

    straight = compare_fairly(three)
    turned = compare_fairly([three[place] for place in order])
    assert told(straight) == told(turned) and straight.is_fair is (not merged)

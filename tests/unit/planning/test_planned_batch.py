"""A plan tells the batches that will be, as far as they are known, and from where."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tasuki.commands.planned_batch import Known, plan_batch
from tasuki.estimation.facts import stage_key
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedStage
from tasuki.views.pieces import batch_of

GPU = {"ranks": 2, "device": "cuda", "gpu": "a100-40gb"}


def stage_of(**keys):
    return ResolvedStage(name="a", **{"recipe": "x:Y", "effective_batch": 64, **keys})


def by_cost(budget):
    return {"buckets": Buckets(kind="cost", cost="nodes", budget=budget)}


def foretold(*fits):
    """An outlook, as far as it is looked at."""
    names = ("micro_batch", "budget", "needs")
    return SimpleNamespace(
        fits=[SimpleNamespace(**dict(zip(names, fit, strict=True))) for fit in fits]
    )


def told(stage, **known):
    found = plan_batch(stage, Known(**{**GPU, **known}))
    return found.micro_batch, found.accumulation, found.budget, found.source


def decision(most, bucket=0, **more):
    return {"kind": "micro-batch", "stage": "a", "bucket": bucket, "most": most, **more}


def past(stage, *micro, gpu="a100-40gb", at=1.0):
    key = stage_key(stage, device="cuda", ranks=2)
    buckets = [{"size": n, "samples": 9, "micro_batch": m} for n, m in enumerate(micro)]
    return {"key": key, "gpu": gpu, "step_s": 1.0, "at": at, "buckets": buckets}


def test_what_the_spec_decides_is_given():
    assert told(stage_of(micro_batch=4)) == (4, 8, None, "given")
    assert told(stage_of(accumulation=4)) == (8, 4, None, "given")
    assert told(stage_of(**by_cost(900))) == (None, None, 900, "given")


def test_what_nobody_foretells_is_auto():
    assert told(stage_of()) == (None, None, None, "auto")
    assert told(stage_of(), outlook=foretold((32, None, None))) == (None, None, None, "auto")
    assert told(stage_of(**by_cost("auto"))) == (None, None, "auto", "auto")


def test_a_prediction_is_that_of_the_bucket_with_the_smallest_batch():
    outlook = foretold((32, None, "needs"), (5, None, "needs"))
    assert told(stage_of(), outlook=outlook) == (5, 7, None, "predicted")
    budget = foretold((None, 700, "needs"))
    assert told(stage_of(**by_cost("auto")), outlook=budget) == (None, None, 700, "predicted")


def test_history_of_the_same_work_on_that_card_goes_before_a_prediction():
    stage, outlook = stage_of(), foretold((5, None, "needs"))
    lines = [past(stage, 16, 8, at=2.0), past(stage, 4, at=1.0), past(stage, 2, gpu="v100", at=3.0)]
    assert told(stage, outlook=outlook, history=lines) == (8, 4, None, "history")
    assert told(stage_of(precision="bf16"), history=lines)[3] == "auto"


def test_what_this_run_has_decided_goes_before_everything():
    events = [decision(16), decision(12, 1), decision(3, stage="b"), decision(8)]
    assert told(stage_of(), events=events, history=[past(stage_of(), 2)])[0] == 8
    assert told(stage_of(micro_batch=16), events=[decision(8)]) == (8, 4, None, "this run")
    assert told(stage_of(**by_cost(900)), events=[decision(450)])[2:] == (450, "this run")


def test_where_memory_has_no_known_end_it_is_the_whole_share():
    assert told(stage_of(), device="cpu", gpu="cpu") == (32, 1, None, "whole share")
    assert told(stage_of(effective_batch=2)) == (1, 1, None, "whole share")
    assert told(stage_of(**by_cost("auto")), device="cpu")[2:] == ("auto", "whole share")


def test_a_command_has_batches_of_its_own():
    assert told(stage_of(recipe=None)) == (None, None, None, "command")


@pytest.mark.parametrize(
    ("known", "words"),
    [
        ((8, 4, None, "given"), "64 = 8 × 4"),
        ((8, 4, None, "predicted"), "64 = 8 × 4 (predicted)"),
        ((None, None, None, "auto"), "64, auto"),
        ((None, None, 1200, "history"), "64, budget 1,200 (history)"),
        ((None, None, "auto", "auto"), "64, budget auto"),
        ((None, None, None, "command"), ""),
    ],
)
def test_a_table_says_what_is_only_foretold(known, words):
    names = ("micro_batch", "accumulation", "budget", "batch_source")
    piece = {"kind": "train", "effective_batch": 64, **dict(zip(names, known, strict=True))}
    assert batch_of(piece) == words


def test_a_batch_of_several_ranks_is_told_with_their_number():
    known = {"micro_batch": 16, "accumulation": 1, "budget": None, "batch_source": "given"}
    piece = {"kind": "train", "effective_batch": 32, **known}
    assert batch_of(piece, ranks=2) == "32 = 16 × 1 × 2"

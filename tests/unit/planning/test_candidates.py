"""The ways to do a step that batch fitting chooses from: all of one effective batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasuki.commands.candidates import Question, find_candidates
from tasuki.commands.predict import Foretold
from tasuki.estimation.facts import stage_key
from tasuki.estimation.fitted import Card, fit_bucket, put_bucket
from tasuki.estimation.gpus import TABLE
from tasuki.estimation.probes import read_probe
from tasuki.planning.fit import choose
from tasuki.spec.resolved import ResolvedStage
from tests.unit.estimation.probe_values import TERMS, small_value

MIB = 1 << 20
SIZE = 16


def foretold(*sizes: int, work: float = 1.0) -> Foretold:
    """Samples of 20 MiB and 1 TFLOP; `work` as many times the operations."""
    flops = [0] * len(TERMS)
    moved = list(flops)
    flops[TERMS.index([1, 0])], moved[TERMS.index([0, 0])] = work * 1e12, 1e9
    probe = read_probe(small_value(scale=20 * MIB // 116, flops=flops, moved=moved, ops=100))
    buckets = [
        {"size": size, "largest": size, "samples": 160, "steps": 10, "sample_bytes": 1}
        for size in sizes or (SIZE,)
    ]
    return Foretold(facts={"total_steps": 10 * len(buckets), "buckets": buckets}, probe=probe)


def question(stage: ResolvedStage, *, memory=2048, numbers=(1,), history=(), sizes=()) -> Question:
    card = Card(gpu=TABLE["a100-40gb"], capacity=memory * MIB)
    both = {False: foretold(*sizes), True: foretold(*sizes, work=4 / 3)}
    return Question(stage=stage, card=card, numbers=numbers, foretold=both, history=history)


def stage_of(**keys) -> ResolvedStage:
    return ResolvedStage(name="a", recipe="r:R", **{"effective_batch": 16, **keys})


def micros(found, *, again=False) -> list[tuple[int, int]]:
    return [
        (one.micro_batch, one.accumulation)
        for one in found.candidates
        if one.gradient_checkpointing is again
    ]


def test_a_share_is_cut_into_even_parts_and_what_fits_best():
    found = find_candidates(question(stage_of(gradient_checkpointing="auto")), {})
    assert micros(found) == [(16, 1), (8, 2), (4, 4), (2, 8), (1, 16)]
    one = find_candidates(question(stage_of(effective_batch=11)), {})
    assert set(micros(one)) >= {(11, 1), (6, 2), (3, 4), (2, 6), (1, 11)}


def test_uneven_parts_are_timed_by_the_samples_that_there_are():
    bucket, card = foretold().facts["buckets"][0], question(stage_of()).card
    # Only the computation: each micro-batch also has launches and reads the weights.
    probe = foretold().probe
    probe = replace(probe, ops=0, moved=tuple(0.0 for _ in probe.moved))
    uneven = put_bucket(stage_of(), bucket, probe, card, micro=6, share=16)
    assert uneven.accumulation == 3
    whole = put_bucket(stage_of(), bucket, probe, card, micro=16, share=16)
    assert uneven.step.seconds == pytest.approx(whole.step.seconds)


@pytest.mark.parametrize("keys", [{"micro_batch": 2}, {"accumulation": 4}, {}])
def test_a_bucket_that_is_put_is_the_one_that_is_fitted(keys):
    stage, one = stage_of(**keys), foretold()
    bucket, card = one.facts["buckets"][0], question(stage).card
    fitted = fit_bucket(stage, bucket, one.probe, card)
    put = put_bucket(stage, bucket, one.probe, card, micro=fitted.micro_batch, share=16)
    assert (put.needs, put.step, put.accumulation) == (
        fitted.needs,
        fitted.step,
        fitted.accumulation,
    )


def test_what_the_spec_gives_is_allowed_alone():
    given_ways = question(stage_of(micro_batch=3, gradient_checkpointing=True))
    found = find_candidates(given_ways, {}).candidates
    [own] = [one for one in found if not one.against]
    assert (own.micro_batch, own.gradient_checkpointing) == (3, True)
    assert {one.against for one in found} == {
        "",
        "`micro_batch: 3`",
        "`gradient_checkpointing: true`",
    }


def test_each_bucket_takes_what_it_can():
    found = find_candidates(question(stage_of(), memory=1600, sizes=(16, 256)), {})
    fitting = [one for one in found.candidates if one.fits(1600 * MIB)]
    assert fitting and all(one.is_within for one in found.candidates)
    assert max(one.micro_batch for one in fitting) < 16


def test_more_ranks_have_smaller_shares_and_an_exchange():
    found = find_candidates(question(stage_of(chooses_gpus=True), numbers=(1, 2, 4)), {})
    best = {n: max(c.micro_batch for c in found.candidates if c.gpus == n) for n in (1, 2, 4)}
    assert best == {1: 16, 2: 8, 4: 4}
    whole = {c.gpus: c.step_s for c in found.candidates if c.accumulation == 1}
    assert whole[1] > whole[2] > whole[4] > whole[1] / 4


def test_history_of_one_way_puts_all_of_them_right():
    stage = stage_of(gradient_checkpointing=False)
    asked = question(stage)
    bare = {c: c.step_s for c in find_candidates(asked, {}).candidates}
    [usual] = [s for c, s in bare.items() if c.accumulation == 1 and not c.recomputes]
    line = {
        "format": 1, "kind": "stage", "at": 1.0, "run": "old", "stage": "a", "ranks": 1,
        "device": "cuda", "gpu": "a100-40gb", "step_s": 3 * usual, "steps_per_epoch": 10,
        "steps": 10,
        "effective_batch": 16, "samples": 160, "key": stage_key(stage, device="cuda", ranks=1),
    }  # fmt: skip
    found = find_candidates(question(stage, history=[line]), {})
    assert found.from_history == {(False, 1)}
    for before, after in zip(bare.values(), found.candidates, strict=True):
        assert after.step_s == pytest.approx(3 * before)


@settings(max_examples=25)
@given(
    batch=st.integers(1, 40),
    ranks=st.integers(1, 5),
    factor=st.sampled_from([0.3, 0.5, 1.0]),
    memory=st.integers(700, 2500),
    more=st.integers(0, 2000),
)
def test_every_way_does_the_whole_step_and_more_memory_is_never_slower(
    batch, ranks, factor, memory, more
):
    stage = stage_of(effective_batch=batch, safety_factor=factor, gradient_checkpointing="auto")
    share = -(-batch // ranks)
    chosen = []
    for capacity in (memory, memory + more):
        asked = question(stage, memory=capacity, numbers=(ranks,))
        found = find_candidates(asked, {}).candidates
        for one in found:
            assert one.micro_batch * (one.accumulation - 1) < share
            assert share <= one.micro_batch * one.accumulation
        chosen.append(choose(found, capacity=capacity * MIB))
    if chosen[0].does_fit:
        assert chosen[1].does_fit
        assert chosen[1].chosen.step_s <= chosen[0].chosen.step_s * (1 + 1e-9)

"""From figures to advice: each sentence where it is due, and none where all is well."""

from __future__ import annotations

from typing import Any

import pytest

from tasuki.train.guidance import Figures, Loading, Losses, advise
from tasuki.train.turns import Turns, read_turns

GOOD = {"data wait": 0.02, "forward": 0.35, "backward": 0.5, "optimizer": 0.1, "other": 0.03}
SLOW = GOOD | {"data wait": 0.38}


def figures(**more: Any) -> Figures:
    values: dict[str, Any] = {
        "shares": GOOD,
        "stage_shares": {"save": 0.01, "validate": 0.05},
        "busy": 0.95,
        "peak_bytes": 70 << 30,
        "total_bytes": 80 << 30,
        "micro_batch": 8,
        "accumulation": 4,
        "effective_batch": 32,
        "losses": Losses(first=2.0, lowest=0.5, last=0.6, steps=1000),
    }
    return Figures(**values | more)


def advice(**more: Any) -> str:
    """The one sentence."""
    (sentence,) = advise(figures(**more))
    return sentence


def test_nothing_is_said_where_all_is_well():
    assert advise(figures()) == []
    assert advise(Figures(shares={}, busy=None)) == []
    assert advise(figures(busy=None, peak_bytes=None, total_bytes=None)) == [], "no GPU"


@pytest.mark.parametrize(
    ("loading", "words"),
    [
        (Loading(is_own=True), "give the recipe's own loader more workers (`num_workers`)"),
        (Loading(is_auto=False, workers=1, spare_cpus=4), "or more `workers` than 1"),
        (
            Loading(is_auto=False, workers=2, spare_cpus=2, cpus=8),
            "more `workers` than 2 and more `cluster.cpus`: each rank has 8 CPUs",
        ),
        (
            Loading(workers=2, spare_cpus=2, cpus=8),
            "all 8 CPUs of a rank are in use, 2 of them by loader workers; a larger `cluster.cpus`",
        ),
        (
            Loading(cpus=1),
            "off because each rank has 1 CPU; with 2 (`cluster.cpus`) and `loader: {workers: 1}`",
        ),
        (Loading(workers=1, spare_cpus=4, is_settled=False), "still trying more workers"),
        (
            Loading(workers=1, spare_cpus=4, reason="2 workers × 2 ahead did not help"),
            "do not help (2 workers × 2 ahead did not help): make samples cheaper to fetch",
        ),
    ],
)
def test_a_wait_for_data_names_its_share_and_what_gives_more_workers(loading, words):
    told = advice(shares=SLOW, loading=loading, busy=None)
    assert told.startswith("data wait is 38% of a step: ") and words in told


def test_a_process_without_its_cpus_is_told_that_first_and_nothing_about_shares():
    losses = Losses(skipped=1)
    told = advise(figures(shares=SLOW, cpu_share=0.25, threads=2, busy=0.3, losses=losses))
    assert told[0] == (
        "this process got 25% of the CPU time it could use: others use this machine, and shares "
        "mean little; measure again when it is quiet, or with `cluster: {cpus: 1}`"
    )
    assert len(told) == 2 and told[1].startswith("training is unstable")  # no matter of shares
    assert "cluster" not in advice(cpu_share=0.25, threads=1)
    assert advise(figures(cpu_share=0.9)) == []


def test_a_wait_of_less_than_a_millisecond_is_not_the_loaders():
    told = advice(shares=SLOW, step_s=0.002, busy=None, accumulation=1)
    assert told.startswith("a step takes only 2 ms, of it data wait 0.76 ms: a larger `effective_")
    assert "changes the training" in told and told.endswith("; or nothing")
    assert "`micro_batch` than 8" in advice(shares=SLOW, step_s=0.002, busy=None)
    assert advice(shares=SLOW, step_s=0.02, busy=None).startswith("data wait is 38% of a step")


def test_an_idle_gpu_is_told_only_beyond_the_wait_for_data():
    told = advice(busy=0.58)
    assert told.startswith("the GPU idles 40% of the time although data are there: ")
    assert "larger `micro_batch` than 8" in told and "`compile: true`" in told
    waiting = advise(figures(shares=SLOW, busy=0.6))
    assert len(waiting) == 1 and waiting[0].startswith("data wait")
    assert "micro_batch" not in advice(busy=0.58, accumulation=1)
    assert "compile" not in advice(busy=0.58, is_compiled=True)


def test_an_optimizer_that_takes_long():
    shares = GOOD | {"optimizer": 0.3}
    told = advice(shares=shares, is_fused=False)
    assert told.startswith(
        "the optimizer is 30% of a step: give the recipe's optimizer `fused=True`; or a larger"
    )
    assert "fused" not in advice(shares=shares) and "`effective_batch` than 32" in told
    assert "changes the training" in told


def test_saves_and_validation_that_take_long_in_the_whole_stage():
    told = advice(stage_shares={"save": 0.08})
    assert "stands still for saves 8% of the time" in told and "`save: {every: auto}`" in told
    told = advice(stage_shares={"save": 0.08}, is_save_auto=True)
    assert "although `save: {every: auto}` chose when" in told and "write" not in told
    told = advice(stage_shares={"validate": 0.25})
    assert told.startswith("validation takes 25% of the time: validate less often")


def test_memory_that_is_nearly_full_or_mostly_free():
    told = advice(peak_bytes=76 << 30)
    assert "nearly full (95% at the peak)" in told and "`micro_batch: 4`" in told
    assert "effective batch stays 32" in told and "`gradient_checkpointing: true`" in told
    told = advice(peak_bytes=76 << 30, micro_batch=1, is_checkpointed=True)
    assert "micro_batch" not in told and "gradient_checkpointing" not in told
    told = advice(peak_bytes=32 << 30)
    assert told.startswith("the peak leaves 60% of the GPU's memory free: a larger `micro_batch`")
    told = advice(peak_bytes=32 << 30, is_checkpointed=True)
    assert "`gradient_checkpointing: false` is quicker" in told
    assert advise(figures(peak_bytes=32 << 30, accumulation=1)) == []  # nothing would use it


@pytest.mark.parametrize(
    ("losses", "words"),
    [
        (Losses(skipped=3, lr=0.1), "3 steps were not finite and left out"),
        (Losses(skipped=1, clip=None), "1 step was not finite"),
        (Losses(first=2.0, lowest=0.2, last=1.5), "the loss rose from 0.2 to 1.5"),
    ],
)
def test_training_that_is_unstable(losses, words):
    told = advice(losses=losses)
    assert words in told and f"lower `lr` ({losses.lr:g} now), a longer `warmup`" in told
    assert ("or `clip: 1.0`" if losses.clip is None else "a smaller `clip` than 1") in told


@pytest.mark.parametrize(
    "losses",
    [
        Losses(first=2.0, lowest=0.01, last=0.04),  # noise at the bottom
        Losses(first=-1.0, lowest=-9.0, last=-3.0),  # ratios mean nothing
        Losses(overflows=15, steps=1000, first=1.0, lowest=0.5, last=0.5),  # the scale's search
    ],
)
def test_noise_is_not_called_unstable(losses):
    assert advise(figures(losses=losses)) == []


def test_gradients_that_overflow_again_and_again():
    told = advice(losses=Losses(overflows=60, steps=1000))
    assert told == (
        "gradients overflowed in 60 of 1000 steps, which were left out: write `precision: bf16`"
    )


def test_the_most_urgent_comes_first():
    losses = Losses(skipped=1)
    told = advise(figures(shares=SLOW, losses=losses, peak_bytes=76 << 30, busy=0.6))
    assert [words.split()[0] for words in told] == ["training", "the", "data"]


def test_what_the_kernel_counts_of_threads_is_added_up(tmp_path):
    for name, words in (("1", "3000000000 500000000 9"), ("2", "1000000000 3500000000 4")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "schedstat").write_text(words)
    turns = read_turns(tmp_path)
    assert turns == Turns(ran_s=4.0, waited_s=4.0) and turns.share == 0.5
    assert turns.since(Turns(ran_s=3.0, waited_s=1.0)).share == 0.25
    assert read_turns(tmp_path / "nowhere") is None

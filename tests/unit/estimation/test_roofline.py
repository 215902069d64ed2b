"""How long a step takes by data sheet, how sure that is, and what past runs teach."""

from __future__ import annotations

import pytest

from tasuki.estimation.gpus import TABLE, find_gpu
from tasuki.estimation.probes import read_probe
from tasuki.estimation.roofline import (
    LAUNCH_CPU_S,
    LAUNCH_S,
    LEAST_ERROR,
    START_ERROR,
    START_FACTOR,
    Calibration,
    calibrate,
    probed_step_time,
    step_time,
)
from tasuki.spec.site import SiteGpu
from tests.unit.estimation.probe_values import small_value

A100 = TABLE["a100-40gb"]
DATA_SHEET = Calibration(factor=1.0, error=0.0, runs=1)


def test_a_step_takes_its_compute_and_its_traffic():
    found = step_time(
        flops=312e12, moved=1555e9, ops=10, gpu=A100, precision="bf16", calibration=DATA_SHEET
    )
    assert found is not None
    assert found.seconds == pytest.approx(2.0)
    slower = step_time(
        flops=312e12, moved=0, ops=0, gpu=A100, precision="fp32", calibration=DATA_SHEET
    )
    assert slower is not None and slower.seconds == pytest.approx(16.0)


def test_many_small_operations_are_bound_by_their_launches():
    found = step_time(flops=1e9, moved=1e6, ops=10_000, gpu=A100, precision="bf16")
    assert found is not None
    assert found.seconds == pytest.approx(10_000 * LAUNCH_S * START_FACTOR)
    work = {"flops": 5e9, "moved": 1e9, "gpu": TABLE["cpu"], "precision": "fp32"}
    cpu, without = step_time(ops=1000, **work), step_time(ops=0, **work)
    assert cpu is not None and without is not None
    assert cpu.seconds - without.seconds == pytest.approx(1000 * LAUNCH_CPU_S * START_FACTOR)


def test_nothing_is_known_before_a_run_but_half_and_half_again():
    found = step_time(flops=1e15, moved=1e9, ops=1, gpu=A100, precision="bf16")
    assert found is not None
    assert found.error == START_ERROR == 0.5
    assert 1 - found.error < 1 / START_FACTOR, "the data sheet's time is within the bar"
    assert found.source == "roofline of a100-40gb (data sheet, bf16) × 1.50, assumed"


def test_a_precision_that_the_card_lacks_is_named():
    found = step_time(flops=14e12, moved=0, ops=0, gpu=TABLE["v100-16gb"], precision="bf16")
    assert found is not None and found.seconds == pytest.approx(START_FACTOR)
    assert "bf16 in fp32 units" in found.source


def test_a_card_of_which_too_little_is_known_has_no_time():
    gpu = find_gpu("x1", site={"x1": SiteGpu(memory_bytes=2**34)}).gpu
    assert step_time(flops=1, moved=1, ops=1, gpu=gpu, precision="fp32") is None


def test_a_probe_gives_the_work_of_any_batch():
    value = small_value(flops=[0, 1e12, 0, 0, 0, 0], moved=[0, 0, 0, 1e6, 0, 0], ops=100)
    probe = read_probe(value)
    one = probed_step_time(probe, batch=8, size=64, gpu=A100, precision="bf16")
    two = probed_step_time(probe, batch=8, size=64, accumulation=2, gpu=A100, precision="bf16")
    assert one is not None and two is not None
    work_s = 8e12 / 312e12 + 8 * 64 * 1e6 / 1555e9
    assert one.seconds == pytest.approx(work_s * START_FACTOR)
    assert two.seconds == pytest.approx(2 * one.seconds)
    both = read_probe({**value, "micro_batches": 2})
    again = probed_step_time(both, batch=8, size=64, accumulation=4, gpu=A100, precision="bf16")
    assert again == two, "two micro-batches were traced: four are twice that"


def test_one_past_run_tells_the_factor_and_narrows_the_bar():
    learnt = calibrate([(2.0, 3.6)])
    assert (learnt.factor, learnt.runs) == (1.8, 1)
    assert learnt.error == pytest.approx(0.3)
    assert learnt.source == "× 1.80, learnt from 1 run"
    assert calibrate([]) == Calibration()
    assert calibrate([(0.0, 1.0)]) == Calibration(), "nothing to compare with"


def test_more_runs_narrow_it_further_unless_they_lie_apart():
    alike = calibrate([(1.0, 1.8)] * 30)
    assert alike.error == pytest.approx(LEAST_ERROR, abs=0.02)
    apart = calibrate([(1.0, 1.0), (1.0, 2.0), (1.0, 3.0)])
    assert (apart.factor, apart.error) == (2.0, 0.5)
    one_wild = calibrate([(1.0, 1.8)] * 19 + [(1.0, 20.0)])
    assert one_wild.error < 0.15, "a run beside somebody else's job does not count"

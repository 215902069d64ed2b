"""Where no step can be traced, a few real ones of small batches tell the peak of large ones."""

from __future__ import annotations

import resource
from functools import partial
from itertools import count

import numpy as np
import pytest
import torch
from tests.train.tuned_models import Clouds
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence

from tasuki.estimation.gpus import find_gpu
from tasuki.estimation.memory import MARGIN_INEXACT, beside_on, needs_of
from tasuki.estimation.probes import read_probe
from tasuki.memory import child
from tasuki.memory.batches import Batches
from tasuki.memory.bounded import Untraceable
from tasuki.memory.by_cost import probe_by_cost, worst_of
from tasuki.memory.fit import fit
from tasuki.memory.measured import Bounded, RealSteps, Unmeasured, of_peak
from tasuki.memory.steps import opened
from tasuki.spec.buckets import Buckets
from tasuki.spec.resolved import ResolvedStage
from tasuki.subprocesses import Progress
from tasuki.train.data import prepare_data

pytestmark = pytest.mark.timeout(900)  # the first step loads the compiler: seconds, or minutes
CAUSE = Untraceable("some_op", "it reads numbers")
STAGE = ResolvedStage(name="a", recipe="x:Y", data="z")


GIB = 1 << 30
TIMELESS = Bounded(clock=lambda: 0.0)
"""On a busy machine a minute may be too short."""


def report(_: Progress) -> None:
    pass


class Packed:
    """Sequences, packed: their lengths are numbers."""

    def build_model(self):
        return nn.LSTM(8, 16, batch_first=True)

    def example_batch(self, size, batch):
        return torch.zeros(batch, size, 8)

    def loss(self, model, batch):
        lengths = torch.full((len(batch),), batch.shape[1])
        packed, _ = model(pack_padded_sequence(batch, lengths, batch_first=True))
        return packed.data.square().mean()


class Leaving(Packed):
    """Code that leaves torch."""

    def build_model(self):
        return nn.Linear(8, 64)

    def loss(self, model, batch):
        found = model(batch).square()
        return found.mean() * float(np.log1p(found.detach().numpy().sum()))


class Huge(Leaving):
    def loss(self, model, batch):
        return super().loss(model, batch) + torch.zeros(4 * GIB).sum()


class Lacking(Leaving):
    def loss(self, model, batch):
        raise NotImplementedError("no kernel for a CPU")


class LeavingClouds(Clouds):
    def loss(self, model, batch):
        return super().loss(model, batch) + float(batch["x"].numpy().sum())


def steps_of(recipe, *, device="cpu", **bounds):
    bounded = Bounded(**bounds) if bounds else TIMELESS
    return RealSteps(
        recipe=recipe,
        stage=STAGE,
        device=device,
        ranks=1,
        accumulates=False,
        progress=report,
        bounded=bounded,
    )


def measured(recipe, sizes=(12,), **how):
    plain = steps_of(recipe, **how).fitted(Batches(recipe, STAGE, sizes=sizes), CAUSE)
    return read_probe({**plain, "key": "k", "torch": "t"})


def real_peak(recipe, data, batch):
    with opened(recipe, STAGE, device="cpu", is_fake=False) as traced:
        for _ in range(2):
            trace = traced.trace(data, batch=batch)
    return trace.peak


def test_the_peak_of_a_larger_batch_follows_from_measured_steps():
    recipe = Packed()
    probe = measured(recipe)
    truth = real_peak(recipe, recipe.example_batch(12, 64), 64)
    assert truth <= probe.peak(batch=64, size=12) <= 1.005 * truth
    assert "`some_op` cannot be traced (it reads numbers): measured instead" in probe.notes
    assert "measured by real steps on this CPU" in probe.notes


def test_every_size_is_told_where_measured_steps_go_alike():
    recipe = Leaving()
    probe = measured(recipe, sizes=(4, 8, 20))
    truth = real_peak(recipe, recipe.example_batch(8, 64), 64)
    assert probe.is_exact and probe.peak(batch=64, size=8) == pytest.approx(truth, rel=5e-3)


def test_steps_on_a_cpu_that_stand_for_a_gpu_say_so_and_keep_more_room():
    probe = measured(Leaving(), device="cuda")
    assert any("as no GPU is here; one keeps other tensors" in note for note in probe.notes)
    card = needs_of(probe, batch=8, size=12, beside=beside_on(find_gpu("a100-40gb").gpu, ranks=1))
    assert card.sources["tensors"].startswith("measured by real steps on a CPU, fitted")
    assert f"{MARGIN_INEXACT:.0%}" in card.sources["margin"] and "stand for" in card.margin.source
    here = needs_of(probe, batch=8, size=12, beside=beside_on(find_gpu("cpu").gpu, ranks=1))
    assert "stand for" not in here.margin.source


def test_when_the_time_is_over_what_was_seen_until_then_counts():
    """Two of four batches are seen: a line; none: no figure."""
    ticks = count()
    two = steps_of(Leaving(), most_s=1e9, clock=lambda: next(ticks))
    two.watch([((b, 12), lambda b=b: Leaving().example_batch(12, b)) for b in (2, 3)])
    needed = next(ticks) + 5
    ticks = count()
    probe = measured(Leaving(), most_s=needed, clock=lambda: next(ticks))
    assert any("measured with 2 of 4 batches: after" in note for note in probe.notes)
    truth = real_peak(Leaving(), Leaving().example_batch(12, 64), 64)
    assert probe.peak(batch=64, size=12) == pytest.approx(truth, rel=5e-3)
    ticks = count()
    with pytest.raises(Unmeasured, match="the time for real steps was over"):
        measured(Leaving(), most_s=5, clock=lambda: next(ticks))


def test_a_real_step_that_fails_is_told_in_words():
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(Unmeasured, match=r"fails in a real step: .*no kernel for a CPU"):
        measured(Lacking())
    with pytest.raises(Unmeasured, match="allocate"):
        measured(Huge(), most_bytes=GIB, clock=TIMELESS.clock)
    assert resource.getrlimit(resource.RLIMIT_DATA) == before


def test_a_budget_of_costs_is_measured_with_small_micro_batches(monkeypatch):
    monkeypatch.setattr(child, "RealSteps", partial(RealSteps, bounded=TIMELESS))
    buckets = Buckets(kind="cost", cost="nodes+edges", budget="auto")
    recipe = LeavingClouds()
    stage = ResolvedStage(name="a", recipe="x:Y", data="z", effective_batch=300, buckets=buckets)
    data = prepare_data(recipe, stage, rank=0, world=1)
    order = {"folder": ".", "device": "cpu", "ranks": 1}
    found = probe_by_cost(recipe, stage, data, order, report)
    assert found["probe"] is found["small"] is None and found["untraced"]["reason"]
    found = probe_by_cost(recipe, stage, data, {**order, "may_measure": True}, report)
    worst = worst_of(data)
    for name, fill in (("probe", worst.of_large), ("small", worst.of_small)):
        probe = read_probe(found[name])
        assert probe.unit == "cost" and probe.measured_on == "cpu"
        samples, cost = fill(12 * worst.dearest)
        batch = recipe.collate([data.dataset[i] for i in samples])
        truth = real_peak(recipe, batch, cost)
        assert 0.98 * truth <= probe.peak(batch=cost, size=0) <= 1.1 * truth


def test_of_a_gpu_the_peaks_are_known_and_what_stays():
    peaks = {2: 3000, 3: 4000, 5: 6000, 7: 8000}
    traces = [
        of_peak((batch, 0), n, peak=peak, weights=500, states=500)
        for n, (batch, peak) in enumerate(peaks.items())
    ]
    assert [trace.peak for trace in traces] == list(peaks.values())
    plain = fit(traces[:3], held_back=traces[3]).to_plain()
    probe = read_probe({**plain, "key": "k", "torch": "t", "measured_on": "cuda"})
    assert not probe.is_exact and probe.peak(batch=20, size=0) == 21000
    assert probe.kept_of("weights", batch=20, size=0) == 500
    assert needs_of(
        probe, batch=20, beside=beside_on(find_gpu("a100-40gb").gpu, ranks=1)
    ).tensors.source.startswith("measured by real steps on a GPU: a curve")

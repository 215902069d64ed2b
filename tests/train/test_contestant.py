"""Contestants of `tune`: side by side in one process, and none sees the other."""

from __future__ import annotations

import os
import time
from pathlib import Path

import msgspec
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from tasuki.answers import Told
from tasuki.data.fetch import host_random_states, seed_everything
from tasuki.data.foreign import ForeignOrder
from tasuki.spec.resolved import ResolvedLoader, ResolvedStage, to_plain
from tasuki.train import tune
from tasuki.train.contestant import Contestant, Ground, first_steps
from tasuki.train.data import prepare_data

STAGE = ResolvedStage(name="a", recipe="r:R", effective_batch=8, seed=3)


class Recipe:
    """Counts its calls, as some do, and draws random numbers."""

    def __init__(self) -> None:
        self.calls = 0

    def build_model(self):
        return nn.Sequential(nn.Linear(4, 16), nn.Dropout(0.3), nn.Linear(16, 1))

    def build_dataset(self, source, split):
        x = torch.randn(40, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(x, x.sum(1, keepdim=True))

    def loss(self, model, batch):
        self.calls += 1
        x, y = batch
        return nn.functional.mse_loss(model(x), y) + 0.001 * self.calls


class Batches(Recipe):
    def build_dataset(self, source, split):
        return DataLoader(super().build_dataset(source, split), batch_size=4, shuffle=True)


class Resting(Recipe):
    class Samples:
        def __len__(self):
            return 16

        def __getitem__(self, index):
            time.sleep(0.001)
            return torch.ones(4), torch.ones(1)

    def build_dataset(self, source, split):
        return self.Samples()


@pytest.fixture(autouse=True)
def kept_settings():
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    torch.use_deterministic_algorithms(False)
    torch.backends.cudnn.deterministic = False


def lay_ground(recipe: Recipe) -> Ground:
    seed_everything(5)
    data = prepare_data(recipe, STAGE, rank=0, world=1)
    is_foreign = isinstance(data.order, ForeignOrder)
    return Ground(
        recipe=recipe,
        data=data,
        device=torch.device("cpu"),
        total_steps=10,
        ranks=1,
        cpus=1,
        random=host_random_states(),
        replayed=first_steps(data) if is_foreign else (),
    )


def test_where_steps_outlast_the_budget_by_far_the_rest_is_not_begun_and_a_budget_named(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(tune, "most_s", lambda _: 0.0)
    order = {"folder": str(tmp_path), "ranks": 1, "cpus": 1, "device": "cpu", "budget_s": 0.01}
    order |= {"only": ["precision"], "asked": [], "is_dry": False}
    stage = msgspec.structs.replace(STAGE, recipe=f"{__name__}:Recipe")
    with Path(os.devnull).open("wb") as nowhere:
        told = Told(nowhere.fileno())
        answer = tune.work(order | {"stage": to_plain(stage)}, told)
    assert answer["control"]["gain"] > 0
    tried = [row["verdict"] for row in answer["rows"] if "not tried" not in row["verdict"]]
    assert tried and set(tried) == {"no time left: try --budget 1m"}
    assert answer["keep"] == {} and answer["together"] is None


def test_a_row_that_has_begun_ends_with_the_time_and_starts_do_not_count(tmp_path, monkeypatch):
    """The third look at the clock is inside the first row."""
    order = {"folder": str(tmp_path), "ranks": 1, "cpus": 1, "device": "cpu", "budget_s": 0.01}
    order |= {"only": ["precision"], "asked": [], "is_dry": False}
    stage = msgspec.structs.replace(STAGE, recipe=f"{__name__}:Recipe")
    with Path(os.devnull).open("wb") as nowhere:
        tuning = tune._Tuning(stage, order, Told(nowhere.fileno()))
        looks = iter([False, False])
        monkeypatch.setattr(tuning, "_is_over", lambda: next(looks, True))
        answer = tuning.measure()
    [row] = [row for row in answer["rows"] if "not tried" not in row["verdict"]]
    assert row["verdict"].startswith("no time left") and "pairs" not in row
    assert tuning._starting_s > answer["control"]["start_s"] > 0
    assert tuning._measuring_s() + tuning._starting_s <= time.monotonic() - tuning._began


@pytest.mark.parametrize("recipe", [Recipe, Batches])
def test_taking_turns_changes_no_bit(recipe):
    ground = lay_ground(recipe())
    alone = Contestant(STAGE, ground)
    alone.run(14)
    one, other = Contestant(STAGE, ground), Contestant(STAGE, ground, seed=9)
    for steps in (3, 1, 5, 5):
        one.run(steps)
        torch.rand(7)
        other.run(steps)
    assert one.losses == alone.losses and len(one.losses) == 14
    assert other.losses != alone.losses


def test_settings_of_the_process_hold_for_one_turn_only():
    ground = lay_ground(Recipe())
    strict = Contestant(STAGE, ground)
    loose = Contestant(msgspec.structs.replace(STAGE, exact=False), ground)
    seen = []
    for one in (strict, loose, strict):
        one.run(1)
        seen.append(torch.are_deterministic_algorithms_enabled())
    assert seen == [True, False, True]


def test_a_rewound_baseline_takes_the_first_samples_again_and_keeps_its_first_losses():
    one = Contestant(STAGE, lay_ground(Recipe()))
    one.run(4)
    first = list(one.losses)
    one.rewind()
    one.run(6)
    assert one.losses == first


def test_micro_batches_change_how_a_step_is_done_and_hardly_what_it_learns():
    class Still(Recipe):
        def build_model(self):
            return nn.Sequential(nn.Linear(4, 2048), nn.Tanh(), nn.Linear(2048, 1))

        def loss(self, model, batch):
            return nn.functional.mse_loss(model(batch[0]), batch[1])

    ground = lay_ground(Still())
    whole = Contestant(STAGE, ground)
    cut = Contestant(msgspec.structs.replace(STAGE, micro_batch=2), ground)
    for one in (whole, cut):
        one.run(10)
    assert cut.losses == pytest.approx(whole.losses, rel=1e-5)
    rest = whole.resident_bytes()
    assert rest == cut.resident_bytes() == 3 * 4 * (5 * 2048 + 2049) + 4 * 4  # AdamW counts steps
    saved = whole.peak_bytes(others_bytes=0) - cut.peak_bytes(others_bytes=0)
    assert saved > 2048 * 4  # six of eight samples keep nothing, at least their activations


def test_a_wait_without_work_counts_and_workers_get_a_lead_in():
    ground = lay_ground(Resting())
    block = Contestant(STAGE, ground).run(2)
    assert block.wait_s >= block.idle_s >= 0.008
    assert block.quiet_s == block.cpu_s + block.idle_s
    loader = ResolvedLoader(workers=1, prefetch=3)
    spare = Ground(**{f: getattr(ground, f) for f in Ground.__slots__} | {"cpus": 2})
    helped = Contestant(msgspec.structs.replace(STAGE, loader=loader), spare)
    assert (helped.workers, helped.threads, helped.lead_in()) == (1, 1, 4)
    helped.leave()


def test_a_loss_that_is_not_finite_is_an_error_with_its_step():
    class Broken(Recipe):
        def loss(self, model, batch):
            return super().loss(model, batch) * (float("nan") if self.calls == 2 else 1.0)

    with pytest.raises(Exception, match="the loss is nan in step 2"):
        Contestant(STAGE, lay_ground(Broken())).run(5)

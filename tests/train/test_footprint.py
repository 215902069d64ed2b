"""The memory of a step by what it is for: sums that add up, and a look that changes nothing."""

from __future__ import annotations

import gc
import traceback
import weakref
from dataclasses import asdict, replace
from types import SimpleNamespace

import pytest
import torch
from tests.train.engines import CPU, make_engine
from torch import nn
from torch.utils.checkpoint import checkpoint

from tasuki.data.loader import MicroBatch
from tasuki.errors import RecipeError
from tasuki.testing import memory_cap
from tasuki.train.borders import Borders
from tasuki.train.footprint import (
    Footprint,
    Tensors,
    as_facts,
    count_bytes,
    host_available,
    host_limits,
    in_words,
    sum_device,
    sum_host,
    tensors_in,
)
from tasuki.train.throughput import read_tokens_per_sample, speeds

GB = 1 << 30


# -- sums ----------------------------------------------------------------------------------------


def test_the_parts_of_a_device_add_up_to_its_peak_and_with_what_is_free_to_all_of_it():
    seen = Tensors(weights=4 * GB, gradients=4 * GB, optimizer=8 * GB, batch=GB)
    found = sum_device(seen, peak_tensors=40 * GB, used=45 * GB, total=80 * GB)
    assert (found.activations, found.other) == (23 * GB, 5 * GB)
    parts = ("weights", "gradients", "optimizer", "activations", "batch", "other")
    assert sum(asdict(found)[part] for part in parts) == found.peak == 45 * GB
    assert found.headroom == 35 * GB
    host = sum_host(rss=GB, loader=0, save_buffers=0, limits=[64 * GB], available=60 * GB, ranks=1)
    line = in_words(found, host, kind="cuda")
    assert line.startswith("Memory (cuda): weights ")
    assert all(name in line for name in (*parts, "host", "loader"))


def test_activations_that_nobody_could_look_at_are_unknown_not_nothing():
    seen = Tensors(weights=100, gradients=100, optimizer=200, batch=10)
    found = sum_device(seen, peak_tensors=None, used=1000, total=5000)
    assert (found.activations, found.other, found.peak) == (None, 590, 1000)
    looked = sum_device(replace(seen, activations=50), peak_tensors=None, used=1000, total=5000)
    assert (looked.activations, looked.other, looked.peak) == (50, 540, 1000)
    host = sum_host(rss=GB, loader=0, save_buffers=0, limits=[64 * GB], available=60 * GB, ranks=1)
    line = in_words(found, host, kind="cpu")
    assert "activations 0" not in line and "(activations of a compiled model among it)" in line
    assert as_facts(found, host)["device"]["activations"] is None


def test_the_host_has_as_much_left_as_its_narrowest_limit_gives_to_all_ranks():
    facts = {"rss": 4 * GB, "loader": 2 * GB, "save_buffers": GB, "ranks": 4}
    found = sum_host(**facts, limits=[128 * GB, 64 * GB], available=90 * GB)
    assert (found.total, found.headroom) == (64 * GB, 40 * GB)
    assert sum_host(**facts, limits=[64 * GB], available=3 * GB).headroom == 3 * GB


def write(root, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_limits_of_cgroups_count_with_those_above_them(tmp_path):
    write(tmp_path, "proc/self/cgroup", "0::/slurm/job_7/step_0\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_7/memory.max", f"{3 * GB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_7/memory.current", f"{2 * GB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_7/memory.stat", f"anon 5\ninactive_file {GB}\n")
    write(tmp_path, "sys/fs/cgroup/slurm/job_7/step_0/memory.max", "max\n")
    write(tmp_path, "proc/meminfo", f"MemTotal: 1 kB\nMemAvailable: {9 * GB >> 10} kB\n")
    assert min(host_limits({}, root=tmp_path)) == 3 * GB
    assert min(host_limits({"SLURM_MEM_PER_NODE": "2048"}, root=tmp_path)) == 2 * GB
    assert host_available(root=tmp_path) == 2 * GB


def test_the_first_version_of_cgroups_is_read_too_and_no_limit_is_none(tmp_path):
    write(tmp_path, "proc/self/cgroup", "5:cpu,cpuacct:/a\n4:memory:/slurm/job_7\n")
    folder = "sys/fs/cgroup/memory/slurm/job_7"
    write(tmp_path, f"{folder}/memory.limit_in_bytes", f"{5 * GB}\n")
    write(tmp_path, f"{folder}/memory.usage_in_bytes", f"{4 * GB}\n")
    write(tmp_path, "sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n")
    assert host_limits({}, root=tmp_path)[1:] == [5 * GB]
    assert host_available(root=tmp_path) == GB


# -- tensors -------------------------------------------------------------------------------------


def test_a_storage_counts_once_however_many_tensors_look_at_it():
    whole = torch.zeros(10)
    assert count_bytes([whole, whole[2:4], whole.view(2, 5)]) == 40
    assert count_bytes([torch.eye(3).to_sparse()]) == 3 * 4 + 2 * 3 * 8


def test_tensors_are_found_in_lists_mappings_and_graphs():
    graph = SimpleNamespace(x=torch.zeros(4), store=SimpleNamespace(edges=torch.zeros(2, 3)))
    batch = {"graph": graph, "more": [torch.zeros(1), ("name", torch.zeros(2))]}
    assert sorted(t.numel() for t in tensors_in(batch)) == [1, 2, 4, 6]


# -- a step --------------------------------------------------------------------------------------


def make_model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(
        nn.Linear(8, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(0.3), nn.Linear(32, 1)
    )


def mean(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    return model(batch).square().mean()


def with_transform(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """torch.func refuses hooks."""
    slope = torch.func.grad(lambda x: (x**3).sum())(batch)
    return mean(model, batch) + slope.mean()


def with_checkpoints(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
    """Has hooks of its own, and makes activations a second time."""
    return checkpoint(model, batch, use_reentrant=False).square().mean()


def train(loss, *, is_measured: bool) -> tuple[list[torch.Tensor], Footprint]:
    """Three steps of two micro-batches; the second one is measured."""
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters())
    engine = make_engine(model, loss, optimizer)
    footprint = Footprint(model, optimizer, device=CPU)
    for step in range(3):
        data = torch.randn(2, 16, 8, generator=torch.Generator().manual_seed(step))
        batches = iter([MicroBatch(data=part.clone(), num_samples=16) for part in data])
        if is_measured and step == 1:
            with footprint.measured():
                engine.step(footprint.watch(batches), 32)
        else:
            engine.step(batches, 32)
    return [*model.state_dict().values(), torch.rand(1)], footprint


@pytest.mark.parametrize("loss", [mean, with_transform, with_checkpoints])
def test_a_step_that_is_measured_gives_the_same_bits(loss):
    plain, _ = train(loss, is_measured=False)
    measured, _ = train(loss, is_measured=True)
    assert all(one.equal(other) for one, other in zip(plain, measured, strict=True))


def test_what_a_step_takes_is_what_its_tensors_have():
    _, footprint = train(mean, is_measured=True)
    found = footprint.tensors()
    parameters = 8 * 32 + 32 + 32 + 32 + 32 + 1
    assert found.weights == 4 * (parameters + 32 + 32) + 8  # and the means, and their number
    assert found.gradients == 4 * parameters
    assert found.optimizer == 2 * 4 * parameters + 6 * 4  # and a count of steps for each
    assert found.batch == 16 * 8 * 4
    # Of one micro-batch: outputs of Linear (for BatchNorm) and ReLU, the dropout's mask and output,
    # the model's output; and some small ones.
    wide = 16 * 32 * 4
    assert found.activations is not None and 3 * wide <= found.activations <= 5 * wide


def test_a_measured_step_that_fails_lets_go_of_what_its_passes_made():
    """An operation that saves its own result must not hold itself through who looks."""
    model = make_model()
    footprint = Footprint(model, torch.optim.SGD(model.parameters()), device=CPU)
    made = []

    def failing() -> None:
        result = torch.sigmoid(model(torch.ones(4, 8)))
        made.append(weakref.ref(result.untyped_storage()))
        raise MemoryError

    with footprint.measured(), pytest.raises(MemoryError) as caught:
        failing()
    traceback.clear_frames(caught.value.__traceback__)
    gc.collect()
    assert made[0]() is None


def test_later_steps_are_looked_at_by_nobody():
    _, footprint = train(mean, is_measured=True)
    before = footprint.tensors().activations
    loss = mean(make_model(), torch.randn(64, 8))
    loss.backward()
    assert footprint.tensors().activations == before
    with torch.autograd.graph.disable_saved_tensors_hooks("as it was"):
        pass


# -- epochs --------------------------------------------------------------------------------------

KIB = 1 << 10


def take(num_bytes: int) -> None:
    torch.zeros(num_bytes, dtype=torch.uint8)


def test_a_validation_neither_adds_to_the_peak_of_training_nor_hides_it() -> None:
    with memory_cap("1M"):
        task = SimpleNamespace(device=torch.device("cpu"))
        borders = Borders(task, steps_per_epoch=5, is_adaptive=True)  # type: ignore[arg-type]
        take(700 * KIB)
        borders.begin(0)
        take(100 * KIB)
        kept: list[int] = []
        with borders.apart(lambda: kept.append(borders.peak_bytes() // KIB)):
            take(300 * KIB)
        assert borders.peak_bytes() == 100 * KIB, "not 300, and not 0"
        assert kept == [100, 300]
        take(150 * KIB)
        assert borders.peak_bytes() == 150 * KIB
    plain = Borders(task, steps_per_epoch=5, is_adaptive=False)  # type: ignore[arg-type]
    with plain.apart():
        assert plain.peak_bytes() == 0


# -- tokens --------------------------------------------------------------------------------------


def test_tokens_per_second_come_from_the_recipes_word():
    window = {"samples_per_sec": 10.0, "weight": 5000.0, "samples": 100}
    assert speeds(None, **window) == {"samples_per_sec": 10.0}
    assert speeds(512.0, **window)["tokens_per_sec"] == 5120.0
    assert speeds("weight", **window)["tokens_per_sec"] == 500.0
    assert "tokens_per_sec" not in speeds("weight", **(window | {"samples": 0}))


@pytest.mark.parametrize("told", [0, -1, True, "many"])
def test_a_number_of_tokens_that_means_nothing_is_refused(told):
    with pytest.raises(RecipeError, match="tokens_per_sample"):
        read_tokens_per_sample(SimpleNamespace(tokens_per_sample=told))

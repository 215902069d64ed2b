"""A stage in, a probe file out, from a process of its own."""

from __future__ import annotations

import pytest

from tasuki import subprocesses
from tasuki.estimation.probes import read_probe
from tasuki.spec.resolved import ResolvedStage, to_plain

RECIPE = """
import torch
from torch import nn
from torch.nn import functional


class Samples:
    sizes = [4, 8, 8, 12, 16, 16]

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return torch.zeros(self.sizes[index], dtype=torch.int64)


class Recipe:
    def build_model(self):
        return nn.Sequential(nn.Embedding(10, 6), nn.Linear(6, 10))

    def build_dataset(self, source, split):
        return Samples()

    def loss(self, model, batch):
        return functional.cross_entropy(model(batch).flatten(0, 1), batch.flatten())


class Counting(Recipe):
    def loss(self, model, batch):
        best = model(batch).argmax(-1).flatten()
        return super().loss(model, batch) * torch.bincount(best).sum()


class Remembering(Recipe):
    def loss(self, model, batch):
        self.kept = model(batch).detach()
        return super().loss(model, batch)


class ForGood(Recipe):
    def build_dataset(self, source, split):
        return torch.zeros(8, 16, dtype=torch.int64)

    def loss(self, model, batch):
        best = model(batch).argmax(-1).flatten()
        return super().loss(model, batch) * torch.bincount(best, weights=best * 1.0).sum()
"""


def peak_at(probe, batch, size):
    """As whoever reads the file reckons it."""
    sizes, now, most = {}, 0, 0
    for number, *rest in probe["events"]:
        if number > 0:
            terms = zip(rest[1:], probe["terms"], strict=True)
            sizes[number] = round(sum(c * batch**p * size**q for c, (p, q) in terms))
            now += sizes[number]
        else:
            now -= sizes[-number]
        most = max(most, now)
    return most


@pytest.fixture
def probe(tmp_path):
    (tmp_path / "recipes.py").write_text(RECIPE)

    def make(recipe, *, device="cuda", may_measure=False, **keys):
        stage = ResolvedStage(name="a", recipe=f"recipes:{recipe}", data="x", **keys)
        return subprocesses.run(
            "tasuki.memory.child:work",
            {
                "stage": to_plain(stage),
                "folder": str(tmp_path),
                "device": device,
                "may_measure": may_measure,
            },
            result=dict,
        )

    return make


def test_a_probe_file_tells_the_peak_of_every_bucket(probe):
    found = probe("Recipe", precision="bf16")["probe"]
    assert found["format"] == 1
    assert found["is_exact"]
    assert found["probes"] == [[2, 4], [2, 12], [2, 16], [3, 4], [3, 12], [3, 16]]
    [[batch, size, predicted, traced]] = found["checked"]
    assert (batch, size) == (32, 8)  # the size that was not probed, far beyond the probes
    assert predicted == traced == peak_at(found, batch, size)
    assert peak_at(found, 512, 16) > 32 * peak_at(found, 2, 16) / 2
    assert len(found["flops"]) == len(found["terms"]) == 6
    assert found["notes"] == []


@pytest.mark.long
def test_what_cannot_be_traced_is_named(probe):
    found = probe("Counting")
    assert found["probe"] is None
    assert found["untraced"]["op"] == "bincount"
    assert "largest number in the data" in found["untraced"]["reason"]


@pytest.mark.long
def test_what_cannot_be_traced_is_measured_where_that_is_allowed(probe):
    found = probe("ForGood", device="cpu", may_measure=True)
    assert found["untraced"]["op"] == "bincount"
    assert found["probe"]["probes"] == [[2, 0], [3, 0], [5, 0]]
    [[batch, _, predicted, measured]] = found["probe"]["checked"]
    assert batch == 56  # far beyond, as it takes little time
    assert predicted == pytest.approx(measured, rel=5e-3)
    assert "`bincount` cannot be traced" in found["probe"]["notes"][0]
    assert "measured by real steps on this CPU" in found["probe"]["notes"][1]
    assert read_probe(found["probe"]).peak(batch=100, size=0) > 1.5 * measured


@pytest.mark.long
def test_a_model_that_keeps_tensors_of_the_last_batch_is_traced_as_it_goes_on(probe):
    found = probe("Remembering")["probe"]
    assert found["is_exact"]

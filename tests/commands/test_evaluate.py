"""`tasuki evaluate`: any weights on any data, the same numbers as a run's own evaluation."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

import tasuki
from tasuki.checkpoint.export import pack
from tasuki.checkpoint.weights import read_weights
from tasuki.errors import RecipeError, WeightsError
from tasuki.runs.atomic import read_json
from tasuki.spec.resolved import ResolvedStage, to_plain
from tasuki.spec.values import Sizes
from tests.commands.projects import Project

SIZED = '''
import torch
from torch import nn


class Sized:
    """Vectors of three lengths; the sum of their squares as loss."""

    def __init__(self, per_size=6):
        self.per_size = per_size

    def build_model(self):
        return nn.Linear(1, 1)

    def build_dataset(self, source, split):
        return [torch.full((n,), 1.0) for n in (2, 3, 5) for _ in range(self.per_size)]

    def sample_sizes(self, dataset):
        return [len(sample) for sample in dataset]

    def loss(self, model, batch):
        return batch.square().sum(), float(len(batch))


class Own(Sized):
    def evaluate(self, model, dataset):
        assert not model.training and not torch.is_grad_enabled()
        return {"score": torch.tensor(0.25), "worst": float("nan")}

    def benchmark(self, model, dataset):
        return {"tokens_per_s": 12}


class Silent(Sized):
    def evaluate(self, model, dataset):
        return None


class Broken(Sized):
    def evaluate(self, model, dataset):
        return {"score": 1 / 0}
'''


@pytest.fixture
def assess(tmp_path, monkeypatch):
    """What the child process does, in this one."""
    from tasuki.train.assess import work

    (tmp_path / "sized_recipes.py").write_text(SIZED)
    monkeypatch.syspath_prepend(str(tmp_path))

    threads = torch.get_num_threads()

    def assess(
        recipe: str,
        *,
        weights: Path | None = None,
        benchmark: bool = False,
        run: Path | None = None,
        sizes: Any = None,
        **stage: Any,
    ) -> Any:
        path = weights or tmp_path / "w.pt"
        if weights is None:
            torch.save(torch.nn.Linear(1, 1).state_dict(), path)
        order = {
            "stage": to_plain(ResolvedStage(name="s", recipe=f"sized_recipes:{recipe}", **stage)),
            "weights": str(path),
            "data": "d",
            "sizes": sizes,
            "split": "test",
            "paths": [str(tmp_path)],
            "run": str(run) if run else None,
            "threads": threads,
            "device": "cpu",
            "benchmark": benchmark,
        }
        return work(order, lambda progress: None)

    yield assess
    torch.use_deterministic_algorithms(False)
    torch.set_num_threads(threads)


# -- numbers --------------------------------------------------------------------------------------
def test_a_run_is_evaluated_with_the_numbers_of_its_own_evaluation_and_nothing_changes(
    finished: Project, here
):
    recipes = finished.folder / "recipes.py"
    code = recipes.read_text()
    recipes.write_text("raise RuntimeError('a run has code of its own')")
    before = finished.tree()
    try:
        said = here(finished.folder, "evaluate", "exp", "--benchmark", "--json")
        after = finished.tree()
    finally:
        recipes.write_text(code)
    assert said.code == 0, said
    found, own = said.json(), read_json(finished.run().stage("large").evaluation)
    assert found["metrics"] == own["metrics"] and found["sha256"] == own["sha256"]
    assert (found["data"], found["split"], found["stage"]) == ("d", "test", "large")
    benchmark = found["benchmark"]
    assert benchmark["samples_per_s"] > 0 and benchmark["peak_of"] == "host"
    assert 0 < benchmark["latency_p50_ms"] <= benchmark["latency_p95_ms"]
    assert "evaluating" in said.err
    assert after == before


def test_an_exported_pt_gives_the_same_numbers_with_the_spec_here(
    finished: Project, here, tmp_path
):
    weights = finished.run().stage("small").weights
    file = tmp_path / "small.pt"
    file.write_bytes(pack(file, read_weights(weights), "pt", run="exp", stage="small", step=1))
    found = tasuki.evaluate(weights=file, data="d", stage="small", spec=finished.folder)
    own = read_json(finished.run().stage("small").evaluation)
    assert (found["metrics"], found["split"]) == (own["metrics"], own["split"])
    assert found["weights"] == str(file) and "benchmark" not in found


def test_evaluation_takes_the_micro_batches_of_training_never_a_whole_large_step(assess):
    exact = (2 + 3 + 5) / 3
    for batch in ({}, {"micro_batch": 4}, {"effective_batch": 8, "accumulation": 3}):
        assert assess("Sized", **batch)["metrics"] == {"loss": exact}
    found = assess("Sized", effective_batch=1000, micro_batch=4, benchmark=True)["benchmark"]
    assert [bucket["batch"] for bucket in found["buckets"]] == [4, 4, 4]


def test_the_benchmark_measures_each_size_and_says_what_its_peak_is_of(assess):
    found = assess("Sized", benchmark=True, effective_batch=4)["benchmark"]
    assert [(b["size"], b["samples"], b["batch"]) for b in found["buckets"]] == [
        (2, 6, 4), (3, 6, 4), (5, 6, 4)
    ]  # fmt: skip
    assert all(b["passes"] >= 10 and b["peak_bytes"] > 1e6 for b in found["buckets"])
    rates = [b["samples_per_s"] for b in found["buckets"]]
    assert min(rates) <= found["samples_per_s"] <= max(rates)
    assert found["peak_bytes"] == max(b["peak_bytes"] for b in found["buckets"])


def test_a_recipe_evaluates_and_benchmarks_in_its_own_way(assess):
    found = assess("Own", benchmark=True)
    assert found["metrics"] == {"score": 0.25, "worst": "nan"}
    assert found["benchmark"] == {"tokens_per_s": 12.0}


def test_a_recipe_that_evaluates_wrongly_is_told_where(assess):
    with pytest.raises(RecipeError, match="evaluate gave NoneType"):
        assess("Silent")
    with pytest.raises(RecipeError, match=r"ZeroDivisionError.*sized_recipes\.py:"):
        assess("Broken")


def test_a_run_is_evaluated_with_the_threads_it_was_trained_with(assess, tmp_path):
    (tmp_path / "frozen.json").write_text('{"format": 1, "threads": 3}')
    assess("Sized", run=tmp_path)
    assert torch.get_num_threads() == 3
    assess("Sized", run=tmp_path, exact=False)
    assert torch.get_num_threads() != 3


# -- weights --------------------------------------------------------------------------------------
def test_weights_of_others_are_found_under_the_usual_names(assess, tmp_path):
    plain = torch.nn.Linear(1, 1).state_dict()
    for number, value in enumerate(
        [plain, {"state_dict": plain, "epoch": 3}, {"model": dict(plain), "args": {"lr": 1}}]
    ):
        path = tmp_path / f"{number}.ckpt"
        torch.save(value, path, _use_new_zipfile_serialization=number > 0)
        assert "loss" in assess("Sized", weights=path)["metrics"]


def test_only_a_stage_s_own_file_is_compared_with_the_hash_beside_it(assess, tmp_path):
    (tmp_path / "metrics.json").write_text('{"format": 1, "sha256": "another"}')
    assert "loss" in assess("Sized")["metrics"]
    own = tmp_path / "weights.safetensors"
    own.write_bytes((tmp_path / "w.pt").read_bytes())
    with pytest.raises(WeightsError, match="not what was written"):
        assess("Sized", weights=own)


def test_a_pickle_that_would_run_code_is_refused_and_runs_nothing(assess, tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "owned"),)

    file = tmp_path / "evil.pt"
    torch.save({"state_dict": {"w": torch.ones(1)}, "extra": Evil()}, file)
    with pytest.raises(WeightsError) as caught:
        assess("Sized", weights=file)
    assert "evil.pt holds more than tensors (`posix.mkdir`)" in caught.value.message
    assert "torch.save(model.state_dict()" in caught.value.hint
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"epoch": 3, "loss": 0.5}, "holds no weights: it has epoch, loss"),
        ([torch.ones(1)], "holds a list, no weights"),
        ({"w": torch.ones(1), "steps": 7}, "`steps` in .* is a int, not a tensor"),
        (b"junk", "is no file of weights|holds more than tensors"),
    ],
)
def test_files_without_weights_are_refused_in_words(assess, tmp_path, value, words):
    path = tmp_path / "odd.pt"
    if isinstance(value, bytes):
        path.write_bytes(value)
    else:
        torch.save(value, path)
    with pytest.raises(WeightsError, match=words):
        assess("Sized", weights=path)


def test_a_stage_starts_from_a_pt_and_says_which_layers_do_not_fit(project, here):
    stages = [{"name": "one", "data": "d", "steps": 1, "init_from": "base.pt", "lr": 1e-30}]
    made = project(stages=stages, defaults__weight_decay=0)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 16), torch.nn.BatchNorm1d(16), torch.nn.ReLU(), torch.nn.Dropout(0.2)
    )
    torch.save(model.state_dict(), made.folder / "base.pt")
    said = here(made.folder, "run", "--json")
    assert "2 missing in the weights: 4.weight, 4.bias" in said.run["reason"], said
    model.add_module("4", torch.nn.Linear(16, 1))
    torch.save({"model": model.state_dict()}, made.folder / "base.pt")
    assert here(made.folder, "run").code == 0, made.logs()
    from safetensors.torch import load_file

    weights = load_file(made.run().stage("one").weights)
    assert weights["0.weight"].equal(model.state_dict()["0.weight"])


# -- what is asked for ----------------------------------------------------------------------------
@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ([], "which weights", "tasuki evaluate RUN"),
        (["exp/smal"], "there is no stage `smal`", "`small`"),
        (["exp", "--set", "lr=1"], "`--set` changes the spec", "--weights"),
        (["--weights", "recipe.py"], "there are no weights at", "`recipes.py`"),
        (["exp/small", "--stage", "large"], "name two stages", "one of them"),
        (["exq"], "there is no run `exq`", "`exp`"),
        (["--weights", "recipes.py", "--stage", "x"], "there is no stage `x`", "small, large"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_cannot_be_evaluated_is_said_at_once(finished: Project, here, words, error, hint):
    said = here(finished.folder, "evaluate", *words)
    assert said.code in (1, 2) and error in said.err and hint in said.err, said


def test_a_run_without_a_finished_stage_has_nothing_to_evaluate(project, here):
    made = project(recipe="NoLoss")
    here(made.folder, "run")
    said = here(made.folder, "evaluate", "exp")
    assert said.code == 1 and "has no finished stage yet" in said.err, said
    said = here(made.folder, "export", "exp/one")
    assert said.code == 1 and "stage `one` of run `exp` is not finished" in said.err, said


def test_data_that_are_named_are_taken_whole_and_a_stage_s_own_by_its_sizes(
    assess, finished, tmp_path
):
    from tasuki.commands.evaluate import Asked, of_run

    wanted = to_plain(Sizes(values=(5,)))
    assert assess("Sized", sizes=wanted)["metrics"]["loss"] == 5.0
    assert assess("Sized")["metrics"]["loss"] == pytest.approx((2 + 3 + 5) / 3)
    (tmp_path / "test.h5").touch()
    asked = Asked(here=tmp_path, data=("test.h5", "generated"), split="val")
    found = of_run("exp", asked, runs=finished.runs)
    assert found.sizes is None and found.split == "val"
    assert found.data == [str(tmp_path / "test.h5"), "generated"], "as they were meant there"

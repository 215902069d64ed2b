"""`tasuki verify gradients`: micro-batches give the gradient of the whole batch, or say why not."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from click.testing import CliRunner

import tasuki
from tasuki.cli.verify import command
from tasuki.commands.verify import GradientsReport
from tasuki.errors import DataError, RecipeError, UsageError
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.engine import StepEngine
from tasuki.train.gradient_check import check_gradients

SPEC = """\
recipe: gradient_recipes:Mlp
defaults: {data: none, effective_batch: 8}
experiments: {sine: {}}
"""


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """The check expects a process of its own."""
    threads, path = torch.get_num_threads(), list(sys.path)
    torch.set_num_threads(1)
    yield
    torch.set_default_dtype(torch.float32)
    torch.set_num_threads(threads)
    sys.path[:] = path


def check(recipe: str, *, ranks: int = 1, samples: int | None = None, **keys: Any) -> Any:
    name = f"tests.commands.gradient_recipes:{recipe}"
    stage = ResolvedStage(name="s", recipe=name, data="none", **keys)
    values = check_gradients(stage, Path(__file__).parent, ranks, samples)
    return msgspec.convert(values, GradientsReport)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A spec with a clean recipe."""
    shutil.copy(Path(__file__).parent / "gradient_recipes.py", tmp_path)
    spec = tmp_path / "tasuki.yaml"
    spec.write_text(SPEC)
    return spec


@pytest.mark.parametrize(
    "recipe", ["Mlp", "Dropout", "SumOverTokens", "SparseEmbedding", "NormInEvalMode", "Frozen"]
)
def test_a_loss_that_treats_each_sample_alike_is_equal(recipe: str) -> None:
    report = check(recipe)
    assert report.equal and report.max_relative_difference < 1e-12 and report.causes == []
    assert report.loss_in_pieces == pytest.approx(report.loss_whole, rel=1e-12)


@pytest.mark.parametrize(
    ("recipe", "causes"),
    [
        ("Norm", ["batch_statistics"]),
        ("MeanOverTokens", ["unequal_pieces"]),
        ("MeanOverTokensAndNorm", ["batch_statistics", "unequal_pieces"]),
        ("Contrastive", []),
    ],
)
def test_batch_statistics_and_means_of_unequal_pieces_are_named(
    recipe: str, causes: list[str]
) -> None:
    report = check(recipe)
    assert not report.equal and report.max_relative_difference > 1e-5
    assert [cause.name for cause in report.causes] == causes


def test_an_error_of_the_engine_is_found_and_not_blamed_on_the_loss(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    accumulate = StepEngine._accumulate

    def count_one_more(self: Any, batches: Any, num_samples: int) -> Any:
        return accumulate(self, batches, num_samples + (len(batches) > 1))

    monkeypatch.setattr(StepEngine, "_accumulate", count_one_more)
    report = check("Mlp")
    assert not report.equal and report.causes == []


@pytest.mark.parametrize(
    ("keys", "pieces"),
    [
        ({}, (8, 3, 3)),  # `auto`: 3 + 3 + 2, so that a mean of unequal pieces shows
        ({"micro_batch": 2}, (8, 2, 4)),
        ({"micro_batch": 8}, (8, 3, 3)),  # one piece would compare nothing
        ({"ranks": 4}, (8, 2, 4)),
        ({"accumulation": 2, "ranks": 2}, (8, 2, 4)),
        ({"effective_batch": 16, "micro_batch": 4, "samples": 8}, (8, 2, 4)),
        ({"effective_batch": 64}, (24, 5, 5)),  # more than there is data
    ],
)
def test_the_batch_is_split_as_in_a_run(keys: dict[str, Any], pieces: tuple[int, ...]) -> None:
    report = check("Mlp", **keys)
    sizes = (report.samples, report.micro_batch_size, report.gradient_accumulation)
    assert sizes == pieces and report.equal


def test_what_cannot_be_compared_is_a_plain_error() -> None:
    with pytest.raises(RecipeError, match=r"float64.*my_kernel.*gradient_recipes.py"):
        check("NoFloat64")
    with pytest.raises(RecipeError, match=r"'packed' is torch\.uint8"):  # 4-bit weights
        check("Quantized")
    with pytest.raises(RecipeError, match="no parameter of the model"):
        check("Fixed")
    with pytest.raises(DataError, match="cannot be split"):
        check("Mlp", samples=1)


def test_json_is_the_report_and_the_exit_code_tells(project: Path) -> None:
    found = CliRunner().invoke(
        command, ["gradients", str(project), "--json"], standalone_mode=False
    )
    report = msgspec.json.decode(found.stdout, type=GradientsReport, strict=True)
    assert set(json.loads(found.stdout)) == set(GradientsReport.__struct_fields__)
    assert report.equal and found.return_value == 0
    words = ["gradients", str(project), "--set", "recipe=gradient_recipes:Norm"]
    found = CliRunner().invoke(command, words, standalone_mode=False)
    assert "not equal" in found.stdout and "BatchNorm (1)" in found.stdout
    assert found.return_value == 1


def test_a_stage_with_a_command_needs_a_recipe(project: Path) -> None:
    project.write_text("experiments: {sine: {command: [python, train.py]}}\n")
    with pytest.raises(UsageError, match="command") as error:
        tasuki.verify_gradients(project)
    assert "needs a stage with a `recipe`" in error.value.hint

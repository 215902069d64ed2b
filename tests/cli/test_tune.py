"""`tasuki tune`: rows for all that was tried, winners that are, and a spec that changes on request.

The recipe has its costs built in: in bf16 and in small micro-batches a step computes tens of times
more, so who wins does not hang on the machine.
"""

from __future__ import annotations

import io
import math
import os
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import tasuki
from tasuki.spec.load import load_spec
from tasuki.views.tune import _word, show_batch, show_tuning
from tests.cli.person import make_project

pytestmark = pytest.mark.timeout(400)
# A dozen short measurements, each with a model of its own: seconds on a machine of one's own.

RECIPE = """
import torch
from torch import nn
from torch.utils.data import TensorDataset

WORK = torch.ones(48, 48)
COSTS = {(1, True): 1500, (2, True): 500, (4, True): 25, (2, False): 25}


class NoCompiler(Exception):
    __module__ = "torch._dynamo.exc"


def compile_nothing(module, *, mode, dynamic):
    # As on a machine without a C++ compiler, in less time.

    def fail(batch):
        raise NoCompiler("no C++ compiler")

    return fail


torch.compile = compile_nothing


class Costly:
    def build_model(self):
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))

    def build_dataset(self, source, split):
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(64, 4, generator=generator)
        return TensorDataset(x, x.sum(1, keepdim=True))

    def build_optimizer(self, model):
        return torch.optim.Adadelta(model.parameters(), lr=0.5)

    def loss(self, model, batch):
        x, y = batch
        is_small = torch.is_autocast_enabled("cpu")
        with torch.autocast("cpu", enabled=False):
            for _ in range(COSTS.get((len(x), is_small), 5)):
                torch.mm(WORK, WORK)
            loss = nn.functional.mse_loss(model(x), y)
            # In every bit, but in no digit that counts: micro-batches draw other numbers.
            return loss * (1 + 1e-4 * torch.rand(()))


class Broken(Costly):
    def loss(self, model, batch):
        raise ValueError("my mistake")
"""

SPEC = """\
# Kept as it is.
recipe: "costly:Costly"
cluster: { gpu: cpu, cpus: 1 }
experiments:
  e:
    stages:
      - name: a          # the first
        data: d
        epochs: 4000
        effective_batch: 8
        micro_batch: 2   # too small
        precision: bf16
      - { name: b, data: d, epochs: 1 }
      - { name: own, command: [python, x.py], expect: { wall: 1h } }
"""


def write_project(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "costly.py").write_text(RECIPE)
    (folder / "tasuki.yaml").write_text(SPEC)
    return folder


@pytest.fixture(scope="module")
def tuned(tmp_path_factory) -> tuple[dict[str, Any], Path]:
    """One measurement of all switches, with its winners written."""
    folder = write_project(tmp_path_factory.mktemp("tune"))
    (folder / "tasuki.yaml").chmod(0o640)
    found = tasuki.tune(folder / "tasuki.yaml", budget="1s", write=True)
    return found, folder


def row_of(found: dict[str, Any], label: str) -> dict[str, Any]:
    [row] = [row for row in found["rows"] if row["label"] == label]
    return row


@pytest.mark.long
def test_the_json_of_tune_has_the_keys_of_the_reference(tuned):
    found, _ = tuned
    assert set(found) == {
        *("format", "source", "experiment", "stage", "ranks", "budget_s", "dry_run", "device"),
        *("threads", "clock", "confidence", "wait_share", "notes", "variants", "baseline"),
        *("first_step_s", "expected_s"),
        *("control", "tolerance", "rows", "together", "keep", "took_s", "written", "warnings"),
    }
    assert (found["experiment"], found["stage"], found["device"]) == ("e", "a", "cpu")
    assert (found["clock"], found["threads"], found["confidence"]) == ("cpu", 1, 0.95)
    assert set(found["baseline"]) == {"step_s", "memory_bytes", "loss", "steps"}
    figures = {
        *("gain", "low", "high", "pairs", "steps", "step_s", "wall", "cpu", "memory_bytes"),
        *("memory_share", "loss_difference", "loss_is_same", "start_s"),
    }
    assert set(found["control"]) == figures
    row = row_of(found, "precision: fp32")
    head = {"switch", "value", "was", "changes", "label", "verdict", "keep", "error"}
    assert set(row) == figures | head
    assert row["low"] <= row["gain"] <= row["high"] and row["pairs"] >= 6
    assert row["memory_bytes"] > 0


@pytest.mark.long
def test_what_is_quicker_by_construction_wins_and_what_is_slower_does_not(tuned):
    found, _ = tuned
    fp32, four, one = (
        row_of(found, label) for label in ("precision: fp32", "micro_batch: 4", "micro_batch: 1")
    )
    assert fp32["keep"] and fp32["low"] > 1 and fp32["verdict"].startswith("keep")
    assert four["keep"] and four["low"] > 1
    assert not one["keep"] and one["high"] < 1 and one["verdict"].startswith("slower")
    assert found["keep"] == {"precision": "fp32", "micro_batch": 4}


def test_winners_are_measured_together_for_gains_do_not_multiply(tuned):
    found, _ = tuned
    together = found["together"]
    assert together["changes"] == found["keep"] and together["keep"]
    assert together["low"] < together["gain"] < together["high"]
    singly = [row_of(found, k)["gain"] for k in ("precision: fp32", "micro_batch: 4")]
    assert together["gain"] != pytest.approx(math.prod(singly), abs=1e-9)


def test_a_variant_that_cannot_be_is_a_row_with_its_reason(tuned):
    found, _ = tuned
    reasons = {row["label"]: row["error"] for row in found["rows"] if row["error"]}
    assert "no C++ compiler" in reasons["compile: true"]
    assert "no repeated blocks" in reasons["gradient_checkpointing: true"]
    assert not any(row["keep"] for row in found["rows"] if row["error"])


def test_the_same_weights_data_and_random_numbers_give_the_same_losses(tuned):
    found, _ = tuned
    loose = row_of(found, "exact: false")  # nothing here has another form
    assert loose["loss_is_same"] and loose["loss_difference"] == 0.0
    control = found["control"]  # another seed: other losses, so sameness is no accident
    assert not control["loss_is_same"] and control["loss_difference"] != 0.0


def test_winners_are_written_into_their_lines_and_the_spec_still_loads(tuned):
    found, folder = tuned
    wanted = SPEC.replace("micro_batch: 2 ", "micro_batch: 4 ").replace("bf16", "fp32")
    assert (folder / "tasuki.yaml").read_text() == wanted
    assert found["written"]["file"] == str(folder / "tasuki.yaml")
    assert found["written"]["changes"] == found["keep"]
    assert (folder / "tasuki.yaml").stat().st_mode & 0o777 == 0o640
    stage = load_spec(str(folder), environ=os.environ).experiments[0].stages[0]
    assert (stage.precision, stage.micro_batch) == ("fp32", 4)
    assert sorted(path.name for path in folder.iterdir() if path.name != "__pycache__") == [
        "costly.py",
        "tasuki.yaml",
    ]


def test_people_get_a_table_with_words(tuned):
    found, _ = tuned
    out = io.StringIO()
    show_tuning(found, console=Console(file=out, width=140))
    said = out.getvalue()
    assert "CPU time of a step" in said and "95% interval" in said
    assert "same bits" in said and "together" in said and "+ micro_batch: 4" in said
    lines = {line.strip().split("  ")[0]: line for line in said.splitlines()}
    assert "keep" in lines["precision: fp32"] and "slower" in lines["micro_batch: 1"]
    assert "`compile` failed: NoCompiler" in lines["compile: true"]


def test_in_a_window_of_80_columns_names_are_whole_and_reasons_follow_the_table(tuned):
    found, _ = tuned
    out = io.StringIO()
    show_tuning(found, console=Console(file=out, width=80))
    lines = out.getvalue().splitlines()
    for row in found["rows"]:
        [line] = [line for line in lines if line.startswith(f"{row['label']} ")]
        assert len(line) <= 80 and "…" not in line.replace(" … ", "")
        if row["verdict"] not in line:
            assert (
                line.rstrip().endswith(_word(row)) and f"{row['label']}: {row['verdict']}" in lines
            )


def test_a_dry_run_lists_what_would_be_tried_and_changes_nothing(here, tmp_path):
    folder = write_project(tmp_path / "p")
    said = here(folder, "tune", "--dry-run", "--only", "precision,workers", "--write", "--json")
    found = said.json()
    assert said.code == 0 and found["dry_run"] and found["written"] is None
    assert found["variants"][0]["label"] == "precision: fp32"
    assert {row["switch"] for row in found["variants"]} == {"precision", "loader.workers"}
    assert found["expected_s"] > 0 and found["first_step_s"] > 0
    assert "rows" not in found and (folder / "tasuki.yaml").read_text() == SPEC


def test_a_recipe_that_cannot_train_is_named_as_in_a_run(here, tmp_path):
    folder = write_project(tmp_path / "p")
    said = here(folder, "tune", "--set", "recipe=costly:Broken", "--budget", "1s")
    assert said.code == 1 and "my mistake" in said.err and "Traceback" not in said.err, said


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        (["--only", "precison"], "no switch `precison`", "did you mean `precision`"),
        (["--write", "compil"], "no switch `compil`", "did you mean `compile`"),
        (["--only", "xyz"], "no switch `xyz`", "there are: precision, compile"),
        (["--stage", "c"], "no stage `c`", "there are: a, b, own"),
        (["--experiment", "f"], "no experiment `f`", "there are: e"),
        (["--stage", "own"], "runs a command of its own", "with a `recipe`"),
        (["--budget", "5"], "is not a duration", "8h"),
        (["--budget", "0s"], "longer than 0", "--budget 2m"),
        (["--set", "cluster.gpu=h100"], "no GPU here", "srun"),
        (["--batch", "--only", "compile"], "`--batch` takes no switches", "tune --batch"),
        (["--only", "offload"], "no GPU here to relieve", "name other switches"),
        (["--batch"], "memory of a CPU has no end", "where there is a GPU"),
    ],
)
def test_a_mistake_is_answered_at_once_with_what_to_do(here, tmp_path, words, error, hint):
    folder = write_project(tmp_path / "p")
    said = here(folder, "tune", *words, CUDA_VISIBLE_DEVICES="")
    assert said.code == 2 and error in said.err and hint in said.err, said


@pytest.mark.long
def test_the_largest_batch_is_shown_with_its_factor_and_written(tmp_path, monkeypatch):
    """Under a cap; the stage's own micro-batch plays no part."""
    folder = write_project(tmp_path / "p")
    monkeypatch.setenv("TASUKI_MEMORY_CAP", "30K")
    spec = folder / "tasuki.yaml"
    found = tasuki.tune(spec, batch=True, write=True)
    (row,) = found["buckets"]
    assert found["source"] == str(spec) and found["found_by"] == "traced"
    assert row["found"] > 8 and row["micro_batch"] == min(8, row["found"] // 2)
    assert found["capacity_bytes"] == 30 << 10 and 1 <= len(found["tries"]) <= 4
    assert found["written"]["changes"] == {"micro_batch": row["micro_batch"]}
    assert f"micro_batch: {row['micro_batch']}   # too small" in spec.read_text()
    console = Console(width=80, file=io.StringIO())
    show_batch(found, console=console)
    said = console.file.getvalue()  # type: ignore[attr-defined]
    assert f"{row['found']}" in said and "0.5" in said and "written to" in said


def test_write_is_refused_before_measuring_where_the_stage_is_not_written_out(here, tmp_path):
    project = make_project(tmp_path / "p")
    project.change(experiments__exp__each={"seed": [1, 2]})
    said = here(project.folder, "tune", "--write", "--experiment", "exp_1")
    assert said.code == 2 and "is not written out there" in said.err, said

"""`gradient_checkpointing: auto`, `gpus: auto` and `plan --fits`: what is chosen on a named card at
a fixed effective batch, that it is frozen with the run, and what is said where nothing is known."""

from __future__ import annotations

import json
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import tasuki
from tasuki.clock import SystemClock
from tasuki.commands.plan import make_plan, request_plan
from tasuki.commands.run import RunRequest, carry_out, open_runs, take_up
from tasuki.errors import RunError
from tasuki.estimation.facts import stage_key
from tasuki.runs.history import append_history
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import stage_from_plain

pytestmark = pytest.mark.timeout(300)  # the first of them traces steps, slowly on a busy machine
RECIPE = """
import torch
from torch import nn


class Adapted(nn.Module):
    def __init__(self, wide, high, rank=16):
        super().__init__()
        self.base = nn.Linear(wide, high, bias=False).requires_grad_(False)
        self.down, self.up = nn.Linear(wide, rank, bias=False), nn.Linear(rank, high, bias=False)

    def forward(self, x):
        return self.base(x) + self.up(self.down(x))


class Block(nn.Module):
    def __init__(self, wide):
        super().__init__()
        self.norm, self.qkv = nn.LayerNorm(wide), Adapted(wide, 3 * wide)
        self.up, self.down = Adapted(wide, 4 * wide), Adapted(4 * wide, wide)

    def forward(self, x):
        heads = [t.unflatten(-1, (-1, 64)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1)]
        x = x + nn.functional.scaled_dot_product_attention(*heads).transpose(1, 2).flatten(2)
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))))


class Rows:
    def __len__(self):
        return 1600

    def __getitem__(self, index):
        return {"x": torch.zeros(20480, dtype=torch.long)}


class Lora:
    wide, depth = 2048, 2

    def build_model(self):
        table = nn.Embedding(1000, self.wide).requires_grad_(False)
        return nn.Sequential(table, nn.Sequential(*(Block(self.wide) for _ in range(self.depth))))

    def build_dataset(self, source, split):
        return Rows()

    def loss(self, model, batch):
        return model(batch["x"]).square().mean()

    def example_batch(self, size, batch):
        return {"x": torch.zeros(batch, 20480, dtype=torch.long)}


"""
SPEC = """
recipe: recipes:Lora
cluster: {gpu: a100-40gb, gpus: 4}
defaults: {effective_batch: 16, data: rows, precision: bf16, expect: {wall: 1h}}
experiments:
  by_hand: {gpus: 1, micro_batch: 1, gradient_checkpointing: true}
  fitted: {gpus: 1, gradient_checkpointing: auto}
  spread: {gpus: auto, gradient_checkpointing: auto}
"""
FITTED, SPREAD, BY_HAND = "fitted/train", "spread/train", "by_hand/train"


@pytest.fixture(scope="module")
def traced(tmp_path_factory) -> Path:
    """A project whose steps were traced once."""
    folder = tmp_path_factory.mktemp("fits") / "p"
    folder.mkdir()
    (folder / "recipes.py").write_text(RECIPE)
    (folder / "tasuki.yaml").write_text(SPEC)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tasuki.plan(fits=True)
    return folder


@pytest.fixture
def deaf(traced, here, monkeypatch):
    """Types commands where no child can be started: all that counts is what is kept."""

    def type_there(*words, **environment):
        monkeypatch.setattr(sys, "executable", "/bin/false")
        return here(traced, *words, **environment)

    return type_there


@pytest.fixture
def begin(traced, tmp_path):
    """Freezes a run as `run` does before its first attempt, in a folder of runs of its own; asks
    nobody. Gives what is planned, and what is frozen."""

    def begin_it(*settings, is_new=False, dry=False):
        runs = tmp_path / "runs"
        if not runs.exists():
            shutil.copytree(traced / "runs" / ".probes", runs / ".probes")
        words = [f"runs={runs}", *settings]
        spec = load_spec(str(traced / "tasuki.yaml"), settings=words, environ={})
        asked = request_plan(spec, ["fitted"], python="/bin/false", environment=dict(os.environ))
        asked = replace(asked, measure=False, is_new=is_new)
        request = RunRequest(plan=asked, clock=SystemClock(), stays=False)
        folders = open_runs(request)
        plan = make_plan(replace(asked, folders={} if is_new else folders))
        if not dry:
            take_up(folders, replace(request, plan=carry_out(asked, plan)))
        [run] = folders.values()
        return plan.fits.get(FITTED), run

    return begin_it


def frozen(run) -> dict:
    return json.loads(run.spec.read_text())


@pytest.mark.long
def test_a_lora_of_1_x_16_with_checkpointing_becomes_4_x_4_without_and_is_faster(deaf):
    said = deaf("plan", "--fits", "--json")
    assert said.code == 0, said
    plan = said.json()
    chosen, before = plan["fits"][FITTED]["chosen"], plan["fits"][BY_HAND]["chosen"]
    assert (before["micro_batch"], before["accumulation"]) == (1, 16)
    assert before["gradient_checkpointing"] is True
    assert (chosen["micro_batch"], chosen["accumulation"]) == (4, 4)
    assert chosen["gradient_checkpointing"] is False
    assert chosen["fits"] and chosen["step_s"] < before["step_s"] / 1.2
    assert chosen["peak_bytes"] < plan["fits"][FITTED]["capacity_bytes"]
    gain = plan["fits"][BY_HAND]["gain"]["words"]
    assert gain.startswith("1 × 16 with checkpointing → 4 × 4 without checkpointing: 1.")
    assert f"{BY_HAND}: {gain} (predicted)" in plan["reasons"]
    assert any(line.startswith(f"{FITTED}: 4 × 4, no checkpointing") for line in plan["reasons"])


def test_the_choice_is_frozen_and_outlives_what_history_says_later(begin, traced):
    first, run = begin()
    assert first["chosen"]["gradient_checkpointing"] is False
    [stage] = frozen(run)["spec"]["stages"]
    assert (stage["gradient_checkpointing"], stage["gpus"]) == (False, 1)
    told = frozen(run)["fitted"]["train"]
    assert told["auto"] == ["gradient_checkpointing"] and told["source"] == "predicted"
    assert told["reason"] == first["chosen"]["reason"]
    slow = {"step_s": 900.0, "steps": 100, "steps_per_epoch": 100, "effective_batch": 16}
    remember(run, stage, policy=False, **slow)
    remember(run, stage, policy=True, **slow | {"step_s": 0.01})
    again, same = begin()
    assert same == run and again["source"] == "this run"
    assert again["chosen"]["gradient_checkpointing"] is False
    assert frozen(run)["fitted"]["train"] == told
    # A new run would be another one.
    other, new = begin(is_new=True)
    assert other["chosen"]["gradient_checkpointing"] is True and other["source"] == "history"
    assert new.name == "fitted-2" and frozen(new)["spec"]["stages"][0]["gradient_checkpointing"]


def remember(run, stage: dict, *, policy: bool, **values) -> None:
    plain = stage_from_plain({**stage, "gradient_checkpointing": policy})
    line = {
        "format": 1, "kind": "stage", "at": 1.79e9, "run": "old", "stage": "train", "ranks": 1,
        "device": "cuda", "gpu": "a100-40gb", "samples": 1600, "experiment": "old",
        "key": stage_key(plain, device="cuda", ranks=1), **values,
    }  # fmt: skip
    append_history(run.path.parent, f"old.{policy}", line)


def test_auto_is_no_change_of_a_run_that_was_begun_and_another_value_is(begin):
    _, run = begin()
    (run.checkpoints / "step-000000001.c1").mkdir(parents=True)
    begin()
    with pytest.raises(RunError, match="gradient_checkpointing: False → True"):
        begin("gradient_checkpointing=true")
    begin("gradient_checkpointing=false")


def test_where_nobody_may_be_asked_it_falls_back_in_words(deaf, tmp_path):
    words = ("--no-measure", "--json", "--set", f"runs={tmp_path}")
    plan = deaf("plan", *words).json()
    chosen = plan["fits"][SPREAD]["chosen"]
    assert (chosen["gradient_checkpointing"], chosen["gpus"]) == (False, 1)
    [said] = [text for text in plan["warnings"] if SPREAD in text]
    assert "`gradient_checkpointing: false`, `gpus: 1`" in said and "`tasuki plan` traces" in said


def test_on_a_cpu_there_is_nothing_to_fit_to_and_this_is_said(deaf):
    plan = deaf("plan", "--no-measure", "--json", "--set", "cluster.gpu=cpu").json()
    chosen = plan["fits"][SPREAD]["chosen"]
    assert (chosen["gradient_checkpointing"], chosen["gpus"]) == (False, 1)
    assert any("there is no card to fit to" in text for text in plan["warnings"])


def test_a_run_on_cpus_is_done_with_what_was_frozen_for_it(project, here):
    open_keys = {"gradient_checkpointing": "auto", "gpus": "auto"}
    made = project(stages=[{"name": "a", "data": "d", "epochs": 1, **open_keys}])
    said = here(made.folder, "run")
    assert said.code == 0 and "falls back to" in said.err, f"{said}\n{made.logs()}"
    [stage] = frozen(made.run())["spec"]["stages"]
    assert (stage["gradient_checkpointing"], stage["gpus"]) == (False, 1)
    assert not stage["chooses_gpus"]
    assert here(made.folder, "run").code == 0 and made.run().is_complete()


def test_gpus_auto_needs_to_know_how_many_samples_a_step_has(here, traced):
    words = ("--set", "effective_batch=null", "--set", "micro_batch=2", "--set", "accumulation=4")
    said = here(traced, "plan", "--experiment", "spread", *words)
    assert said.code == 2 and "leaves open how many samples a step has" in said.err, said
    assert "write `effective_batch`" in said.err

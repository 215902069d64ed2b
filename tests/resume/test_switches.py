"""Precision, checkpointing, offload and compile in whole runs: interrupted ones end bit for bit as
undisturbed ones, and what they do is said and written down."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import armed, finish
from tests.harness.project import differences, make_project

from tasuki.runs.events import read_events
from tasuki.runs.metrics import read_metrics

DEEP = '''

class Deep(Learner):
    """Blocks that can compute anew; calls of the first attempt may put the loss beyond fp16."""

    def __init__(self, burst=(), **more):
        super().__init__(**more)
        self.burst = set(burst)

    def build_model(self):
        def block():
            return nn.Sequential(nn.Linear(16, 16), self.norm(16), nn.ReLU(), nn.Dropout(0.2))

        return nn.Sequential(nn.Linear(6, 16), nn.Sequential(block(), block()), nn.Linear(16, 1))

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        is_burst = self.calls in self.burst and os.environ["TASUKI_ATTEMPT"] == "1"
        return loss * (1e38 if is_burst else 1.0)


class Pure(Deep):
    """Without a count that changes from call to call: each would be compiled anew."""

    def loss(self, model, batch):
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
'''
SWITCHES = {
    "fp16": {"precision": "fp16", "gradient_checkpointing": True},
    "host": {"offload": True, "precision": "fp16"},
    "bf16": {"precision": "bf16", "schedule": "wsd", "warmup": 3},
}


def make(folder, switches, *, ranks=1, params=None, epochs=4):
    return make_project(
        folder,
        recipe="Pure" if "compile" in switches else "Deep",
        code=DEEP,
        ranks=ranks,
        stages=[{"name": "one", "data": "d", "epochs": epochs}],
        defaults={**switches, "validate": {"every": "6 steps"}, "evaluate": {}},
        params=params or {},
    )


def interrupt(warm, project) -> None:
    order = {"at": "step.done", "do": "term-group", "count": 5, "claim": 1}
    assert warm.start(project.job.path, **armed(order)).wait() == 75, project.logs()
    finish(warm, project, starts=1)


@pytest.mark.parametrize("name", ["fp16", "bf16", pytest.param("host", marks=pytest.mark.long)])
def test_an_interrupted_run_ends_bit_for_bit_as_an_undisturbed_one(warm, tmp_path, whole, name):
    params = {"burst": [3, 5]} if name == "fp16" else {}
    cut = make(tmp_path / "cut", SWITCHES[name], params=params)
    interrupt(warm, cut)
    assert differences(whole(make, SWITCHES[name], params=params), cut) == []


def test_overflows_of_fp16_are_counted_over_interruptions_and_logged(warm, tmp_path):
    params = {"burst": [3, 5]}
    project = make(tmp_path / "p", {**SWITCHES["fp16"], "warmup": 500}, params=params)
    interrupt(warm, project)
    rows = [row for row in read_metrics(project.run) if row["split"] == "train"]
    assert rows[-1]["overflows"] >= 2
    assert rows[-1]["loss_scale"] <= 65536 / 4
    assert [row["overflows"] for row in rows] == sorted(row["overflows"] for row in rows)
    log = project.logs()
    assert "`precision: fp16` is for GPUs" in log
    assert "Gradient checkpointing: 1.0, 1.1 keep their inputs only" in log
    assert "`warmup: 500` (500 steps) is as long as the whole stage of 24 steps" in log


@pytest.mark.long
@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_two_ranks_agree_on_scale_and_steps(warm, tmp_path, whole, precision):
    """Of 120 steps: they agree to stop at a later one than that in which the notice came."""
    switches = {"precision": precision, "gradient_checkpointing": True, "micro_batch": 2}
    more = {"ranks": 2, "params": {"norm": "layer"}, "epochs": 20}
    cut = make(tmp_path / "cut", switches, **more)
    interrupt(warm, cut)
    assert differences(whole(make, switches, **more), cut) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_compiled_run_resumes_bit_for_bit_and_finds_its_kernels_again(warm, tmp_path):
    switches = {"compile": True, "precision": "bf16"}
    whole = make(tmp_path / "whole", switches)
    finish(warm, whole, starts=1)
    assert list(whole.run.compiled.rglob("*.so")) and "`compile` failed" not in whole.logs()
    cut = make(tmp_path / "cut", switches)
    interrupt(warm, cut)
    assert differences(whole, cut) == []


@pytest.mark.long
@pytest.mark.timeout(600)
def test_without_a_compiler_a_run_goes_on_as_written_and_says_so(warm, tmp_path):
    plain = make(tmp_path / "plain", {"compile": False})
    assert warm.start(plain.job.path).wait() == 0, plain.logs()
    project = make(tmp_path / "p", {"compile": True})
    assert warm.start(project.job.path, PATH="/nowhere").wait() == 0, project.logs()
    assert project.logs().count("`compile` failed, the model runs as it is written") == 1
    assert [e for e in read_events(project.run) if e["kind"] == "warning"]
    weights = [load_file(p.run.stage("one").weights) for p in (plain, project)]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])

"""Precision, checkpointing, offload and compile in whole runs: interrupted ones end bit for bit as
undisturbed ones, and what they do is said and written down."""

from __future__ import annotations

import signal

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.project import differences, make_project
from tests.resume.test_ranks import wait_for_step

from tasuki.runs.events import read_events
from tasuki.runs.metrics import read_metrics

DEEP = '''

class Deep(Learner):
    """Blocks that can compute anew; the loss may be put beyond what fp16 holds."""

    def __init__(self, burst=(), **more):
        super().__init__(**more)
        self.burst = set(burst)

    def build_model(self):
        def block():
            return nn.Sequential(nn.Linear(16, 16), self.norm(16), nn.ReLU(), nn.Dropout(0.2))

        return nn.Sequential(nn.Linear(6, 16), nn.Sequential(block(), block()), nn.Linear(16, 1))

    def loss(self, model, batch):
        loss = super().loss(model, batch)
        return loss * (1e38 if self.calls in self.burst else 1.0)


class Pure(Deep):
    """Without a count that changes from call to call: each would be compiled anew."""

    def loss(self, model, batch):
        if self.pause:
            time.sleep(self.pause)
        x, y = batch
        return nn.functional.mse_loss(model(x), y)
'''
SWITCHES = {
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "anew": {"gradient_checkpointing": True},
    "host": {"offload": True, "precision": "fp16"},
    "wsd": {"schedule": "wsd", "warmup": 3},
}


def make(folder, switches, *, ranks=1, pause=0.0, params=None):
    return make_project(
        folder,
        recipe="Pure" if "compile" in switches else "Deep",
        code=DEEP,
        ranks=ranks,
        defaults={**switches, "validate": {"every": "6 steps"}, "evaluate": {}},
        params={"pause": pause, **(params or {})},
    )


@pytest.mark.parametrize("name", SWITCHES)
def test_an_interrupted_run_ends_bit_for_bit_as_an_undisturbed_one(warm, tmp_path, name):
    whole = make(tmp_path / "whole", SWITCHES[name])
    assert warm.start(whole.job.path).wait() == 0, whole.logs()
    cut = make(tmp_path / "cut", SWITCHES[name], pause=0.02)
    interrupt(warm, cut)
    assert differences(whole, cut) == []


def interrupt(warm, project, *, within_s: float = 60) -> None:
    started = warm.start(project.job.path)
    wait_for_step(project, 4, within_s=within_s)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    assert warm.start(project.job.path).wait() == 0, project.logs()


def test_overflows_of_fp16_are_counted_over_interruptions_and_logged(warm, tmp_path):
    params = {"burst": [3, 5]}  # calls of the first attempt only: the second one begins beyond
    project = make(tmp_path / "p", SWITCHES["fp16"], pause=0.05, params=params)
    interrupt(warm, project)
    rows = [row for row in read_metrics(project.run) if row["split"] == "train"]
    assert rows[-1]["overflows"] >= 2
    assert rows[-1]["loss_scale"] <= 65536 / 4
    assert [row["overflows"] for row in rows] == sorted(row["overflows"] for row in rows)


@pytest.mark.parametrize("precision", ["fp16", "bf16"])
def test_two_ranks_agree_on_scale_and_steps(warm, tmp_path, precision):
    switches = {"precision": precision, "gradient_checkpointing": True, "micro_batch": 2}
    params = {"norm": "layer"}
    whole = make(tmp_path / "whole", switches, ranks=2, params=params)
    assert warm.start(whole.job.path).wait() == 0, whole.logs()
    cut = make(tmp_path / "cut", switches, ranks=2, pause=0.01, params=params)
    interrupt(warm, cut)
    assert differences(whole, cut) == []


def test_what_the_device_makes_of_the_switches_is_said(warm, tmp_path):
    switches = {"precision": "fp16", "gradient_checkpointing": True, "warmup": 500}
    project = make(tmp_path / "p", switches)
    assert warm.start(project.job.path).wait() == 0, project.logs()
    log = project.logs()
    assert "`precision: fp16` is for GPUs" in log
    assert "Gradient checkpointing: 1.0, 1.1 keep their inputs only" in log
    assert "`warmup: 500` (500 steps) is as long as the whole stage of 24 steps" in log


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_compiled_run_resumes_bit_for_bit_and_finds_its_kernels_again(warm, tmp_path):
    switches = {"compile": True, "precision": "bf16"}
    whole = make(tmp_path / "whole", switches)
    assert warm.start(whole.job.path).wait() == 0, whole.logs()
    assert list(whole.run.compiled.rglob("*.so")) and "`compile` failed" not in whole.logs()
    cut = make(tmp_path / "cut", switches, pause=0.05)
    interrupt(warm, cut, within_s=300)
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

"""`micro_batch: auto` under a cap on memory: what is decided, when, and that nothing else changes.

A tuner's child takes seconds to start: most runs here are told its decision beforehand, as an
attempt that was killed right after it leaves it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import armed, events, finish, used
from tests.harness.project import Project, differences, make_project

CODE = '''
class Numbered(Noisy):
    def __getitem__(self, i):
        return *super().__getitem__(i), i


class Wide(Learner):
    """Little to learn with, and for each sample activations of `width` × 64 bytes; those in
    `scratch` need `more` × 4 bytes on top, which nothing is computed from. In the tuner's child it
    dies, if that is wanted."""

    def __init__(self, width=1200, scratch=(), more=0, crash=False):
        super().__init__(norm="layer")
        self.width, self.scratch, self.more = width, set(scratch), more
        if crash and "tasuki-batch-" in os.environ["TASUKI_RUN"]:
            os._exit(3)

    def build_dataset(self, source, split):
        return Numbered(self.samples)

    def build_model(self):
        model = nn.Module()
        model.body = nn.Sequential(nn.Linear(6, 16), self.norm(16))
        model.head = nn.Linear(16, 1)
        model.register_buffer("table", torch.linspace(0.5, 1.5, self.width))
        return model

    def loss(self, model, batch):
        x, y, numbers = batch
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        with open(f"{os.environ['TASUKI_RUN']}/passes.{rank}", "a") as file:
            file.write(f"{len(x)}\\n")
        if self.scratch & set(numbers.tolist()):
            scratch = torch.empty(len(x), self.more)
        h = model.body(x).unsqueeze(-1) * model.table
        return nn.functional.mse_loss(model.head(torch.sin(h).mean(-1)), y)
'''
CAP = {"TASUKI_MEMORY_CAP": "2M"}
SHORT = [{"name": "one", "data": "d", "epochs": 1}]
"""Six steps, and no border in between."""


def wide(folder: Path, **more: Any) -> Project:
    return make_project(folder, recipe="Wide", code=CODE, **more)


def decisions(project: Project) -> list[tuple[int, int, int]]:
    told = events(project, "micro-batch")
    return [(e["from_step"], e["was"], e["most"]) for e in told]


def factors(project: Project) -> list[tuple[int, float]]:
    return [(e["step"], e["factor"]) for e in events(project, "safety-factor")]


def passes(project: Project, rank: int = 0) -> list[int]:
    return [int(n) for n in (project.run.path / f"passes.{rank}").read_text().split()]


def weights(project: Project) -> dict[str, torch.Tensor]:
    return load_file(project.run.stage("one").weights)


def tell(project: Project, told: list[dict[str, Any]]) -> Project:
    """As an attempt before the first would have left it."""
    project.run.events.mkdir(exist_ok=True)
    lines = [json.dumps({**event, "claim": 0}) + "\n" for event in told]
    (project.run.events / "0.0.before.jsonl").write_text("".join(lines))
    return project


@pytest.fixture(scope="module")
def tuned(warm, tmp_path_factory) -> Project:
    """Killed between the decision and the first step, and resumed."""
    project = wide(tmp_path_factory.mktemp("tuned") / "p", stages=SHORT)
    kill = armed({"at": "batch.decided", "do": "kill", "count": 1, "claim": 1})
    finish(warm, project, starts=1, **kill, **CAP)
    assert [event["ending"] for event in events(project, "attempt-ended")] == ["failed", "done"]
    return project


@pytest.fixture(scope="module")
def told(tuned) -> list[dict[str, Any]]:
    """The tuner's decision."""
    return events(tuned, "micro-batch", "batch-tuned")


@pytest.fixture(scope="module")
def rising(warm, tmp_path_factory, told) -> Project:
    """Four epochs of six steps, undisturbed."""
    project = tell(wide(tmp_path_factory.mktemp("rising") / "p"), told)
    finish(warm, project, starts=1, **CAP)
    return project


# -- at the start ---------------------------------------------------------------------------------


def test_the_tuner_says_what_it_found_which_factor_and_what_is_left(tuned):
    lines = tuned.logs().splitlines()
    for line in (
        "Batch size tuner found: 6",
        "Applied 50% safety factor: 6 × 0.5",
        "Final safe batch size: 3",
    ):
        assert lines.count(line) == 1, line
    (told,) = events(tuned, "batch-tuned")
    (row,) = told["buckets"]
    assert (row["found"], row["micro_batch"], row["share"]) == (6, 3, 8)
    assert told["probes"] <= 4 and told["source"] == "traced" and told["factor"] == 0.5
    assert abs(row["measured_bytes"] / row["predicted_bytes"] - 1) < 0.001
    assert told["capacity_bytes"] == 2 << 20


def test_tuning_does_not_disturb_the_run_and_happens_once(warm, tmp_path, tuned):
    """Bit for bit the run that was given this micro-batch; the recipe's own files tell of no other
    passes."""
    given = wide(tmp_path / "g", stages=SHORT, defaults={"micro_batch": 3})
    finish(warm, given, starts=1, **CAP)
    assert len(events(tuned, "batch-tuned")) == 1
    assert events(given, "batch-tuned") == [], "a given micro-batch is left alone"
    assert passes(tuned) == passes(given) and sum(passes(given)) == 44 and max(passes(given)) == 3
    assert differences(given, tuned) == []


@pytest.mark.long
def test_a_tuner_that_dies_does_not_end_the_run(warm, tmp_path):
    """The whole share is one micro-batch, and running out of memory is survived."""
    project = wide(tmp_path / "p", stages=SHORT, params={"crash": True})
    finish(warm, project, starts=1, **CAP)
    assert "WARNING: the batch size tuner failed" in project.logs()
    (told,) = events(project, "batch-tuned")
    assert told["buckets"] == [] and told["error"]
    assert decisions(project) == [(0, 8, 4)]
    assert passes(project)[0] == 8 and set(passes(project)[1:]) == {4}


# -- at the borders -------------------------------------------------------------------------------


def test_the_factor_rises_at_epoch_borders_and_nothing_else_changes(warm, tmp_path, rising):
    assert factors(rising) == [(6, 0.6), (12, 0.7), (18, 0.8)]
    assert decisions(rising) == [(0, 8, 3), (12, 3, 4)]
    assert max(passes(rising)[:30]) == 3 and set(passes(rising)[-11:]) == {4}
    free = wide(tmp_path / "f", defaults={"micro_batch": 8})
    finish(warm, free, starts=1)
    assert used(rising.run) == used(free.run), "the same samples, each once"
    for name, tensor in weights(free).items():
        assert torch.allclose(weights(rising)[name], tensor, rtol=1e-4, atol=1e-6), name
    said = [line for line in rising.logs().splitlines() if line.startswith("Safety factor")]
    assert len(said) == 1 and "from step 12 on" in said[0] and "3 → 4" in said[0]


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("border.decided", 2),
        *(
            pytest.param(*at, marks=pytest.mark.long)
            for at in (("step.begin", 13), ("step.done", 16))
        ),
    ],
)
def test_a_border_is_decided_once(warm, tmp_path, rising, told, place, count):
    """Killed between the decision and the step that uses it, or in the middle of an epoch: the
    resumed run has the same decisions, and the bits of the undisturbed one."""
    project = tell(wide(tmp_path / "p"), told)
    kill = armed({"at": place, "do": "kill", "count": count, "claim": 1})
    finish(warm, project, starts=1, **kill, **CAP)
    assert [event["ending"] for event in events(project, "attempt-ended")] == ["failed", "done"]
    assert decisions(project) == decisions(rising) and factors(project) == factors(rising)
    assert used(project.run).items() <= used(rising.run).items()
    assert differences(rising, project) == []


def test_the_factor_falls_after_running_out_of_memory_and_never_tries_that_again(
    warm, tmp_path, told
):
    params = {"scratch": [13], "more": 160_000}
    project = tell(wide(tmp_path / "p", params=params), told)
    finish(warm, project, starts=1, **CAP)
    _, (step, *halved), *later = decisions(project)
    assert halved == [3, 2] and 0 < step < 6
    assert factors(project)[0] == (6, 0.4)
    assert events(project, "safety-factor")[0]["ratio"] is None, "no peak of what fits"
    assert all(most <= 2 for *_, most in later) and max(passes(project)[-50:]) <= 2
    assert len(events(project, "attempt-ended")) == 1


@pytest.mark.long
def test_ranks_decide_together(warm, tmp_path, told):
    """From the highest peak of any; killed at the border they go on as if nothing had been."""
    whole, killed = (tell(wide(tmp_path / name, ranks=2), told) for name in "wk")
    finish(warm, whole, starts=1, **CAP)
    assert decisions(whole) == [(0, 8, 3), (12, 3, 4)]
    for rank in range(2):
        sizes = passes(whole, rank)
        assert max(sizes[3:20]) == 2 and 4 in sizes[24:]
    kill = armed({"at": "border.decided", "do": "kill", "count": 2, "claim": 1, "rank": 0})
    finish(warm, killed, starts=1, **kill, **CAP)
    assert len(events(killed, "attempt-ended")) == 2
    assert decisions(killed) == decisions(whole) and factors(killed) == factors(whole)
    assert differences(whole, killed) == []

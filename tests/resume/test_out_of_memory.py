"""Out of memory is survived: the same samples in smaller micro-batches, by a decision on disk.

Ranks run under a cap on the memory of tensors (tasuki.testing.memory_cap): torch's own error, at
whatever operation is one too many.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import armed, events, finish, used
from tests.harness.project import Project, differences, make_project

from tasuki.runs.control import last_said

CODE = '''
class Numbered(Noisy):
    def __getitem__(self, i):
        return *super().__getitem__(i), i


class Eater(Learner):
    """Little to learn with, and for each sample activations of `width` × 64 bytes; those in
    `scratch` need 160 kB more, which nothing is computed from, in the first attempt alone."""

    def __init__(self, dropout=0.0, norm="layer", width=1000, scratch=(), room=None, **more):
        super().__init__(norm=norm, **more)
        self.dropout, self.width, self.scratch = dropout, width, set(scratch)
        self.room = room or {"most": 99}

    def build_dataset(self, source, split):
        return Numbered(self.samples)

    def build_model(self):
        model = nn.Module()
        model.body = nn.Sequential(nn.Linear(6, 16), self.norm(16), nn.Dropout(self.dropout))
        model.head = nn.Linear(16, 1)
        model.register_buffer("table", torch.linspace(0.5, 1.5, self.width))
        return model

    def loss(self, model, batch):
        x, y, numbers = batch
        rank = torch.distributed.get_rank() if torch.distributed.is_initialized() else 0
        note(rank, f"{len(x)} {','.join(map(str, numbers.tolist()))}")
        self.calls += 1
        is_mine = rank == self.room.get("rank", rank) and self.calls > self.room.get("after", 0)
        if len(x) > self.room["most"] and is_mine and os.environ["TASUKI_ATTEMPT"] == "1":
            torch.empty(10**15)
        if self.scratch & set(numbers.tolist()) and os.environ["TASUKI_ATTEMPT"] == "1":
            scratch = torch.empty(len(x), 40_000)
        h = model.body(x).unsqueeze(-1) * model.table
        return nn.functional.mse_loss(model.head(torch.sin(h).mean(-1)), y)


class Hasty(Eater):
    def build_optimizer(self, model):
        return Greedy(model.parameters(), lr=1e-2)


class Greedy(torch.optim.AdamW):
    """In one step the optimizer runs out of memory after it has changed a parameter."""

    def step(self, closure=None):
        first = self.param_groups[0]["params"][0]
        trap = f"{os.environ['TASUKI_RUN']}/trap"
        if os.path.exists(trap) and first in self.state and self.state[first]["step"] == 9:
            os.unlink(trap)
            with torch.no_grad():
                first.zero_()
            torch.empty(10**15)
        return super().step(closure)


def note(rank, words):
    attempt = os.environ["TASUKI_ATTEMPT"]
    with open(f"{os.environ['TASUKI_RUN']}/passes.{attempt}.{rank}", "a") as file:
        file.write(words + "\\n")
'''
CAP = {"TASUKI_MEMORY_CAP": "2M"}
"""Room for four samples of width 2000, or for eight of width 1000 without scratch."""
WIDE = {"width": 2000}
LATER = {"scratch": [13]}
"""A sample that comes in step 5 first; the saves before it are those of steps 0 and 3."""
DROPOUT = {"dropout": 0.3, "norm": "batch"}


def eater(
    folder: Path,
    recipe: str = "Eater",
    defaults: dict | None = None,
    *,
    code: str = CODE,
    **more,
) -> Project:
    """A micro-batch that is given: else the tuner would find one that fits."""
    given = defaults or {}
    whole = {"micro_batch": given.get("effective_batch", 8)}
    return make_project(folder, recipe=recipe, code=code, defaults={**whole, **given}, **more)


def later(folder: Path) -> Project:
    return eater(folder, params={**DROPOUT, **LATER}, defaults={"save": {"every": "3 steps"}})


def decisions(project: Project) -> list[tuple[int, int, int, int]]:
    told = events(project, "micro-batch")
    return [(e["bucket"], e["from_step"], e["was"], e["most"]) for e in told]


def passes(project: Project, claim: int = 1, rank: int = 0) -> list[list[int]]:
    """The samples of each forward pass."""
    lines = (project.run.path / f"passes.{claim}.{rank}").read_text().splitlines()
    return [[int(number) for number in line.split()[1].split(",")] for line in lines]


def weights(project: Project) -> dict[str, torch.Tensor]:
    return load_file(project.run.stage("one").weights)


@pytest.fixture(scope="module")
def whole(warm, tmp_path_factory) -> Project:
    """It runs out of memory in the middle of the first epoch, and is not disturbed."""
    project = later(tmp_path_factory.mktemp("oom") / "p")
    finish(warm, project, starts=1, **CAP)
    return project


# -- done again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("params", [{}, DROPOUT])
def test_a_step_that_was_undone_leaves_nothing_behind(warm, tmp_path, params):
    """No random number, no running mean, no gradient: bit for bit as with the smaller micro-batch
    from the start."""
    project = eater(tmp_path / "p", params={**params, **WIDE})
    finish(warm, project, starts=1, **CAP)
    assert decisions(project) == [(0, 0, 8, 4)]
    small = eater(tmp_path / "s", params={**params, **WIDE}, defaults={"micro_batch": 4})
    finish(warm, small, starts=1)
    assert passes(project)[1:] == passes(small), "the same samples"
    assert used(project.run) == used(small.run), "each counted once"
    assert differences(small, project) == []


def test_the_effective_batch_stays_and_with_it_what_is_learnt(warm, tmp_path):
    """A loss that is a sum over samples does not see how they are split."""
    capped = eater(tmp_path / "p", params=WIDE)
    free = eater(tmp_path / "f", params=WIDE)
    finish(warm, capped, starts=1, **CAP)
    finish(warm, free, starts=1)
    assert used(capped.run) == used(free.run)
    for name, tensor in weights(free).items():
        assert torch.allclose(weights(capped)[name], tensor, rtol=1e-4, atol=1e-6), name


def test_it_is_said_once_with_what_does_not_stay_the_same(whole):
    said = [line for line in whole.logs().splitlines() if "ran out of memory" in line]
    assert len(said) == 1 and said[0].startswith("WARNING: step 5 ran out of memory"), said
    assert "with a micro-batch of 8 samples (it asked for" in said[0]
    assert "it is done again with 4 samples at once, and so are all later steps" in said[0]
    assert "the effective batch stays 8" in said[0]
    assert "dropout draws other numbers and BatchNorm sees smaller batches" in said[0]


def test_only_later_steps_of_the_same_bucket_are_split(whole):
    assert decisions(whole) == [(0, 5, 8, 4)]
    done = passes(whole)
    assert [len(samples) for samples in done[:8]] == [8, 8, 8, 8, 4, 8, 4, 4]
    assert all(len(samples) <= 4 for samples in done[6:])
    assert done[5] == done[6] + done[7], "the same samples, in the same order"


def test_loader_workers_give_the_same_samples_again(warm, tmp_path, whole):
    project = eater(
        tmp_path / "p",
        params={**DROPOUT, **LATER},
        cluster={"cpus": 2},
        defaults={"save": {"every": "3 steps"}, "loader": {"workers": 1}},
    )
    finish(warm, project, starts=1, **CAP)
    assert decisions(project) == decisions(whole)
    assert passes(project) == passes(whole) and used(project.run) == used(whole.run)
    assert differences(whole, project) == []


# -- decided once -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "count"), [("memory.decided", 1), ("step.optimizer", 6), ("step.done", 7)]
)
def test_a_decision_outlives_a_kill_and_holds_from_the_same_step(
    warm, tmp_path, whole, place, count
):
    """The next attempt has all the memory it wants, and still splits as the last one decided:
    steps before as they were, steps after as they would have been."""
    project = later(tmp_path / "p")
    kill = armed({"at": place, "do": "kill", "count": count, "claim": 1})
    finish(warm, project, starts=1, **kill, **CAP)
    assert [event["ending"] for event in events(project, "attempt-ended")] == ["failed", "done"]
    assert decisions(project) == decisions(whole)
    assert differences(whole, project) == []


# -- where it cannot be undone ------------------------------------------------------------------


def test_out_of_memory_in_the_optimizers_step_goes_back_to_a_checkpoint(warm, tmp_path):
    """Parameters may be half updated: nothing of that attempt's step is kept."""
    project = eater(tmp_path / "p", "Hasty", params=DROPOUT)
    (project.run.path / "trap").touch()
    finish(warm, project, starts=1)
    assert decisions(project) == [(0, 9, 8, 4)]
    first = events(project, "attempt-ended")[0]
    assert first["ending"] == "failed"
    assert "ran out of memory at step 9 with a micro-batch of 8 samples" in first["message"]
    assert "the next attempt goes on from the last checkpoint with 4 samples" in first["message"]
    assert [e["step"] for e in events(project, "restored")] == [0, 7]
    # As a run that knew it all along.
    knowing = eater(tmp_path / "k", "Hasty", params=DROPOUT)
    (told,) = events(project, "micro-batch")
    knowing.run.events.mkdir(exist_ok=True)
    (knowing.run.events / "0.0.before.jsonl").write_text(json.dumps(told) + "\n")
    finish(warm, knowing, starts=1)
    assert differences(knowing, project) == []


def test_where_one_sample_is_too_large_it_says_by_how_much_and_what_would_help(warm, tmp_path):
    project = eater(tmp_path / "p", params=WIDE)
    assert warm.start(project.job.path, TASUKI_MEMORY_CAP="300K").wait() == 1, project.logs()
    assert [most for *_, most in decisions(project)] == [4, 2, 1]
    said = last_said(project.run)
    assert said is not None
    assert said.reason.startswith(
        "stage `one` ran out of memory at step 0 with a micro-batch of 1 sample (it asked for "
    )
    assert " too many); weights and gradients take " in said.reason
    assert " of 307 kB, and the sample needs more than the other 29" in said.reason
    for words in ("`gradient_checkpointing: true`", "`precision: bf16`", "more memory (more than "):
        assert words in said.hint
    assert len(events(project, "attempt-ended")) == 1, "trying again would change nothing"


# -- several ranks ------------------------------------------------------------------------------


def four(folder: Path, **params) -> Project:
    """Each has four samples of a step."""
    return eater(
        folder,
        ranks=4,
        params={**DROPOUT, "samples": 48, **params},
        stages=[{"name": "one", "data": "d", "epochs": 15}],
        defaults={"effective_batch": 16, "save": {"every": "7 steps"}},
    )


def knowing(folder: Path, warm, project: Project) -> Project:
    """A run without any fault that is told the decisions of another beforehand."""
    made = four(folder)
    made.run.events.mkdir(exist_ok=True)
    told = [json.dumps(event) + "\n" for event in events(project, "micro-batch")]
    (made.run.events / "0.0.before.jsonl").write_text("".join(told))
    finish(warm, made, starts=1)
    assert decisions(made) == decisions(project)
    return made


@pytest.mark.parametrize(("after", "step"), [(0, 0), (10, None)])
def test_ranks_vote_and_all_do_the_step_again_when_one_of_four_has_no_room(
    warm, tmp_path, after, step
):
    """In the first steps of an attempt, or in the pass that is tried before them."""
    project = four(tmp_path / "p", room={"rank": 2, "most": 2, "after": after})
    finish(warm, project, starts=1)
    assert len(events(project, "attempt-ended")) == 1, project.logs()
    ((_, from_step, was, most),) = decisions(project)
    assert (was, most) == (4, 2) and (from_step == step if step is not None else from_step > 0)
    for rank in range(4):
        sizes = [len(samples) for samples in passes(project, rank=rank)]
        assert sizes[0] == 4 and set(sizes[-20:]) == {2}, (rank, sizes)
    assert differences(knowing(tmp_path / "k", warm, project), project) == []


@pytest.mark.long
def test_a_rank_that_has_no_room_any_more_brings_all_back_to_a_checkpoint(warm, tmp_path):
    """The others are in the middle of a sum: nobody can vote."""
    project = four(tmp_path / "p", room={"rank": 2, "most": 2, "after": 40})
    finish(warm, project, starts=1)
    first, last = events(project, "attempt-ended")
    assert first["ending"] == "failed" and last["ending"] == "done", project.logs()
    assert "ran out of memory at step" in first["message"], first
    ((_, from_step, was, most),) = decisions(project)
    assert (was, most) == (4, 2) and from_step > 20
    (told,) = events(project, "micro-batch")
    assert told["who"] == "rank2"
    assert differences(knowing(tmp_path / "k", warm, project), project) == []

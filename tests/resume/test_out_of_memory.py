"""Out of memory is survived: the same samples in smaller micro-batches, by a decision on disk.

Which steps can be undone is tested in `train/test_undo.py`. Ranks run under a cap on the memory of
tensors (tasuki.testing.memory_cap): torch's own error, at whatever operation is one too many.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.harness.faulty import armed, events, finish, used
from tests.harness.project import Project, differences, make_project

from tasuki.runs.control import last_said
from tasuki.runs.metrics import read_metrics

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


class Strict(Eater):
    """While it does not learn it has room for `seen` samples."""

    def __init__(self, seen=99, **more):
        super().__init__(**more)
        self.seen = seen

    def loss(self, model, batch):
        if not model.training and len(batch[0]) > self.seen:
            torch.empty(10**15)
        return super().loss(model, batch)


class Taught(Eater):
    """A teacher follows in each pass: no such step can be undone."""

    def build_model(self):
        model = super().build_model()
        model.teacher = nn.Linear(16, 1).requires_grad_(False)
        return model

    def loss(self, model, batch):
        with torch.no_grad():
            model.teacher.weight.data.mul_(0.9).add_(model.head.weight.data, alpha=0.1)
        return super().loss(model, batch)


class Overweight(Eater):
    """Its optimizer has no room, whatever the batch."""

    def build_optimizer(self, model):
        made = torch.optim.AdamW(model.parameters(), lr=1e-2)
        made.register_step_pre_hook(lambda *_: torch.empty(10**15))
        return made


class Forgetful(Eater):
    """Samples of which no two can be in memory at once, once in a while."""

    def build_dataset(self, source, split):
        return Heavy(self.samples)


class Heavy(Numbered):
    def __getitem__(self, i):
        if i == 13 and not os.path.exists(f"{os.environ['TASUKI_RUN']}/met"):
            open(f"{os.environ['TASUKI_RUN']}/met", "w").close()
            raise MemoryError
        return super().__getitem__(i)


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
SHORT = [{"name": "one", "data": "d", "steps": 6}]


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


def check_as_if_known(warm, knowing: Project, project: Project) -> None:
    """A run without any fault that is told the decisions beforehand ends the same."""
    knowing.run.events.mkdir(exist_ok=True)
    told = [json.dumps(event) + "\n" for event in events(project, "micro-batch")]
    (knowing.run.events / "0.0.before.jsonl").write_text("".join(told))
    finish(warm, knowing, starts=1)
    assert decisions(knowing) == decisions(project)
    assert differences(knowing, project) == []


@pytest.fixture(scope="module")
def halved(warm, tmp_path_factory) -> Project:
    """It runs out of memory in the middle of the first epoch, and is not disturbed."""
    project = later(tmp_path_factory.mktemp("oom") / "p")
    finish(warm, project, starts=1, **CAP)
    return project


# -- done again ---------------------------------------------------------------------------------


def test_a_step_that_was_undone_leaves_nothing_behind(warm, tmp_path):
    """No random number, no running mean, no gradient: bit for bit as with the smaller micro-batch
    from the start."""
    project = eater(tmp_path / "p", params={**DROPOUT, **WIDE})
    finish(warm, project, starts=1, **CAP)
    assert decisions(project) == [(0, 0, 8, 4)]
    small = eater(tmp_path / "s", params={**DROPOUT, **WIDE}, defaults={"micro_batch": 4})
    finish(warm, small, starts=1)
    assert passes(project)[1:] == passes(small), "the same samples"
    assert used(project.run) == used(small.run), "each counted once"
    assert differences(small, project) == []


def test_only_later_steps_of_the_same_bucket_are_split_and_it_is_said_once(halved):
    said = [line for line in halved.logs().splitlines() if "ran out of memory" in line]
    assert len(said) == 1 and said[0].startswith("WARNING: step 5 ran out of memory"), said
    assert "it is done again with 4 samples at once, and so are all later steps" in said[0]
    assert "dropout draws other numbers and BatchNorm sees smaller batches" in said[0]
    assert decisions(halved) == [(0, 5, 8, 4)]
    done = passes(halved)
    assert [len(samples) for samples in done[:8]] == [8, 8, 8, 8, 4, 8, 4, 4]
    assert all(len(samples) <= 4 for samples in done[6:])
    assert done[5] == done[6] + done[7], "the same samples, in the same order"


# -- decided once -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("place", "count"),
    [
        ("memory.decided", 1),
        *(
            pytest.param(*at, marks=pytest.mark.long)
            for at in (("step.optimizer", 6), ("step.done", 7))
        ),
    ],
)
def test_a_decision_outlives_a_kill_and_holds_from_the_same_step(
    warm, tmp_path, halved, place, count
):
    """The next attempt has all the memory it wants, and still splits as the last one decided:
    steps before as they were, steps after as they would have been."""
    project = later(tmp_path / "p")
    kill = armed({"at": place, "do": "kill", "count": count, "claim": 1})
    finish(warm, project, starts=1, **kill, **CAP)
    assert [event["ending"] for event in events(project, "attempt-ended")] == ["failed", "done"]
    assert decisions(project) == decisions(halved)
    assert differences(halved, project) == []


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
    knowing = eater(tmp_path / "k", "Hasty", params=DROPOUT)
    check_as_if_known(warm, knowing, project)


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


def test_as_many_restarts_as_there_are_halvings_do_not_hold_a_run(warm, tmp_path):
    """Each leaves the next attempt a smaller micro-batch: that is progress without a checkpoint."""
    more = {"params": {"dropout": 0.3, "width": 2000}, "stages": SHORT}
    project = eater(tmp_path / "p", "Taught", **more)
    finish(warm, project, starts=1, TASUKI_MEMORY_CAP="700K")
    assert [(was, most) for *_, was, most in decisions(project)] == [
        (8, 4),
        (4, 2),
        (2, 1),
    ]
    assert len(events(project, "attempt-ended")) == 4, project.logs()
    check_as_if_known(warm, eater(tmp_path / "k", "Taught", **more), project)


@pytest.mark.long
def test_a_single_sample_of_which_batch_norm_cannot_learn_is_explained(warm, tmp_path):
    project = eater(tmp_path / "p", "Eater", params={**DROPOUT, "room": {"most": 1}})
    assert warm.start(project.job.path).wait() == 1, project.logs()
    assert len(events(project, "attempt-ended")) == 1
    said = last_said(project.run)
    assert said is not None and "BatchNorm cannot learn" in said.reason, said
    assert "GroupNorm" in said.hint


def test_an_optimizer_without_room_is_tried_once_more_and_then_named(warm, tmp_path):
    """Its memory does not hang on the micro-batch: halving it again and again would be in vain."""
    project = eater(tmp_path / "p", "Overweight")
    assert warm.start(project.job.path).wait() == 1, project.logs()
    assert len(events(project, "attempt-ended")) == 2 and len(decisions(project)) == 1
    said = last_said(project.run)
    assert said is not None
    assert said.reason.startswith(
        "stage `one` ran out of memory in the optimizer's step at step 0 (it asked for "
    )
    assert "an optimizer that keeps less" in said.hint


@pytest.mark.long
def test_a_sample_that_the_host_has_no_room_for_is_fetched_again_with_fewer_others(warm, tmp_path):
    project = eater(tmp_path / "p", "Forgetful", params=DROPOUT, stages=SHORT)
    finish(warm, project, starts=1)
    assert [(was, most) for *_, was, most in decisions(project)] == [(8, 4)]
    assert len(events(project, "attempt-ended")) == 1


# -- while it does not learn --------------------------------------------------------------------

VALIDATED = {"validate": {"every": "4 steps", "data": "d"}, "evaluate": {"data": "d"}}


def strict(folder: Path, *, seen: int) -> Project:
    return eater(folder, "Strict", params={**DROPOUT, "seen": seen}, defaults=VALIDATED)


@pytest.fixture(scope="module")
def validated(warm, tmp_path_factory) -> Project:
    project = strict(tmp_path_factory.mktemp("seen") / "p", seen=3)
    finish(warm, project, starts=1)
    return project


def measured(project: Project) -> list[float]:
    rows = [row["loss"] for row in read_metrics(project.run) if row["split"] == "val"]
    told = json.loads(project.run.stage("one").evaluation.read_text())
    return [*rows, told["metrics"]["loss"]]


def test_a_validation_and_an_evaluation_without_room_are_done_in_smaller_batches(
    warm, tmp_path, validated
):
    """The numbers are those of one with room, within rounding, and what is learnt is the same."""
    free = strict(tmp_path / "f", seen=99)
    finish(warm, free, starts=1)
    assert len(events(validated, "attempt-ended")) == 1, validated.logs()
    assert measured(validated) == pytest.approx(measured(free), rel=1e-5)
    assert validated.run.stage("one").weights.read_bytes() == (
        free.run.stage("one").weights.read_bytes()
    )
    told = [(e["phase"], e["was"], e["most"]) for e in events(validated, "evaluation-batch")]
    assert told == [("validate", 8, 4), ("validate", 4, 2), ("evaluate", 8, 4), ("evaluate", 4, 2)]
    assert "evaluating stage `one` ran out of memory with a batch of 8 samples" in validated.logs()


def test_who_resumes_validates_in_the_batches_that_were_found_before(warm, tmp_path, validated):
    project = strict(tmp_path / "p", seen=3)
    kill = armed({"at": "step.done", "do": "kill", "count": 9, "claim": 1})
    finish(warm, project, starts=1, **kill)
    assert [event["ending"] for event in events(project, "attempt-ended")] == ["failed", "done"]
    assert differences(validated, project) == []
    phases = [event["phase"] for event in events(project, "evaluation-batch")]
    assert phases == ["validate"] * 2 + ["evaluate"] * 2, "found once"


@pytest.mark.long
def test_a_step_that_was_undone_twice_with_passes_made_again_leaves_nothing_behind(warm, tmp_path):
    """Down to two samples, in the first step and with gradients of earlier micro-batches there:
    bit for bit as with that micro-batch from the start."""
    params = {**DROPOUT, "room": {"most": 2, "after": 0}}
    asked = {"gradient_checkpointing": ["body"]}
    defaults = {**asked, "micro_batch": 6}
    project = eater(tmp_path / "p", params=params, stages=SHORT, defaults=defaults)
    finish(warm, project, starts=1)
    assert decisions(project) == [(0, 0, 4, 2)]
    assert len(events(project, "attempt-ended")) == 1, project.logs()
    defaults = {**asked, "micro_batch": 2}
    small = eater(tmp_path / "s", params=DROPOUT, stages=SHORT, defaults=defaults)
    finish(warm, small, starts=1)
    assert used(project.run) == used(small.run)
    assert differences(small, project) == []


@pytest.mark.long
def test_an_attempt_that_resumes_with_less_memory_halves_at_its_first_whole_step(warm, tmp_path):
    params = {**DROPOUT, **WIDE}
    project, knowing = (eater(tmp_path / n, params=params, stages=SHORT) for n in ("p", "k"))
    term = {"at": "step.done", "do": "term-group", "count": 3, "claim": 1}
    assert warm.start(project.job.path, **armed(term)).wait() == 75, project.logs()
    finish(warm, project, starts=1, **CAP)
    (resumed,) = [e["step"] for e in events(project, "restored") if e["step"]]
    # An epoch's last step is a smaller one.
    assert decisions(project) in ([(0, resumed, 8, 4)], [(0, resumed + 1, 8, 4)])
    check_as_if_known(warm, knowing, project)


# -- several ranks ------------------------------------------------------------------------------


def two(folder: Path, **params) -> Project:
    """Each has four samples of a step."""
    return eater(
        folder,
        ranks=2,
        params={**DROPOUT, "samples": 48, **params},
        stages=[{"name": "one", "data": "d", "epochs": 10}],
        defaults={"save": {"every": "7 steps"}},
    )


@pytest.mark.parametrize("after", [10, pytest.param(0, marks=pytest.mark.long)])
def test_ranks_vote_and_all_do_the_step_again_when_one_has_no_room(warm, tmp_path, after):
    """In the first steps of an attempt, or in the pass that is tried before them."""
    project = two(tmp_path / "p", room={"rank": 1, "most": 2, "after": after})
    finish(warm, project, starts=1)
    assert len(events(project, "attempt-ended")) == 1, project.logs()
    ((_, from_step, was, most),) = decisions(project)
    assert (was, most) == (4, 2) and (from_step > 0) == (after > 0)
    for rank in range(2):
        sizes = [len(samples) for samples in passes(project, rank=rank)]
        assert sizes[0] == 4 and set(sizes[-20:]) == {2}, (rank, sizes)
    check_as_if_known(warm, two(tmp_path / "k"), project)


@pytest.mark.long
@pytest.mark.parametrize("after", [1, 4, 40])
def test_a_rank_that_cannot_vote_brings_all_back_to_a_checkpoint(warm, tmp_path, after):
    """The others are in the middle of a sum: while DDP settles, and late in the stage."""
    project = two(tmp_path / "p", room={"rank": 1, "most": 2, "after": after})
    finish(warm, project, starts=1)
    first, last = events(project, "attempt-ended")
    assert first["ending"] == "failed" and last["ending"] == "done", project.logs()
    assert "ran out of memory at step" in first["message"], first
    ((_, _, was, most),) = decisions(project)
    assert (was, most) == (4, 2)
    (told,) = events(project, "micro-batch")
    assert told["who"] == "rank1"
    check_as_if_known(warm, two(tmp_path / "k"), project)


@pytest.mark.long
def test_one_rank_without_room_for_one_sample_is_the_one_that_tells(warm, tmp_path):
    project = two(tmp_path / "p", norm="layer", room={"rank": 1, "most": 0})
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and "with a micro-batch of 1 sample (it asked for " in said.reason, said
    assert passes(project, rank=0), "it had room"

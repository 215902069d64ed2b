"""Out of memory outside of a step's passes, again and again, and where nothing can be undone."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import armed, events, finish, used
from tests.harness.project import Project, differences
from tests.resume.test_out_of_memory import CODE, decisions, passes
from tests.resume.test_out_of_memory import eater as given

from tasuki.runs.control import last_said
from tasuki.runs.metrics import read_metrics

MORE = '''
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


class Scheduled(Eater):
    def build_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def build_schedule(self, optimizer, total_steps):
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5)


class Caught(Eater):
    """Its loss makes another error of it."""

    def loss(self, model, batch):
        try:
            return super().loss(model, batch)
        except RuntimeError as error:
            raise ValueError("the loss failed") from error


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
'''
STAGES = [{"name": "one", "data": "d", "steps": 6}]
NOISE = {"dropout": 0.3, "norm": "batch"}
DROPOUT = {"dropout": 0.3}


eater = partial(given, code=CODE + MORE)


def weights(project: Project) -> dict[str, torch.Tensor]:
    return load_file(project.run.stage("one").weights)


# -- while it does not learn --------------------------------------------------------------------

VALIDATED = {"validate": {"every": "4 steps", "data": "d"}, "evaluate": {"data": "d"}}


def strict(folder: Path, *, seen: int) -> Project:
    return eater(folder, "Strict", params={**NOISE, "seen": seen}, defaults=VALIDATED)


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
    for name, tensor in weights(free).items():
        assert torch.equal(weights(validated)[name], tensor), name
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


def test_a_validation_with_no_room_for_one_sample_says_so(warm, tmp_path):
    project = strict(tmp_path / "p", seen=0)
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None
    assert said.reason.startswith(
        "evaluating stage `one` ran out of memory with a batch of 1 sample (it asked for "
    )
    assert "more memory" in said.hint and "micro_batch" not in said.hint


# -- where nothing can be undone ----------------------------------------------------------------


def test_as_many_restarts_as_there_are_halvings_do_not_hold_a_run(warm, tmp_path):
    """Each leaves the next attempt a smaller micro-batch: that is progress without a checkpoint."""
    more = {"defaults": {"effective_batch": 16}, "stages": STAGES}
    project = eater(tmp_path / "p", "Taught", params={**DROPOUT, "width": 2000}, **more)
    finish(warm, project, starts=1, TASUKI_MEMORY_CAP="700K")
    assert [(was, most) for *_, was, most in decisions(project)] == [
        (16, 8),
        (8, 4),
        (4, 2),
        (2, 1),
    ]
    assert len(events(project, "attempt-ended")) == 5, project.logs()
    knowing = eater(tmp_path / "k", "Taught", params={**DROPOUT, "width": 2000}, **more)
    tell(knowing, events(project, "micro-batch"))
    finish(warm, knowing, starts=1)
    assert differences(knowing, project) == []


def test_a_single_sample_of_which_batch_norm_cannot_learn_is_explained(warm, tmp_path):
    project = eater(tmp_path / "p", "Eater", params={**NOISE, "room": {"most": 1}})
    assert warm.start(project.job.path).wait() == 1, project.logs()
    assert len(events(project, "attempt-ended")) == 1
    said = last_said(project.run)
    assert said is not None and "BatchNorm cannot learn" in said.reason, said
    assert "GroupNorm" in said.hint


def tell(project: Project, told: list[dict]) -> None:
    project.run.events.mkdir(exist_ok=True)
    lines = [json.dumps(event) + "\n" for event in told]
    (project.run.events / "0.0.before.jsonl").write_text("".join(lines))


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


# -- wherever, whatever else is asked for -------------------------------------------------------

ASKED = {
    "a schedule of the recipe's own": ("Scheduled", {}),
    "steps that are checked": ("Eater", {"on_nan": "skip"}),
    "numbers that need not be exact": ("Eater", {"exact": False}),
    "an optimizer on the host": ("Eater", {"offload": True}),
    "passes made again": ("Eater", {"gradient_checkpointing": ["body"]}),
    "bf16": ("Eater", {"precision": "bf16"}),
    "a loss that complains otherwise": ("Caught", {}),
}


QUICK = ("steps that are checked", "passes made again", "a loss that complains otherwise")


@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=[] if c in QUICK else pytest.mark.long) for c in ASKED]
)
def test_a_step_that_was_undone_twice_leaves_nothing_behind(warm, tmp_path, case):
    """Down to two samples, in the first step and with gradients of earlier micro-batches there:
    bit for bit as with that micro-batch from the start."""
    recipe, asked = ASKED[case]
    params, stages = {**NOISE, "room": {"most": 2, "after": 0}}, STAGES
    project = eater(
        tmp_path / "p", recipe, params=params, stages=stages, defaults={**asked, "micro_batch": 6}
    )
    finish(warm, project, starts=1)
    assert decisions(project) == [(0, 0, 4, 2)]
    assert len(events(project, "attempt-ended")) == 1, project.logs()
    defaults = {**asked, "micro_batch": 2}
    small = eater(tmp_path / "s", recipe, params=NOISE, stages=stages, defaults=defaults)
    finish(warm, small, starts=1)
    assert used(project.run) == used(small.run)
    assert differences(small, project) == []


def test_a_later_stage_meets_the_wall_at_its_own_first_step(warm, tmp_path):
    stages = [{"name": name, "data": "d", "steps": 4} for name in ("one", "two")]
    params = {**NOISE, "width": 2000, "samples": 48}
    project = eater(tmp_path / "p", "Eater", params=params, stages=stages)
    finish(warm, project, starts=1, TASUKI_MEMORY_CAP="2M")
    told = [(e["stage"], e["from_step"], e["most"]) for e in events(project, "micro-batch")]
    assert told == [("one", 0, 4), ("two", 0, 4)]
    small = eater(
        tmp_path / "s", "Eater", params=params, stages=stages, defaults={"micro_batch": 4}
    )
    finish(warm, small, starts=1)
    assert differences(small, project) == []


def test_an_attempt_that_resumes_with_less_memory_halves_at_its_first_whole_step(warm, tmp_path):
    """Also where earlier steps of an earlier attempt had met a lower wall already."""
    project = eater(tmp_path / "p", "Eater", params={**NOISE, "width": 2000}, stages=STAGES)
    term = armed({"at": "step.done", "do": "term", "count": 3, "claim": 1})
    assert warm.start(project.job.path, **term).wait() == 75, project.logs()
    finish(warm, project, starts=1, TASUKI_MEMORY_CAP="2M")
    (resumed,) = [e["step"] for e in events(project, "restored") if e["step"]]
    # Where the notice is heard hangs on the machine, and an epoch's last step is a smaller one.
    assert decisions(project) in ([(0, resumed, 8, 4)], [(0, resumed + 1, 8, 4)])
    knowing = eater(tmp_path / "k", "Eater", params={**NOISE, "width": 2000}, stages=STAGES)
    tell(knowing, events(project, "micro-batch"))
    finish(warm, knowing, starts=1)
    assert differences(knowing, project) == []


def test_a_sample_that_the_host_has_no_room_for_is_fetched_again_with_fewer_others(warm, tmp_path):
    project = eater(tmp_path / "p", "Forgetful", params=NOISE, stages=STAGES)
    finish(warm, project, starts=1)
    assert [(was, most) for *_, was, most in decisions(project)] == [(8, 4)]
    assert len(events(project, "attempt-ended")) == 1


# -- several ranks ------------------------------------------------------------------------------


def two(folder: Path, **params) -> Project:
    return eater(
        folder,
        "Eater",
        ranks=2,
        params={**NOISE, **params},
        stages=STAGES,
        defaults={"effective_batch": 8, "save": {"every": "2 steps"}},
    )


@pytest.mark.long
@pytest.mark.parametrize("after", [1, 2, 4])
def test_a_rank_without_room_while_ddp_settles_brings_a_smaller_micro_batch(warm, tmp_path, after):
    """It cannot vote in the middle of a sum: the next attempt begins with the smaller one."""
    project = two(tmp_path / "p", room={"rank": 1, "most": 2, "after": after})
    finish(warm, project, starts=1)
    assert [(was, most) for *_, was, most in decisions(project)] == [(4, 2)]
    assert len(events(project, "attempt-ended")) == 2, project.logs()
    knowing = two(tmp_path / "k")
    tell(knowing, events(project, "micro-batch"))
    finish(warm, knowing, starts=1)
    assert differences(knowing, project) == []


@pytest.mark.long
def test_one_rank_without_room_for_one_sample_is_the_one_that_tells(warm, tmp_path):
    project = two(tmp_path / "p", norm="layer", room={"rank": 1, "most": 0})
    assert warm.start(project.job.path).wait() == 1, project.logs()
    said = last_said(project.run)
    assert said is not None and "with a micro-batch of 1 sample (it asked for " in said.reason, said
    assert passes(project, rank=0), "it had room"

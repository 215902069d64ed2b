"""Frozen parameters are stored once, and those that move all the same are noticed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.harness.faulty import armed, events, finish, leftovers, make_faulty
from tests.harness.project import Project, differences
from tests.unit.checkpoint.commits import position
from torch import nn

from tasuki.checkpoint.frozen import FrozenParameters
from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.verify import read_manifest, verify
from tasuki.clock import SystemClock
from tasuki.loop.saver import Saver
from tasuki.runs.claims import take_claim
from tasuki.runs.runs import RunFolder

LORA = {
    "recipe": "Adapted",
    "params": {"wide": 384},
    "defaults": {"save": {"every": "5 steps"}},
}


def with_params(**more: Any) -> dict[str, Any]:
    return {**LORA, "params": {**LORA["params"], **more}}


def saved_state(run: RunFolder, name: str) -> Any:
    manifest = verify(run.checkpoints / name)
    return read_part(run.checkpoints / name, 0, records=manifest.files, frozen=manifest.frozen)


def frozen_files(project: Project) -> list[Path]:
    return sorted((project.run.checkpoints / "frozen").glob("*"))


def folder_bytes(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def test_frozen_parameters_are_stored_once_and_a_checkpoint_is_hardly_larger_than_what_learns(
    whole,
):
    project = whole(make_faulty, **LORA)
    (shared,) = frozen_files(project)
    names = lineage(project.run)
    tensors = load_file(project.run.checkpoints / names[0] / "part-00000.safetensors")
    model = {name: t for name, t in tensors.items() if name.startswith("shared.model.")}
    assert model and not [name for name in model if ".base." in name]
    assert [n for n in load_file(shared) if ".base." in n]
    learning = 3 * sum(t.numel() * t.itemsize for t in model.values())
    largest = max(folder_bytes(project.run.checkpoints / name) for name in names)
    assert largest <= 1.2 * learning
    assert shared.stat().st_size > 2 * learning


@pytest.mark.parametrize(
    "more",
    [pytest.param({}, marks=pytest.mark.long), {"unfreeze_at": 9}],
    ids=["frozen", "unfrozen in the middle"],
)
def test_with_frozen_parameters_a_killed_run_ends_bit_for_bit_the_same(warm, tmp_path, whole, more):
    reference = whole(make_faulty, **with_params(**more))
    project = make_faulty(tmp_path / "p", **with_params(pause=0.004, **more))
    orders = [
        {"at": place, "do": "kill", "count": count, "claim": claim}
        for claim, (place, count) in enumerate(
            [("save.frozen", 1), ("save.written", 3), ("step.done", 7), ("save.renamed", 2)], 1
        )
    ]
    finish(warm, project, starts=1, **armed(*orders))
    assert len(events(project, "attempt-ended")) == 5
    assert leftovers(project.run) == []
    assert differences(reference, project) == []


@pytest.mark.long
def test_a_frozen_parameter_that_moved_once_stays_what_it_became_over_resumes(
    warm, tmp_path, whole
):
    """It is in the part of one checkpoint, and unchanged since the resume from it: the file of
    frozen parameters still holds what it was at the beginning."""
    shape = {
        "recipe": "Adapted",
        "params": {"move_at": 9},
        "stages": [{"name": "one", "data": "d", "epochs": 6}],
        "defaults": {"save": {"every": "4 steps"}},
    }
    project = make_faulty(tmp_path / "p", **shape)
    orders = [
        {"at": "step.begin", "do": "term", "count": count, "claim": claim}
        for claim, count in ((1, 11), (2, 7), (3, 5))
    ]
    finish(warm, project, **armed(*orders))
    assert read_manifest(project.run.checkpoints / lineage(project.run)[0]).frozen
    assert differences(project, whole(make_faulty, **shape)) == []


def test_a_frozen_teacher_that_moves_all_the_same_is_noticed_and_stored_like_everything_else(whole):
    project = whole(make_faulty, **with_params(teach=True))
    for name in lineage(project.run):
        assert read_manifest(project.run.checkpoints / name).frozen == ()
    state = saved_state(project.run, lineage(project.run)[0])
    final = load_file(project.run.stage("one").weights)
    assert torch.equal(state["shared"]["model"]["base.2.weight"], final["base.2.weight"])


def test_in_this_process_a_change_through_data_is_noticed_at_the_next_save(tmp_path):
    """No version counter moves, no gradient exists: only the memory itself tells."""
    frozen, learning = nn.Parameter(torch.ones(40_000), requires_grad=False), torch.zeros(3)
    run = RunFolder(tmp_path)
    saver = Saver(run, claim=take_claim(run), clock=SystemClock())
    saver.frozen = FrozenParameters([frozen, learning], [learning])
    names = []
    for step, change in enumerate([None, (39_999, 1.0000001), (7, -0.0)], 1):
        if change is not None:
            frozen.data[change[0]] = change[1]
        saver.begin(position(step), {"w": frozen.detach(), "l": learning}, facts={})
        saved = saver.wait()
        assert saved is not None and saved.error is None
        names.append(str(saved.name))
        assert torch.equal(saved_state(run, names[-1])["w"], frozen.detach())
    told = [bool(read_manifest(run.checkpoints / name).frozen) for name in names]
    assert told == [True, False, False]


def test_two_values_that_change_places_are_noticed_too():
    frozen = nn.Parameter(torch.arange(40_000.0), requires_grad=False)
    watched = FrozenParameters([frozen], [])
    assert watched.addresses()
    frozen.data[[5, 8192]] = frozen.data[[8192, 5]]
    assert not watched.addresses()


def test_frozen_files_that_no_checkpoint_needs_are_swept_and_two_stages_share_one(
    warm, tmp_path, whole
):
    stages = [{"name": name, "data": "d", "epochs": 3} for name in ("one", "two")]
    project = make_faulty(tmp_path / "p", stages=stages, **LORA)
    # Once in each stage: after 12 of 18 steps, and after 7 of the next stage's.
    stops = [
        {"at": "step.done", "do": "term-group", "count": count, "claim": claim}
        for claim, count in ((1, 12), (2, 7))
    ]
    for _ in range(2):
        assert warm.start(project.job.path, **armed(*stops)).wait() == 75, project.logs()
        folder = project.run.checkpoints / "frozen"
        (folder / ("0" * 32 + ".safetensors")).write_bytes(b"nobody's")
        (folder / f".{'1' * 32}.1-dead.tmp").write_bytes(b"half")
    finish(warm, project, starts=1)
    (shared,) = frozen_files(project)
    told = {read_manifest(project.run.checkpoints / name).frozen for name in lineage(project.run)}
    assert {record.name for records in told for record in records} == {shared.name}
    assert {event["stage"] for event in events(project, "committed")} == {"one", "two"}

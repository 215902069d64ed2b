"""A checkpoint is there whole or not at all, and only the highest claim makes one."""

from __future__ import annotations

import json
import os
import resource
import stat

import pytest
import torch
from tests.unit.checkpoint.commits import SMALL, commit, position, same

from tasuki.checkpoint.commit import discard_draft, open_draft, publish, sweep_drafts
from tasuki.checkpoint.lineage import find_latest, lineage
from tasuki.checkpoint.manifest import Position, checkpoint_name, parse_name
from tasuki.checkpoint.parts import read_part, write_part
from tasuki.checkpoint.retention import prune
from tasuki.checkpoint.verify import verify
from tasuki.errors import CheckpointError, ClaimLost, StoreError
from tasuki.runs.claims import take_claim


def no_damage(name, error):
    raise AssertionError(f"{name}: {error}")


def listed(run):
    return sorted(os.listdir(run.checkpoints))


def test_what_every_rank_wrote_comes_back_from_the_latest_checkpoint(run):
    claim = take_claim(run)
    made = commit(run, claim, 1200, world=3, parent="step-000001100.c1")
    assert made.name == "step-000001200.c1"
    found = find_latest(run, no_damage)
    assert found == made
    assert found.manifest.position == position(1200)
    assert (found.manifest.world, found.manifest.parts) == (3, 3)
    assert found.manifest.parent == "step-000001100.c1"
    assert found.manifest.facts == {"loss": 0.5}
    assert found.manifest.created_at == "2001-09-09T01:46:40Z"
    for part in range(3):
        assert same(read_part(found.path, part, records=found.manifest.files), SMALL)
    discard_draft(made.path)  # no draft
    assert verify(made.path) == made.manifest


def test_a_draft_left_by_a_kill_is_never_taken_for_a_checkpoint(run):
    claim = take_claim(run)
    draft = open_draft(run, claim=claim, position=position(5))
    assert find_latest(run, no_damage) is None
    write_part(draft, 0, SMALL)
    (draft / "manifest.json").write_text("{}")
    assert find_latest(run, no_damage) is None and lineage(run) == []
    prune(run, claim=claim, keep=2)
    assert listed(run) == [draft.name]


def test_drafts_are_swept_only_when_their_claim_is_superseded(run):
    first = take_claim(run)
    old = open_draft(run, claim=first, position=position(5))
    assert sweep_drafts(run, claim=first) == []
    second = take_claim(run)
    own = open_draft(run, claim=second, position=position(6))
    with pytest.raises(ClaimLost):
        sweep_drafts(run, claim=first)
    assert sweep_drafts(run, claim=second) == [old.name]
    assert listed(run) == [own.name]


@pytest.mark.parametrize("moment", ["before", "while the manifest is written"])
def test_a_save_that_lost_the_claim_cannot_commit_and_leaves_nothing(run, moment):
    claim = take_claim(run)
    draft = open_draft(run, claim=claim, position=position(5))

    def records_then_claim():
        yield from write_part(draft, 0, SMALL)
        take_claim(run)  # after publish has asked for the first time

    records = records_then_claim()
    with pytest.raises(ClaimLost):
        publish_simple(run, draft, claim, 5, list(records) if moment == "before" else records)
    assert listed(run) == []


def test_an_existing_checkpoint_is_never_replaced(run):
    claim = take_claim(run)
    made = commit(run, claim, 5, state={"a": 1})
    with pytest.raises(CheckpointError, match="exists already"):
        commit(run, claim, 5, state={"a": 2})
    assert read_part(made.path, 0) == {"a": 1}
    (run.checkpoints / "step-000000006.c1").mkdir()  # a rename would replace an empty folder
    with pytest.raises(CheckpointError, match="exists already"):
        commit(run, claim, 6)
    assert listed(run) == ["step-000000005.c1", "step-000000006.c1"]


def publish_simple(run, draft, claim, step, records):
    return publish(
        run, draft, position=position(step), claim=claim, parent=None, world=1,
        records=records, facts={}, created_at=0.0,
    )  # fmt: skip


@pytest.mark.parametrize("spoil", ["missing", "short", "foreign", "unrecorded"])
def test_a_draft_that_is_not_what_the_ranks_say_is_not_committed(run, spoil):
    claim = take_claim(run)
    draft = open_draft(run, claim=claim, position=position(5))
    records = write_part(draft, 0, SMALL) + write_part(draft, 1, SMALL)
    if spoil == "missing":
        (draft / "part-00001.json").unlink()
    elif spoil == "short":
        os.truncate(draft / "part-00001.safetensors", 10)
    elif spoil == "foreign":
        (draft / "core.123").touch()
    else:
        del records[2]
    with pytest.raises(CheckpointError):
        publish_simple(run, draft, claim, 5, records)
    assert listed(run) == []


@pytest.mark.parametrize(
    "facts", [{1: 2}, {"a": float("nan")}, {"a": (1,)}, {"a": {1}}, {"a": "\ud800"}]
)
def test_facts_that_json_would_change_are_refused(run, facts):
    claim = take_claim(run)
    draft = open_draft(run, claim=claim, position=position(5))
    records = write_part(draft, 0, SMALL)
    with pytest.raises(CheckpointError, match="facts"):
        publish(
            run, draft, position=position(5), claim=claim, parent=None, world=1,
            records=records, facts=facts, created_at=0.0,
        )  # fmt: skip
    assert listed(run) == []


def test_a_part_is_never_written_twice_and_a_failed_one_leaves_nothing(tmp_path):
    write_part(tmp_path, 0, {"a": 1})
    with pytest.raises(StoreError, match="EEXIST"):
        write_part(tmp_path, 0, {"a": 2})
    assert read_part(tmp_path, 0) == {"a": 1}
    (tmp_path / "part-00001.safetensors").mkdir()
    with pytest.raises(StoreError):
        write_part(tmp_path, 1, {"a": 2})
    assert not (tmp_path / "part-00001.json").exists()


def test_a_save_that_finds_no_room_says_so_and_the_next_one_is_whole(run):
    commit(run, take_claim(run), 1)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, before[1]))
    try:
        with pytest.raises(StoreError, match="EFBIG"):
            commit(run, 1, 2, state={"w": torch.ones(1_000_000)})
        assert listed(run) == ["step-000000001.c1"]
        commit(run, 1, 3)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert listed(run) == ["step-000000001.c1", "step-000000003.c1"]
    for name in listed(run):
        verify(run.checkpoints / name)


def test_names_say_step_claim_and_the_stage_that_starts():
    assert checkpoint_name(position(1200), 7) == "step-000001200.c7"
    assert checkpoint_name(position(12345678901), 7) == "step-12345678901.c7"
    start = position(1200, stage="mid", number=2, stage_step=0)
    assert checkpoint_name(start, 7) == "step-000001200.c7.s2"
    for where in (position(1), position(12345678901), start):
        parsed = parse_name(checkpoint_name(where, 7))
        assert parsed is not None
        assert (parsed.step, parsed.claim) == (where.step, 7)
        assert parsed.start_of == (2 if where is start else None)


@pytest.mark.parametrize(
    "text",
    [
        "step-1.c1", "step-0000000012.c1", "step-000000001.c0", "step-000000001.c01",
        "step-000000001.c1.s0", "step-000000001.c1.s01", "step-000000001.c1/", "",
        ".draft-step-000000001.c1-00000000", "step-000000001.c1\n", "step-00000000\u0661.c1",
        "STEP-000000001.c1", "step-000000001", "../step-000000001.c1", "step-" + "9" * 4000 + ".c1",
    ],
)  # fmt: skip
def test_other_names_are_no_checkpoints(text):
    assert parse_name(text) is None


@pytest.mark.parametrize(
    "changes",
    [
        {"stage_number": 0}, {"step": 3}, {"stage_step": -1}, {"samples": -1}, {"epoch": -1},
        {"is_start": True}, {"stage_step": 0}, {"stage_step": 0, "is_start": True, "is_end": True},
    ],
)  # fmt: skip
def test_impossible_positions_are_refused(changes):
    good = {
        "stage": "small", "stage_number": 1, "step": 5, "stage_step": 5, "epoch": 0,
        "samples": 40, "is_start": False, "is_end": False,
    }  # fmt: skip
    Position(**good)
    with pytest.raises(CheckpointError):
        Position(**(good | changes))


def test_the_files_can_be_opened_with_plain_json_and_safetensors(run):
    from safetensors.torch import load_file

    before = os.umask(0)
    try:
        made = commit(run, take_claim(run), 1)
    finally:
        os.umask(before)
    modes = [stat.S_IMODE(path.stat().st_mode) for path in (made.path, *made.path.iterdir())]
    assert modes == [0o700, 0o600, 0o600, 0o600], "private whatever the umask"
    assert torch.equal(
        load_file(made.path / "part-00000.safetensors")["model.weight"], SMALL["model"]["weight"]
    )
    manifest = json.loads((made.path / "manifest.json").read_text())
    assert manifest["format"] == 1
    assert (manifest["stage"], manifest["step"], manifest["claim"]) == ("small", 1, 1)
    assert manifest["files"][0]["chunk_bytes"] == 16 * 2**20

"""Runs made by hand, as far as their checkpoints go."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from tasuki.checkpoint.codec import encode
from tasuki.checkpoint.commit import Checkpoint, open_draft, publish
from tasuki.checkpoint.frozen import store_frozen
from tasuki.checkpoint.parts import _write
from tasuki.checkpoint.tensorfile import write_tensors
from tasuki.runs.claims import record_parent, take_claim
from tasuki.runs.runs import RunFolder
from tests.unit.checkpoint.commits import commit, position

NOW = 1e9 + 90.0
"""A minute and a half after the commits made by hand."""


def make_run(folder: Path, name: str = "exp") -> RunFolder:
    """A run folder as far as checkpoints go."""
    run = RunFolder(folder / "runs" / name)
    run.path.mkdir(parents=True)
    stages = [{"name": "small", "evaluates": False}, {"name": "large", "evaluates": False}]
    value = {"format": 1, "experiment": name, "stages": stages}
    run.spec.write_text(json.dumps(value))
    return run


def go_on(run: RunFolder, parent: str | None) -> int:
    """A new attempt that found this checkpoint."""
    claim = take_claim(run)
    record_parent(run, claim, parent=parent, facts={})
    return claim


def two_attempts(run: RunFolder) -> list[str]:
    """The second goes on from step 8 of the first, which commits step 12 all the same."""
    first = go_on(run, None)
    names = [commit(run, first, step).name for step in (4, 8)]
    late = commit(run, first, 12).name
    second = go_on(run, names[1])
    names.append(commit(run, second, 10).name)
    return [*reversed(names), late]


def commit_frozen(run: RunFolder, claim: int, step: int, teacher: torch.Tensor) -> Checkpoint:
    """A commit of a model of which `teacher` never changes."""
    state = {"shared": {"model": {"teacher": teacher, "student": torch.full((3,), float(step))}}}
    encoded = encode(state, frozen=[teacher.untyped_storage().data_ptr()])
    record = store_frozen(run, encoded.frozen)
    draft = open_draft(run, claim=claim, position=position(step))
    records = _write(draft, 0, encoded.tree, lambda path: write_tensors(path, encoded.tensors))
    return publish(
        run,
        draft,
        position=position(step),
        claim=claim,
        parent=None,
        world=1,
        records=records,
        facts={},
        created_at=1e9,
        frozen=[record],
    )

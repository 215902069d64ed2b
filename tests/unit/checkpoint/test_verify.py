"""Every kind of damage is found before a weight is used."""

from __future__ import annotations

import hashlib
import json
import os
import random

import pytest
import torch
from tests.unit.checkpoint.commits import commit, flip

from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.records import CHUNK_BYTES, FileRecord, check_file, write_file
from tasuki.checkpoint.verify import read_manifest, verify
from tasuki.errors import DamagedCheckpoint, NewerFormat, StoreError
from tasuki.runs.claims import take_claim

FILES = [
    "manifest.json",
    "part-00000.json",
    "part-00000.safetensors",
    "part-00001.json",
    "part-00001.safetensors",
]


@pytest.fixture
def made(run):
    state = {
        "model": {"weight": torch.arange(1200.0).view(40, 30)},
        "betas": (0.9, 0.99),
        "best": float("inf"),
    }
    return commit(run, take_claim(run), 5, state=state, world=2)


@pytest.mark.parametrize("name", FILES)
def test_every_flipped_bit_is_found(made, name):
    path = made.path / name
    whole = path.read_bytes()
    picks = random.Random(name)
    offsets = {0, 7, 8, len(whole) - 1} | {picks.randrange(len(whole)) for _ in range(25)}
    if name == "manifest.json":
        offsets = set(range(0, len(whole), 7)) | {len(whole) - 1}
    for offset in sorted(offsets):
        flip(path, offset, picks.randrange(8))
        with pytest.raises(DamagedCheckpoint):
            verify(made.path)
        path.write_bytes(whole)
    verify(made.path)


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_cut_another_missing_or_no_plain_file_is_found(run, made, name):
    path, whole = made.path / name, (made.path / name).read_bytes()
    other = commit(run, 1, 6, state={"model": {"weight": torch.zeros(40, 30)}}, world=2)
    cuts = [whole[:size] for size in (0, 1, 8, len(whole) // 2, len(whole) - 1)]
    for content in (*cuts, whole + b"\n", (other.path / name).read_bytes()):
        path.write_bytes(content)
        with pytest.raises(DamagedCheckpoint):
            verify(made.path)
    aside = made.path.parent / "aside"
    path.rename(aside)
    for make in (lambda: None, lambda: path.symlink_to(aside), lambda: os.mkfifo(path)):
        path.unlink(missing_ok=True)
        make()
        with pytest.raises(DamagedCheckpoint, match=name):
            verify(made.path)
    path.unlink()
    path.write_bytes(whole)
    verify(made.path)


def test_files_and_checkpoints_under_another_name_are_found(made):
    for name in ("part-00002.json", "x", ".part-00000.json.1.tmp"):
        (made.path / name).touch()
        with pytest.raises(DamagedCheckpoint, match=name):
            verify(made.path)
        (made.path / name).unlink()
    first, second = made.path / "part-00000.json", made.path / "part-00001.json"
    aside = first.read_bytes()
    first.write_bytes(second.read_bytes())
    with pytest.raises(DamagedCheckpoint, match="is part 1, not part 0"):
        read_part(made.path, 0)
    first.write_bytes(aside)
    moved = made.path.with_name("step-000000009.c1")
    made.path.rename(moved)
    with pytest.raises(DamagedCheckpoint, match="holds the manifest of"):
        verify(moved)
    made.path.symlink_to(moved)
    with pytest.raises(DamagedCheckpoint, match="link"):
        verify(made.path)


def test_reading_with_records_finds_what_changed_since_verification(made):
    path = made.path / "part-00001.safetensors"
    flip(path, path.stat().st_size - 3)
    read_part(made.path, 1)  # a flipped weight is a weight
    with pytest.raises(DamagedCheckpoint, match=r"part-00001\.safetensors is damaged"):
        read_part(made.path, 1, records=made.manifest.files)


def rewrite(path, **changes):
    """A manifest by someone who knows how its sha256 is made."""
    value = json.loads(path.read_text()) | changes
    del value["sha256"]
    value = {key: item for key, item in value.items() if item is not ...}
    value["sha256"] = hashlib.sha256(canonical(value)).hexdigest()
    path.write_bytes(canonical(value))


def canonical(value):
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode() + b"\n"


def test_a_newer_format_is_not_called_damage_and_a_new_key_needs_none(made):
    rewrite(made.path / "manifest.json", added="later")
    assert verify(made.path) == made.manifest
    rewrite(made.path / "manifest.json", format=2)
    with pytest.raises(NewerFormat, match="format 2"):
        read_manifest(made.path)


BEST = {"metric": "val_loss", "value": 0.5, "step": 3, "sha256": ""}
STRANGE_FILES = [
    None, 3, "", "..", "/etc/passwd", "../best-000000003-0123456789ab.safetensors",
    "best-000000003-0123456789ab.safetensors/../../x", "weights.safetensors",
    "best-000000003-0123456789ab.safetensors\n", "best-draft.c1.safetensors",
]  # fmt: skip
RECORD = {"name": "part-00000.json", "size": 3, "chunk_bytes": 16, "crc32": [0]}


@pytest.mark.parametrize(
    "changes",
    [
        {"format": 0}, {"format": "1"}, {"format": True}, {"format": ...}, {"step": ...},
        {"step": "5"}, {"step": 4}, {"claim": 2}, {"claim": 0}, {"parent": "../x"}, {"parent": 3},
        {"parent": ...}, {"world": 0}, {"parts": 1}, {"parts": 10**9}, {"is_start": True},
        {"facts": []}, {"files": []}, {"files": [3]}, {"files": [RECORD]},
        {"files": [RECORD | {"name": "../../etc/passwd"}]}, {"files": [RECORD | {"crc32": []}]},
        {"files": [RECORD | {"size": -1}]}, {"files": [RECORD | {"chunk_bytes": 0}]},
        {"files": [RECORD | {"crc32": ["0"]}]},
        *({"facts": {"best": {**BEST, "file": file}}} for file in STRANGE_FILES),
        {"facts": {"best": 3}}, {"facts": {"best": {**BEST, "step": "/"}}},
    ],
)  # fmt: skip
def test_a_manifest_with_impossible_content_is_damage_even_with_a_good_sha256(made, changes):
    if changes == {"parts": 10**9}:
        changes = {"parts": 10**5}
    rewrite(made.path / "manifest.json", **changes)
    with pytest.raises(DamagedCheckpoint):
        verify(made.path)


def test_damage_in_a_large_file_is_named_by_its_chunk(tmp_path):
    path = tmp_path / "part-00000.safetensors"
    record = write_file(path, bytes(CHUNK_BYTES + 5))
    assert len(record.crc32) == 2
    check_file(path, record)
    assert FileRecord.from_json(json.loads(json.dumps(record.to_json()))) == record
    with path.open("r+b") as file:
        file.seek(CHUNK_BYTES + 2)
        file.write(b"x")
    with pytest.raises(
        DamagedCheckpoint, match=f"between bytes {CHUNK_BYTES} and {CHUNK_BYTES + 5}"
    ):
        check_file(path, record)


def test_an_error_of_the_file_system_is_not_called_damage(made):
    (made.path / "manifest.json").unlink()
    (made.path / "manifest.json").mkdir()
    with pytest.raises(DamagedCheckpoint, match="not a plain file"):
        verify(made.path)
    with pytest.raises(StoreError, match="ENAMETOOLONG"):
        verify(made.path.with_name("x" * 300))

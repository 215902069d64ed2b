"""Is a checkpoint what its manifest says? Asked before a weight of it is used.

Every kind of damage is one exception that names the file: cut, flipped, missing, foreign, swapped.
An error of the file system itself is not damage (see `records`). Needs no torch.
"""

from __future__ import annotations

import os
from pathlib import Path

from tasuki.checkpoint.manifest import (
    MANIFEST_NAME,
    MAX_MANIFEST_BYTES,
    Manifest,
    parse_manifest,
)
from tasuki.checkpoint.records import check_file, check_size, damage, forget, read_file
from tasuki.errors import DamagedCheckpoint, NewerFormat
from tasuki.runs.atomic import translated


def read_manifest(path: Path) -> Manifest:
    """The manifest of a checkpoint folder, whole and of this very checkpoint."""
    with translated(path):
        if path.is_symlink():
            raise damage(path, "is a link")
    raw = read_file(path / MANIFEST_NAME, limit=MAX_MANIFEST_BYTES)
    try:
        manifest = parse_manifest(raw)
    except DamagedCheckpoint as error:
        raise damage(path, f"is damaged: {error}") from error
    except NewerFormat as error:
        raise NewerFormat(f"{path}: {error}", hint=error.hint) from error
    if manifest.name != path.name:
        raise damage(path, f"holds the manifest of {manifest.name}")
    return manifest


def verify(path: Path) -> Manifest:
    """Check every byte of a checkpoint. Its manifest comes back if all is well."""
    manifest = check_shape(path)
    for record in manifest.files:
        check_file(path / record.name, record)
    for record in manifest.frozen:
        check_file(frozen_folder(path.parent) / record.name, record)
    return manifest


def verify_from_disk(path: Path) -> Manifest:
    """As `verify`, of what the disk holds and not of what the system still remembers."""
    with translated(path):
        for file in sorted(path.iterdir()):
            forget(file)
    for record in read_manifest(path).frozen:
        forget(frozen_folder(path.parent) / record.name)
    return verify(path)


def frozen_folder(checkpoints: Path) -> Path:
    """Where frozen parameters lie, beside the checkpoints that share them."""
    return checkpoints / "frozen"


def check_shape(path: Path) -> Manifest:
    """The cheap check: a good manifest, all files there and as long as they were, none besides."""
    manifest = read_manifest(path)
    check_files(path, manifest, also={MANIFEST_NAME})
    return manifest


def check_files(path: Path, manifest: Manifest, *, also: set[str]) -> None:
    """Exactly the manifest's files, by name and size."""
    with translated(path):
        found = set(os.listdir(path))
    expected = {record.name for record in manifest.files} | also
    if foreign := sorted(found - expected):
        raise damage(path / foreign[0], "does not belong to this checkpoint")
    if missing := sorted(expected - found):
        raise damage(path / missing[0], "is missing")
    for record in manifest.files:
        check_size(path / record.name, record)
    for record in manifest.frozen:
        check_size(frozen_folder(path.parent) / record.name, record)

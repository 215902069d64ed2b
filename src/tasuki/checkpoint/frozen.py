"""Parameters that no step changes, stored once and shared by many checkpoints.

A file `checkpoints/frozen/<sha256>.safetensors` is named by its content; a manifest says which one
its checkpoint needs. That a parameter is frozen is not believed: before each save its memory is
summed up on its device and compared, since a teacher that follows its student by a moving average
has no gradient either. What changed is from then on stored like everything else.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch
from torch import Tensor

from tasuki.checkpoint.blobs import view_bytes
from tasuki.checkpoint.lineage import list_checkpoints
from tasuki.checkpoint.records import FileRecord, check_file
from tasuki.checkpoint.tensorfile import lay_out, write_tensors
from tasuki.checkpoint.verify import frozen_folder, read_manifest
from tasuki.errors import CheckpointError, DamagedCheckpoint
from tasuki.failpoints import failpoint
from tasuki.runs.atomic import (
    fsync_folder,
    list_folder,
    list_temps,
    make_folder,
    remove_files,
    translated,
)
from tasuki.runs.claims import ensure_claim_holds
from tasuki.runs.runs import RunFolder

WORTH_BYTES = 64 * 1024
"""Less than this is not worth a file of its own."""
_PERIOD = 8191
"""Of the weights of places: a prime, so that no usual row length hides a swap."""


class FrozenParameters:
    """Which parameters are frozen, and that they still are what they were."""

    def __init__(self, parameters: Iterable[Tensor], trained: Iterable[Tensor]) -> None:
        """`trained` are those the optimizer holds: frozen or not, they may change."""
        parameters = list(parameters)
        moving = {_address(p) for p in [*trained, *(q for q in parameters if q.requires_grad)]}
        found = {_address(p): p for p in parameters if p.numel() and _address(p) not in moving}
        total = sum(p.untyped_storage().nbytes() for p in found.values())
        self._tensors = found if total >= WORTH_BYTES else {}
        self._sums = {address: _sum_up(tensor) for address, tensor in self._tensors.items()}
        self.record: FileRecord | None = None
        """The file that holds them, once it is written."""

    def addresses(self) -> frozenset[int]:
        """Of the storages that are unchanged since the start; asked at each save."""
        for address, tensor in list(self._tensors.items()):
            has_moved = _address(tensor) != address or tensor.requires_grad
            if has_moved or _sum_up(tensor) != self._sums[address]:
                del self._tensors[address]
        return frozenset(self._tensors)


def store_frozen(run: RunFolder, tensors: Mapping[str, Tensor]) -> FileRecord:
    """Write them durably, unless a file with this content is there already."""
    folder = frozen_folder(run.checkpoints)
    make_folder(folder)
    layout = lay_out(tensors)
    digest = hashlib.sha256(layout.header)
    for name, _, _ in layout.places:
        digest.update(view_bytes(tensors[name].cpu()))
    path = folder / f"{digest.hexdigest()[:32]}.safetensors"
    temp = folder / f".{path.stem}.{os.getpid()}-{os.urandom(4).hex()}.tmp"
    record = write_tensors(temp, tensors)
    record = FileRecord(name=path.name, size=record.size, crc32=record.crc32)
    failpoint("save.frozen")
    with translated(path):
        if _is_whole(path, record):
            temp.unlink()
        else:
            temp.replace(path)
            fsync_folder(folder)
            fsync_folder(run.checkpoints)
    return record


def sweep_frozen(run: RunFolder, *, claim: int, keep: FileRecord | None) -> list[str]:
    """Remove files that no checkpoint needs. Called after a prune, by the holder of the claim."""
    folder = frozen_folder(run.checkpoints)
    needed = {keep.name} if keep else set()
    try:
        for parsed in list_checkpoints(run):
            manifest = read_manifest(run.checkpoints / str(parsed))
            needed |= {record.name for record in manifest.frozen}
    except CheckpointError:
        return []  # a damaged manifest may need any of them
    removed = []
    for path in list_folder(folder, "*.safetensors"):
        if path.name not in needed:
            ensure_claim_holds(run, claim)
            with translated(path):
                path.unlink(missing_ok=True)
            removed.append(path.name)
    return removed


def sweep_frozen_drafts(run: RunFolder, *, claim: int) -> None:
    """What killed attempts left half-written. Called at an attempt's start."""
    temps = list_temps(frozen_folder(run.checkpoints))
    ensure_claim_holds(run, claim)  # after the listing: none of these files is a newer attempt's
    remove_files(temps)


def _is_whole(path: Path, record: FileRecord) -> bool:
    if not path.exists():
        return False
    try:
        check_file(path, record)
    except DamagedCheckpoint:
        return False
    return True


def _address(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _sum_up(tensor: Tensor) -> tuple[int, int, list[int]]:
    """Two sums over the storage's memory, one of them weighted by place; on its own device."""
    storage = tensor.untyped_storage()
    memory = torch.empty(0, dtype=torch.uint8, device=tensor.device)
    memory.set_(storage, 0, (storage.nbytes(),), (1,))
    num_words = memory.numel() // 4
    words, tail = memory[: num_words * 4].view(torch.int32), memory[num_words * 4 :]
    num_whole = num_words // _PERIOD * _PERIOD
    columns = words[:num_whole].view(-1, _PERIOD).sum(0, dtype=torch.int64)
    columns[: num_words - num_whole] += words[num_whole:]
    weights = torch.arange(1, _PERIOD + 1, device=tensor.device)
    return int(columns.sum()), int((columns * weights).sum()), tail.tolist()

"""What the tests of checkpoints share: positions, commits, and an equality of their own."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tasuki.checkpoint.commit import Checkpoint, discard_draft, open_draft, publish
from tasuki.checkpoint.manifest import Position
from tasuki.checkpoint.parts import write_part
from tasuki.errors import StoreError
from tasuki.runs.runs import RunFolder

SMALL: dict[str, Any] = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "lr": 0.1}


def position(
    step: int, *, stage: str = "small", number: int = 1, stage_step: int | None = None
) -> Position:
    in_stage = step if stage_step is None else stage_step
    return Position(
        stage=stage,
        stage_number=number,
        step=step,
        stage_step=in_stage,
        epoch=0,
        samples=in_stage * 8,
        is_start=in_stage == 0,
        is_end=False,
    )


def commit(
    run: RunFolder,
    claim: int,
    at: int | Position,
    *,
    state: object = None,
    world: int = 1,
    parent: str | None = None,
) -> Checkpoint:
    """One whole save, as the ranks do it."""
    where = position(at) if isinstance(at, int) else at
    draft = open_draft(run, claim=claim, position=where)
    try:
        records = [
            record
            for part in range(world)
            for record in write_part(draft, part, SMALL if state is None else state)
        ]
    except StoreError:
        discard_draft(draft)
        raise
    return publish(
        run,
        draft,
        position=where,
        claim=claim,
        parent=parent,
        world=world,
        records=records,
        facts={"loss": 0.5},
        created_at=1e9,
    )


def flip(path: Path, offset: int, bit: int = 0) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1 << bit
    path.write_bytes(bytes(data))


def same(a: Any, b: Any) -> bool:
    """Equal in type, bits, shape and stride: independent of `first_difference`."""
    if isinstance(a, torch.Tensor):
        return (
            isinstance(b, torch.Tensor)
            and (a.dtype, a.shape, a.stride()) == (b.dtype, b.shape, b.stride())
            and raw(a) == raw(b)
        )
    if type(a) is not type(b):
        return False
    if isinstance(a, (np.ndarray, np.generic)):
        return bool(a.dtype == b.dtype and a.shape == b.shape and a.tobytes() == b.tobytes())
    if isinstance(a, float):
        return struct.pack("d", a) == struct.pack("d", b)
    if isinstance(a, dict):
        pairs = zip(a.items(), b.items(), strict=False)
        return len(a) == len(b) and all(same(k, m) and same(v, w) for (k, v), (m, w) in pairs)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(same(v, w) for v, w in zip(a, b, strict=True))
    return bool(a == b)


def raw(tensor: torch.Tensor) -> bytes:
    flat = torch.empty(tensor.numel(), dtype=tensor.dtype)
    flat.view(tensor.shape).copy_(tensor.detach())
    return bytes(flat.view(torch.uint8).numpy().tobytes())

"""A state in host memory: apart from training, written as it was, in memory that is used again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from tasuki.checkpoint.codec import encode
from tasuki.checkpoint.host import HostBuffer
from tasuki.checkpoint.parts import read_part, write_held, write_part
from tasuki.checkpoint.records import CHUNK_BYTES
from tasuki.checkpoint.tensorfile import read_tensors
from tasuki.errors import DamagedCheckpoint


def test_what_was_copied_does_not_change_when_training_goes_on(tmp_path: Path) -> None:
    weight = torch.ones(3)
    image = HostBuffer().hold(encode({"w": weight, "view": weight[1:], "n": 4}))
    weight.fill_(7)
    records = write_held(tmp_path, 0, image)
    back: Any = read_part(tmp_path, 0, records=records)
    assert back["w"].tolist() == [1, 1, 1]
    assert back["n"] == 4
    back["w"].zero_()
    assert back["view"].tolist() == [0, 0]


def test_a_held_state_and_a_live_one_give_the_same_bytes(tmp_path: Path) -> None:
    state = {
        "a": torch.arange(5, dtype=torch.float64),
        "b": torch.ones(3, 2).t(),
        "c": torch.tensor(True),
        "d": torch.zeros(0, 4),
        "e": torch.arange(7, dtype=torch.bfloat16),
        "f": torch.complex(torch.ones(2), torch.zeros(2)),
    }
    (tmp_path / "live").mkdir()
    (tmp_path / "held").mkdir()
    live = write_part(tmp_path / "live", 0, state)
    held = write_held(tmp_path / "held", 0, HostBuffer().hold(encode(state)))
    assert live == held
    for record in live:
        name = record.name
        assert (tmp_path / "live" / name).read_bytes() == (tmp_path / "held" / name).read_bytes()


def test_memory_is_used_again_for_the_next_state(tmp_path: Path) -> None:
    buffer = HostBuffer()
    first = buffer.hold(encode({"w": torch.ones(1000)}))
    address = first.memory.data_ptr()
    second = buffer.hold(encode({"w": torch.full((900,), 2.0)}))
    assert second.memory.data_ptr() == address
    records = write_held(tmp_path, 0, second)
    back: Any = read_part(tmp_path, 0, records=records)
    assert back["w"].tolist() == [2.0] * 900


def test_any_safetensors_reader_opens_the_file(tmp_path: Path) -> None:
    state = {"w": torch.randn(3, 5), "n": {"x": torch.arange(4), "h": torch.ones(2).half()}}
    write_held(tmp_path, 0, HostBuffer().hold(encode(state)))
    found = load_file(tmp_path / "part-00000.safetensors")
    assert set(found) == {"w", "n.x", "n.h"}
    assert torch.equal(found["w"], state["w"])
    assert torch.equal(found["n.x"], torch.arange(4))


def test_tensors_come_back_aligned_in_memory_of_their_own(tmp_path: Path) -> None:
    write_part(tmp_path, 0, [torch.ones(3), torch.ones(5, dtype=torch.int8), torch.ones(7)])
    tensors = read_tensors(tmp_path / "part-00000.safetensors")
    assert all(t.data_ptr() % 64 == 0 for t in tensors.values())


def test_checksums_do_not_depend_on_how_the_bytes_came(tmp_path: Path) -> None:
    """Chunks of the file span tensors: sums are of the file, not of the tensors."""
    state = {"a": torch.zeros(CHUNK_BYTES // 4 + 11), "b": torch.ones(CHUNK_BYTES // 4 - 3)}
    records = write_part(tmp_path, 0, state)
    path = tmp_path / "part-00000.safetensors"
    back: Any = read_part(tmp_path, 0, records=records)
    assert torch.equal(back["b"], state["b"])
    for at in (0, 9, CHUNK_BYTES - 1, CHUNK_BYTES, 2 * CHUNK_BYTES, path.stat().st_size - 1):
        with path.open("r+b") as file:
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 4]))
        with pytest.raises(DamagedCheckpoint):
            read_part(tmp_path, 0, records=records)
        with path.open("r+b") as file:
            file.seek(at)
            file.write(byte)
    read_part(tmp_path, 0, records=records)

"""A state in host memory: apart from training, written as it was, in memory that is used again."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tasuki.checkpoint.codec import encode
from tasuki.checkpoint.host import HostBuffer
from tasuki.checkpoint.parts import read_part, write_held, write_part
from tasuki.checkpoint.records import CHUNK_BYTES
from tasuki.checkpoint.tensorfile import read_tensors
from tasuki.errors import DamagedCheckpoint


def test_what_was_copied_does_not_change_when_training_goes_on(tmp_path):
    weight = torch.ones(3)
    buffer = HostBuffer()
    address = buffer.hold(encode({"w": torch.ones(99)})).memory.data_ptr()
    image = buffer.hold(encode({"w": weight, "view": weight[1:], "n": 4}))
    assert image.memory.data_ptr() == address, "used again for the next state"
    weight.fill_(7)
    records = write_held(tmp_path, 0, image)
    tensors = read_tensors(tmp_path / "part-00000.safetensors")
    assert all(tensor.data_ptr() % 64 == 0 for tensor in tensors.values())
    back: Any = read_part(tmp_path, 0, records=records)
    assert back["w"].tolist() == [1, 1, 1]
    assert back["n"] == 4
    back["w"].zero_()
    assert back["view"].tolist() == [0, 0]


def test_a_held_state_and_a_live_one_give_the_same_bytes(tmp_path):
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


def test_checksums_do_not_depend_on_how_the_bytes_came(tmp_path):
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

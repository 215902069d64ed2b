"""Read TensorBoard's event files: TFRecord frames with their checksums, then protobuf."""

from __future__ import annotations

import struct
from pathlib import Path


def read_file(path: Path) -> list:
    """All events; a frame that is torn or has a wrong checksum is an error."""
    from tensorboardX.proto.event_pb2 import Event
    from tensorboardX.record_writer import masked_crc32c

    data, place, found = path.read_bytes(), 0, []
    while place < len(data):
        header = data[place : place + 8]
        (size,) = struct.unpack("<Q", header)
        (sum_of_header,) = struct.unpack("<I", data[place + 8 : place + 12])
        body = data[place + 12 : place + 12 + size]
        (sum_of_body,) = struct.unpack("<I", data[place + 12 + size : place + 16 + size])
        assert sum_of_header == masked_crc32c(header)
        assert sum_of_body == masked_crc32c(body)
        found.append(Event.FromString(body))
        place += 16 + size
    return found


def read_folder(folder: Path) -> list[tuple[str, int, float]]:
    """(tag, step, value) of all event files of a run, in order of file and place. Nothing is
    purged: what is there twice is here twice."""
    files = sorted(path for path in folder.iterdir() if "tfevents" in path.name)
    return [
        (value.tag, event.step, value.simple_value)
        for path in files
        for event in read_file(path)
        for value in event.summary.value
    ]

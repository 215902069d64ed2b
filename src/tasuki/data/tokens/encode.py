"""A worker's part: a block of documents in, tokens out. The same whoever does it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from tasuki.data.tokens.blocks import Block
from tasuki.data.tokens.vocabulary import Encoder, Vocabulary

FIRST = 5
"""So many broken lines are named."""
_BLANK = re.compile(rb"\n(?:[ \t\r]*\n)+")
_LEADING = re.compile(rb"\A(?:[ \t\r]*\n)+")


class Broken(NamedTuple):
    """A line or row that is no document."""

    row: int
    why: str
    place: int | None = None
    """Of text without lines: the byte in the block."""


class Encoded(NamedTuple):
    """What became of a block."""

    tokens: bytes
    num_tokens: int
    documents: int
    empty: int
    """Documents without a token; they are left out."""
    num_broken: int
    broken: list[Broken]
    """The first of them."""


class BlockEncoder:
    """From blocks to tokens."""

    def __init__(self, vocabulary: Vocabulary, *, field: str) -> None:
        self._encoder, self._field = Encoder(vocabulary), field
        self._end = np.array([vocabulary.end], dtype=np.dtype(vocabulary.dtype).newbyteorder("<"))
        self._needs_text = vocabulary.content is not None

    def __call__(self, block: Block) -> Encoded:
        if block.kind == "file":
            return self._piece(block)
        documents, broken = split_block(block, self._field, needs_text=self._needs_text)
        arrays, num_empty = self._encoder.encode(documents)
        tokens = np.concatenate(arrays) if arrays else self._end[:0]
        return Encoded(
            tokens=tokens.tobytes(),
            num_tokens=len(tokens),
            documents=len(documents) - num_empty,
            empty=num_empty,
            num_broken=len(broken),
            broken=broken[:FIRST],
        )

    def _piece(self, block: Block) -> Encoded:
        """Its end is the tokenising process's to write: it knows whether there was anything."""
        if self._needs_text and (broken := not_utf8(block.payload, block.row)) is not None:
            return Encoded(b"", 0, 0, 0, 1, [broken])
        tokens = self._encoder.encode_piece(block.payload)
        return Encoded(tokens.tobytes(), len(tokens), 0, 0, 0, [])


def split_block(
    block: Block, field: str, *, needs_text: bool = True
) -> tuple[list[bytes], list[Broken]]:
    """(Its documents in UTF-8, the lines or rows that are none). Empty documents are left in."""
    documents: list[bytes] = []
    broken: list[Broken] = []
    for row, found in _candidates(block, field):
        bad = found if isinstance(found, Broken) else None
        if bad is None and needs_text and not isinstance(found, Broken):
            bad = not_utf8(found, row)
        if bad is not None:
            broken.append(bad)
        elif not isinstance(found, Broken):
            documents.append(found)
    return documents, broken


def _candidates(block: Block, field: str) -> Iterator[tuple[int, bytes | Broken]]:
    if block.kind == "parquet":
        from tasuki.data.tokens.parquet import rows_of

        for row, value in enumerate(rows_of(block.payload), start=block.row):
            yield row, value if value is not None else Broken(row, f"`{field}` is null")
    elif block.kind == "blank":
        yield from _paragraphs(block)
    else:
        lines = block.payload.split(b"\n")
        for row, line in enumerate(lines, start=block.row):
            text = line.removesuffix(b"\r")
            if block.kind == "line":
                if text:  # nobody means a document by an empty line
                    yield row, text
            elif text.strip():
                yield row, _field_of(text, field, row)


def _paragraphs(block: Block) -> Iterator[tuple[int, bytes]]:
    data, row, begin, counted = block.payload, block.row, 0, 0
    gaps = [found.span() for found in _BLANK.finditer(data)]
    for end, following in [*gaps, (len(data), len(data))]:
        lead = _LEADING.match(data[begin:end])
        begin += lead.end() if lead is not None else 0
        text = data[begin:end].removesuffix(b"\n").removesuffix(b"\r")
        row += data.count(b"\n", counted, begin)
        counted = begin
        if text.strip():
            yield row, text
        begin = following


def _field_of(line: bytes, field: str, row: int) -> bytes | Broken:
    try:
        value = json.loads(line)
    except UnicodeDecodeError:
        return not_utf8(line, row) or Broken(row, "it is no UTF-8")
    except (ValueError, RecursionError) as error:
        return Broken(row, f"it is no JSON: {error}")
    if not isinstance(value, dict):
        return Broken(row, f"it is no JSON object but {type(value).__name__}")
    if field not in value:
        has = ", ".join(f"`{name}`" for name in list(value)[:6])
        return Broken(row, f"it has no field `{field}`" + (f"; it has {has}" if has else ""))
    if not isinstance(value[field], str):
        return Broken(row, f"`{field}` is no text but {json.dumps(value[field])[:40]}")
    try:
        return str(value[field]).encode()
    except UnicodeEncodeError:
        return Broken(row, f"`{field}` holds half a character (a lone surrogate)")


def not_utf8(data: bytes, row: int) -> Broken | None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        byte = data[error.start]
        return Broken(row, f"it is no UTF-8: byte {byte:#04x}", error.start)
    return None

"""Read a source of documents block by block, from any place on.

Blocks are what workers are given: some whole documents (lines, paragraphs, rows of a table), or a
piece of a document that is a file. Reading is sequential and in one process; it is many times as
fast as encoding. How documents are cut into blocks does not change a token.
"""

from __future__ import annotations

import gzip
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tasuki.data.tokens.cut import PIECE, next_cut, window
from tasuki.data.tokens.sources import Source
from tasuki.errors import DataError
from tasuki.units import format_bytes

_BLANK = re.compile(rb"\n(?:[ \t\r]*\n)+")
_LONGEST = 1 << 30
"""Bytes of a document in lines or paragraphs. What is longer is not what it seems."""
_MARK = b"\xef\xbb\xbf"
"""What some editors put in front of UTF-8."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """Some documents, and where the next ones begin."""

    kind: str
    """`jsonl`, `line`, `blank`, `file` or `parquet`."""
    payload: bytes
    place: int
    """Where it begins: bytes (unpacked), or rows."""
    row: int
    """Its first line or row; lines are counted from 1."""
    after: int
    """`place` of what follows."""
    rows: int
    """Lines or rows in it."""
    is_end: bool = True
    """Of a file that is one document: whether the document ends with it."""
    read: int = 0
    """How much of the file was read, in bytes of the file."""
    source: int = 0
    """Which of the sources it is of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How sources are read."""

    documents: str
    """What a document of a text is: `file`, `blank` or `line`."""
    field: str
    block_bytes: int = PIECE

    def blocks(self, source: Source, *, place: int = 0, row: int = 1) -> Iterator[Block]:
        """The blocks of a source from a place on, which an earlier block gave as `after`."""
        with _explained(source.path):
            if source.kind == "parquet":
                from tasuki.data.tokens.parquet import read_rows

                yield from read_rows(source, self.field, place=place, bytes_each=self.block_bytes)
                return
            kind = source.kind if source.kind == "jsonl" else self.documents
            with _open(source) as (file, position):
                data = _from(file, place)
                blocks = (
                    _pieces(data, is_begun=place > 0)
                    if kind == "file"
                    else _documents(data, kind, self)
                )
                for payload, is_end in blocks:
                    after, rows = place + len(payload), payload.count(b"\n")
                    if place == 0:
                        payload = payload.removeprefix(_MARK)  # noqa: PLW2901
                    yield Block(
                        kind=kind,
                        payload=payload,
                        place=place,
                        row=row,
                        after=after,
                        rows=rows,
                        is_end=is_end,
                        read=position(),
                    )
                    place, row = after, row + rows


@contextmanager
def _open(source: Source) -> Iterator[tuple[IO[bytes], Any]]:
    """The content, and what tells the place in the file itself."""
    with source.path.open("rb") as raw:
        if not source.is_packed:
            yield raw, raw.tell
            return
        with gzip.GzipFile(fileobj=raw, mode="rb") as unpacked:
            yield unpacked, raw.tell  # type: ignore[misc]


def _from(file: IO[bytes], place: int) -> IO[bytes]:
    file.seek(place)  # of a packed file: everything before is unpacked and dropped
    return file


def _pieces(file: IO[bytes], *, is_begun: bool) -> Iterator[tuple[bytes, bool]]:
    """A document as pieces, the last of which ends it. Of one that is begun nothing may be left:
    it has ended then."""
    kept, is_over = bytearray(), False
    while True:
        while not is_over and len(kept) < window():
            read = file.read(window() - len(kept))
            kept += read
            is_over = not read
        num = next_cut(kept)
        if num is None:
            if kept or not is_begun:
                yield bytes(kept), True
            return
        is_begun = True
        yield bytes(kept[:num]), False
        del kept[:num]


def _documents(file: IO[bytes], kind: str, reading: Reading) -> Iterator[tuple[bytes, bool]]:
    """Blocks of whole lines or paragraphs."""
    kept = b""
    size = reading.block_bytes
    while read := file.read(size):
        kept += read
        num = _whole_paragraphs(kept) if kind == "blank" else kept.rfind(b"\n") + 1
        if num:
            yield kept[:num], True
            kept, size = kept[num:], reading.block_bytes
            continue
        if len(kept) > _LONGEST:
            raise DataError(
                f"`{file.name}` has a document of more than {format_bytes(_LONGEST)}",
                hint="a jsonl file has one object per line; a text may be one document: "
                "`--documents file`",
            )
        size *= 2
    if kept:
        yield kept, True


def _whole_paragraphs(data: bytes) -> int:
    """Bytes up to the last blank line; more of which may follow, so it must be certain to end."""
    last = 0
    for found in _BLANK.finditer(data):
        if found.end() < len(data):
            last = found.end()
    return last


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise DataError(
            f"`{path}` is damaged: {error}", hint="was it copied to the end? `gzip -t` tells"
        ) from error
    except OSError as error:
        raise DataError(f"`{path}` cannot be read: {error.strerror or error}") from error

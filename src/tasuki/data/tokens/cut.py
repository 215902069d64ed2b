"""Cut long documents into pieces that are encoded one by one. Pure.

A document of up to PIECE bytes is encoded as a whole. Of a longer one, pieces of that size are cut
where tokenizers that split at words (GPT-2's and its kin) lose nothing by it: behind a single line
end between two words; else in front of a single space; else at a character. Where the cuts lie
follows from the document alone, so that neither workers nor blocks nor kills change a token.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

PIECE = 1 << 20
_LINE_END = re.compile(rb"[^\s]\n(?=[^\s])")
_SPACE = re.compile(rb"[^\s](?= [^\s])")


def cut_document(data: bytes, *, piece: int = PIECE) -> Iterator[bytes]:
    """The pieces of a document."""
    begin = 0
    while (num := next_cut(data, begin, piece=piece)) is not None:
        yield data[begin : begin + num]
        begin += num
    yield data[begin:]


def next_cut(data: bytes | bytearray, begin: int = 0, *, piece: int = PIECE) -> int | None:
    """How long the next piece is; None: it is the last. Needs `window(piece)` bytes, or all."""
    if len(data) - begin <= piece:
        return None
    end = begin + window(piece)
    for pattern in (_LINE_END, _SPACE):
        if (found := pattern.search(data, begin + piece - 1, end)) is not None:
            return found.end() - begin
    place = begin + piece
    while place > begin + 1 and data[place] & 0xC0 == 0x80:  # inside a character of UTF-8
        place -= 1
    return place - begin


def window(piece: int = PIECE) -> int:
    """Of so many bytes the next cut is certain, whatever comes behind them."""
    return 2 * piece

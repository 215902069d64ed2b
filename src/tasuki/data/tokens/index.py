"""What a folder of tokens holds: `index.json` as a checked value. Pure but for the reading of it.

    tokens-00000.bin, …   little-endian numbers, uint16 where the vocabulary fits, else uint32
    index.json            written last: a folder without it is none
    tokenizer.json        unless bytes are the tokens

The shards one after another are one stream: each document is followed by the end token, and chunks
are equal cuts of the stream, whatever document they cut through. Only the last chunk of all has
padding: end tokens, whose number is noted. No document is empty, so two end tokens in a row are
padding and nothing else; unless documents may hold special tokens themselves (`--special-tokens`),
the end token among them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from typing import Any

from tasuki.errors import DataError
from tasuki.runs.atomic import FORMAT, read_json, shaped
from tasuki.runs.nearby import look_beside

INDEX = "index.json"
TOKENIZER = "tokenizer.json"
WIDTHS = {"uint16": 2, "uint32": 4}
"""Bytes of a token."""
LARGEST = {"uint16": 1 << 16, "uint32": 1 << 32}
"""Vocabularies that fit."""

_SHARD = re.compile(r"tokens-\d{5,}\.bin")


def shard_name(number: int) -> str:
    return f"tokens-{number:05d}.bin"


def dtype_of(vocab: int) -> str:
    """The narrowest numbers that can name every token."""
    return "uint16" if vocab <= LARGEST["uint16"] else "uint32"


@dataclass(frozen=True, slots=True, kw_only=True)
class Shard:
    """One file of whole chunks."""

    name: str
    chunks: int
    tokens: int
    """Without padding."""
    bytes: int
    sha256: str

    def __post_init__(self) -> None:
        if "/" in self.name or self.name.startswith("."):
            raise ValueError(f"`{self.name}` is no name of a shard")


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """A complete folder of tokens."""

    dtype: str
    chunk: int
    """Tokens of a chunk."""
    vocab: int
    """Every token is below it."""
    end_token: int
    tokens: int
    """Without padding."""
    documents: int
    shards: tuple[Shard, ...]

    def __post_init__(self) -> None:
        if self.dtype not in WIDTHS or self.vocab > LARGEST[self.dtype]:
            raise ValueError(f"a vocabulary of {self.vocab} in {self.dtype}")
        if self.chunk < 1 or not self.shards or min(one.chunks for one in self.shards) < 1:
            raise ValueError("no tokens")
        if any(one.bytes != one.chunks * self.chunk_bytes for one in self.shards):
            raise ValueError("shards that are not as long as their chunks")
        if not 0 <= self.padding < self.chunk:
            raise ValueError(f"{self.tokens} tokens in {self.chunks} chunks")

    @property
    def chunk_bytes(self) -> int:
        return self.chunk * WIDTHS[self.dtype]

    @property
    def chunks(self) -> int:
        return sum(shard.chunks for shard in self.shards)

    @property
    def padding(self) -> int:
        """End tokens that fill the last chunk."""
        return self.chunks * self.chunk - self.tokens

    @property
    def ends(self) -> list[int]:
        """For each shard the number of the first chunk that is not in it or an earlier one."""
        return list(accumulate(shard.chunks for shard in self.shards))

    def refuse_sizes(self, folder: Path) -> None:
        """Each shard must be as long as it was made."""
        for shard in self.shards:
            path = folder / shard.name
            try:
                size = path.stat().st_size
            except OSError as error:
                raise DataError(
                    f"`{path}` cannot be read: {error.strerror}; `{INDEX}` names it",
                    hint="copy the whole folder again, or tokenise again",
                ) from error
            if size != shard.bytes:
                raise wrong_size(path, size, shard.bytes)


def wrong_size(path: Path, size: int, wanted: int) -> DataError:
    what = "shorter" if size < wanted else "longer"
    return DataError(
        f"`{path}` is {what} than `{INDEX}` says: {size:,} bytes instead of {wanted:,}",
        hint="was it copied to the end? Copy the folder again, or tokenise again",
    )


def is_token_folder(folder: Path) -> bool:
    return (folder / INDEX).is_file()


def is_ours(path: Path) -> bool:
    """May a folder of tokens hold it?"""
    is_named = path.name in (INDEX, TOKENIZER) or _SHARD.fullmatch(path.name) is not None
    return is_named and path.is_file()


def read_index(folder: Path) -> tuple[Index, dict[str, Any]]:
    """The index of a folder, and all that its file says."""
    path = folder / INDEX
    if not folder.is_dir():
        raise DataError(
            f"folder of tokens `{folder}` does not exist; {look_beside(folder)}",
            hint="mend the path, or make it: `tasuki data tokenize FILE… -o FOLDER`",
        )
    if not path.is_file():
        raise DataError(
            f"`{folder}` is no folder of tokens: it has no `{INDEX}`",
            hint="`tasuki data tokenize FILE… -o FOLDER` makes one; it is complete when it has "
            f"`{INDEX}`",
        )
    told = read_json(path)
    with shaped(path):
        return index_from(told), told


def index_from(told: dict[str, Any]) -> Index:
    shards = tuple(
        Shard(
            name=str(one["name"]),
            chunks=int(one["chunks"]),
            tokens=int(one["tokens"]),
            bytes=int(one["bytes"]),
            sha256=str(one["sha256"]),
        )
        for one in told["shards"]
    )
    return Index(
        dtype=told["dtype"],
        chunk=int(told["chunk"]),
        vocab=int(told["vocab"]),
        end_token=int(told["end_token"]),
        tokens=int(told["tokens"]),
        documents=int(told["documents"]),
        shards=shards,
    )


def cut_into_shards(
    *, tokens: int, chunk: int, dtype: str, most_chunks: int, hashes: list[str]
) -> list[Shard]:
    """The shards of a stream that was written."""
    chunks, shards = -(-tokens // chunk), []
    for number, sha256 in enumerate(hashes):
        num = min(most_chunks, chunks - number * most_chunks)
        begin = number * most_chunks * chunk
        shards.append(
            Shard(
                name=shard_name(number),
                chunks=num,
                tokens=min(num * chunk, tokens - begin),
                bytes=num * chunk * WIDTHS[dtype],
                sha256=sha256,
            )
        )
    return shards


def to_told(index: Index, **more: Any) -> dict[str, Any]:
    """What `index.json` says."""
    return {
        "format": FORMAT,
        "dtype": index.dtype,
        "chunk": index.chunk,
        "vocab": index.vocab,
        "end_token": index.end_token,
        "documents": index.documents,
        "tokens": index.tokens,
        "chunks": index.chunks,
        "padding": index.padding,
        **more,
        "shards": [
            {
                "name": one.name,
                "chunks": one.chunks,
                "tokens": one.tokens,
                "bytes": one.bytes,
                "sha256": one.sha256,
            }
            for one in index.shards
        ],
    }

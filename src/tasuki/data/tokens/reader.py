"""Packed tokens as a map-style data set, for recipes.

    def build_dataset(self, source, split):
        return TokenDataset(source, split, context=1024)

A sample is an int64 tensor of `context` tokens (a whole chunk without it); a batch is one of
(samples, context), made without a copy per sample: recipes need no `collate`. Shards are read by
`pread` into a small buffer that stays in the processor's cache, and widened from there into the
batch: as fast as a memory map, and a file that shrinks is an error and not a SIGBUS. The kernel
caches what was read, for all processes together.
"""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Sequence
from io import FileIO
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from tasuki.data.tokens.index import WIDTHS, Shard, is_token_folder, read_index, wrong_size
from tasuki.data.tokens.parts import PARTS, SHARES, chunks_of
from tasuki.errors import DataError

_MOST_OPEN = 64
"""Shards that a process holds open."""


class TokenDataset:
    """The chunks of a token folder, or of a part of it, or shorter pieces of them."""

    def __init__(
        self,
        folder: str | Path,
        split: str | None = None,
        *,
        context: int | None = None,
        shares: Sequence[float] = SHARES,
        seed: int = 0,
    ) -> None:
        """`split` is `train`, `val` or `test`: a folder of its own (`FOLDER/val`) where there is
        one, else a share of the chunks. `context` must divide the chunk."""
        self.folder, is_part = _folder_of(Path(folder), split)
        self.index, _ = read_index(self.folder)
        self.index.refuse_sizes(self.folder)
        self.split = split
        self.context = self.index.chunk if context is None else context
        self._per_chunk = _pieces(self.index.chunk, self.context)
        self._chunks = np.arange(self.index.chunks, dtype=np.int64)
        if split is not None and not is_part:
            self._chunks = chunks_of(split, num_chunks=self.index.chunks, shares=shares, seed=seed)
        self._length = len(self._chunks) * self._per_chunk - self._empty_pieces()
        if not self._length:
            raise _no_chunks(self.folder, split, self.index.chunks, self.index.chunk)
        self._ends = self.index.ends
        self._files = _Files(self.folder, self.index.shards)

    @property
    def draws_random_numbers(self) -> bool | None:
        """False spares the seeding of each sample (promise 2): what is read is what is stored. None
        where a subclass may draw."""
        own, ours = type(self), TokenDataset
        is_ours = own.__getitem__ is ours.__getitem__ and own.batch is ours.batch
        return False if is_ours else None

    @property
    def vocab(self) -> int:
        """Every token is below it."""
        return self.index.vocab

    @property
    def end_token(self) -> int:
        """Follows each document. Two of them in a row are padding, and nothing else is; but with
        `--special-tokens` a document may hold them, too: `num_tokens` tells what is padding."""
        return self.index.end_token

    def num_tokens(self, index: int) -> int:
        """Of a sample, without padding: `context` but for the last of all."""
        chunk, piece = divmod(self._checked(index), self._per_chunk)
        begin = int(self._chunks[chunk]) * self.index.chunk + piece * self.context
        return min(self.context, self.index.tokens - begin)

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, index: int) -> Tensor:
        return self.batch([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[Tensor]:
        return list(self.batch(indices).unbind())

    def batch(self, indices: Sequence[int]) -> Tensor:
        """These samples as one int64 tensor (samples, context)."""
        batch = torch.empty((len(indices), self.context), dtype=torch.int64)
        rows: NDArray[np.int64] = batch.numpy()
        width = WIDTHS[self.index.dtype]
        buffer = np.empty(self.context, dtype=f"<u{width}")
        room, ends = buffer.data.cast("B"), self._ends
        for row, index in zip(rows, indices, strict=True):
            chunk, piece = divmod(self._checked(index), self._per_chunk)
            number = int(self._chunks[chunk])
            shard = bisect_right(ends, number)
            first = ends[shard - 1] if shard else 0
            place = (number - first) * self.index.chunk + piece * self.context
            self._files.read(shard, place * width, room)
            row[:] = buffer
        return batch

    def _checked(self, index: int) -> int:
        if not -self._length <= index < self._length:
            raise IndexError(index)
        return index % self._length

    def _empty_pieces(self) -> int:
        """Pieces of the last chunk that are nothing but padding."""
        has_last = len(self._chunks) and self._chunks[-1] == self.index.chunks - 1
        return self.index.padding // self.context if has_last else 0


class _Files:
    """Shards, opened when they are first read in a process. A fork may share them: nothing but
    `pread` is done to them."""

    def __init__(self, folder: Path, shards: Sequence[Shard]) -> None:
        self._folder, self._shards = folder, shards
        self._open: OrderedDict[int, FileIO] = OrderedDict()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": OrderedDict()}

    def read(self, shard: int, place: int, room: memoryview) -> None:
        """Fill `room` from this place on."""
        file = self._open.get(shard) or self._reopen(shard)
        try:
            done = num = os.preadv(file.fileno(), [room], place)
            while num and done < len(room):
                num = os.preadv(file.fileno(), [room[done:]], place + done)
                done += num
        except OSError as error:
            path = self._folder / self._shards[shard].name
            raise DataError(
                f"`{path}` cannot be read: {error.strerror}",
                hint="is the disk there? The same command goes on",
            ) from error
        if done < len(room):
            path, size = self._folder / self._shards[shard].name, os.fstat(file.fileno()).st_size
            raise wrong_size(path, size, self._shards[shard].bytes)

    def _reopen(self, shard: int) -> FileIO:
        path = self._folder / self._shards[shard].name
        try:
            file = FileIO(path)
        except OSError as error:
            raise DataError(
                f"`{path}` cannot be opened any more: {error.strerror}",
                hint="leave data alone while a run uses them",
            ) from error
        if (size := os.fstat(file.fileno()).st_size) != self._shards[shard].bytes:
            raise wrong_size(path, size, self._shards[shard].bytes)
        self._open[shard] = file
        while len(self._open) > _MOST_OPEN:
            # Not closed by hand: another thread may be reading from it.
            self._open.popitem(last=False)
        return file


def _folder_of(folder: Path, split: str | None) -> tuple[Path, bool]:
    """Where the tokens lie, and whether all of them are this part's."""
    if split in PARTS and not is_token_folder(folder) and is_token_folder(folder / split):
        return folder / split, True
    return folder, False


def _pieces(chunk: int, context: int) -> int:
    if type(context) is not int:
        raise DataError(f"`context` is a number of tokens, not {context!r}", hint="such as 1024")
    if 1 <= context <= chunk and chunk % context == 0:
        return chunk // context
    fitting = [size for size in range(1, chunk + 1) if chunk % size == 0]
    near = sorted({*sorted(fitting, key=lambda size: abs(size - context))[:4], chunk})
    raise DataError(
        f"chunks of {chunk:,} tokens cannot be cut into pieces of {context:,}",
        hint=f"`context` must divide the chunk: {', '.join(map(str, near))} (the whole of it)",
    )


def _no_chunks(folder: Path, split: str | None, chunks: int, chunk: int) -> DataError:
    of = f"{chunks} chunk{'s' if chunks > 1 else ''} of {chunk:,} tokens"
    return DataError(
        f"`{folder}` has {of}: none of them falls to `{split}`",
        hint="tokenise with a smaller `--chunk`, give larger `shares=(0.8, 0.1, 0.1)`, or "
        f"tokenise files for {split} into `{folder}/{split}`",
    )

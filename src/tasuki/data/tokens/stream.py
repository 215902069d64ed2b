"""The stream of tokens, from the place where it stands to its end."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from itertools import accumulate

import numpy as np

from tasuki.clock import SystemClock
from tasuki.data.curate.talk import Talk
from tasuki.data.tokens.blocks import Block, Reading
from tasuki.data.tokens.encode import FIRST, Broken, Encoded, not_utf8, split_block
from tasuki.data.tokens.index import WIDTHS
from tasuki.data.tokens.journal import Counts, Journal
from tasuki.data.tokens.pool import encode_in_order
from tasuki.data.tokens.shards import Shards
from tasuki.data.tokens.sources import Source
from tasuki.data.tokens.vocabulary import Vocabulary
from tasuki.errors import DataError

__all__ = ["FIRST", "Stream", "training_texts"]

_KEEP_EVERY_S = 5.0


class Stream:
    """Reads sources, has them encoded, writes shards, and keeps the journal."""

    def __init__(
        self,
        *,
        journal: Journal,
        vocabulary: Vocabulary,
        sources: Sequence[Source],
        reading: Reading,
        skips_broken: bool,
        shard_bytes: int,
        keep_bytes: int,
        talk: Talk,
    ) -> None:
        self._journal, self._vocabulary = journal, vocabulary
        self._sources, self._reading, self._skips = sources, reading, skips_broken
        self._keep_bytes, self._talk = keep_bytes, talk
        dtype = np.dtype(vocabulary.dtype).newbyteorder("<")
        self._end = np.array([vocabulary.end], dtype=dtype).tobytes()
        self._shards = Shards(
            journal.new,
            shard_bytes=shard_bytes,
            done=journal.tokens * WIDTHS[vocabulary.dtype],
            hashes=journal.hashes,
        )
        self._kept, self._kept_at = self._shards.done, SystemClock.monotonic()
        self._before = [0, *accumulate(source.num_bytes for source in sources)]

    def run(self, *, workers: int, chunk: int) -> list[str]:
        """Everything that is left; the hashes of all shards."""
        results = encode_in_order(
            self._blocks(), self._vocabulary, field=self._reading.field, workers=workers
        )
        try:
            with closing(results):
                for block, found in results:
                    self._take(block, found)
            self._reach(len(self._sources) - 1)
            self._finish_source()
            self._pad(chunk)
            self._shards.end()
        except DataError:
            self._keep()
            raise
        finally:
            self._shards.close()
        return self._shards.hashes

    def _blocks(self) -> Iterator[Block]:
        done = len(self._journal.sources)
        if (place := self._journal.place) is not None:
            yield from self._numbered(done - 1, place=place[0], row=place[1])
        for number in range(done, len(self._sources)):
            yield from self._numbered(number)

    def _numbered(self, number: int, *, place: int = 0, row: int = 1) -> Iterator[Block]:
        for block in self._reading.blocks(self._sources[number], place=place, row=row):
            yield replace(block, source=number)

    def _take(self, block: Block, found: Encoded) -> None:
        counts = self._reach(block.source)
        if found.num_broken:
            self._note_broken(self._sources[block.source], block, found, counts)
        self._shards.write(found.tokens)
        counts["tokens"] += found.num_tokens
        counts["documents"] += found.documents
        counts["empty"] += found.empty
        if block.kind == "file" and block.is_end:
            self._end_document(counts)
        self._journal.note(place=block.after, row=block.row + block.rows)
        now = SystemClock.monotonic()
        if (
            self._shards.done - self._kept >= self._keep_bytes
            or now - self._kept_at > _KEEP_EVERY_S
        ):
            self._keep()
        done, total = self._before[block.source] + block.read, self._before[-1]
        self._talk.progress("tokenising", min(done, total), total)

    def _end_document(self, counts: Counts) -> None:
        if counts["tokens"]:
            self._shards.write(self._end)
            counts["tokens"] += 1
            counts["documents"] += 1
        else:
            counts["empty"] += 1

    def _reach(self, number: int) -> Counts:
        """Begin this source, once those before it are finished; its counts."""
        journal = self._journal
        while len(journal.sources) <= number:
            self._finish_source()
            journal.begin(self._sources[len(journal.sources)])
        counts: Counts = journal.sources[number]["counts"]
        return counts

    def _finish_source(self) -> None:
        if self._journal.place is not None:
            self._sources[len(self._journal.sources) - 1].refuse_changed()
            self._journal.finish()

    def _note_broken(self, source: Source, block: Block, found: Encoded, counts: Counts) -> None:
        if not self._skips or block.kind == "file":
            raise refuse_broken(source, block, found.broken[0])
        counts["skipped"] += found.num_broken
        room = FIRST - len(counts["first_skipped"])
        counts["first_skipped"] += [
            {"file": str(source.path), "row": one.row, "why": one.why}
            for one in found.broken[:room]
        ]

    def _pad(self, chunk: int) -> None:
        tokens = self._journal.tokens
        if not tokens:
            raise DataError(
                f"there is no text in {_names(self._sources)}",
                hint=self._why_skipped() or "a folder of tokens needs at least one document",
            )
        self._shards.write(self._end * (-tokens % chunk))

    def _why_skipped(self) -> str:
        counts = [source["counts"] for source in self._journal.sources]
        first = [one for each in counts for one in each["first_skipped"]][:1]
        num = sum(each["skipped"] for each in counts)
        where = "".join(f"{one['file']}:{one['row']}: {one['why']}" for one in first)
        lines = "1 broken line was" if num == 1 else f"{num:,} broken lines were"
        return f"{lines} skipped, the first: {where} (`--field`)" if num else ""

    def _keep(self) -> None:
        self._shards.sync()
        self._journal.keep(self._shards.hashes)
        self._kept, self._kept_at = self._shards.done, SystemClock.monotonic()


def training_texts(
    sources: Sequence[Source], reading: Reading, *, skips: bool, talk: Talk
) -> Iterator[list[str]]:
    """All documents, for the training of a tokenizer."""
    before, total = 0, sum(source.num_bytes for source in sources)
    for source in sources:
        for block in reading.blocks(source):
            if block.kind == "file":
                bad = not_utf8(block.payload, block.row)
                documents, broken = [block.payload], [bad] if bad is not None else []
            else:
                documents, broken = split_block(block, reading.field)
            if broken and (not skips or block.kind == "file"):
                raise refuse_broken(source, block, broken[0])
            yield [document.decode() for document in documents]
            talk.progress("training a tokenizer", before + block.read, total)
        before += source.num_bytes


def refuse_broken(source: Source, block: Block, broken: Broken) -> DataError:
    """What to say about the first line that is no document."""
    row, where = broken.row, ""
    if broken.place is not None and block.kind == "file":
        row += block.payload.count(b"\n", 0, broken.place)
        where = f" at {block.place + broken.place:,}"
    hint = "mend it, or leave such lines out and have them counted: `--on-broken skip`"
    if broken.place is not None:
        hint = "convert it: `iconv -f latin1 -t utf-8`; " + (
            "or `--bytes` takes texts as they are" if block.kind == "file" else hint
        )
    elif "has no field" in broken.why:
        hint = "name the field of the text: `--field NAME`; or `--on-broken skip`"
    return DataError(f"`{source.path}:{row}`: {broken.why}{where}", hint=hint)


def _names(sources: Sequence[Source]) -> str:
    names = ", ".join(f"`{source.path}`" for source in sources[:3])
    return names + (f" and {len(sources) - 3} more" if len(sources) > 3 else "")

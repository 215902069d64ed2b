"""`tasuki data tokenize`: documents into packed chunks of tokens.

One process reads and writes in order, others encode (pool.py): so the output is the same whatever
their number, and how far it is fits a few numbers (journal.py).
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasuki.data.curate.talk import Talk
from tasuki.data.tokens.blocks import Reading
from tasuki.data.tokens.index import (
    INDEX,
    TOKENIZER,
    WIDTHS,
    Index,
    cut_into_shards,
    dtype_of,
    is_ours,
    is_token_folder,
    read_index,
    to_told,
)
from tasuki.data.tokens.journal import Journal
from tasuki.data.tokens.shards import MODE, is_there
from tasuki.data.tokens.sources import Source, find_sources, told_source
from tasuki.data.tokens.stream import FIRST, Stream, training_texts
from tasuki.data.tokens.vocabulary import (
    BYTES,
    Vocabulary,
    import_tokenizers,
    load_vocabulary,
    refuse_size,
    train_vocabulary,
)
from tasuki.errors import DataError, StoreError, UsageError
from tasuki.runs.atomic import fsync_folder, to_json, translated, write_all, write_bytes
from tasuki.units import format_bytes, parse_bytes

_WRITER = 1
"""Of the way tokens are made: another one must not go on with the work of this one."""
_KEEP_BYTES = 8 << 20
_WORTH_WORKERS = 4 << 20
"""Bytes of sources; less is done before a worker has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What is asked for, checked."""

    sources: tuple[Source, ...]
    output: Path
    reading: Reading
    chunk: int
    shard_bytes: int
    """At the most."""
    skips_broken: bool
    workers: int
    keep_bytes: int

    def chunks_per_shard(self, dtype: str) -> int:
        """Whole chunks, so that none lies in two files."""
        num = self.shard_bytes // (self.chunk * WIDTHS[dtype])
        if num < 1:
            raise UsageError(
                f"a shard of {format_bytes(self.shard_bytes)} has no room for one chunk of "
                f"{self.chunk:,} tokens",
                hint="make `--shard-size` larger, or `--chunk` smaller",
            )
        return num

    def facts(self) -> list[Any]:
        """What the documents hang on, beside the files."""
        how = [self.reading.documents, self.reading.field, self.skips_broken]
        return [_WRITER, *how]


def tokenize(order: dict[str, Any], talk: Talk) -> dict[str, Any]:
    """The order of commands/data.py → the values of `tasuki data tokenize --json`."""
    wanted = read_order(order)
    given = _given_vocabulary(order)
    if order["dry_run"]:
        return _told_dry(wanted, order, given)
    with _working(wanted.output, talk, keeps=order["train"] is None) as journal:
        key = _key(wanted, order, given)
        if journal.is_publishing:
            if journal.key == key and journal.is_about(wanted.sources):
                return _publish(wanted, journal)
            journal.discard()
        refuse_existing(wanted.output, force=order["force"])
        vocabulary = given or _train(wanted, order["train"], journal, talk)
        told = _make(wanted, vocabulary, journal, key, talk)
        warnings = _warn(told, order["train"])
        _finish(told, vocabulary, journal, wanted)
        return _publish(wanted, journal) | {"warnings": warnings}


def read_order(order: dict[str, Any]) -> Wanted:
    sources = tuple(find_sources(order["files"]))
    output = Path(order["output"])
    output = output.resolve() if output.is_symlink() else output
    for source in sources:
        if output.resolve() in source.path.resolve().parents:
            raise UsageError(
                f"`{source.path}` lies in `{output}`, which is to be written",
                hint="choose another `-o`: sources are never changed",
            )
    chunk = order["chunk"]
    if chunk < 2:
        raise UsageError(f"a chunk of {chunk} tokens is none", hint="32768 is usual")
    total = sum(source.num_bytes for source in sources)
    workers = order["workers"] or len(os.sched_getaffinity(0))
    if order["workers"] is None and total < _WORTH_WORKERS:
        workers = 1
    sizes = {"block_bytes": order["block_bytes"]} if "block_bytes" in order else {}
    return Wanted(
        sources=sources,
        output=output,
        reading=Reading(documents=order["documents"], field=order["field"], **sizes),
        chunk=chunk,
        shard_bytes=parse_bytes(order["shard_size"]),
        skips_broken=order["on_broken"] == "skip",
        workers=max(1, workers),
        keep_bytes=order.get("keep_bytes", _KEEP_BYTES),
    )


# -- what tokens are ------------------------------------------------------------------------------


def _given_vocabulary(order: dict[str, Any]) -> Vocabulary | None:
    """None: it is to be trained."""
    asked = [name for name in ("tokenizer", "train", "bytes") if order[name]]
    if len(asked) != 1:
        raise UsageError(
            f"{' and '.join(f'--{name}' for name in asked)} exclude each other"
            if asked
            else "nothing says what the tokens are",
            hint="give one of `--tokenizer FILE.json`, `--train SIZE`, `--bytes`",
        )
    if order["end_token"] and not order["tokenizer"]:
        raise UsageError(
            f"--end-token {order['end_token']} goes with --tokenizer only",
            hint="leave it out: `--train` and `--bytes` have an end token of their own",
        )
    if order["bytes"]:
        return BYTES
    if order["train"]:
        refuse_size(order["train"])
        import_tokenizers()
        return None
    return load_vocabulary(
        Path(order["tokenizer"]),
        end=order["end_token"],
        takes_special=order["special_tokens"],
    )


def _key(wanted: Wanted, order: dict[str, Any], given: Vocabulary | None) -> str:
    """Differs wherever an output would, but for its sources: those may change one by one."""
    facts = [*wanted.facts(), wanted.chunk, wanted.shard_bytes]
    if given is None:
        # Its tokenizer hangs on all sources.
        facts.append(_train_key(wanted, order["train"]))
    else:
        facts += [given.sha256, given.end, given.takes_special, _version(given)]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _train_key(wanted: Wanted, size: int) -> str:
    sources = [[str(source.path), source.stamp] for source in wanted.sources]
    facts = [*wanted.facts(), size, import_tokenizers().__version__, sources]
    return hashlib.sha256(json.dumps(facts).encode()).hexdigest()


def _version(given: Vocabulary) -> str | None:
    return None if given.content is None else str(import_tokenizers().__version__)


def _train(wanted: Wanted, size: int, journal: Journal, talk: Talk) -> Vocabulary:
    """A tokenizer of all documents, or the one that an interrupted call trained of them."""
    key, path = _train_key(wanted, size), journal.folder / "trained.json"
    kept = journal.trained
    if kept is not None and kept["key"] == key and path.is_file():
        found = Vocabulary(size=kept["size"], end=kept["end"], content=path.read_bytes())
        if found.sha256 == kept["sha256"]:
            return found
    texts = training_texts(wanted.sources, wanted.reading, skips=wanted.skips_broken, talk=talk)
    trained = train_vocabulary(texts, size=size, threads=wanted.workers)
    assert trained.content is not None
    write_bytes(path, trained.content)
    facts = {"key": key, "size": trained.size, "end": trained.end, "sha256": trained.sha256}
    journal.keep_trained(facts)
    return trained


# -- making ---------------------------------------------------------------------------------------


def _make(
    wanted: Wanted, vocabulary: Vocabulary, journal: Journal, key: str, talk: Talk
) -> dict[str, Any]:
    """All tokens, in the work folder; what the index says."""
    most_chunks = wanted.chunks_per_shard(vocabulary.dtype)
    chunk_bytes = wanted.chunk * WIDTHS[vocabulary.dtype]
    shard_bytes = most_chunks * chunk_bytes
    width = WIDTHS[vocabulary.dtype]
    _resume_or_start(wanted, journal, key, width=width, shard_bytes=shard_bytes, talk=talk)
    stream = Stream(
        journal=journal,
        vocabulary=vocabulary,
        sources=wanted.sources,
        reading=wanted.reading,
        skips_broken=wanted.skips_broken,
        shard_bytes=shard_bytes,
        keep_bytes=wanted.keep_bytes,
        talk=talk,
    )
    hashes = stream.run(workers=wanted.workers, chunk=wanted.chunk)
    counts = [one["counts"] for one in journal.sources]
    index = Index(
        dtype=vocabulary.dtype,
        chunk=wanted.chunk,
        vocab=vocabulary.size,
        end_token=vocabulary.end,
        tokens=journal.tokens,
        documents=sum(one["documents"] for one in counts),
        shards=tuple(
            cut_into_shards(
                tokens=journal.tokens,
                chunk=wanted.chunk,
                dtype=dtype_of(vocabulary.size),
                most_chunks=most_chunks,
                hashes=hashes,
            )
        ),
    )
    return to_told(
        index,
        tokenizer=vocabulary.told(),
        empty=sum(one["empty"] for one in counts),
        skipped=sum(one["skipped"] for one in counts),
        first_skipped=[one for some in counts for one in some["first_skipped"]][:FIRST],
        sources=[
            told_source(source, {k: v for k, v in one.items() if k != "first_skipped"})
            for source, one in zip(wanted.sources, counts, strict=True)
        ],
    )


def _resume_or_start(
    wanted: Wanted, journal: Journal, key: str, *, width: int, shard_bytes: int, talk: Talk
) -> None:
    """Leave in the journal only what can be gone on with."""
    with translated(journal.new):
        journal.new.mkdir(exist_ok=True)
    if journal.key is None:
        journal.start_over(key)
    elif journal.key != key:
        talk.say(
            "the files or what is asked for changed since the call that was interrupted: "
            "starting over"
        )
        journal.start_over(key)
    journal.drop_changed(wanted.sources)
    if not is_there(journal.new, shard_bytes=shard_bytes, done=journal.tokens * width):
        talk.say("shards of the call that was interrupted are gone: starting over")
        journal.start_over(key)
    if journal.tokens:
        talk.say(f"going on where the last call stopped: {journal.tokens:,} tokens are written")


# -- the output -----------------------------------------------------------------------------------


def refuse_existing(output: Path, *, force: bool) -> None:
    """Only a folder of tokens may be replaced: nobody's other files."""
    if not output.exists() or (output.is_dir() and not any(output.iterdir())):
        return
    if not output.is_dir() or not is_token_folder(output):
        raise UsageError(
            f"`{output}` exists and is no folder of tokens",
            hint="choose another `-o`; `--force` replaces folders of tokens only",
        )
    if not force:
        raise StoreError(
            f"`{output}` exists already",
            hint="`--force` replaces it when the new one is complete; or choose another `-o`",
        )
    refuse_strangers(output)


def refuse_strangers(output: Path) -> None:
    """What is replaced is deleted: only what was made here."""
    strangers = sorted(path.name for path in output.iterdir() if not is_ours(path))
    if strangers:
        more = f" and {len(strangers) - 3} more" if len(strangers) > 3 else ""
        named = ", ".join(f"`{name}`" for name in strangers[:3])
        raise UsageError(
            f"`{output}` holds more than tokens, and it is not replaced: {named}{more}",
            hint="move them elsewhere, or choose another `-o`",
        )


def _finish(told: dict[str, Any], vocabulary: Vocabulary, journal: Journal, wanted: Wanted) -> None:
    """The index, last of all files."""
    if vocabulary.content is not None:
        _put(journal.new / TOKENIZER, vocabulary.content)
    for source in wanted.sources:
        source.refuse_changed()
    _put(journal.new / INDEX, to_json(told))
    with translated(journal.new):
        fsync_folder(journal.new)
    journal.keep_publishing()


def _publish(wanted: Wanted, journal: Journal) -> dict[str, Any]:
    if journal.new.exists() and wanted.output.is_dir():
        refuse_strangers(wanted.output)  # which may have come since
    journal.publish(wanted.output)
    index, told = read_index(wanted.output)
    journal.remove()
    return told | {
        "output": str(wanted.output),
        "bytes": sum(shard.bytes for shard in index.shards),
        "warnings": [],
        "dry_run": False,
    }


def _put(path: Path, content: bytes) -> None:
    """As readable as the shards; the folder has no name yet."""
    with translated(path, need=len(content)):
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, MODE)
        try:
            write_all(fd, content)
            os.fsync(fd)
        finally:
            os.close(fd)


@contextmanager
def _working(output: Path, talk: Talk, *, keeps: bool) -> Iterator[Journal]:
    """The work folder. It stays where a later call could go on with it."""
    journal = Journal(output.with_name(f".{output.name}.partial"), say=talk.say)
    try:
        yield journal
    except DataError:
        # Mended data are changed data: only what came before them can be of use.
        if not keeps or len(journal.sources) < 2:
            journal.remove()
        raise
    except (StoreError, UsageError):
        if journal.is_blank:
            journal.remove()
        raise
    finally:
        journal.close()


# -- words ----------------------------------------------------------------------------------------


def _warn(told: dict[str, Any], trained: int | None) -> list[str]:
    warnings = []
    if trained is not None and told["vocab"] < trained:
        warnings.append(
            f"the documents give a vocabulary of {told['vocab']:,} only, not of {trained:,}"
        )
    if told["empty"]:
        warnings.append(f"{told['empty']:,} documents without a token were left out")
    return warnings


def _told_dry(wanted: Wanted, order: dict[str, Any], given: Vocabulary | None) -> dict[str, Any]:
    """What is known before anything is encoded."""
    refuse_existing(wanted.output, force=order["force"])
    vocab = given.size if given is not None else order["train"]
    wanted.chunks_per_shard(dtype_of(vocab))
    return {
        "format": 1,
        "output": str(wanted.output),
        "dtype": dtype_of(vocab),
        "chunk": wanted.chunk,
        "vocab": vocab,
        "sources": [told_source(source, {}) for source in wanted.sources],
        "bytes": None,
        "warnings": [],
        "dry_run": True,
    }

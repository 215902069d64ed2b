"""What packed tokens cost: reading random chunks, and making them.

Run as `python bench/tokens.py`, or with the names of some parts: `… tokens.py read`. Two to four
minutes on two cores.

    read      random chunks as batches, page cache warm: tasuki.TokenDataset through the loader's
              Fetcher, against the best that a loop over np.memmap can do, and against HF `datasets`
              (its Arrow files, torch format) under torch's DataLoader (_tokens_hf.py)
    tokenize  all of `tasuki data tokenize` with one worker (reading, JSON, encoding, writing to
              the disk), against `encode_batch` of the package alone on one thread

Temporary files (0.3 GB) are in TMPDIR and are removed. `BENCH_PEERS=0` leaves HF out.
"""

from __future__ import annotations

import json
import os
import random
import sys
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch
from numpy.typing import NDArray

from _measure import Figure, Took, ratios, run_bench, run_interleaved, sized, timed
from _peers import Worker, find_peers

ROUNDS = sized(9, smoke=1)
CHUNK, BATCH = 32768, 16
NUM_BATCHES, NUM_CHUNKS = sized((12, 1500), smoke=(2, 64))
NUM_TEXTS, VOCABULARY = sized((3000, 8000), smoke=(200, 1000))
Batches = list[list[int]]


def _compare(what: str, taken: dict[str, list[Took]]) -> list[Figure]:
    """How many times as fast tasuki is as each other way."""
    ours = taken.pop("tasuki")
    figures = []
    for name, theirs in taken.items():
        for title, index in (("", 0), (", CPU time", 1)):
            value = ratios([took[index] for took in theirs], [took[index] for took in ours])
            figures.append(Figure(what + title, name, value))
    return figures


# -- reading ----------------------------------------------------------------------------------


def measure_read(folder: Path) -> list[Figure]:
    torch.set_num_threads(1)
    tokens = _write_tokens(folder / "tokens")
    ways: dict[str, Callable[[Batches], Took]] = {
        "tasuki": _tasuki(folder / "tokens"),
        "memmap kept, one copy": _memmap(folder / "tokens" / "tokens-00000.bin"),
    }
    with ExitStack() as stack:
        if python := find_peers("datasets").get("datasets"):
            np.save(folder / "tokens.npy", tokens)
            worker = Worker(python, "_tokens_hf.py", str(folder), log=folder / "hf.log")
            stack.callback(worker.close)
            worker.ask(chunk=CHUNK)
            ways["HF datasets under DataLoader"] = lambda batches: Took(
                *worker.ask(batches=batches)
            )
        rng = np.random.default_rng(1)
        rounds = [
            rng.integers(0, NUM_CHUNKS, (NUM_BATCHES, BATCH)).tolist() for _ in range(ROUNDS + 1)
        ]
        turn = {name: iter(rounds) for name in ways}
        cases = {name: lambda n=name: ways[n](next(turn[n])) for name in ways}
        taken = run_interleaved(cases, rounds=ROUNDS)
    what = f"batches of {BATCH} chunks of {CHUNK:,} tokens: times as fast"
    return _compare(what, taken)


def _write_tokens(folder: Path) -> NDArray[np.uint16]:
    """As tokenize would have written them; the content does not matter."""
    folder.mkdir()
    values = np.random.default_rng(0).integers(0, 50257, NUM_CHUNKS * CHUNK).astype("<u2")
    values.tofile(folder / "tokens-00000.bin")
    shard = {"name": "tokens-00000.bin", "chunks": NUM_CHUNKS, "tokens": len(values), "sha256": ""}
    index = {"dtype": "uint16", "chunk": CHUNK, "vocab": 50257, "end_token": 0, "documents": 1}
    index |= {"tokens": len(values), "shards": [shard | {"bytes": values.nbytes}]}
    (folder / "index.json").write_text(json.dumps(index))
    return values


def _tasuki(folder: Path) -> Callable[[Batches], Took]:
    from tasuki.data.fetch import Fetcher, Request
    from tasuki.data.tokens import TokenDataset

    fetcher = Fetcher(TokenDataset(folder), None)
    return lambda batches: _time_each(batches, lambda indices: fetcher(Request(indices, None)))


def _memmap(path: Path) -> Callable[[Batches], Took]:
    """As good as a memory map gets: mapped once, widened straight into the batch."""
    data = np.memmap(path, dtype=np.uint16, mode="r")

    def read(indices: list[int]) -> torch.Tensor:
        batch = torch.empty((len(indices), CHUNK), dtype=torch.int64)
        for row, i in zip(batch.numpy(), indices, strict=True):
            row[:] = data[i * CHUNK : (i + 1) * CHUNK]
        return batch

    return lambda batches: _time_each(batches, read)


def _time_each(batches: Batches, read: Callable[[list[int]], torch.Tensor]) -> Took:
    """Each batch is dropped before the next, as in training and in DataLoader's loop."""

    def read_all() -> None:
        for indices in batches:
            read(indices)

    return timed(read_all)


# -- making -----------------------------------------------------------------------------------


def measure_tokenize(folder: Path) -> list[Figure]:
    from tasuki.data.tokens.vocabulary import train_vocabulary

    texts = _make_texts(NUM_TEXTS)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "corpus.jsonl").write_text(lines)
    vocabulary = train_vocabulary([texts[: NUM_TEXTS // 5]], size=VOCABULARY, threads=1)
    assert vocabulary.content is not None
    (folder / "tokenizer.json").write_bytes(vocabulary.content)
    cases = {
        "tasuki": lambda: _tokenize(folder),
        "encode_batch alone": lambda: _encode(folder, texts),
    }
    taken = run_interleaved(cases, rounds=ROUNDS)
    return _compare("tokenising jsonl to the disk: times as fast", taken)


def _make_texts(num_texts: int) -> list[str]:
    """Prose of made-up words, frequent and rare as in a language."""
    source = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = [
        "".join(source.choices(letters, range(26, 0, -1), k=source.randrange(2, 11)))
        for _ in range(20000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return [
        " ".join(source.choices(words, weights, k=source.randrange(50, 500)))
        for _ in range(num_texts)
    ]


def _tokenize(folder: Path) -> Took:
    from tasuki.data.tokens.work import work

    order: dict[str, Any] = {
        "verb": "tokenize",
        "files": [str(folder / "corpus.jsonl")],
        "output": str(folder / "out"),
        "tokenizer": str(folder / "tokenizer.json"),
        "train": None,
        "bytes": False,
        "documents": "file",
        "field": "text",
        "chunk": CHUNK,
        "shard_size": "512M",
        "end_token": None,
        "special_tokens": False,
        "on_broken": "stop",
        "workers": 1,
        "force": True,
        "dry_run": False,
    }
    return timed(lambda: work(order, lambda _: None))


def _encode(folder: Path, texts: list[str]) -> Took:
    """The ids as lists, in memory; nothing is read or written."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode() -> None:
        for first in range(0, len(texts), 500):
            batch = tokenizer.encode_batch(texts[first : first + 500])
            _ = [encoding.ids for encoding in batch]

    return timed(encode)


if __name__ == "__main__":
    parts = {"read": measure_read, "tokenize": measure_tokenize}
    sys.exit(run_bench("tokens", parts, packages=("torch", "numpy", "tokenizers")))

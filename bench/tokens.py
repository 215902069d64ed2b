"""What packed tokens cost: reading random chunks, and making them.

Run as `python bench/tokens.py`, or with the names of some parts: `… tokens.py read`. Two to four
minutes on two cores.

    read      random chunks as batches, page cache warm: tasuki.TokenDataset through the loader's
              Fetcher; a loop over np.memmap, as small training scripts have it, and the best
              that a map can do; HF `datasets` (its own Arrow files, torch format) under torch's
              DataLoader, in the peers' environment
    tokenize  the whole of `tasuki data tokenize` with one worker (reading, JSON, encoding, writing
              to the disk), against `encode_batch` of the package alone on one thread

Temporary files (0.3 GB) lie in TMPDIR and are removed. `BENCH_PEERS=0` leaves HF out.
"""

from __future__ import annotations

import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ["TOKENIZERS_PARALLELISM"] = "false"

import numpy as np
import torch

from _measure import (
    machine_facts,
    print_facts,
    print_table,
    ratios,
    run_interleaved,
    spread,
    write_results,
)
from _peers import Worker, find_peers

ROUNDS = int(os.environ.get("BENCH_ROUNDS", "9"))
CHUNK, BATCH, BATCHES, CHUNKS = 32768, 16, 12, 1500
VOCAB = 50257
OURS, PLAIN, KEPT, HF = "tasuki", "memmap loop", "memmap kept, one copy", "HF datasets"
Took = tuple[float, float]
"""Wall and CPU seconds."""


# -- reading ----------------------------------------------------------------------------------


def measure_read(folder: Path) -> dict[str, Any]:
    torch.set_num_threads(1)
    tokens = _write_tokens(folder / "tokens")
    rng = np.random.default_rng(1)
    ways: dict[str, Callable[[list[list[int]]], Took]] = {
        OURS: _ours(folder / "tokens"),
        PLAIN: _plain(folder / "tokens" / "tokens-00000.bin"),
        KEPT: _kept(folder / "tokens" / "tokens-00000.bin"),
    }
    peers = find_peers()
    worker = None
    if peers is not None:
        np.save(folder / "tokens.npy", tokens)
        worker = Worker(peers, "_tokens_hf.py", str(folder), log=folder / "hf.log")
        worker.ask(chunk=CHUNK)
        ways[HF] = lambda batches: tuple(worker.ask(batches=batches)["took"])
    try:
        drawn = [_draw(rng) for _ in range(ROUNDS + 1)]
        turn = {name: iter(drawn) for name in ways}
        cases = {name: lambda n=name: ways[n](next(turn[n])) for name in ways}
        found = run_interleaved(cases, rounds=ROUNDS)
    finally:
        if worker is not None:
            worker.close()
    return _told(found)


def _write_tokens(folder: Path) -> Any:
    """As tokenize would have written them; the content does not matter."""
    folder.mkdir()
    values = np.random.default_rng(0).integers(0, VOCAB, CHUNKS * CHUNK).astype("<u2")
    values.tofile(folder / "tokens-00000.bin")
    shard = {"name": "tokens-00000.bin", "chunks": CHUNKS, "tokens": len(values), "sha256": ""}
    index = {"dtype": "uint16", "chunk": CHUNK, "vocab": VOCAB, "end_token": 0, "documents": 1}
    index |= {"tokens": len(values), "shards": [shard | {"bytes": values.nbytes}]}
    (folder / "index.json").write_text(json.dumps(index))
    return values


def _draw(rng: np.random.Generator) -> list[list[int]]:
    return rng.integers(0, CHUNKS, (BATCHES, BATCH)).tolist()


def _ours(folder: Path) -> Callable[[list[list[int]]], Took]:
    from tasuki.data.fetch import Fetcher, Request
    from tasuki.data.tokens import TokenDataset

    fetcher = Fetcher(TokenDataset(folder), None)
    return lambda batches: _time_each(batches, lambda one: fetcher(Request(one, None)))


def _plain(path: Path) -> Callable[[list[list[int]]], Took]:
    def read(indices: list[int]) -> torch.Tensor:
        data = np.memmap(path, dtype=np.uint16, mode="r")  # anew, as nanoGPT does against a leak
        rows = [data[i * CHUNK : (i + 1) * CHUNK].astype(np.int64) for i in indices]
        return torch.stack([torch.from_numpy(row) for row in rows])

    return lambda batches: _time_each(batches, read)


def _kept(path: Path) -> Callable[[list[list[int]]], Took]:
    """As good as a memory map gets: mapped once, widened straight into the batch."""
    data = np.memmap(path, dtype=np.uint16, mode="r")

    def read(indices: list[int]) -> torch.Tensor:
        batch = torch.empty((len(indices), CHUNK), dtype=torch.int64)
        for row, i in zip(batch.numpy(), indices, strict=True):
            row[:] = data[i * CHUNK : (i + 1) * CHUNK]
        return batch

    return lambda batches: _time_each(batches, read)


def _time_each(batches: list[list[int]], read: Callable[[list[int]], torch.Tensor]) -> Took:
    """Each batch is dropped before the next, as in training and in DataLoader's loop."""

    def loop() -> None:
        for one in batches:
            read(one)

    return _time(loop)


def _time(work: Callable[[], Any]) -> Took:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


# -- making -----------------------------------------------------------------------------------


def measure_tokenize(folder: Path) -> dict[str, Any]:
    from tasuki.data.tokens.vocabulary import train_vocabulary

    texts = _texts(3000)
    lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    (folder / "corpus.jsonl").write_text(lines)
    vocabulary = train_vocabulary([texts[:600]], size=8000, threads=1)
    assert vocabulary.content is not None
    (folder / "tokenizer.json").write_bytes(vocabulary.content)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    cases = {OURS: lambda: _tokenize(folder), PLAIN_BPE: lambda: _encode(folder, texts)}
    found = run_interleaved(cases, rounds=max(5, ROUNDS - 2))
    return _told(found) | {"bytes": len(lines)}


PLAIN_BPE = "encode_batch alone"


def _texts(num: int) -> list[str]:
    """Prose of made-up words, frequent and rare as in a language."""
    source = random.Random(0)
    letters = "etaoinshrdlucmfwypvbgkjqxz"
    words = [
        "".join(source.choices(letters, range(26, 0, -1), k=source.randrange(2, 11)))
        for _ in range(20000)
    ]
    weights = [1 / (rank + 3) for rank in range(len(words))]
    return [
        " ".join(source.choices(words, weights, k=source.randrange(50, 500))) for _ in range(num)
    ]


def _tokenize(folder: Path) -> Took:
    from tasuki.data.tokens.work import work

    order = {
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
    return _time(lambda: work(order, _Nobody()))  # type: ignore[arg-type]


class _Nobody:
    def progress(self, what: str, done: int, total: int) -> None:
        """Nobody listens."""


def _encode(folder: Path, texts: list[str]) -> Took:
    """What one would write: the ids as lists, in memory; nothing is read or written."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))

    def encode() -> None:
        for begin in range(0, len(texts), 500):
            batch = tokenizer.encode_batch(texts[begin : begin + 500])
            _ = [encoding.ids for encoding in batch]

    return _time(encode)


# -- showing ----------------------------------------------------------------------------------


def _told(found: dict[str, list[Took]]) -> dict[str, Any]:
    """Seconds of each way; how many times as fast tasuki is, by wall and by CPU."""
    wall = {name: [took[0] for took in all_took] for name, all_took in found.items()}
    cpu = {name: [took[1] for took in all_took] for name, all_took in found.items()}
    return {
        name: {
            "wall_s": spread(wall[name]),
            "cpu_s": spread(cpu[name]),
            "wall_ratio": ratios(wall[name], wall[OURS]),
            "cpu_ratio": ratios(cpu[name], cpu[OURS]),
        }
        for name in found
    }


def show(name: str, found: dict[str, Any], goals: dict[str, float]) -> None:
    rows = []
    for way, one in found.items():
        if not isinstance(one, dict):
            continue
        goal = goals.get(way)
        met = "met" if goal and one["cpu_ratio"].median >= goal else "missed"
        rows.append(
            [
                way,
                one["wall_s"].show(1, scale=1000),
                one["cpu_s"].show(1, scale=1000),
                one["wall_ratio"].show(),
                one["cpu_ratio"].show(),
                f"≥ {goal}: {met}" if goal else "",
            ]
        )
    title = f"{name}; medians of interleaved rounds [quartiles]"
    print_table(
        title, ["way", "wall, ms", "CPU, ms", "wall / tasuki's", "CPU / tasuki's", "goal"], rows
    )


PARTS: dict[str, tuple[Callable[[Path], dict[str, Any]], str, dict[str, float]]] = {
    "read": (
        measure_read,
        f"{BATCHES} random batches of {BATCH} chunks of {CHUNK:,} tokens",
        {PLAIN: 0.8, KEPT: 0.8, HF: 3.0},
    ),
    "tokenize": (measure_tokenize, "Tokenising a jsonl file with one worker", {PLAIN_BPE: 0.8}),
}


def main(wanted: list[str]) -> int:
    if unknown := set(wanted) - set(PARTS):
        sys.exit(f"error: there is no part {', '.join(unknown)}; there are {', '.join(PARTS)}")
    facts = machine_facts("tasuki", "torch", "numpy", "tokenizers")
    print_facts(facts)
    results = {}
    for name in wanted or PARTS:
        measure, title, goals = PARTS[name]
        with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as folder:
            results[name] = measure(Path(folder))
        show(title, results[name], goals)
        sys.stdout.flush()
    if not wanted:
        write_results("tokens", {"machine": facts, **results})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Documents of a fixed seed, files of them, and the work on them in this process."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from tests.unit.data.heard import Heard

from tasuki.data.tokens.index import read_index
from tasuki.data.tokens.work import work


def make_documents(num: int, *, seed: int = 1) -> list[str]:
    """Each begins with its number; with line breaks and letters of more than one byte."""
    source = random.Random(seed)
    words = ["run", "relay", "sash", "clock", "naïve", "駅伝", "襷", "handed", "on", "\n", "Ärmel"]
    return [
        f"{number}: " + " ".join(source.choice(words) for _ in range(source.randrange(1, 60)))
        for number in range(num)
    ]


def write_jsonl(path: Path, documents: Sequence[str], *, field: str = "text") -> Path:
    lines = "".join(json.dumps({field: text, "id": i}) + "\n" for i, text in enumerate(documents))
    if path.suffix == ".gz":
        path.write_bytes(gzip.compress(lines.encode(), mtime=0))
    else:
        path.write_text(lines)
    return path


def write_parquet(path: Path, documents: Sequence[str | None], *, rows: int = 7) -> Path:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pa.table({"text": pa.array(documents, pa.string()), "id": range(len(documents))})
    pq.write_table(table, path, row_group_size=rows)
    return path


def write_all_kinds(folder: Path) -> list[Path]:
    """One file of each kind."""
    texts = make_documents(24)
    files = [write_jsonl(folder / "a.jsonl", texts[:8])]
    files.append(write_jsonl(folder / "b.jsonl.gz", texts[8:14]))
    files.append(write_parquet(folder / "c.parquet", texts[14:20], rows=3))
    (folder / "d.txt").write_text("\n".join(texts[20:]))
    return [*files, folder / "d.txt"]


SMALL = {"block_bytes": 200, "keep_bytes": 300, "shard_size": "700"}
"""Many blocks, notes and shards of few documents."""


def order(*files: Path, output: Path, **more: Any) -> dict[str, Any]:
    """As commands/data.py gives it, with bytes as tokens."""
    return {
        "verb": "tokenize",
        "files": [str(file) for file in files],
        "output": str(output),
        "tokenizer": None,
        "train": None,
        "bytes": not ("train" in more or "tokenizer" in more),
        "documents": "file",
        "field": "text",
        "chunk": 64,
        "shard_size": "1M",
        "end_token": None,
        "special_tokens": False,
        "on_broken": "stop",
        "workers": 1,
        "force": False,
        "dry_run": False,
        **more,
    }


def tokenize(*files: Path, output: Path, **more: Any) -> dict[str, Any]:
    heard = Heard()
    told = work(order(*files, output=output, **more), heard)  # type: ignore[arg-type]
    return told | {"said": heard.sentences, "progressed": heard.progressed}


def read_stream(folder: Path) -> np.ndarray[Any, Any]:
    """All tokens of a folder, with plain numpy; padding cut off."""
    index, _ = read_index(folder)
    shards = [
        np.fromfile(
            folder / one.name, dtype=f"<{index.dtype[0]}{'2' if index.dtype == 'uint16' else '4'}"
        )
        for one in index.shards
    ]
    whole = np.concatenate(shards)
    assert len(whole) == index.chunks * index.chunk
    assert (whole[index.tokens :] == index.end_token).all()
    return whole[: index.tokens]


def documents_of(folder: Path) -> list[bytes]:
    """The documents of a folder of bytes."""
    index, _ = read_index(folder)
    stream = read_stream(folder)
    ends = np.flatnonzero(stream == index.end_token)
    assert len(ends) == index.documents and ends[-1] == len(stream) - 1
    parts = np.split(stream, ends + 1)[:-1]
    return [part[:-1].astype(np.uint8).tobytes() for part in parts]


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}

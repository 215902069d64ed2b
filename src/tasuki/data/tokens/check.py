"""`tasuki data check` on folders of tokens: sizes and hashes, as the index has them."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from tasuki.data.curate.talk import Talk
from tasuki.data.tokens.index import TOKENIZER, Index, Shard, read_index, wrong_size
from tasuki.errors import DataError, StoreError, UsageError
from tasuki.runs.atomic import FORMAT

_READ = 4 << 20


def check(order: dict[str, Any], talk: Talk) -> dict[str, Any]:
    """{files, fix} → one entry per folder, in the form that files of samples have."""
    if order["fix"]:
        raise UsageError(
            f"`{order['files'][0]}` holds tokens, which cannot be mended",
            hint="tokenise again: `tasuki data tokenize FILE… -o FOLDER --force`",
        )
    files = [_check_folder(Path(folder), talk) for folder in order["files"]]
    return {
        "format": FORMAT,
        "clean": all(file["bad"] == 0 for file in files),
        "fixed": False,
        "files": files,
        "dry_run": order["dry_run"],
    }


def _check_folder(folder: Path, talk: Talk) -> dict[str, Any]:
    told: dict[str, Any] = {
        "path": str(folder),
        "holds": "tokens",
        "samples": None,
        "bad": None,
        "findings": [],
        "output": None,
        "kept": None,
        "warnings": [],
        "error": None,
        "hint": None,
    }
    try:
        index, facts = read_index(folder)
        bad = _bad_shards(folder, index, talk)
    except (DataError, StoreError) as error:
        return told | {"error": error.message, "hint": error.hint}
    if (wrong := _wrong_tokenizer(folder, facts)) is not None:
        told["warnings"] = [wrong]
    findings = [
        {
            "kind": kind,
            "dataset": shard.name,
            "samples": shard.chunks,
            "first": [{"sample": index.ends[number] - shard.chunks, "why": why}],
        }
        for number, shard, kind, why in bad
    ]
    num_bad = sum(shard.chunks for _, shard, _, _ in bad)
    return told | {"samples": index.chunks, "bad": num_bad, "findings": findings}


def _bad_shards(folder: Path, index: Index, talk: Talk) -> list[tuple[int, Shard, str, str]]:
    total, done, bad = sum(shard.bytes for shard in index.shards), 0, []
    for number, shard in enumerate(index.shards):
        path = folder / shard.name
        digest, size = hashlib.sha256(), 0
        try:
            with path.open("rb") as file:
                while data := file.read(_READ):
                    digest.update(data)
                    size += len(data)
                    talk.progress("reading", min(done + size, total), total)
        except OSError as error:
            bad.append((number, shard, "unreadable", f"`{path}`: {error.strerror}"))
            continue
        finally:
            done += shard.bytes
        if size != shard.bytes:
            bad.append((number, shard, "size", wrong_size(path, size, shard.bytes).message))
        elif digest.hexdigest() != shard.sha256:
            why = f"`{path}` has another hash than the index: its content changed"
            bad.append((number, shard, "hash", why))
    return bad


def _wrong_tokenizer(folder: Path, facts: dict[str, Any]) -> str | None:
    wanted = facts.get("tokenizer", {}).get("sha256")
    if wanted is None:
        return None
    try:
        content = (folder / TOKENIZER).read_bytes()
    except OSError as error:
        return f"`{folder / TOKENIZER}` cannot be read: {error.strerror}"
    if hashlib.sha256(content).hexdigest() != wanted:
        return f"`{folder / TOKENIZER}` is not the one that made these tokens"
    return None

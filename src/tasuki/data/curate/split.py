"""`tasuki data split`: train, val and test, decided sample by sample from what each holds.

    number = mix(mix(a ^ k0) ^ b ^ k1)        a, b: the two words of the sample's digest (scan.py)
    k0, k1 = the first two words of blake2b("tasuki split" + the seed in decimal), little-endian
    train below 2^64 · f_train, val below 2^64 · (f_train + f_val), test above

mix is splitmix64's finaliser (permutation.py). Nothing else counts: neither the place of a sample
nor its file nor its neighbours. So a sample keeps its part when others are added or taken away,
equal samples never lie on both sides, and the fractions hold for each size in expectation; what
came out is told per size. The definition is a promise and must never change.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import BLOCK_BYTES
from tasuki.data.curate.scan import Digests
from tasuki.data.curate.sources import find, open_alike, scan_usable, warn_of_nan, working
from tasuki.data.curate.talk import Talk
from tasuki.data.curate.writer import (
    Parts,
    least_bytes,
    make_plan,
    refuse_existing,
    refuse_sources,
    refuse_too_little_room,
    write,
)
from tasuki.data.permutation import mix_words
from tasuki.errors import UsageError
from tasuki.runs.atomic import FORMAT

PARTS = ("train", "val", "test")
_SHOWN = 6


def split(order: dict[str, Any], talk: Talk) -> dict[str, Any]:
    """{files, folder, seed, parts, force, dry_run} → the values of `tasuki data split --json`."""
    block_bytes = order.get("block_bytes", BLOCK_BYTES)
    fractions = read_fractions(order["parts"])
    paths = find(order["files"])
    folder = _folder(order["folder"], paths)
    outputs = [folder / f"{name}.h5" for name in PARTS]
    refuse_sources(outputs, paths)
    with working(folder / ".split.partial", talk, is_dry=order["dry_run"]) as work:
        refuse_existing(outputs, work, force=order["force"])
        files = open_alike(paths, block_bytes=block_bytes)
        refuse_too_little_room(least_bytes(files), outputs, work)
        scans = scan_usable(files, work=work, talk=talk, block_bytes=block_bytes)
        digests = np.concatenate([scan.digests for scan in scans])
        parts = choose_parts(digests, seed=order["seed"], fractions=fractions)
        sizes = count_sizes(np.concatenate([file.sizes for file in files]), parts)
        report = {
            "format": FORMAT,
            "folder": str(folder),
            "seed": order["seed"],
            "parts": [float(fraction) for fraction in fractions],
            "files": [str(path) for path in paths],
            "samples": {name: int((parts == i).sum()) for i, name in enumerate(PARTS)},
            "sizes": sizes,
            "warnings": [*warn_of_empty(sizes, fractions), *warn_of_nan(scans)],
            "dry_run": order["dry_run"],
        }
        used, numbered = _without_empty(outputs, parts)
        plan = make_plan(files, used, numbered)
        report |= {"outputs": [str(path) for path in used], "bytes": plan.num_bytes}
        if work is not None:
            report["warnings"] += write(
                plan, work, block_bytes=block_bytes, force=order["force"], talk=talk
            )
            _remove_stale(outputs, used)
            report["bytes"] = sum(path.stat().st_size for path in used)
        return report


def _remove_stale(outputs: Sequence[Path], used: Sequence[Path]) -> None:
    """With `--force` a part that got no samples now must not keep those of an earlier split."""
    for path in outputs:
        if path not in used:
            path.unlink(missing_ok=True)


def read_fractions(text: str) -> tuple[Fraction, ...]:
    """`0.8,0.1,0.1`: exact, so that 0.8 + 0.1 + 0.1 is 1."""
    hint = "write the shares of train, val and test, for example 0.8,0.1,0.1; their sum is 1"
    try:
        fractions = tuple(Fraction(word.strip()) for word in text.split(","))
    except (ValueError, ZeroDivisionError):
        raise UsageError(f"`--parts {text}` has something that is no number", hint=hint) from None
    if len(fractions) != len(PARTS):
        raise UsageError(f"`--parts {text}` gives {len(fractions)} shares, not 3", hint=hint)
    if min(fractions) < 0 or sum(fractions) != 1:
        raise UsageError(f"the shares of `--parts {text}` do not add up to 1", hint=hint)
    return fractions


def _folder(given: str | None, paths: Sequence[Path]) -> Path:
    hint = "say where train.h5, val.h5 and test.h5 go: `-o FOLDER`"
    if given is None and len(paths) > 1:
        raise UsageError(f"{len(paths)} files, and no folder to write to", hint=hint)
    folder = Path(given) if given is not None else paths[0].with_suffix("")
    if folder.is_file():
        raise UsageError(f"`{folder}` is a file, not a folder", hint=hint)
    return folder


def choose_parts(digests: Digests, *, seed: int, fractions: Sequence[Fraction]) -> Parts:
    """The part of each sample."""
    key = hashlib.blake2b(b"tasuki split" + str(seed).encode()).digest()
    words = np.frombuffer(key[:16], dtype="<u8").astype(np.uint64)
    numbers = mix_words(mix_words(digests[:, 0] ^ words[0]) ^ digests[:, 1] ^ words[1])
    parts = np.full(len(numbers), len(fractions) - 1, dtype=np.int8)
    for part in reversed(range(len(fractions) - 1)):
        limit = int(sum(fractions[: part + 1]) * 2**64)
        parts[_below(numbers, limit)] = part
    return parts


def _below(numbers: NDArray[np.uint64], limit: int) -> NDArray[np.bool_]:
    if limit >= 2**64:
        return np.ones(len(numbers), dtype=bool)
    return numbers < np.uint64(limit)


def count_sizes(sizes: NDArray[np.int64], parts: Parts) -> list[dict[str, int]]:
    """Samples per size and part."""
    values, places = np.unique(sizes, return_inverse=True)
    counts = np.zeros((len(values), len(PARTS)), dtype=np.int64)
    np.add.at(counts, (places.reshape(-1), parts), 1)
    return [
        {"size": size, "samples": sum(row), **dict(zip(PARTS, row, strict=True))}
        for size, row in zip(values.tolist(), counts.tolist(), strict=True)
    ]


def warn_of_empty(sizes: Sequence[dict[str, int]], fractions: Sequence[Fraction]) -> list[str]:
    """Which parts lack which sizes, though they were to have a share of them."""
    warnings = []
    for name, fraction in zip(PARTS, fractions, strict=True):
        lacking = [one for one in sizes if not one[name]] if fraction else []
        if lacking:
            told = [f"{one['size']} ({one['samples']} in all)" for one in lacking[:_SHOWN]]
            more = f" and {len(lacking) - _SHOWN} more" if len(lacking) > _SHOWN else ""
            warnings.append(
                f"`{name}` has no sample of size {', '.join(told)}{more}: try another `--seed` or "
                "larger `--parts`"
            )
    return warnings


def _without_empty(outputs: Sequence[Path], parts: Parts) -> tuple[list[Path], Parts]:
    """A file needs samples: parts without any get no file."""
    kept = [number for number in range(len(outputs)) if (parts == number).any()]
    numbered = np.full(len(parts), -1, dtype=np.int8)
    for new, old in enumerate(kept):
        numbered[parts == old] = new
    return [outputs[number] for number in kept], numbered

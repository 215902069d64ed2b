"""The order once more, written slowly and from its definition alone: one Python int at a time.

It shares no code with tasuki.data, so a slip in the fast version cannot hide in both.
"""

from __future__ import annotations

import hashlib
import json
import math

WORD = 2**64


def mix(z: int) -> int:
    z ^= z >> 30
    z = z * 0xBF58476D1CE4E5B9 % WORD
    z ^= z >> 27
    z = z * 0x94D049BB133111EB % WORD
    return z ^ (z >> 31)


def permute(n: int, key: bytes, x: int) -> int:
    if n <= 1:
        return x
    a = math.isqrt(n)
    a += a * a < n
    b = (n + a - 1) // a
    stream = hashlib.blake2b(b"\x00" + key).digest() + hashlib.blake2b(b"\x01" + key).digest()
    keys = [int.from_bytes(stream[8 * i : 8 * i + 8], "little") for i in range(12)]
    while True:
        left, right = divmod(x, b)
        for i, word in enumerate(keys):
            if i % 2 == 0:
                left = (left + ((mix(right ^ word) >> 32) * a >> 32)) % a
            else:
                right = (right + ((mix(left ^ word) >> 32) * b >> 32)) % b
        x = left * b + right
        if x < n:
            return x


def key(seed: int, stage: str, epoch: int, purpose: str, size: int | None) -> bytes:
    text = json.dumps([1, seed, stage, epoch, purpose, size], separators=(",", ":"))
    return hashlib.blake2b(text.encode("ascii"), digest_size=32).digest()


def epoch_steps(
    sizes: list[int] | None, num: int, *, seed: int, stage: str, epoch: int, batch: int, kind: str
) -> list[tuple[int, list[int], int]]:
    """All steps of an epoch: (bucket, dataset indices, first position)."""
    classes: list[int | None] = [None] if sizes is None else [*sorted(set(sizes))]
    slots_of: list[list[tuple[int, list[int], int]]] = []
    offset = 0
    for bucket, size in enumerate(classes):
        members = [i for i in range(num) if sizes is None or sizes[i] == size]
        count = len(members)
        shuffle = key(seed, stage, epoch, "samples", size)
        shuffled = [members[permute(count, shuffle, place)] for place in range(count)]
        slots_of.append(
            [(bucket, shuffled[p : p + batch], offset + p) for p in range(0, count, batch)]
        )
        offset += count
    if kind == "shuffle":
        slots = [slot for slots in slots_of for slot in slots]
        shuffle = key(seed, stage, epoch, "steps", None)
        return [slots[permute(len(slots), shuffle, s)] for s in range(len(slots))]
    steps = []
    for bucket in sorted(range(len(classes)), reverse=kind == "largest_first"):
        slots = slots_of[bucket]
        shuffle = key(seed, stage, epoch, "slots", classes[bucket])
        steps += [slots[permute(len(slots), shuffle, t)] for t in range(len(slots))]
    return steps

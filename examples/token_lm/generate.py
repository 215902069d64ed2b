"""Make texts that can only be foretold by a reader who remembers what stood far above.

    python generate.py                                                # data/text: 1.7 MB, a second
    python generate.py --out data-32k/text --documents 4000 --keys 900 --lines 3000        # 400 MB

Nothing is downloaded. A document is the log of one harbour. It begins with its ships, each with a
number that is drawn for this document alone; then come days, one line each, and a ship never goes
without its number. The number costs nothing to foretell for a reader who remembers the top of the
document, and 18.4 nats for one who does not, however well he knows the language.

Each line is made by drawing from lists, and no two ways of drawing give the same text. So what a
text costs at least is known exactly: `floor` for a reader who forgets nothing, `forgetful` for one
who knows the language as well but forgets each line at its end. Both are printed and written beside
the text (bounds.json), in nats per byte. Documents hang on (seed, split, number) only: the same
command gives the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import random
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

DOCUMENTS = {"train": 3200, "val": 50, "test": 50}
FIRST = tuple(one + other for one in "bcdfghjklmnprst" for other in "aeiou")
SECOND = ("bel", "can", "dor", "fin", "gut", "hem", "kos", "lyr", "mid", "nov", "pax", "rus", "tam")
SHIPS = tuple(first + second for first in FIRST for second in SECOND)
DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
GOODS = ("barrel", "candle", "drum", "flag", "goat", "hammer", "kettle", "lamp")
MOST = 9
DIGITS = 8
"""Of a ship's number."""


@dataclass(frozen=True)
class Shape:
    """What the documents are like."""

    keys: int
    """Ships of a document."""
    lines: int
    """Days of a document."""


def main() -> None:
    options = read_options()
    shape = Shape(keys=options.keys, lines=options.lines)
    folder = Path(options.out)
    for split, usual in DOCUMENTS.items():
        count = options.documents if split == "train" else min(usual, options.documents)
        path = folder / f"{split}.{options.format}"
        documents = (make_document(options.seed, split, n, shape) for n in range(count))
        write_file(path, (in_format(text, options.format) for text in documents))
        print(f"{path}: {count} documents, {path.stat().st_size} bytes")
    bounds = bounds_of(shape, options.seed)
    write_file(folder / "bounds.json", [json.dumps(bounds, indent=1) + "\n"])
    print("nats per byte: " + ", ".join(f"{name} {value:.3f}" for name, value in bounds.items()))


def make_document(seed: int, split: str, number: int, shape: Shape) -> str:
    chance = random.Random(f"{seed}/{split}/{number}")
    ships = chance.sample(SHIPS, shape.keys)
    numbers = {ship: f"{chance.randrange(10**DIGITS):0{DIGITS}}" for ship in ships}
    top = [f"ship {ship} {numbers[ship]}" for ship in ships]
    day = chance.randrange(len(DAYS))
    lines = []
    for place in range(shape.lines):
        ship = chance.choice(ships)
        count, good = chance.randint(1, MOST), chance.choice(GOODS)
        things = f"{count} {good}" if count == 1 else f"{count} {good}s"
        today = DAYS[(day + place) % len(DAYS)]
        lines.append(f"{today} {ship} {numbers[ship]} {things}")
    return "\n".join(top + lines)


def bounds_of(shape: Shape, seed: int) -> dict[str, float]:
    """Nats per byte: at least, and for who forgets each line at its end."""
    drawn = math.log(len(GOODS)) + math.log(MOST)
    number = DIGITS * math.log(10)
    top = sum(math.log(len(SHIPS) - place) + number for place in range(shape.keys))
    body = math.log(len(DAYS)) + shape.lines * (math.log(shape.keys) + drawn)
    # Forgetful: the day, and any ship with any number, anew in every line. Not knowing either
    # whether the top has ended costs still more, and is left out.
    ship = math.log(len(SHIPS)) + number
    forgotten = shape.keys * ship + shape.lines * (math.log(len(DAYS)) + ship + drawn)
    sample = [make_document(seed, "bounds", number, shape) for number in range(50)]
    length = sum(map(len, sample)) / len(sample) + 1  # and the end of the document
    return {"floor": (top + body) / length, "forgetful": forgotten / length}


def in_format(text: str, kind: str) -> str:
    return json.dumps({"text": text}) + "\n" if kind == "jsonl" else text + "\n\n"


def write_file(path: Path, pieces: Iterator[str] | list[str]) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="ascii", newline="\n") as file:
            file.writelines(pieces)
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the texts of the example.")
    parser.add_argument("--out", default="data/text", help="folder (default: data/text)")
    parser.add_argument("--format", choices=("jsonl", "txt"), default="jsonl")
    parser.add_argument("--documents", type=int, default=DOCUMENTS["train"], help="to train on")
    parser.add_argument("--keys", type=int, default=5, help="ships of a document")
    parser.add_argument("--lines", type=int, default=14, help="days of a document")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    for name in ("documents", "keys", "lines"):
        if getattr(options, name) < 1:
            sys.exit(f"--{name}: at least one")
    if options.keys > len(SHIPS):
        sys.exit(f"--keys: there are names for {len(SHIPS)} ships")
    return options


if __name__ == "__main__":
    main()

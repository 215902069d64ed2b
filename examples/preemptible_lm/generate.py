"""Make a text for a small language model to learn: letters from a harbour, one line after another.

    python generate.py                                     # data/: 0.5 MB, a second
    python generate.py --out data-gpu --lines 2000000      # for gpu.yaml: 140 MB, two minutes

Nothing is downloaded. Lines have a grammar (words agree in number, quotes are closed), sums that
are right, and names that come again: more can be learnt than which letters are frequent. A line
hangs on (seed, split, number) only, so the same command gives the same bytes everywhere.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from pathlib import Path

LINES = {"train": 6000, "val": 300, "test": 300}
PEOPLE = ("anna", "boris", "chika", "dimitri", "elif", "farid", "greta", "hana")
GOODS = ("apple", "barrel", "candle", "drum", "egg", "flag", "goat", "hammer")
SHIPS = ("the heron", "the lantern", "the old bell", "the tide")
VERBS = {"sold": "to", "bought": "from", "lent": "to", "sent": "to"}
DAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")


def main() -> None:
    options = read_options()
    for split, usual in LINES.items():
        count = options.lines if split == "train" else usual
        path = Path(options.out, f"{split}.txt")
        write_file(path, "".join(make_line(options.seed, split, n) for n in range(count)))
        print(f"{path}: {count} lines, {path.stat().st_size} bytes")


def make_line(seed: int, split: str, number: int) -> str:
    chance = random.Random(f"{seed}/{split}/{number}")
    return chance.choice((deal, sail, say))(chance) + "\n"


def deal(chance: random.Random) -> str:
    """anna sold 3 apples and 14 eggs to boris, 17 things in all."""
    one, other = chance.sample(PEOPLE, 2)
    verb, word = chance.choice(list(VERBS.items()))
    first, second = chance.randint(1, 20), chance.randint(1, 20)
    good, more = chance.sample(GOODS, 2)
    things = f"{many(first, good)} and {many(second, more)}"
    return f"{one} {verb} {things} {word} {other}, {first + second} things in all."


def sail(chance: random.Random) -> str:
    """on monday the heron sailed with 3 drums; on wednesday it came back."""
    day, days = chance.randrange(7), chance.randint(1, 6)
    load = many(chance.randint(1, 20), chance.choice(GOODS))
    back = DAYS[(day + days) % 7]
    return f"on {DAYS[day]} {chance.choice(SHIPS)} sailed with {load}; on {back} it came back."


def say(chance: random.Random) -> str:
    """elif said: "the goat of anna is on the tide." and hana said: "it is.\""""
    one, other, owner = chance.sample(PEOPLE, 3)
    good, ship = chance.choice(GOODS), chance.choice(SHIPS)
    answer = chance.choice(("it is", "it is not", f"ask {owner}"))
    return f'{one} said: "the {good} of {owner} is on {ship}." and {other} said: "{answer}."'


def many(number: int, good: str) -> str:
    return f"{number} {good}" if number == 1 else f"{number} {good}s"


def write_file(path: Path, text: str) -> None:
    """Whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        draft.write_text(text, encoding="ascii")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make the text of the example.")
    parser.add_argument("--out", default="data", help="folder (default: data)")
    parser.add_argument("--lines", type=int, default=LINES["train"], help="of train.txt")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    if options.lines < 1:
        sys.exit("--lines: at least one line")
    return options


if __name__ == "__main__":
    main()

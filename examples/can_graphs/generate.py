"""Make traffic of a car's CAN bus as graphs, with attacks in some of it: HDF5 files with splits.

    python generate.py                          # six data sets, 2 % of their true counts
    python generate.py --sets hcrl_ch set_02    # two of them
    python generate.py --out data-full --scale 1

A car has control units that send their messages (arbitration IDs) in bursts, each unit by a period
of its own, and each message with a signal of its own. A window of that traffic is a graph: nodes
are the IDs in it, edges say which ID came after which, and how often. Windows are of very different
lengths, and so are the graphs. In some there is an attack: DoS (a flood of ID 0), fuzzy (random
IDs), spoofing (one of the car's own messages, forged). A file holds `n` (S), `nodes` (rows: ID and
seven features) with `nodes_offsets`, `edges` (rows: from, to, count) with `edges_offsets`, and (S)
`attack` (0 is none), `messages`, and how many of them are the attacker's, `injected`. A window
hangs on (seed, set, split, number) only.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

try:
    import h5py
except ImportError:
    sys.exit('generate.py needs h5py: pip install "tasuki[hdf5,graphs]"')

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SPLITS = {"train": 0.7, "val": 0.15, "test": 0.15}
ATTACKS = ("none", "dos", "fuzzy", "spoofing")
ATTACK_SHARE = 0.4
INJECTED = (0.04, 0.4)
"""Share of a window's messages that are the attacker's; small ones are as likely as large ones."""
SHORTEST, LONGEST, TAIL = 12, 6000, 0.9
"""Messages of a window: P(longer than x) = (SHORTEST / x) ** TAIL."""
NUM_IDS = 2048
PER_WINDOW = ("attack", "messages", "injected")
DIAGNOSTICS = np.arange(0x7DF, 0x7F0)
"""A workshop's tester asks now and then: IDs that are rare and mean no harm."""
BLOCK = 512
"""Samples that are in memory at once."""
CHUNK = 2048
"""Rows that lie together in a file."""
TELL_EVERY_S = 2.0


@dataclass(frozen=True, kw_only=True)
class DataSet:
    graphs: int
    """Its true count."""
    units: int
    """Control units of its car."""


SETS = {
    "hcrl_ch": DataSet(graphs=45_000, units=12),
    "hcrl_sa": DataSet(graphs=50_000, units=14),
    "set_01": DataSet(graphs=200_000, units=24),
    "set_02": DataSet(graphs=203_000, units=26),
    "set_03": DataSet(graphs=195_000, units=22),
    "set_04": DataSet(graphs=190_000, units=28),
}


@dataclass(frozen=True, kw_only=True)
class Car:
    """What each of its messages does, by number."""

    ids: Ints
    unit: Ints
    period: Floats
    place: Floats
    """In its unit's burst, in seconds."""
    level: Floats
    swing: Floats
    speed: Floats


@dataclass(frozen=True, kw_only=True)
class Messages:
    times: Floats
    ids: Ints
    values: Floats


@dataclass(frozen=True, kw_only=True)
class Window:
    nodes: NDArray[np.float32]
    edges: NDArray[np.int32]
    attack: int
    messages: int
    injected: int


def main() -> None:
    options = read_options()
    for name in options.sets:
        for split in SPLITS:
            path = Path(options.out, name, f"{split}.h5")
            count = num_graphs(name, split, options.scale)
            made = {"seed": options.seed, "set": name, "split": split, "graphs": count}
            if is_there(path, made, force=options.force):
                print(f"{path}: there already")
            else:
                write_file(path, made)


def num_graphs(name: str, split: str, scale: float) -> int:
    return max(10, round(SETS[name].graphs * scale * SPLITS[split]))


# -- A car and its traffic ------------------------------------------------------------------------


def make_car(seed: int, name: str) -> Car:
    random = np.random.default_rng([seed, list(SETS).index(name)])
    sizes = random.integers(3, 7, SETS[name].units)
    unit = np.repeat(np.arange(len(sizes)), sizes)
    num = len(unit)
    order = np.concatenate([np.arange(size) for size in sizes])
    return Car(
        ids=np.sort(random.choice(np.arange(1, DIAGNOSTICS[0]), num, replace=False)),
        unit=unit,
        period=random.choice([0.01, 0.02, 0.05, 0.1], len(sizes))[unit],
        place=order * 0.0003,
        level=random.uniform(0.1, 0.9, num),
        swing=np.where(random.random(num) < 0.6, random.uniform(0.02, 0.1, num), 0),
        speed=random.uniform(0.2, 3, num),
    )


def make_window(car: Car, random: np.random.Generator) -> Window:
    length = int(min(LONGEST, SHORTEST * random.random() ** (-1 / TAIL)))
    messages = drive(car, length, random)
    if random.random() < 0.15:
        messages = merge(messages, ask_diagnostics(messages, random))
    attack = injected = 0
    if random.random() < ATTACK_SHARE:
        attack = int(random.integers(1, len(ATTACKS)))
        share = np.exp(random.uniform(*np.log(INJECTED)))
        injected = max(1, round(share * length))
        messages = merge(messages, inject(attack, injected, messages, random))
    nodes, edges = to_graph(messages)
    num = len(messages.times)
    return Window(nodes=nodes, edges=edges, attack=attack, messages=num, injected=injected)


def drive(car: Car, length: int, random: np.random.Generator) -> Messages:
    """So many messages in a row. Units have clocks of their own: none keeps step with another."""
    # Units send in bursts with silence between them; in two periods of the slowest all have sent.
    span = 1.1 * length / float((1 / car.period).sum()) + 2 * car.period.max()
    begin = random.uniform(0, 1000)
    start, pace = random.uniform(0, 1, len(car.unit)), random.uniform(0.97, 1.03, len(car.unit))
    period = car.period * pace[car.unit]
    first = (start[car.unit] - 1) * period + car.place
    times_each = np.ceil((span - first) / period).astype(np.int64)
    which = np.repeat(np.arange(len(car.ids)), times_each)
    tick = np.arange(len(which)) - np.repeat(np.cumsum(times_each) - times_each, times_each)
    times = first[which] + tick * period[which] + random.normal(0, 0.00005, len(which))
    kept = (times > 0) & (random.random(len(which)) > 0.02)
    which, times = which[kept], times[kept]
    order = np.argsort(times)[:length]
    which, times = which[order], times[order]
    waves = np.sin(car.speed[which] * (begin + times) + which)
    values = car.level[which] + car.swing[which] * waves + random.normal(0, 0.005, len(which))
    return Messages(times=times, ids=car.ids[which], values=values)


def ask_diagnostics(messages: Messages, random: np.random.Generator) -> Messages:
    num = int(random.integers(1, 2 + len(messages.times) // 20))
    times = random.uniform(messages.times[0], messages.times[-1], num)
    ids = random.choice(DIAGNOSTICS, num)
    return Messages(times=times, ids=ids, values=random.uniform(0, 1, num))


def inject(attack: int, num: int, messages: Messages, random: np.random.Generator) -> Messages:
    begin, end = messages.times[0], messages.times[-1]
    if ATTACKS[attack] == "dos":
        start = random.uniform(begin, end)
        times = start + 0.00012 * np.arange(num)
        return Messages(times=times, ids=np.zeros(num, np.int64), values=np.zeros(num))
    times = random.uniform(begin, end, num)
    if ATTACKS[attack] == "fuzzy":
        ids = random.integers(0, NUM_IDS, num)
        return Messages(times=times, ids=ids, values=random.uniform(0, 1, num))
    victim = int(random.choice(messages.ids))
    value = random.uniform(0, 1)  # it may happen to be near the true one
    return Messages(times=times, ids=np.full(num, victim), values=np.full(num, value))


def merge(one: Messages, other: Messages) -> Messages:
    times = np.concatenate([one.times, other.times])
    order = np.argsort(times, kind="stable")
    return Messages(
        times=times[order],
        ids=np.concatenate([one.ids, other.ids])[order],
        values=np.concatenate([one.values, other.values])[order],
    )


def to_graph(messages: Messages) -> tuple[NDArray[np.float32], NDArray[np.int32]]:
    """IDs with their features; successions with their counts."""
    ids, node, count = np.unique(messages.ids, return_inverse=True, return_counts=True)
    by_node = np.argsort(node, kind="stable")
    same = np.diff(node[by_node]) == 0
    at = node[by_node][1:][same]
    gaps = np.log10(np.diff(messages.times[by_node])[same] + 1e-6)
    changes = np.abs(np.diff(messages.values[by_node])[same])
    gap, gap_spread = mean_and_spread(at, gaps, len(ids))
    value, spread = mean_and_spread(node, messages.values, len(ids))
    change, _ = mean_and_spread(at, changes, len(ids))
    features = (ids, np.log(count), count / len(node), gap, gap_spread, value, spread, change)
    pairs = node[:-1] * len(ids) + node[1:]
    pair, times = np.unique(pairs, return_counts=True)
    edges = np.stack([pair // len(ids), pair % len(ids), times], 1)
    return np.stack(features, 1).astype(np.float32), edges.astype(np.int32)


def mean_and_spread(group: Ints, values: Floats, num: int) -> tuple[Floats, Floats]:
    """By group; 0 where one is empty."""
    count = np.maximum(np.bincount(group, minlength=num), 1)
    mean = np.bincount(group, values, num) / count
    return mean, np.sqrt(np.bincount(group, (values - mean[group]) ** 2, num) / count)


# -- Files ----------------------------------------------------------------------------------------


def write_file(path: Path, made: dict[str, object]) -> None:
    """Whole or not at all: written beside its place and moved there at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with h5py.File(draft, "w") as file:
            file.attrs["made"] = json.dumps(made)
            for windows in in_blocks(path, made):
                append(file, windows)
            for name in ("nodes", "edges"):
                ends = np.cumsum(file[f"{name}_counts"][:])
                file[f"{name}_offsets"] = np.concatenate([[0], ends])
            file["n"] = file["nodes_counts"][:]
            del file["nodes_counts"], file["edges_counts"]
        with draft.open("rb") as written:
            os.fsync(written.fileno())
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def in_blocks(path: Path, made: dict[str, object]) -> Iterator[list[Window]]:
    """Says how far it is every few seconds, and what was made."""
    seed, name, split, count = made.values()
    car = make_car(seed, name)
    began = last = time.monotonic()
    windows, sizes = [], []
    for number in range(count):
        place = [seed, list(SETS).index(name), list(SPLITS).index(split), number]
        windows.append(make_window(car, np.random.default_rng(place)))
        sizes.append(len(windows[-1].nodes) + len(windows[-1].edges))
        if len(windows) == BLOCK or number == count - 1:
            yield windows
            windows = []
        now = time.monotonic()
        if now - last > TELL_EVERY_S:
            last, left = now, (now - began) * (count - number - 1) / (number + 1)
            print(f"{path}: {number + 1:,} of {count:,} graphs, {left:,.0f} s left", flush=True)
    middle, largest = int(np.median(sizes)), max(sizes)
    print(f"{path}: {count:,} graphs of {middle} nodes and edges, the largest of {largest:,}")


def append(file: h5py.File, windows: list[Window]) -> None:
    columns = {
        "nodes": np.concatenate([window.nodes for window in windows]),
        "edges": np.concatenate([window.edges for window in windows]),
        "nodes_counts": np.array([len(window.nodes) for window in windows]),
        "edges_counts": np.array([len(window.edges) for window in windows]),
        **{name: np.array([getattr(window, name) for window in windows]) for name in PER_WINDOW},
    }
    for name, rows in columns.items():
        if name not in file:
            one = rows.shape[1:]
            file.create_dataset(
                name, (0, *one), rows.dtype, maxshape=(None, *one), chunks=(CHUNK, *one)
            )
        column = file[name]
        column.resize(len(column) + len(rows), axis=0)
        column[len(column) - len(rows) :] = rows


def is_there(path: Path, made: dict[str, object], *, force: bool) -> bool:
    """A file that was made with the same settings is kept: after an interrupt only the rest is."""
    if force or not path.exists():
        return False
    with h5py.File(path) as file:
        found = file.attrs.get("made")
    if found == json.dumps(made):
        return True
    sys.exit(f"{path} was made with another scale or seed: `--force` replaces it")


def read_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Make traffic of a CAN bus as graphs.")
    parser.add_argument("--out", default="data", metavar="DIR", help="a folder per set goes here")
    parser.add_argument(
        "--sets", nargs="+", choices=SETS, default=list(SETS), metavar="SET",
        help=f"which data sets ({' '.join(SETS)})",
    )  # fmt: skip
    parser.add_argument(
        "--scale", type=share, default=0.02, help="of the true counts (0.02; 1 makes all)"
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--force", action="store_true", help="replace files made otherwise")
    return parser.parse_args()


def share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"{text} is no share: write a number above 0, up to 1")
    return value


if __name__ == "__main__":
    main()

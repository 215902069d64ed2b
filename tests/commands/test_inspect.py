"""`tasuki inspect`: what data hold, from files or through recipes, for people and for scripts."""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from rich.console import Console

import tasuki
from tasuki.spec.load import load_spec
from tasuki.subprocesses import Progress
from tasuki.testing.clock import FakeClock
from tasuki.views.inspect import show_inspection
from tasuki.views.waiting import Waiting
from tests.commands.projects import user_environment

MIX = {512: 1200, 1024: 900, 1536: 480, 2048: 144, 3072: 88, 4096: 30}


def write_mix(path: Path, *, counts: dict[int, int] = MIX) -> np.ndarray:
    """Flat edges, a row per sample, a number per sample; sizes in no order."""
    sizes = np.repeat(list(counts), list(counts.values()))
    np.random.default_rng(0).shuffle(sizes)
    edges = sizes // 128
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["n"] = sizes
        file["edges"] = np.ones((edges.sum(), 2), dtype=np.int32)
        file["edges_offsets"] = np.concatenate([[0], np.cumsum(edges)])
        file.create_dataset("x", data=np.ones((len(sizes), 8), "f4"), compression="gzip")
        file["y"] = np.ones(len(sizes), "f8")
    return sizes


def bytes_of(sizes: np.ndarray) -> np.ndarray:
    return sizes // 128 * 8 + 8 * 4 + 8


@pytest.fixture(scope="module")
def mix(tmp_path_factory) -> tuple[Path, np.ndarray]:
    folder = tmp_path_factory.mktemp("mix")
    return folder, write_mix(folder / "data" / "matrices.h5")


@pytest.fixture(scope="module")
def found(mix):
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(mix[0])
        return tasuki.inspect("data/matrices.h5")


def test_the_json_of_inspect_has_the_keys_of_the_contract(mix, found):
    folder, sizes = mix
    each = bytes_of(sizes)
    assert {"format", "source", "samples", "bytes", "buckets", "largest"} <= set(found)
    assert (found["format"], found["source"]) == (1, "data/matrices.h5")
    assert (found["samples"], found["bytes"]) == (2842, each.sum())
    assert found["disk_bytes"] == (folder / "data" / "matrices.h5").stat().st_size
    assert found["buckets"] == [
        {"size": size, "samples": n, "bytes": each[sizes == size].sum()} for size, n in MIX.items()
    ]
    first = int(np.flatnonzero(sizes == 4096)[0])
    assert found["largest"][0] == {
        "file": "data/matrices.h5",
        "index": first,
        "size": 4096,
        "bytes": each[first],
    }
    columns = {one["name"]: (one["type"], one["shape"], one["bytes"]) for one in found["columns"]}
    assert columns == {
        "edges": ("int32", [None, 2], (sizes // 128).sum() * 8),
        "x": ("float32", [8], 2842 * 32),
        "y": ("float64", [], 2842 * 8),
    }


def test_the_proposal_is_a_spec(tmp_path, found):
    text = "recipe: r:R\n" + found["proposal"]["yaml"]
    (tmp_path / "tasuki.yaml").write_text(text)
    [experiment] = load_spec(str(tmp_path), environ={}).experiments
    assert [stage.name for stage in experiment.stages] == [f"matrices_{size}" for size in MIX]
    assert {stage.data for stage in experiment.stages} == {"data/matrices.h5"}


def shown_in(found: dict, width: int) -> str:
    written = io.StringIO()
    show_inspection(found, console=Console(file=written, width=width))
    return written.getvalue()


@pytest.mark.parametrize("width", [40, 120])
def test_what_is_shown_fits_the_window_and_has_a_bar_per_size(found, width):
    shown = shown_in(found, width)
    before, _, proposal = shown.partition("to paste into a spec:")
    assert max(len(line) for line in before.splitlines()) <= width
    assert "2,842 samples" in shown and "…" not in before
    lines = {line.split()[0]: line for line in before.splitlines() if line.strip()}
    bars = [lines[f"{size:,}"].count("█") for size in MIX]
    assert bars == sorted(bars, reverse=True)
    assert (bars[0] > bars[3]) == (width > 40), "a bar where there is room for one"
    assert proposal.strip("\n") == found["proposal"]["yaml"].strip("\n"), "never wrapped"


def test_many_sizes_are_shown_in_ranges_and_proposed_in_ranges(tmp_path):
    counts = {size: max(1, 5000 // size**2) for size in range(1, 301)}
    for split in ("train", "val", "test"):
        write_mix(tmp_path / "words" / f"{split}.h5", counts=counts)
    told = tasuki.inspect(tmp_path / "words")
    assert len(told["buckets"]) == 300 and len(told["histogram"]) <= 22
    assert [Path(file["file"]).name for file in told["files"]] == ["test.h5", "train.h5", "val.h5"]
    shown = shown_in(told, 80)
    assert "257 – 300" in shown and "300 sizes, 1 to 300" in shown
    # Stages train on the folder's training split; the other splits are not for training.
    stages = told["proposal"]["stages"]
    assert {stage["data"] for stage in stages} == {str(tmp_path / "words")}
    assert stages[-1]["name"] == "words_300" and stages[-1]["size"].endswith("..300")
    assert told["proposal"]["buckets"] == told["padding"]["auto"]["uppers"]


def test_samples_without_a_size_are_told_and_the_rest_is_shown(here, tmp_path):
    with h5py.File(tmp_path / "zero.h5", "w") as file:
        file["n"] = np.array([4, 0, 4, -2, 7])
        file["x"] = np.zeros((5, 2), "f4")
    said = here(tmp_path, "inspect", "zero.h5", COLUMNS="200")
    assert said.code == 0 and "3 samples" in said.out
    assert "2 samples of `zero.h5` have no size of at least 1 (sample 1: 0)" in said.out
    assert "`tasuki data check zero.h5 --fix`" in said.out


def write_bad_files(folder: Path) -> None:
    (folder / "empty.h5").touch()
    for name, values in {
        "no_n.h5": {"x": np.zeros((2, 2))},
        "f4.h5": {"n": np.array([3, 3]), "x": np.zeros((2, 2), "f4")},
        "f8.h5": {"n": np.array([3, 3]), "x": np.zeros((2, 2), "f8")},
    }.items():
        with h5py.File(folder / name, "w") as file:
            for key, value in values.items():
                file[key] = value


BAD = {
    "empty.h5": ("`empty.h5` is an empty file", "hint:"),
    "no_n.h5": ("`no_n.h5` has no `n` (it has `x`)", "create_dataset"),
    "f4.h5 f8.h5": ("`x` is float32 (2 per sample) in `f4.h5`, but float64", "same types"),
    "f5.h5": ("data `f5.h5` do not exist; the nearest in", "mend the path"),
    "f4.h5 --set lr=1": ("`--set` chooses in a spec, but data are named", "name a spec"),
    "f4.h5 tasuki.yaml": ("`tasuki.yaml` is a spec: it cannot be looked at together", ""),
    "": ("there is no ./tasuki.yaml, and no data are named", "tasuki inspect data/small.h5"),
}


@pytest.mark.parametrize("words", BAD)
def test_bad_input_is_one_clear_message(here, tmp_path, words):
    write_bad_files(tmp_path)
    message, hint = BAD[words]
    said = here(tmp_path, "inspect", *words.split())
    is_usage = "spec" in message or "named" in message
    assert said.code == (2 if is_usage else 1) and said.out == "", said
    assert said.err.startswith(f"error: {message}") and hint in said.err, said
    assert "Traceback" not in said.err


def test_without_h5py_the_extra_is_named(here, tmp_path):
    write_bad_files(tmp_path)
    (tmp_path / "stub" / "h5py").mkdir(parents=True)
    (tmp_path / "stub" / "h5py" / "__init__.py").write_text("raise ImportError('not here')")
    said = here(tmp_path, "inspect", "f4.h5", PYTHONPATH=str(tmp_path / "stub"))
    assert said.code == 1 and "h5py is not installed" in said.err
    assert 'pip install "tasuki[hdf5]"' in said.err


CAPPED = """
import json, os, resource, sys
import h5py
from tasuki.data.hdf5.inspect import work
now = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
resource.setrlimit(resource.RLIMIT_AS, (now + int(sys.argv[2]),) * 2)
print(json.dumps(work({"sources": [sys.argv[1]]}, lambda progress: None)))
"""


def test_a_file_larger_than_memory_is_read_in_little_memory(tmp_path):
    num = 16_000_000
    with h5py.File(tmp_path / "big.h5", "w") as file:  # nothing is written: no bytes on disk
        file.create_dataset("n", (num,), "i8", chunks=(1 << 16,), fillvalue=512)
        file.create_dataset("x", (num, 4096), "f4", chunks=(64, 4096))
        file.create_dataset("e_offsets", (num + 1,), "i8", chunks=(1 << 16,), fillvalue=0)
        file.create_dataset("e", (5, 2), "i4")
    done = subprocess.run(
        [sys.executable, "-c", CAPPED, str(tmp_path / "big.h5"), str(96 << 20)],
        env=user_environment(OPENBLAS_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["buckets"] == [{"size": 512, "samples": num, "bytes": num * 4096 * 4}]
    assert told["disk_bytes"] < 10_000


RECIPES = """
import torch
from tasuki.data.hdf5.dataset import Hdf5Dataset

class Stored:
    def __init__(self, width=8):
        pass

    def build_model(self):
        raise SystemError("looking at data needs no model")

    def build_dataset(self, source, split):
        return Hdf5Dataset(source, split)

    def loss(self, model, batch):
        pass

class Transformed(Stored):
    def build_dataset(self, source, split):
        return Hdf5Dataset(source, split, transform=lambda s: torch.zeros(s["n"], 3))

class Words(torch.utils.data.Dataset):
    def __len__(self):
        return 300

    def __getitem__(self, i):
        return {"ids": torch.zeros(10 * self.size(i), dtype=torch.int64), "y": i % 2}

    def size(self, i):
        return 16 + i % 150

class Own(Stored):
    def build_dataset(self, source, split):
        return Words()

    def sample_sizes(self, dataset):
        return [dataset.size(i) for i in range(len(dataset))]

class Sizeless(Stored):
    def build_dataset(self, source, split):
        return [torch.zeros(4)] * 50

class Loader(Stored):
    def build_dataset(self, source, split):
        return torch.utils.data.DataLoader(Words())

class Wrong(Stored):
    def build_dataset(self, source, split):
        return [][split]
"""


@pytest.fixture
def with_spec(mix) -> Path:
    """One spec with many ways to open data."""
    folder, _ = mix
    (folder / "recipes.py").write_text(RECIPES)
    stages = [
        {"name": "s512", "data": "data/matrices.h5", "size": 512},
        {"name": "more", "data": "data/matrices.h5", "size": "513..2048", "params": {"width": 4}},
        {"name": "odd", "data": "data/matrices.h5", "size": 777},
    ]
    spec = {
        "recipe": "recipes:Stored",
        "experiments": {
            "a": {"stages": stages},
            "b": {"recipe": "recipes:Transformed", "data": "data/matrices.h5"},
            "c": {"recipe": "recipes:Own", "data": "generated"},
            "d": {"recipe": "recipes:Sizeless", "epochs": 1},
            "e": {"recipe": "recipes:Loader", "steps": 1},
        },
    }
    (folder / "tasuki.yaml").write_text(json.dumps(spec))
    return folder


def test_data_of_a_spec_are_opened_by_its_recipes_once_per_distinct_data(with_spec, mix, found):
    before = set(with_spec.rglob("*"))
    told = tasuki.inspect(with_spec / "tasuki.yaml")
    assert set(with_spec.rglob("*")) == before, "reading writes nothing"
    assert [(one["recipe"], one["source"], one["split"]) for one in told["parts"]] == [
        ("recipes:Stored", "data/matrices.h5", "train"),
        ("recipes:Transformed", "data/matrices.h5", "train"),
        ("recipes:Own", "generated", "train"),
        ("recipes:Sizeless", None, "train"),
    ]
    assert told["samples"] == 2842 + 300 + 50, "data that two recipes open count once"
    stored, transformed, own, sizeless = told["parts"]
    check_stored(stored, found)
    check_transformed(transformed, mix[1])
    check_own(own)
    assert sizeless["buckets"] == [{"size": None, "samples": 50, "bytes": 50 * 16}]
    [warning] = told["warnings"]
    assert warning.startswith("stage `train` brings a loader of its own")
    assert sizeless["proposal"] is None and "sizes unknown" in shown_in(told, 100)


def check_stored(part: dict, found: dict) -> None:
    """What is handed out as it is stored is known exactly; a stage knows its share of it."""
    assert part["measured"] is None
    assert (part["bytes"], part["buckets"]) == (found["bytes"], found["buckets"])
    stages = [(stage["stage"], stage["samples"]) for stage in part["stages"]]
    assert stages == [("s512", 1200), ("more", 900 + 480 + 144), ("odd", 0)]
    assert part["notes"] == ["stage `odd` takes size 777, which no sample has"]


def check_transformed(part: dict, sizes: np.ndarray) -> None:
    """What becomes of samples is measured on some of each size, the largest among them."""
    assert part["measured"] <= 3 * len(MIX) + 10
    assert [(b["size"], b["bytes"]) for b in part["buckets"]] == [
        (size, n * size * 12) for size, n in MIX.items()
    ]
    first = int(np.flatnonzero(sizes == 4096)[0])
    largest = {"file": "data/matrices.h5", "index": first, "size": 4096, "bytes": 4096 * 12}
    assert part["largest"][0] == largest


def check_own(part: dict) -> None:
    """Of many sizes some are measured, and the others lie between them."""
    assert part["measured"] < 300
    assert part["bytes"] == sum(2 * (80 * size + 8) for size in range(16, 166))
    columns = {one["name"]: (one["type"], one["shape"]) for one in part["columns"]}
    assert columns == {"ids": ("int64", [None]), "y": ("int", [])}


def test_options_choose_in_a_spec_and_mistakes_name_the_stage(here, with_spec):
    words = ["--experiment", "a", "--stages", "more", "--set", "recipe=recipes:Wrong"]
    said = here(with_spec, "inspect", *words)
    assert said.code == 1 and said.out == "", said
    assert said.err.startswith("error: stage `more`: build_dataset('data/matrices.h5', 'train')")
    said = here(with_spec, "inspect", "--experiment", "x")
    assert said.code == 2 and "no experiment `x`" in said.err


def test_a_terminal_moves_from_the_first_second_on_while_the_child_is_silent():
    clock, written = FakeClock(), io.StringIO()
    console = Console(file=written, width=80, force_terminal=True)
    with Waiting(clock=clock, console=console) as waiting:
        clock.sleep(0.9)
        console.print(waiting.render())
        waiting(Progress("importing", 0, None))
        clock.sleep(61.0)
        console.print(waiting.render())
        waiting.say("tracing a step of small")
        console.print(waiting.render())
        waiting(Progress("reading sizes", 30, 100))
        console.print(waiting.render())
    told = re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]|\r", "", written.getvalue())
    said = list(dict.fromkeys(line[2:].rstrip() for line in told.split("\n")))
    assert "starting  0s" in said and "importing  1m1s" in said, said
    assert "tracing a step of small  1m1s" in said
    assert "reading sizes  ██████░░░░░░░░░░░░░░ 30%  30 of 100  1m1s" in said

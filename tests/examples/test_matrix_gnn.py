"""examples/matrix_gnn, used as a person would use a copy of it."""

from __future__ import annotations

import importlib.util
import shutil
import signal
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import h5py
import numpy as np
import pytest
from tests.commands.person import Project, kill_leftovers, person_environment
from tests.commands.warm_python import write_warm_python

from tasuki.spec.load import load_spec

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "matrix_gnn"
TEMPLATES = ROOT / "src" / "tasuki" / "templates"
STAGES = ["small_16", "small_32", "size_48", "size_64", "size_96", "size_128"]


def copy_example(folder: Path) -> Project:
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data*", "runs*", "__pycache__"))
    return Project(folder, person_environment())


def generate(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(EXAMPLE / "generate.py"), *words],
        cwd=folder,
        env=person_environment(),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def generator() -> ModuleType:
    spec = importlib.util.spec_from_file_location("generate", EXAMPLE / "generate.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def example(tmp_path) -> Iterator[Project]:
    """A copy elsewhere, with its data."""
    project = copy_example(tmp_path / "elsewhere")
    done = generate(project.folder)
    assert done.returncode == 0, done
    yield project
    kill_leftovers(tmp_path)


def test_a_copy_of_the_folder_runs_and_learns_more_than_a_guess(example):
    said = example.type("run", "--config", "quick", "--json")
    assert said.code == 0, f"{said}\n{example.logs()}"
    assert said.run["state"] == "complete"
    metrics = said.run["stages"][-1]["metrics"]
    assert metrics["error"] < metrics["guess"] / 3
    assert all(metrics[f"error_{size}"] < metrics["guess"] / 2 for size in (16, 32, 64, 128))


@pytest.mark.long
def test_every_stage_is_trained_and_the_first_ones_help_the_last(example, warm, tmp_path):
    python = write_warm_python(tmp_path / "python", socket=warm._path)
    said = example.type("run", "--json", "--set", f"cluster.python={python}")
    assert said.code == 0, f"{said}\n{example.logs()}"
    stages = said.run["stages"]
    assert [stage["name"] for stage in stages] == STAGES
    first, last = stages[0]["metrics"], stages[-1]["metrics"]
    assert last["error_128"] < first["error_128"] / 3
    assert last["error"] < last["guess"] / 5
    stages = "defaults.stages=[{name: size_128, data: data/size_128, epochs: 20, lr: 0.005}]"
    words = ("--set", f"cluster.python={python}", "--set", "runs=alone", "--set", stages)
    alone = example.type("run", "--json", *words)
    assert alone.code == 0, f"{alone}\n{example.logs()}"
    assert last["error_128"] < alone.run["stages"][-1]["metrics"]["error_128"] / 3


def test_stages_found_in_the_data_are_the_ones_listed_by_hand(example):
    said = example.type("plan", "auto.yaml", "--no-measure", "--json")
    assert said.code == 0, said
    pieces = [p for job in said.json()["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    assert [piece["stage"] for piece in pieces if piece["kind"] == "train"] == STAGES


def test_the_gpu_spec_is_planned_without_gpu_and_data(tmp_path):
    project = copy_example(tmp_path / "laptop")
    before = project.tree()
    said = project.type("plan", "gpu.yaml", "--json")
    assert said.code == 0, said
    plan = said.json()
    jobs = [
        [piece["stage"] for lane in job["lanes"] for piece in lane["stages"] if _trains(piece)]
        for job in plan["jobs"]
    ]
    assert jobs == [
        ["small_512", "small_1024"],
        ["size_1536"],
        ["size_2048"],
        ["size_3072"],
        ["size_3072", "size_4096"],
    ]
    assert all(job["expected_s"] <= job["limit_s"] == 8 * 3600 for job in plan["jobs"])
    sources = {p["source"] for job in plan["jobs"] for lane in job["lanes"] for p in lane["stages"]}
    assert sources == {"given"} and plan["warnings"] == []
    assert project.tree() == before


def _trains(piece: dict[str, object]) -> bool:
    return piece["kind"] == "train"


def test_the_gpu_spec_and_the_small_one_have_the_same_stages_a_factor_of_32_apart():
    small, large = (
        load_spec(str(EXAMPLE / name), environ={}).experiments[0].stages
        for name in ("tasuki.yaml", "gpu.yaml")
    )
    assert [stage.length for stage in small] == [stage.length for stage in large]
    sizes = [[int(stage.name.split("_")[1]) for stage in stages] for stages in (small, large)]
    assert [32 * size for size in sizes[0]] == sizes[1]


@pytest.mark.parametrize("size", [16, 100, 300])
def test_the_answer_of_a_matrix_is_its_largest_eigenvalue(generator, size):
    matrix, answer = generator.make_sample(1, "train", size, 3)
    assert matrix.dtype == np.float32 and (matrix == matrix.T).all()
    exact = np.linalg.eigvalsh(matrix.astype(np.float64))[-1] / size
    assert answer == pytest.approx(exact, rel=1e-9)


def test_generated_files_are_the_same_bytes_whatever_else_is_made(tmp_path):
    assert generate(tmp_path, "--out", "one", "--sizes", "8:3", "12:2").returncode == 0
    two = ("--out", "two", "--sizes", "20:1", "12:2", "30:1", "--together", "mixed=20,30")
    assert generate(tmp_path, *two).returncode == 0
    for split in ("train", "val", "test"):
        one, same = (tmp_path / out / "size_12" / f"{split}.h5" for out in ("one", "two"))
        assert one.read_bytes() == same.read_bytes()
    assert generate(tmp_path, "--out", "three", "--sizes", "12:2", "--seed", "2").returncode == 0
    other = (tmp_path / "three" / "size_12" / "train.h5").read_bytes()
    assert other != (tmp_path / "one" / "size_12" / "train.h5").read_bytes()


def test_two_sizes_share_a_file_and_splits_share_no_sample(tmp_path):
    words = ("--sizes", "12:2", "8:3", "--together", "mixed=8,12", "--val", "2", "--test", "3")
    assert generate(tmp_path, *words).returncode == 0
    matrices = {}
    for split in ("train", "val", "test"):
        with h5py.File(tmp_path / "data" / "mixed" / f"{split}.h5") as file:
            sizes, offsets = file["n"][:], file["matrix_offsets"][:]
            assert (np.diff(offsets) == sizes**2).all() and len(file["answer"]) == len(sizes)
            for place, size in enumerate(sizes):
                matrix = file["matrix"][offsets[place] : offsets[place + 1]].reshape(size, size)
                matrices[matrix.tobytes()] = split
    assert sorted(matrices.values()) == ["test"] * 6 + ["train"] * 5 + ["val"] * 4


def test_an_interrupted_generator_leaves_no_half_file_and_goes_on_with_the_rest(tmp_path):
    # Small matrices, as what is made again takes time; many, so that it is not done before.
    few = ("--val", "1", "--test", "1", "--sizes", "8:2")
    process = subprocess.Popen(
        [sys.executable, str(EXAMPLE / "generate.py"), *few, "64:200000"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        # A shell's background jobs, and so all their children, ignore it.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    try:
        assert process.stdout is not None
        for line in process.stdout:
            if b"size_64/train.h5" in line:
                break
        process.send_signal(signal.SIGINT)
        assert process.wait(60) != 0
    finally:
        process.kill()
    assert sorted(path.name for path in (tmp_path / "data" / "size_8").iterdir()) == [
        "test.h5", "train.h5", "val.h5",
    ]  # fmt: skip
    assert list((tmp_path / "data" / "size_64").iterdir()) == []
    again = generate(tmp_path, *few, "64:1")
    assert again.returncode == 0 and again.stdout.count("there already") == 3
    assert "size_64/train.h5: 1 samples" in again.stdout


def test_files_made_otherwise_are_replaced_only_by_force(tmp_path):
    assert generate(tmp_path, "--sizes", "8:2").returncode == 0
    path = tmp_path / "data" / "size_8" / "train.h5"
    before = path.read_bytes()
    again = generate(tmp_path, "--sizes", "8:2")
    assert again.returncode == 0 and again.stdout.count("there already") == 3
    refused = generate(tmp_path, "--sizes", "8:3")
    assert refused.returncode == 1 and "--force" in refused.stderr
    assert path.read_bytes() == before
    assert generate(tmp_path, "--sizes", "8:3", "--force").returncode == 0
    assert path.read_bytes() != before


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--sizes", "16"), "SIZE:COUNT"),
        (("--sizes", "16:0"), "0 is not a number of at least 1"),
        (("--together", "16,32"), "write small=16,32"),
        (("--sizes", "16:2", "--together", "a=16,32"), "names size 32"),
    ],
)
def test_the_generator_says_what_is_wrong_with_its_arguments(tmp_path, words, told):
    done = generate(tmp_path, *words)
    assert done.returncode != 0 and told in done.stderr and "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_the_demo_has_the_examples_own_code():
    for name in ("recipe.py", "generate.py"):
        assert (TEMPLATES / "demo" / name).read_bytes() == (EXAMPLE / name).read_bytes()
    # A link is no copy; a wheel is built from the sdist, which must then hold what it points to.
    links = [path for path in TEMPLATES.rglob("*") if path.is_symlink()]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    for link in links:
        top = link.resolve().relative_to(ROOT).parts[0]
        assert f"/{top}" in build["targets"]["sdist"]["include"]

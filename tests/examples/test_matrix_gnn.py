"""examples/matrix_gnn, used as a person would use a copy of it."""

from __future__ import annotations

import sys
import tomllib
from collections.abc import Iterator

import h5py
import numpy as np
import pytest
from tests.commands.projects import Project, kill_leftovers
from tests.examples import copies
from tests.examples.copies import EXAMPLES, ROOT, copy_example

from tasuki.spec.load import load_spec

NAME = "matrix_gnn"
EXAMPLE = EXAMPLES / NAME
TEMPLATES = ROOT / "src" / "tasuki" / "templates"
STAGES = ["small_16", "small_32", "size_48", "size_64", "size_96", "size_128"]


def generate(folder, *words):
    return copies.generate(NAME, folder, *words)


@pytest.fixture(scope="module")
def generator():
    return copies.load(NAME, "generate")


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Iterator[Project]:
    """A copy elsewhere, with its data."""
    project = copy_example(NAME, tmp_path_factory.mktemp("elsewhere") / "p")
    done = generate(project.folder)
    assert done.code == 0, done
    yield project
    kill_leftovers(project.folder)


def test_a_copy_of_the_folder_runs_and_learns_more_than_a_guess(example, warm_python):
    python = ("--set", f"cluster.python={warm_python}")
    said = example.type("run", "--config", "quick", "--json", *python)
    assert said.code == 0, f"{said}\n{example.logs()}"
    assert said.run["state"] == "complete"
    metrics = said.run["stages"][-1]["metrics"]
    assert metrics["error"] < metrics["guess"] / 3
    assert all(metrics[f"error_{size}"] < metrics["guess"] / 2 for size in (16, 32, 64, 128))


@pytest.mark.long
def test_every_stage_is_trained_and_the_first_ones_help_the_last(example, warm_python):
    words = ("--set", f"cluster.python={warm_python}", "--set")
    said = example.type("run", "--json", *words, "runs=all")
    assert said.code == 0, f"{said}\n{example.logs()}"
    stages = said.run["stages"]
    assert [stage["name"] for stage in stages] == STAGES
    first, last = stages[0]["metrics"], stages[-1]["metrics"]
    assert last["error_128"] < first["error_128"] / 3
    assert last["error"] < last["guess"] / 5
    stages = "defaults.stages=[{name: size_128, data: data/size_128, epochs: 20, lr: 0.005}]"
    alone = example.type("run", "--json", *words, "runs=alone", "--set", stages)
    assert alone.code == 0, f"{alone}\n{example.logs()}"
    assert last["error_128"] < alone.run["stages"][-1]["metrics"]["error_128"] / 3


def test_stages_found_in_the_data_are_the_ones_listed_by_hand(here, example):
    said = here(example.folder, "plan", "auto.yaml", "--no-measure", "--json")
    assert said.code == 0, said
    pieces = [p for job in said.json()["jobs"] for lane in job["lanes"] for p in lane["stages"]]
    assert [piece["stage"] for piece in pieces if piece["kind"] == "train"] == STAGES


def test_the_gpu_spec_is_planned_without_gpu_and_data(here, tmp_path):
    project = copy_example(NAME, tmp_path / "laptop")
    before = project.tree()
    said = here(project.folder, "plan", "gpu.yaml", "--json")
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


def test_two_sizes_share_a_file_and_splits_share_no_sample(tmp_path):
    words = ("--sizes", "12:2", "8:3", "--together", "mixed=8,12", "--val", "2", "--test", "3")
    assert generate(tmp_path, *words).code == 0
    matrices = {}
    for split in ("train", "val", "test"):
        with h5py.File(tmp_path / "data" / "mixed" / f"{split}.h5") as file:
            sizes, offsets = file["n"][:], file["matrix_offsets"][:]
            assert (np.diff(offsets) == sizes**2).all() and len(file["answer"]) == len(sizes)
            for place, size in enumerate(sizes):
                matrix = file["matrix"][offsets[place] : offsets[place + 1]].reshape(size, size)
                matrices[matrix.tobytes()] = split
    assert sorted(matrices.values()) == ["test"] * 6 + ["train"] * 5 + ["val"] * 4


def test_an_interrupted_generator_leaves_no_half_file_and_goes_on_with_the_rest(
    generator, tmp_path, monkeypatch
):
    make_sample = generator.make_sample

    def interrupted(seed, split, size, number):
        if (size, number) == (12, 1):
            raise KeyboardInterrupt
        return make_sample(seed, split, size, number)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["generate.py", "--sizes", "8:2", "12:2"])
    monkeypatch.setattr(generator, "make_sample", interrupted)
    with pytest.raises(KeyboardInterrupt):
        generator.main()
    made = sorted(str(path.relative_to(tmp_path)) for path in tmp_path.rglob("*.*"))
    assert made == [f"data/size_8/{split}.h5" for split in ("test", "train", "val")]
    again = generate(tmp_path, "--sizes", "8:2", "12:1")
    assert again.code == 0 and again.out.count("there already") == 3
    assert "size_12/train.h5: 1 samples" in again.out


def test_the_demo_has_the_examples_own_code():
    for name in ("recipe.py", "generate.py"):
        assert (TEMPLATES / "demo" / name).read_bytes() == (EXAMPLE / name).read_bytes()
    # A link is no copy; a wheel is built from the sdist, which must then hold what it points to.
    links = [path for path in TEMPLATES.rglob("*") if path.is_symlink()]
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    for link in links:
        top = link.resolve().relative_to(ROOT).parts[0]
        assert f"/{top}" in build["targets"]["sdist"]["include"]

"""`stages: auto`: one stage per data set and size, small sizes first."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import h5py
import pytest

from tasuki.commands.discover import look_with
from tasuki.errors import SpecError, TasukiError, UsageError
from tasuki.spec.discover import Found, LookAtData, name_stages
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec, ResolvedStage
from tasuki.spec.values import parse_epochs
from tests.unit.spec.conftest import Project

AUTO = """
recipe: recipes.toy:Toy
experiments:
  toy: {stages: auto, data: "data/*.h5"}
"""


class Looker:
    """Data that exist in words only; remembers what was asked."""

    def __init__(self, **sizes: Sequence[int]) -> None:
        self._found = [Found(f"data/{name}.h5", tuple(own)) for name, own in sizes.items()]
        self.asked: list[tuple[list[str], str, str]] = []

    def __call__(self, sources: Sequence[str], folder: str, split: str) -> list[Found]:
        self.asked.append((list(sources), folder, split))
        return self._found


SMALL = Looker(small=(512, 1024))


def load(
    project: Project, text: str, *settings: str, look: LookAtData = SMALL, **options: Any
) -> ResolvedSpec:
    options = {"environ": {}} | options
    return load_spec(str(project.write(text)), settings=settings, look=look, **options)


def stages_of(
    project: Project, text: str, *settings: str, look: LookAtData = SMALL, **options: Any
) -> list[ResolvedStage]:
    return list(load(project, text, *settings, look=look, **options).experiments[0].stages)


def refuse(
    project: Project, text: str, *settings: str, look: LookAtData = SMALL, words: str
) -> SpecError:
    with pytest.raises(SpecError, match=words) as caught:
        load(project, text, *settings, look=look)
    assert caught.value.hint
    assert "tasuki.yaml:" in caught.value.message or settings
    return caught.value


def facts(stages: Sequence[ResolvedStage]) -> list[tuple[str, Any, str]]:
    return [(stage.name, stage.data, stage.size.label() if stage.size else "") for stage in stages]


# -- which stages there are ---------------------------------------------------------------------


def test_there_is_one_stage_per_data_set_and_size_small_sizes_first(project):
    look = Looker(small=(1024, 512), large=(2048, 512))
    stages = stages_of(project, AUTO, look=look)
    assert [stage.init_from for stage in stages] == ["none", *["previous"] * 3]
    assert facts(stages) == [
        ("large_512", "data/large.h5", "512"),
        ("small_512", "data/small.h5", "512"),
        ("small_1024", "data/small.h5", "1024"),
        ("large_2048", "data/large.h5", "2048"),
    ]
    assert look.asked == [(["data/*.h5"], str(project.folder), "train")]


def test_stages_may_be_found_for_all_experiments_at_once(project):
    text = """
    recipe: recipes.toy:Toy
    defaults: {stages: auto, data: ["$DISK/a*.h5", "${NONE:-b}.h5", ~/c.h5]}
    experiments: {one: {seed: 1}, two: {data: data/b.h5}, three: {stages: [{name: s}]}}
    """
    look = Looker(a=(5,), b=(6,))
    spec = load(project, text, look=look, environ={"DISK": "/disk", "HOME": "/me"})
    assert [experiment.name for experiment in spec.experiments] == ["one", "two", "three"]
    assert [asked[0] for asked in look.asked] == [
        ["/disk/a*.h5", "b.h5", "/me/c.h5"],
        ["data/b.h5"],
    ]


@pytest.mark.parametrize(
    ("size", "left"),
    [("512", [512]), ("[512, 2048]", [512, 2048]), ("600..3000", [1024, 2048]), ("null", None)],
)
def test_size_leaves_sizes_out(project, size, left):
    look = Looker(small=(512, 1024, 2048))
    stages = stages_of(project, AUTO, f"size={size}", look=look)
    assert [s.size.values[0] for s in stages if s.size] == (left or [512, 1024, 2048])


def test_a_size_that_no_sample_has_names_those_that_exist(project):
    error = refuse(project, AUTO, "size=7", words="no sample has a wanted size")
    assert error.hint == "the sizes that exist are 512, 1024"
    text = AUTO.replace("auto,", "auto, size: 7,")
    assert ":3:" in refuse(project, text, words="no sample has a wanted size").message


def test_each_over_data_finds_the_stages_of_every_value(project):
    text = """
    recipe: recipes.toy:Toy
    experiments:
      toy: {stages: auto, each: {data: [data/a.h5, data/b.h5], seed: [1, 2]}}
    """
    look = Looker(a=(5, 6))
    spec = load(project, text, look=look)
    assert [e.name for e in spec.experiments] == ["toy_a_1", "toy_a_2", "toy_b_1", "toy_b_2"]
    assert [asked[0] for asked in look.asked] == [["data/a.h5"]] * 2 + [["data/b.h5"]] * 2
    assert [(s.name, s.seed) for s in spec.experiments[1].stages] == [("a_5", 2), ("a_6", 2)]


def test_without_data_there_is_nothing_to_look_at(project):
    text = AUTO.replace(', data: "data/*.h5"', "")
    error = refuse(project, text, words="`stages: auto` of `toy` has no `data` to look at")
    assert "data: data/*.h5" in error.hint
    assert stages_of(project, text, "data=data/x.h5")


def test_a_chosen_stage_is_one_that_was_found(project):
    spec = load(project, AUTO, environ={"TASUKI_STAGE": "small_1024"})
    assert spec.only_stages == ("small_1024",)
    with pytest.raises(SpecError, match="there is no such stage"):
        load(project, AUTO, environ={"TASUKI_STAGE": "small_1025"})


# -- names --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("data/small.h5", "small_512"),
        ("data/small", "small_512"),
        ("data/small/train.h5", "small_512"),
        ("train.h5", "train_512"),
        ("data/small_512.h5", "small_512"),
        ("data/n512x.h5", "n512x"),
        ("data/small_5120.h5", "small_5120_512"),
        ("data/small_1512/train.h5", "small_1512_512"),
        ("data/my molecules.h5", "my_molecules_512"),
        ("data/größe.h5", "gr_e_512"),
        ("data/§§.h5", "512"),
        (".", "512"),
    ],
)
def test_a_stage_is_called_after_its_file_or_folder_and_size(source, name):
    assert name_stages([(512, source)]) == [name]


@pytest.mark.parametrize(
    ("sources", "names"),
    [
        (["a/x.h5", "b/x.h5"], ["a_x_512", "b_x_512"]),
        (["/x.h5", "/b/x.h5", "/b/y.h5"], ["x_512", "b_x_512", "y_512"]),
        (["d/set.01", "d/set.02"], ["set.01_512", "set.02_512"]),
        (["d/x.h5", "d/x.hdf5", "e/y.h5"], ["d_x_512-1", "d_x_512-2", "y_512"]),
        (["ä/x.h5", "ö/x.h5"], ["x_512-1", "x_512-2"]),
    ],
)
def test_two_of_one_name_get_as_many_folders_before_it_as_tell_them_apart_else_a_number(
    sources, names
):
    assert name_stages([(512, source) for source in sources]) == names


# -- epochs by size -----------------------------------------------------------------------------


def test_epochs_may_be_given_by_size(project):
    text = AUTO.replace("auto,", "auto, epochs: {1024: 20, 4096: 1},")
    text += "defaults: {epochs: {512: 30}}\n"
    stages = stages_of(project, text)
    assert [(s.length.unit, s.length.count) for s in stages] == [("epochs", 30), ("epochs", 20)]
    assert [s.length.count for s in stages_of(project, text, "epochs.512=3")] == [3, 20]
    assert [s.length.count for s in stages_of(project, text, "epochs=2")] == [2, 2]
    assert [s.length.unit for s in stages_of(project, text, "steps=9")] == ["steps", "steps"]


def test_a_size_without_epochs_is_named(project):
    text = AUTO.replace("auto,", "auto, epochs: {512: 30},")
    error = refuse(project, text, words="`epochs` says nothing about size 1024")
    assert "it names 512: add 1024" in error.hint
    assert len(stages_of(project, text, "size=512")) == 1


def test_epochs_by_size_work_for_a_written_stage_of_one_size(project):
    text = """
    recipe: recipes.toy:Toy
    defaults: {epochs: {512: 30, 1024: 20}}
    experiments: {toy: {stages: [{name: a, data: x, size: 1024}]}}
    """
    assert stages_of(project, text)[0].length.count == 20
    for size in ("[512, 1024]", "512..1024", "null"):
        refuse(project, text.replace("1024}]", f"{size}}}]"), words="needs stages of one `size`")


@pytest.mark.parametrize("epochs", ["{}", "{small: 3}", "{512: 0}", "{512: 1.5}", "true"])
def test_epochs_that_cannot_be_are_refused_with_their_line(project, epochs):
    error = refuse(project, AUTO.replace("auto,", f"auto, epochs: {epochs},"), words="epochs")
    assert "tasuki.yaml:3" in error.message


def test_epochs_are_a_number_or_a_number_per_size():
    assert parse_epochs(20) == 20
    assert parse_epochs({"512": 30, "1024": 20}) == {512: 30, 1024: 20}
    for bad in ({}, {"5.5": 1}, {"": 1}, {"٣": 1}):
        with pytest.raises(UsageError):
            parse_epochs(bad)


# -- settings -----------------------------------------------------------------------------------


def test_keys_of_all_layers_reach_every_stage_that_is_found(project):
    text = AUTO + "defaults: {split: fit}\nconfigs: {big: {effective_batch: 32}}\n"
    settings = ("lr=0.25", "experiments.toy.seed=9", "data=other.h5")
    look = Looker(other=(3, 5))
    stages = stages_of(project, text, *settings, look=look, config="big")
    assert [(s.lr, s.seed, s.effective_batch) for s in stages] == [(0.25, 9, 32)] * 2
    assert look.asked == [(["other.h5"], str(project.folder), "fit")]


@pytest.mark.parametrize("path", ["stages.0.epochs", "stages.small_512.epochs"])
def test_a_setting_for_one_of_the_stages_is_refused_with_what_to_write(project, path):
    words = r"--set experiments.toy.stages.*are found in the data .`stages: auto`"
    error = refuse(project, AUTO, f"experiments.toy.{path}=2", words=words)
    assert "epochs: {512: 30, 1024: 20}" in error.hint


# -- with real files ----------------------------------------------------------------------------


def write_file(path: Path, sizes: Sequence[int]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with h5py.File(path, "w") as file:
        file["n"] = list(sizes)


@pytest.fixture
def look() -> LookAtData:
    return look_with(python=sys.executable, environment=dict(os.environ))


def test_real_files_and_folders_give_their_sizes(project, look):
    write_file(project.folder / "data/small.h5", [512, 512, 256])
    write_file(project.folder / "data/graphs/train.h5", [64])
    write_file(project.folder / "data/graphs/test.h5", [999])
    (project.folder / "data/readme.txt").write_text("no data")
    text = AUTO.replace("data/*.h5", "data/*")
    assert facts(stages_of(project, text, look=look)) == [
        ("graphs_64", "data/graphs", "64"),
        ("small_256", "data/small.h5", "256"),
        ("small_512", "data/small.h5", "512"),
    ]


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ("data/*.h6", r"no file matches `data/\*.h6`"),
        ("data/*.txt", "matches no HDF5 file"),
        ("data/bad.h5", r"sample 1 of `data/bad\.h5` has size 0"),
    ],
)
def test_real_files_that_cannot_be_used_are_named_by_the_child(tmp_path, look, data, words):
    write_file(tmp_path / "data/small.h5", [512])
    write_file(tmp_path / "data/bad.h5", [4, 0, 4])
    (tmp_path / "data/readme.txt").write_text("no data")
    with pytest.raises(TasukiError, match=words) as caught:
        look([data], str(tmp_path), "train")
    assert caught.value.hint

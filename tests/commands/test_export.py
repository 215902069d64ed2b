"""`tasuki export` and `export:`: a stage's weights as files, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from tasuki.checkpoint.export import is_exported, pack, work
from tasuki.checkpoint.weights import read_weights
from tasuki.errors import SpecError, UsageError, WeightsError
from tasuki.spec.load import load_spec
from tests.commands.projects import Project, copy_project, make_project


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[name].dtype == other[name].dtype and one[name].equal(other[name]) for name in one
    )


def write(project: Project, to: Path, **order: Any) -> dict[str, Any]:
    """What the child process does, in this one."""
    given = {
        "run": str(project.run().path),
        "stage": "large",
        "source": "best",
        "to": str(to),
        "file_format": "pt",
        "force": False,
    }
    return work(given | order)


# -- the verb -------------------------------------------------------------------------------------
def test_the_last_finished_stage_is_written_as_the_file_s_name_says(
    finished: Project, here, tmp_path
):
    before = finished.tree()
    said = here(finished.folder, "export", "exp", "-o", str(tmp_path / "out" / "m.pt"), "--json")
    assert said.code == 0, said
    told = said.json()
    assert (told["stage"], told["file_format"], told["from"]) == ("large", "pt", "best")
    stored = torch.load(tmp_path / "out" / "m.pt", weights_only=True)
    assert type(stored) is dict and same(stored, load_file(finished.run().stage("large").weights))
    assert told["bytes"] == Path(told["file"]).stat().st_size
    assert finished.tree() == before


def test_without_a_name_the_file_is_called_after_run_and_stage(finished: Project, here):
    said = here(finished.folder, "export", "exp/small", "--dry-run")
    assert said.out.strip() == str(finished.folder / "exp-small.safetensors"), said
    said = here(finished.folder, "export", "exp/small", "--format", "pt", "--dry-run")
    assert said.out.strip() == str(finished.folder / "exp-small.pt"), said
    assert not list(finished.folder.glob("exp-small*"))


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["-o", "m.safetensors", "--format", "pt"], "name of a safetensors file"),
        (["-o", "m.h5"], "does not end like a file of weights"),
        (["-o", "runs/exp/stages/large/weights.safetensors"], "the run's own file"),
        (["-o", "runs/exp/new.pt"], "where only the run itself writes"),
        (
            ["-o", "runs/exp/checkpoints/x/part-00000.safetensors", "--force"],
            "where only the run itself writes",
        ),
    ],
)
def test_names_that_cannot_be_meant_are_refused(finished: Project, here, words, error):
    said = here(finished.folder, "export", "exp", *words)
    assert said.code == 2 and error in said.err, said


def test_both_formats_hold_the_same_bits_and_writing_again_changes_no_byte(finished, tmp_path):
    for suffix in ("safetensors", "pt"):
        path = tmp_path / f"m.{suffix}"
        first = write(finished, path, file_format=suffix)
        data = path.read_bytes()
        assert write(finished, path, file_format=suffix) == first and path.read_bytes() == data
        assert same(read_weights(path), load_file(finished.run().stage("large").weights))
        assert is_exported(path)
    with safe_open(tmp_path / "m.safetensors", framework="pt") as file:
        told = {"stage": "large", "step": "12", "tasuki.run": "exp"}
        assert file.metadata() == told


def test_another_file_is_replaced_only_by_force(finished, tmp_path):
    path = tmp_path / "m.pt"
    path.write_text("precious")
    with pytest.raises(UsageError, match="exists, and holds something else") as caught:
        write(finished, path)
    assert "--force" in caught.value.hint and path.read_text() == "precious"
    write(finished, path, force=True)
    assert is_exported(path) and [p.name for p in tmp_path.iterdir()] == ["m.pt"]


def test_last_takes_the_newest_checkpoint_where_there_still_is_one(finished, tmp_path):
    told = write(finished, tmp_path / "m.pt", source="last")
    # Without `validate` the stage's weights are the last ones.
    assert told["step"] == 12
    assert same(read_weights(tmp_path / "m.pt"), load_file(finished.run().stage("large").weights))
    with pytest.raises(WeightsError, match="no checkpoint of stage `small`"):
        write(finished, tmp_path / "n.pt", source="last", stage="small")


def test_damaged_weights_are_not_exported(finished, tmp_path):
    copy = copy_project(finished, tmp_path / "p")
    weights = copy.run().stage("large").weights
    data = bytearray(weights.read_bytes())
    data[-1] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(WeightsError, match="sha256"):
        write(copy, tmp_path / "m.pt")
    assert not (tmp_path / "m.pt").exists()


def test_tied_weights_stay_tied_and_views_take_no_more_room_than_they_need(tmp_path):
    base = nn.Parameter(torch.randn(64, 64))
    state = {"embed": base, "head": base, "row": base.data[3], "turned": base.data.t()}
    for suffix in ("pt", "safetensors"):
        path = tmp_path / f"tied.{suffix}"
        path.write_bytes(pack(path, state, suffix, run="r", stage="s", step=1))
        found = read_weights(path)
        assert same(found, {name: tensor.detach() for name, tensor in state.items()})
        assert found["embed"].data_ptr() == found["head"].data_ptr()
    stored = torch.load(tmp_path / "tied.pt", weights_only=True)
    assert stored["row"].untyped_storage().nbytes() == 64 * 4
    assert (tmp_path / "tied.pt").stat().st_size < 2.5 * base.nbytes


# -- the key of the spec --------------------------------------------------------------------------
@pytest.fixture
def exported(project, here) -> Project:
    """A run whose stage writes three further files."""
    stages = [{"name": "one", "data": "d", "steps": 3}]
    wanted = ["safetensors", "pt", {"format": "pt", "to": "out/m.pth"}, {"to": "base.pt"}]
    made = project(stages=stages, defaults__export=wanted)
    (made.folder / "base.pt").write_text("of somebody else")
    assert here(made.folder, "run").code == 0, made.logs()
    return made


def test_a_stage_writes_its_exports_and_repeats_them_after_a_kill(exported: Project, here):
    # A file that is no export is left alone, and the log says where the weights are.
    assert (exported.folder / "base.pt").read_text() == "of somebody else"
    assert "base.pt is no export of tasuki and stays as it is; see " in exported.logs()
    folder = exported.run().stage("one")
    files = [folder.path / "weights.pt", exported.folder / "out" / "m.pth"]
    for file in files:
        assert same(torch.load(file, weights_only=True), load_file(folder.weights))
    before = [file.read_bytes() for file in files]
    # As a kill between the files and the stage's marker leaves them.
    for path in (files[0], folder.metrics, exported.run().marker, exported.run().final_metrics):
        path.unlink(missing_ok=True)
    assert here(exported.folder, "run").code == 0, exported.logs()
    assert [file.read_bytes() for file in files] == before and exported.run().is_complete()


@pytest.mark.parametrize(
    ("written", "words", "hint"),
    [
        ("onnx", "cannot be written as `onnx`", "`safetensors`"),
        ({"fromat": "pt"}, "unknown key `fromat`", "`format`"),
        ({"format": "pt", "to": "m.safetensors"}, "name of a safetensors file", "change one"),
        ({"to": "$HOME/m.pt"}, "do not expand", "as it is"),
    ],
    ids=str,
)
def test_an_export_that_cannot_be_is_refused_when_the_spec_is_read(tmp_path, written, words, hint):
    made = make_project(tmp_path / "p", defaults__export=written)
    with pytest.raises(SpecError, match=r"tasuki\.yaml:\d+") as caught:
        load_spec(str(made.folder), environ={})
    assert words in caught.value.message and hint in caught.value.hint

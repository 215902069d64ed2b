"""examples/lora_five, used as a person would use a copy of it."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tests.commands.projects import Project, kill_leftovers
from tests.examples import copies
from tests.examples.copies import EXAMPLES, copy_example

import tasuki
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedExperiment, to_plain

# Not importorskip, which imports it for five seconds in each worker that collects the tests.
pytestmark = pytest.mark.skipif(find_spec("peft") is None, reason="needs the extra `tasuki[lora]`")

NAME = "lora_five"
EXAMPLE = EXAMPLES / NAME
CHAINS = {
    "exp1": ["exp1"],
    "exp2": ["exp2"],
    "exp3": ["exp3_stage1", "exp3_stage2", "exp3_stage3"],
    "exp4": ["exp4_stage1", "exp4_stage2"],
    "exp5": ["exp5"],
}


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return copies.load(NAME, "recipe")


@pytest.fixture(scope="module")
def original(tmp_path_factory, recipe) -> Iterator[Project]:
    """A copy elsewhere, with its base."""
    project = copy_example(NAME, tmp_path_factory.mktemp("elsewhere") / "lora_five")
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "recipe", recipe)  # as for a script in its folder
        done = copies.generate(NAME, project.folder)
    assert done.code == 0, done
    yield project
    kill_leftovers(project.folder)


def experiments_of(spec: Path) -> dict[str, ResolvedExperiment]:
    return {one.name: one for one in load_spec(str(spec), environ={}).experiments}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", ["exp5", pytest.param("exp4", marks=pytest.mark.long)])
def test_the_quick_config_learns_on_four_bits_and_in_a_chain(original, name):
    words = ("--config", "quick", "--experiment", name, "--set", "runs=runs-quick")
    said = original.type("run", *words, "--json", within_s=280)
    assert said.code == 0, f"{said}\n{original.logs()}"
    (run,) = said.json()["runs"]
    assert (run["experiment"], run["state"]) == (name, "complete")
    losses = validations(original, "runs-quick", name)
    if name == "exp4":  # two stages, the second from the first
        assert losses[0] > 3.0 and losses[-1] < 1.2
    else:
        assert losses[-1] < 0.55 * losses[0]
    is_stored_once(original, "runs-quick", [name])


def validations(project: Project, runs: str, name: str) -> list[float]:
    rows = read_metrics(RunFolder(project.folder / runs / name))
    return [float(row["loss"]) for row in rows if row["split"] == "val"]


def is_stored_once(project: Project, runs: str, names: list[str]) -> None:
    """Weights and checkpoints hold what is trained, and nothing of the base."""
    base = (project.folder / "base" / "model.safetensors").stat().st_size
    for name in names:
        folder = project.folder / runs / name
        for stage in CHAINS[name]:
            path = folder / "stages" / stage / "weights.safetensors"
            weights = load_file(path)
            assert {key.split(".")[0] for key in weights} == {"base", "language", "eye", "places"}
            assert all("lora" in key for key in weights if key.startswith("language."))
            assert path.stat().st_size < base / 3
        assert not (folder / "checkpoints" / "frozen").exists()
        parts = list(folder.glob("checkpoints/*/*.safetensors"))
        # Trained parameters and two moments of each; the base would be four to eight times as much.
        assert parts and all(p.stat().st_size < 3.1 * path.stat().st_size for p in parts)


@pytest.mark.long
@pytest.mark.timeout(400)
def test_all_five_are_trained_evaluated_and_better_than_at_the_start(original):
    said = original.type("run", "--json", within_s=380)
    assert said.code == 0, f"{said}\n{original.logs()}"
    runs: dict[str, Any] = {run["experiment"]: run for run in said.json()["runs"]}
    assert all(run["state"] == "complete" for run in runs.values())
    names = {name: [stage["name"] for stage in run["stages"]] for name, run in runs.items()}
    assert names == CHAINS
    metrics = {name: run["stages"][-1]["metrics"] for name, run in runs.items()}
    assert all(
        one["loss"] < 0.7 and one["words"] > 0.7 for n, one in metrics.items() if n != "exp5"
    )
    assert metrics["exp5"]["loss"] < 1.2 and metrics["exp5"]["words"] > 0.5
    is_stored_once(original, "runs", list(CHAINS))


def test_the_files_are_what_tasuki_new_makes_of_theirs(tmp_path):
    theirs = sorted((EXAMPLE / "theirs").iterdir())
    assert len(theirs) == 8
    made = tasuki.new(tmp_path / "made", from_yaml=theirs)
    for file in theirs:
        written = (tmp_path / "made" / file.name).read_text()
        assert written == (EXAMPLE / file.name).read_text(), file.name
    assert {key["fate"] for key in made["keys"] if key["key"] == "output_dir"} == {"none"}
    by_hand = {"recipe": None, "evaluate": None, "expect_wall_s": None}
    one, other = (experiments_of(folder / "tasuki.yaml") for folder in (tmp_path / "made", EXAMPLE))
    for name, stages in CHAINS.items():
        assert [stage.name for stage in one[name].stages] == stages
        for a, b in zip(one[name].stages, other[name].stages, strict=True):
            assert to_plain(a) | by_hand == to_plain(b) | by_hand


def test_steps_have_16_samples_and_chains_go_from_easy_to_hard():
    for spec in ("tasuki.yaml", "gpu.yaml"):
        experiments = experiments_of(EXAMPLE / spec)
        stages = [stage for one in experiments.values() for stage in one.stages]
        assert {(stage.effective_batch, stage.gpus, stage.save.keep) for stage in stages} == {
            (16, 1, 3)
        }
        chain = experiments["exp3"].stages
        assert [stage.data for stage in chain] == ["easy", "medium", "hard"]
        assert [stage.init_from for stage in chain] == ["none", "previous", "previous"]
        assert {one.stages[-1].data for one in experiments.values()} == {"hard"}


BY_HAND_S = 3600 * (1.5 + 1.0) + 2 * 1200
"""exp1 and exp5 on one GPU, each of the others on its own; without any start or save."""


def test_the_gpu_spec_is_packed_into_one_job_without_gpu_and_base(here, tmp_path):
    project = copy_example(NAME, tmp_path / "laptop")
    before = project.tree()
    said = here(project.folder, "plan", "gpu.yaml", "--no-measure", "--json")
    assert said.code == 0, said
    plan = said.json()
    (job,) = plan["jobs"]
    assert (job["gpus"], job["cpus"], job["limit_s"]) == (4, 32, 6 * 3600)
    assert len(job["lanes"]) == 4 and plan["makespan_s"] < BY_HAND_S
    assert plan["makespan_s"] < plan["deadline_s"] == 6 * 3600
    assert sum(max(piece["cpus"] for piece in lane["stages"]) for lane in job["lanes"]) <= 32
    pieces = [piece for lane in job["lanes"] for piece in lane["stages"]]
    assert {piece["source"] for piece in pieces} == {"given"}
    trained: dict[str, list[str]] = {}
    for piece in sorted(pieces, key=lambda piece: piece["start_s"]):
        if piece["kind"] == "train":
            trained.setdefault(piece["experiment"], []).append(piece["stage"])
    assert trained == CHAINS
    assert sum(piece["kind"] == "evaluate" for piece in pieces) == 5
    assert project.tree() == before


def test_padding_counts_for_nothing_so_that_micro_batches_add_up(original, recipe):
    captions = recipe.Captions(str(original.folder / "base"))
    model = captions.build_model()
    dataset = captions.build_dataset("hard", "val")
    batch = [part[:12] for part in dataset.tensors]
    loss, weight = captions.loss(model, batch)
    assert weight == int((batch[1] > 0).sum())
    pieces = [captions.loss(model, [part[i : i + 4] for part in batch]) for i in (0, 4, 8)]
    torch.testing.assert_close(sum(piece[0] for piece in pieces), loss)
    assert sum(piece[1] for piece in pieces) == weight


def test_adapters_of_another_base_are_refused(original, recipe, tmp_path):
    captions = recipe.Captions(str(original.folder / "base"))
    state = captions.build_model().state_dict()
    assert "base" in state and not any("base_layer" in name for name in state)
    captions.build_model().load_state_dict(state)
    state["base"] = state["base"] + 1
    with pytest.raises(ValueError, match="another base"):
        captions.build_model().load_state_dict(state)
    shutil.copytree(original.folder / "base", tmp_path / "base")
    assert recipe.digest_of(tmp_path / "base") == recipe.digest_of(original.folder / "base")
    with (tmp_path / "base" / "model.safetensors").open("r+b") as file:
        file.seek(-4, 2)
        file.write(b"\1\2\3\4")
    assert recipe.digest_of(tmp_path / "base") != recipe.digest_of(original.folder / "base")


def test_plain_layers_and_layers_of_4_bits_are_built_in_one_process(original, recipe):
    """As plans do, which trace all stages in one child."""
    base = str(original.folder / "base")
    kinds = []
    for is_quantised in (False, True, False):
        model = recipe.Captions(base, load_in_4bit=is_quantised).build_model()
        layer = model.language.base_model.model.model.layers[0].self_attn.q_proj.base_layer
        kinds.append(type(layer).__name__)
    assert kinds == ["Linear", "Linear4bit", "Linear"]


def test_without_the_base_it_is_said_how_to_make_it(recipe, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"generate\.py makes it"):
        recipe.Captions(str(tmp_path / "base")).build_model()

"""examples/token_lm, used as a person would use a copy of it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.commands.projects import Project, kill_leftovers, user_environment
from tests.examples import copies
from tests.examples.copies import EXAMPLES, copy_example
from torch.nn import functional

from tasuki.commands.compare import compare_runs
from tasuki.errors import DataError
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

NAME = "token_lm"
EXAMPLE = EXAMPLES / NAME
PARTS = ("train", "val", "test")
PARAMETERS = {
    "tiny": 123_972,
    "small_32k": 123_011_136,
    "medium_32k": 485_818_560,
    "large_32k": 1_258_160_512,
}


def generate(folder, *words):
    return copies.generate(NAME, folder, *words)


@pytest.fixture(scope="module")
def recipe() -> ModuleType:
    return copies.load(NAME, "recipe")


@pytest.fixture(scope="module")
def generator() -> ModuleType:
    return copies.load(NAME, "generate")


def tokenize(project: Project, *words: str) -> None:
    """In a process of its own, which forks."""
    said = project.type("data", "tokenize", *words, "--bytes", "--chunk", "512")
    assert said.code == 0, said


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Iterator[Project]:
    """A copy elsewhere with its text and tokens, made by the commands of its README."""
    project = copy_example(NAME, tmp_path_factory.mktemp("token_lm") / "p")
    done = generate(project.folder)
    assert done.code == 0, done
    for part in PARTS:
        tokenize(project, f"data/text/{part}.jsonl", "-o", f"data/tokens/{part}")
    yield project
    kill_leftovers(project.folder)


@pytest.fixture
def quickly(warm_python) -> tuple[str, ...]:
    """Nothing is imported or measured before the first step."""
    return ("--json", "--set", f"cluster.python={warm_python}", "--set", "expect.wall=30s")


def test_the_quick_config_beats_every_table_of_pairs_and_is_less_surprised_late(example, quickly):
    said = example.type("run", "--config", "quick", *quickly)
    assert said.code == 0, f"{said}\n{example.logs()}"
    assert said.run["state"] == "complete"
    metrics = said.run["stages"][-1]["metrics"]
    assert metrics["unigram"] > 3.2 and 2.1 < metrics["bigram"] < 2.2
    bounds = json.loads((example.folder / "data" / "text" / "bounds.json").read_text())
    assert bounds["floor"] < metrics["loss"] < 1.9
    assert metrics["perplexity"] == pytest.approx(math.exp(metrics["loss"]))
    assert metrics["late"] < 0.8 * metrics["early"]
    rows = [row for row in read_metrics(example.run("lm")) if row["split"] == "train"]
    assert max(row["tokens"] for row in rows) == 4 * 255


@pytest.mark.long
@pytest.mark.timeout(500)
def test_the_default_config_beats_every_reader_who_forgets_each_line_at_its_end(example, quickly):
    words = (*quickly, "--set", "runs=default")
    said = example.type("run", *words, within_s=400)  # a minute on an idle machine
    assert said.code == 0, f"{said}\n{example.logs()}"
    bounds = json.loads((example.folder / "data" / "text" / "bounds.json").read_text())
    metrics = said.run["stages"][-1]["metrics"]
    assert bounds["floor"] < metrics["loss"] < 0.8 < bounds["forgetful"]
    assert metrics["late"] < metrics["early"] / 1.5


@pytest.mark.long
def test_preempted_in_mid_epoch_it_ends_with_the_bits_of_an_undisturbed_run(example, quickly):
    words = ("run", "--config", "quick", *quickly, "--set", "steps=12", "--set")
    notices = [{"at": "step.forward", "do": "term", "count": 5, "claim": 1}]
    for _ in range(2):
        disturbed = example.type(*words, "runs=disturbed", TASUKI_FAILPOINTS=json.dumps(notices))
        if disturbed.code == 0:
            break
    assert disturbed.code == 0, f"{disturbed}\n{example.logs()}"
    assert disturbed.run["state"] == "complete" and disturbed.run["attempts"] == 2
    whole = example.type(*words, "runs=undisturbed")
    assert whole.code == 0 and whole.run["attempts"] == 1, whole
    runs = [RunFolder(example.folder / name / "lm") for name in ("disturbed", "undisturbed")]
    compared = compare_runs(*runs, ["train"])
    assert compared.is_equal, compared


@pytest.mark.parametrize(
    ("config", "accumulation", "num_jobs"),
    [("small_32k", 4, 2), ("medium_32k", 8, 4), ("large_32k", 16, 9)],
)
def test_a_gpu_config_is_planned_without_gpu_and_tokens_and_its_steps_have_16_samples(
    here, tmp_path, config, accumulation, num_jobs
):
    project = copy_example(NAME, tmp_path / "laptop")
    before = project.tree()
    said = here(project.folder, "plan", "--config", config, "--json")
    assert said.code == 0, said
    plan = said.json()
    assert len(plan["jobs"]) == num_jobs
    # Steps of minutes: a preemption saves a copy, and the plan says so.
    assert all("do not fit a notice of 59s" in warning for warning in plan["warnings"])
    assert all(job["expected_s"] <= job["limit_s"] == 8 * 3600 for job in plan["jobs"])
    piece = plan["jobs"][0]["lanes"][0]["stages"][0]
    assert piece["source"] == "given"
    assert (piece["effective_batch"], piece["accumulation"]) == (16, accumulation)
    assert project.tree() == before


def stage_of(config: str) -> Any:
    (experiment,) = load_spec(str(EXAMPLE), config=config, environ={}).experiments
    (stage,) = experiment.stages
    return stage


GPU_CONFIGS = ["small_32k", "medium_32k", "large_32k"]


def test_a_gpu_config_has_what_makes_a_long_context_fit_and_fast():
    for stage in map(stage_of, GPU_CONFIGS):
        assert stage.params["context"] == 32_768
        assert stage.precision == "bf16" and stage.gradient_checkpointing and stage.compile
        assert (stage.schedule, stage.warmup, stage.clip) == ("onecycle", 0.1, 1.0)


def test_small_32k_is_the_shape_it_is_known_by():
    stage = stage_of("small_32k")
    assert (stage.params["d_model"], stage.params["layers"], stage.micro_batch) == (1024, 8, 4)


@pytest.mark.parametrize("config", PARAMETERS)
def test_a_config_has_the_number_of_parameters_that_is_written_beside_it(recipe, config):
    with torch.device("meta"):
        model = recipe.TokenLM(**stage_of(config).params).build_model()
    found = sum(parameter.numel() for parameter in model.parameters())
    assert found == PARAMETERS[config]
    assert f"| `{config}` | {found:,} |" in (EXAMPLE / "README.md").read_text()


@pytest.mark.parametrize("config", GPU_CONFIGS)
def test_the_hours_of_a_gpu_config_are_the_arithmetic_of_the_readme(config):
    stage = stage_of(config)
    shape = stage.params["d_model"] * stage.params["layers"] * stage.params["context"]
    tokens = 1000 * 16 * stage.params["context"]
    seconds = tokens * 8 * (PARAMETERS[config] + shape) / 5e13
    assert stage.expect_wall_s == pytest.approx(seconds, rel=0.03)


def small_model(recipe: ModuleType) -> Any:
    """With weights that are nowhere zero, as they are at first."""
    torch.manual_seed(1)
    model = recipe.TokenLM(d_model=32, layers=2, heads=2).build_model()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("place", [0, 1, 30, 62, 63])
def test_a_later_token_never_changes_what_is_said_before_it_and_always_what_is_after(recipe, place):
    model = small_model(recipe)
    tokens = torch.randint(0, 256, (1, 64))
    other = tokens.clone()
    other[0, place] = (other[0, place] + 1) % 256
    with torch.no_grad():
        one, two = (model.logits(model(given))[0] for given in (tokens, other))
    is_changed = (one != two).any(-1)
    assert not is_changed[:place].any() and is_changed[place:].all()


def test_padding_is_no_token(recipe):
    lm = recipe.TokenLM(d_model=32, layers=2, heads=2)
    model = small_model(recipe)
    tokens = torch.randint(0, 256, (1, 20))
    tokens[0, [7, 19]] = lm.end_token
    padded = torch.cat((tokens, torch.full((1, 12), lm.end_token)), 1)
    loss, weight, _ = lm.loss(model, tokens)
    same, as_many, scalars = lm.loss(model, padded)
    assert weight == as_many == scalars["tokens"] == 19
    torch.testing.assert_close(loss, same)


def test_a_loss_in_pieces_is_the_loss_and_so_is_its_gradient(recipe, monkeypatch):
    lm, batch = recipe.TokenLM(d_model=32, layers=2, heads=2), torch.randint(0, 256, (2, 65))
    found = []
    for piece in (8192, 48):
        monkeypatch.setattr(recipe, "PIECE", piece)
        model = small_model(recipe)
        loss, _, _ = lm.loss(model, batch)
        loss.backward()
        found.append((loss, [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(found[0], found[1])
    logits = model.logits(model(batch[:, :-1])).flatten(0, 1)
    wanted = batch[:, 1:].flatten()
    torch.testing.assert_close(loss, functional.cross_entropy(logits, wanted, reduction="sum"))


def test_tokens_of_another_vocabulary_are_refused_with_what_to_write(recipe, example):
    lm = recipe.TokenLM(vocabulary=300, end_token=0)
    with pytest.raises(ValueError, match=r"\{vocabulary: 257, end_token: 256\}"):
        lm.build_dataset(str(example.folder / "data" / "tokens"), "test")


def test_without_tokens_it_is_said_how_to_make_them(recipe, tmp_path):
    with pytest.raises(DataError) as raised:
        recipe.TokenLM().build_dataset(str(tmp_path / "tokens"), "train")
    assert "tasuki data tokenize" in str(raised.value.hint)


def test_both_formats_of_a_text_give_the_same_tokens(tmp_path):
    project = Project(tmp_path, user_environment())
    for kind, how in (("jsonl", ()), ("txt", ("--documents", "blank"))):
        assert generate(tmp_path, "--documents", "20", "--format", kind).code == 0
        tokenize(project, f"data/text/train.{kind}", "-o", kind, *how)
    one, other = (tmp_path / kind / "tokens-00000.bin" for kind in ("jsonl", "txt"))
    assert one.read_bytes() == other.read_bytes()

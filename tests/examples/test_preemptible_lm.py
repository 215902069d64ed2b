"""examples/preemptible_lm, used as a person would use a copy of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.commands.projects import Project, kill_leftovers
from tests.examples.copies import EXAMPLES, copy_example, generate

from tasuki.commands.compare import compare_runs
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

NAME = "preemptible_lm"


@pytest.fixture(scope="module")
def example(tmp_path_factory) -> Iterator[Project]:
    """A copy elsewhere, with its text."""
    project = copy_example(NAME, tmp_path_factory.mktemp("elsewhere") / "p")
    done = generate(NAME, project.folder)
    assert done.code == 0, done
    yield project
    kill_leftovers(project.folder)


def test_a_copy_of_the_folder_runs_and_learns_more_than_which_letters_are_frequent(
    example, warm_python
):
    python = ("--set", f"cluster.python={warm_python}")
    said = example.type("run", "--config", "tiny", "--json", *python)
    assert said.code == 0, f"{said}\n{example.logs()}"
    assert said.run["state"] == "complete"
    metrics = said.run["stages"][-1]["metrics"]
    assert metrics["loss"] < 0.8 * metrics["guess"]
    losses = [row["loss"] for row in read_metrics(example.run("lm")) if row["split"] == "train"]
    assert losses[-1] < losses[0] / 2


@pytest.mark.long
def test_preempted_at_least_twice_it_ends_with_the_weights_of_an_undisturbed_run(
    example, warm_python
):
    words = ("run", "--config", "quick", "--json", "--set", f"cluster.python={warm_python}")
    disturbed = example.type(*words, "--preempt-every", "2s", "--set", "runs=disturbed")
    assert disturbed.code == 0, f"{disturbed}\n{example.logs()}"
    assert disturbed.run["state"] == "complete" and disturbed.run["preemptions"] >= 2
    # Faster, which changes no bit.
    quickly = ("--set", "runs=undisturbed", "--set", "params.pause=0")
    whole = example.type(*words, *quickly)
    assert whole.code == 0 and whole.run["preemptions"] == 0, whole
    one, other = (RunFolder(example.folder / name / "lm") for name in ("disturbed", "undisturbed"))
    compared = compare_runs(one, other, ["train"])
    assert compared.is_equal, compared
    losses = [row["loss"] for row in read_metrics(one) if row["split"] == "train"]
    assert len(losses) == 30 and losses[-1] < losses[0] / 2


def test_the_gpu_spec_is_planned_without_gpu_and_text_and_its_steps_have_1024_samples(
    here, tmp_path
):
    project = copy_example(NAME, tmp_path / "laptop")
    said = here(project.folder, "plan", "gpu.yaml", "--json")
    assert said.code == 0, said
    jobs = said.json()["jobs"]
    assert len(jobs) == 3 and all(job["limit_s"] == 8 * 3600 for job in jobs)
    (experiment,) = load_spec(str(EXAMPLES / NAME / "gpu.yaml"), environ={}).experiments
    (stage,) = experiment.stages
    assert stage.micro_batch * stage.accumulation * 4 == 1024


def test_without_the_text_it_is_said_how_to_make_it(here, warm_python, tmp_path):
    project = copy_example(NAME, tmp_path / "bare")
    python = ("--set", f"cluster.python={warm_python}")
    said = here(project.folder, "run", "--config", "tiny", *python)
    assert said.code == 1 and "generate.py makes it" in said.out, said


def test_the_sums_in_the_text_are_right(example):
    text = (example.folder / "data" / "train.txt").read_text()
    deals = [line.replace(",", "").split() for line in text.splitlines() if "in all" in line]
    assert len(deals) > 50
    for words in deals:
        first, second, both = (int(word) for word in words if word.isdecimal())
        assert first + second == both

"""examples/preemptible_lm, used as a person would use a copy of it."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.commands.person import Project, kill_leftovers, person_environment
from tests.commands.warm_python import write_warm_python

from tasuki.commands.compare import compare_runs
from tasuki.runs.metrics import read_metrics
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

EXAMPLE = Path(__file__).parents[2] / "examples" / "preemptible_lm"


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
def example(tmp_path) -> Iterator[Project]:
    """A copy elsewhere, with its text."""
    folder = tmp_path / "elsewhere"
    shutil.copytree(EXAMPLE, folder, ignore=shutil.ignore_patterns("data*", "runs*", "__pycache__"))
    done = generate(folder)
    assert done.returncode == 0, done
    yield Project(folder, person_environment())
    kill_leftovers(tmp_path)


@pytest.fixture
def warm_python(warm, tmp_path) -> str:
    return write_warm_python(tmp_path / "python", socket=warm._path)


def test_a_copy_of_the_folder_runs_and_learns_more_than_which_letters_are_frequent(example):
    said = example.type("run", "--config", "tiny", "--json")
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
    disturbed = example.type(*words, "--preempt-every", "2s")
    assert disturbed.code == 0, f"{disturbed}\n{example.logs()}"
    assert disturbed.run["state"] == "complete" and disturbed.run["preemptions"] >= 2
    whole = example.type(*words, "--set", "runs=undisturbed")
    assert whole.code == 0 and whole.run["preemptions"] == 0, whole
    one, other = example.run("lm"), RunFolder(example.folder / "undisturbed" / "lm")
    compared = compare_runs(one, other, ["train"])
    assert compared.is_equal, compared
    losses = [row["loss"] for row in read_metrics(one) if row["split"] == "train"]
    assert len(losses) == 30 and losses[-1] < losses[0] / 2


def test_pauses_change_no_bit(example, warm_python):
    words = ("run", "--config", "tiny", "--json", "--set", f"cluster.python={warm_python}")
    words += ("--set", "steps=20")
    for pause in ("0", "0.01"):
        said = example.type(*words, "--set", f"runs=r{pause}", "--set", f"params.pause={pause}")
        assert said.code == 0, f"{said}\n{example.logs()}"
    place = Path("lm", "stages", "train", "weights.safetensors")
    one, other = (example.folder / f"r{pause}" / place for pause in ("0", "0.01"))
    assert one.read_bytes() == other.read_bytes()


def test_without_the_text_it_is_said_how_to_make_it(example, warm_python):
    shutil.rmtree(example.folder / "data")
    said = example.type("run", "--config", "tiny", "--set", f"cluster.python={warm_python}")
    assert said.code == 1 and "generate.py makes it" in said.out, said


def test_the_gpu_spec_is_planned_without_gpu_and_text_and_its_steps_have_1024_samples(example):
    shutil.rmtree(example.folder / "data")
    said = example.type("plan", "gpu.yaml", "--json")
    assert said.code == 0, said
    jobs = said.json()["jobs"]
    assert len(jobs) == 3 and all(job["limit_s"] == 8 * 3600 for job in jobs)
    (experiment,) = load_spec(str(EXAMPLE / "gpu.yaml"), environ={}).experiments
    (stage,) = experiment.stages
    assert stage.micro_batch * stage.accumulation * 4 == 1024


def test_the_text_is_the_same_bytes_wherever_it_is_made_and_its_sums_are_right(tmp_path):
    assert generate(tmp_path, "--out", "one", "--lines", "300").returncode == 0
    assert generate(tmp_path, "--out", "two", "--lines", "400").returncode == 0
    one, two = ((tmp_path / out / "train.txt").read_text() for out in ("one", "two"))
    assert two.startswith(one) and one.isascii()
    deals = [line.replace(",", "").split() for line in one.splitlines() if "in all" in line]
    assert len(deals) > 50
    for words in deals:
        first, second, both = (int(word) for word in words if word.isdecimal())
        assert first + second == both
    other = generate(tmp_path, "--out", "three", "--lines", "300", "--seed", "2")
    assert other.returncode == 0 and (tmp_path / "three" / "train.txt").read_text() != one

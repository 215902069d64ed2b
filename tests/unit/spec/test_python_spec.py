"""A Python spec: a function in a child process, with the same messages as YAML."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tasuki.errors import SpecError
from tasuki.spec.load import load_spec

from .conftest import Project

GOOD = """
from pathlib import Path

import sizes
from tasuki.spec.written import Cluster, Experiment, Spec, Stage

print("noise while importing")

def sweep() -> Spec:
    print('{"spec": {}}')
    stages = [Stage(name=f"s{n}", data=Path("a.h5"), size=n, epochs=2) for n in sizes.SIZES]
    return Spec(
        recipe="a:B",
        cluster=Cluster(time_limit="8h"),
        experiments={"grow": Experiment(stages=stages, lr=0.1)},
    )

def plain():
    return {"recipe": "a:B", "experiments": {"e": {"epochs": "ten"}}}

def breaks():
    x = 1
    raise ValueError("no such size")

def wrong():
    return 3

def strange():
    return {"recipe": "a:B", "experiments": {"e": {"params": {"x": object()}}}}

def dies():
    import os
    os._exit(7)
"""


@pytest.fixture
def file(project: Project) -> Path:
    project.write("SIZES = (512, 1024)", "sizes.py")
    # Names of the standard library in the user's folder must not hurt the child itself.
    project.write("raise RuntimeError('shadowed')", "json.py")
    return project.write(GOOD, "specs.py")


def refuse(source: str) -> SpecError:
    with pytest.raises(SpecError) as caught:
        load_spec(source, environ=dict(os.environ))
    assert caught.value.hint
    return caught.value


def test_a_python_spec_is_a_function_whose_prints_do_no_harm(file):
    spec = load_spec(f"{file}:sweep", settings=["epochs=5"], environ=dict(os.environ))
    (experiment,) = spec.experiments
    assert [stage.name for stage in experiment.stages] == ["s512", "s1024"]
    assert {(s.lr, s.data, s.length.count) for s in experiment.stages} == {(0.1, "a.h5", 5)}
    assert (spec.cluster.time_limit_s, spec.file) == (28800.0, str(file))
    assert spec.runs == str(file.parent / "runs")


def test_a_wrong_value_names_its_path_because_there_is_no_line(file):
    assert refuse(f"{file}:plain").message == (
        f"{file}:plain (experiments.e.epochs): `epochs` must be a whole number, not `ten`"
    )


@pytest.mark.parametrize(
    ("function", "message"),
    [
        ("breaks", "specs.py:22: ValueError: no such size"),
        ("strange", "specs.py:strange: TypeError: a object cannot be part of a spec"),
        ("sweeep", "specs.py:sweeep: there is no function `sweeep`"),
        ("wrong", "specs.py:wrong: the function gave no spec"),
        ("dies", "specs.py:dies: Python ended without a spec (exit 7)"),
    ],
)
def test_a_failing_function_is_one_error_with_its_line(file, function, message):
    assert message in refuse(f"{file}:{function}").message


def test_a_python_file_that_is_no_python_names_the_line(project):
    path = project.write("x = 1\ndef f(:\n", "bad.py")
    assert refuse(f"{path}:f").message.startswith("bad.py:2: SyntaxError")


def test_a_missing_python_file_or_function_says_what_to_write(tmp_path):
    assert "there is no spec at" in refuse(f"{tmp_path}/gone.py:f").message
    assert "FUNCTION" in refuse(f"{tmp_path}/gone.py").hint


def test_the_caller_may_run_the_function_itself(file):
    def run(path: Path, function: str) -> object:
        return {"recipe": "a:B", "experiments": {function: {"data": path.name}}}

    spec = load_spec(f"{file}:here", environ={}, run_python=run)
    assert (spec.experiments[0].name, spec.experiments[0].stages[0].data) == ("here", "specs.py")

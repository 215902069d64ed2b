"""Changes of spec, code, data and versions between two attempts are found; others raise no alarm
(R15)."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.project import Project, make_project

from tasuki.clock import SystemClock
from tasuki.commands.machine import Machine
from tasuki.commands.plan import PlanRequest, choose_experiments
from tasuki.commands.run import RunRequest, open_runs, take_up
from tasuki.errors import TasukiError
from tasuki.runs.atomic import read_json
from tasuki.runs.attempts import read_attempt_end
from tasuki.runs.claims import highest_claim
from tasuki.runs.events import read_events
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec

CODE = '''
class Rows(Dataset):
    def __init__(self, rows, shift):
        self.rows, self.shift = rows, shift

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i] + self.shift + 0.01 * torch.randn(6), self.rows[i, :1]


class Reader(Learner):
    """Rows of a file, shifted by a number from a file that `data:` does not name."""

    def build_dataset(self, source, split):
        shift = float(np.fromfile("shift.bin", dtype=np.float32)[0])
        return Rows(torch.from_numpy(np.load(source)), shift)
'''


@pytest.fixture(scope="module")
def begun(warm, tmp_path_factory) -> Project:
    """A run that was handed over on its way."""
    folder = tmp_path_factory.mktemp("begun") / "p"
    project = make_project(
        folder,
        recipe="Reader",
        code=CODE,
        params={"pause": 0.02},
        stages=[{"name": "one", "data": "data/rows.npy", "epochs": 4}],
        defaults={"save": {"every": "2 steps"}},
    )
    (folder / "data").mkdir()
    rows = np.random.default_rng(1).random((60, 6), dtype=np.float32)
    np.save(folder / "data" / "rows.npy", rows)
    np.array([0.25], dtype=np.float32).tofile(folder / "shift.bin")
    started = warm.start(project.job.path)
    until = time.monotonic() + 60
    while not any(e["kind"] == "committed" and e["step"] >= 4 for e in read_events(project.run)):
        assert time.monotonic() < until, project.logs()
        time.sleep(0.01)
    started.kill(signal.SIGTERM)
    assert started.wait() == 75, project.logs()
    return project


def copy_of(begun: Project, folder: Path) -> Project:
    """The same project and run in another place, as if it had been begun there."""
    shutil.copytree(begun.folder, folder)
    for path in [*folder.glob("runs/*/spec.json"), *folder.glob("runs/.jobs/*/lanes.json")]:
        path.write_text(path.read_text().replace(str(begun.folder), str(folder)))
    run, job = (folder / x.path.relative_to(begun.folder) for x in (begun.run, begun.job))
    return replace(begun, folder=folder, run=RunFolder(run), job=replace(begun.job, path=job))


@dataclass(frozen=True)
class Outcome:
    """What a person and the run's records say about the second attempt."""

    refused: str
    """At once, or by the attempt."""
    notes: list[str]
    """Of `tasuki run`; what was simply taken over is not among them."""
    warnings: list[str]
    is_complete: bool

    @property
    def is_alarm(self) -> bool:
        return bool(self.refused or self.notes or self.warnings)

    def says(self, words: str) -> bool:
        return words in " ".join([self.refused, *self.notes, *self.warnings])


def go_on(
    warm,
    project: Project,
    *,
    accepted: tuple[str, ...] = (),
    environment: dict[str, str] | None = None,
) -> Outcome:
    """`tasuki run [--accept-change …]`, with workers that have torch imported already."""
    before = project.logs()
    try:
        spec = load_spec(str(project.folder), environ={})
        request = RunRequest(
            plan=PlanRequest(
                spec=spec,
                experiments=choose_experiments(spec, (), ()),
                stages=(),
                machine=Machine("cpu", 0, 2),
                python=sys.executable,
                environment=dict(os.environ),
                measure=False,
            ),
            clock=SystemClock(),
            accepted=accepted,
        )
        notes = take_up(open_runs(request), request)
    except TasukiError as error:
        return Outcome(f"{error} / {error.hint}", [], [], is_complete=False)
    warm.start(project.job.path, **(environment or {})).wait()
    end = read_attempt_end(project.run, highest_claim(project.run)) or {}
    lines = [line for line in project.logs().splitlines() if line not in before.splitlines()]
    is_refused = end.get("ending") == "mistake"
    return Outcome(
        refused=f"{end['message']} / {end['hint']}" if is_refused else "",
        notes=[note for note in notes if not note.startswith("taken over: ")],
        warnings=[line for line in lines if "WARNING" in line],
        is_complete=project.run.is_complete(),
    )


def change_spec(project: Project, **defaults: Any) -> None:
    path = project.folder / "tasuki.yaml"
    value = json.loads(path.read_text())
    value["defaults"] |= defaults
    path.write_text(json.dumps(value))


def change_stage(project: Project, **keys: Any) -> None:
    path = project.folder / "tasuki.yaml"
    value = json.loads(path.read_text())
    value["experiments"]["exp"]["stages"][0] |= keys
    path.write_text(json.dumps(value))


def change_rows(project: Project, change: Callable[[Any], Any]) -> None:
    path = project.folder / "data" / "rows.npy"
    np.save(path, change(np.load(path)))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def change_frozen(project: Project, **facts: Any) -> None:
    project.run.frozen.write_text(json.dumps(read_json(project.run.frozen) | facts))


def one_value(rows: Any) -> Any:
    rows[17, 3] += 1e-6
    return rows


def two_swapped(rows: Any) -> Any:
    rows[[5, 40]] = rows[[40, 5]]
    return rows


FOUND: dict[str, tuple[Callable[[Project], object], str]] = {
    "learning rate": (lambda p: change_spec(p, lr=0.5), "stages.one.lr: 0.001 → 0.5"),
    "seed": (lambda p: change_spec(p, seed=6), "stages.one.seed: 5 → 6"),
    "length": (lambda p: change_stage(p, epochs=5), "stages.one.epochs: 4 → 5"),
    "parameter": (lambda p: change_spec(p, params={"pause": 0.0}), "params.pause: 0.02 → 0.0"),
    "code of the project": (
        lambda p: append(p.folder / "recipes.py", "\nX = 1\n"),
        "goes on with the code it began with",
    ),
    "code in the run": (
        lambda p: append(p.run.code / "recipes.py", "\nX = 1\n"),
        "recipes.py was edited",
    ),
    "module added to the run": (
        lambda p: (p.run.code / "numbers.py").write_text("X = 1\n"),
        "numbers.py is new",
    ),
    "one value": (lambda p: change_rows(p, one_value), "the content of its files"),
    "two samples swapped": (lambda p: change_rows(p, two_swapped), "the content of its files"),
    "a sample more": (
        lambda p: change_rows(p, lambda rows: np.concatenate([rows, rows[:1]])),
        "1568 bytes before, 1 files, 1592 bytes now / the order of samples cannot go on with them",
    ),
    "data that no key names": (
        lambda p: np.array([0.5], dtype=np.float32).tofile(p.folder / "shift.bin"),
        "the content of its samples, although the files that `data:` names are the same",
    ),
    "version of torch": (lambda p: change_frozen(p, torch="2.3.1"), "torch: 2.3.1 → "),
}


def touch(project: Project) -> None:
    os.utime(project.folder / "data" / "rows.npy", (1, 1))


def copy(project: Project) -> None:
    path = project.folder / "data" / "rows.npy"
    shutil.copy(path, path.with_suffix(".copy"))
    path.with_suffix(".copy").replace(path)


def link(project: Project) -> None:
    (project.folder / "data").rename(project.folder / "elsewhere")
    (project.folder / "data").symlink_to("elsewhere")


def more_cpus(project: Project) -> None:
    value = read_json(project.job.lanes)
    project.job.lanes.write_text(json.dumps(value | {"cpus": 2}))


def caches(project: Project) -> None:
    """What the interpreter and recipes leave beside the code."""
    (project.run.code / "__pycache__").mkdir(exist_ok=True)
    (project.run.code / "__pycache__" / "recipes.cpython-311.pyc").write_bytes(b"x")
    (project.run.code / "vocabulary.json").write_text("{}")


HARMLESS: dict[str, Callable[[Project], object]] = {
    "nothing": lambda p: None,
    "times of the data": touch,
    "a copy of the data in their place": copy,
    "data behind a link": link,
    "modes": lambda p: (p.folder / "data" / "rows.npy").chmod(0o400),
    "a file beside the data": lambda p: (p.folder / "data" / "val.npy").write_bytes(b"x"),
    "a comment in the spec": lambda p: append(p.folder / "tasuki.yaml", "\n# a comment\n"),
    "how many checkpoints stay": lambda p: change_spec(p, save={"every": "2 steps", "keep": 5}),
    "when to save": lambda p: change_spec(p, save={"every": "3 steps"}),
    "text for people": lambda p: (p.folder / "README.md").write_text("# Notes\n"),
    "caches beside the code": caches,
    "CPUs": more_cpus,
}


def test_the_list_is_as_long_as_the_goal():
    assert len(FOUND) == len(HARMLESS) == 12


@pytest.mark.parametrize("part", [0, pytest.param(1, marks=pytest.mark.long)])
def test_twelve_changes_are_found_and_twelve_harmless_ones_raise_no_alarm(
    warm, begun, tmp_path, part
):
    """In two halves."""
    found, harmless = (list(changes.items())[part::2] for changes in (FOUND, HARMLESS))
    missed, alarmed = [], []
    for number, (name, (change, words)) in enumerate(found):
        project = copy_of(begun, tmp_path / f"found-{number}")
        change(project)
        outcome = go_on(warm, project)
        if not (outcome.is_alarm and outcome.says(words)):
            missed.append((name, outcome))
    for number, (name, change_nothing) in enumerate(harmless):
        project = copy_of(begun, tmp_path / f"harmless-{number}")
        change_nothing(project)
        outcome = go_on(warm, project)
        if outcome.is_alarm or not outcome.is_complete:
            alarmed.append((name, outcome, project.logs()))
    count, false = len(found) - len(missed), len(alarmed)
    print(f"R15: {count} of {len(found)} found, {false} of {len(harmless)} false alarms")
    assert (missed, alarmed) == ([], [])


# -- going on with a change -----------------------------------------------------------------------


def test_changed_data_are_refused_until_a_person_accepts_them(warm, begun, tmp_path):
    project = copy_of(begun, tmp_path / "p")
    change_rows(project, one_value)
    refused = go_on(warm, project)
    assert "--accept-change data" in refused.refused and "--new" in refused.refused
    assert go_on(warm, project).refused == refused.refused  # trying again accepts nothing
    # The first attempt dies before it commits: the next one needs no word of a person.
    dies = [{"at": "step.begin", "do": "kill", "claim": highest_claim(project.run) + 1}]
    outcome = go_on(
        warm, project, accepted=("data",), environment={"TASUKI_FAILPOINTS": json.dumps(dies)}
    )
    assert outcome.is_complete, project.logs()
    words = "WARNING: the data of stage one changed, as accepted: the content of its files"
    assert outcome.warnings == [words] * 2
    kinds = [event["kind"] for event in read_events(project.run)]
    assert (kinds.count("accepted"), kinds.count("data-changed")) == (1, 2)
    assert read_json(project.run.spec)["accepted"]["data"]["claim"] == 3


def test_an_accepted_change_is_used_up_by_the_next_commit(warm, begun, tmp_path):
    project = copy_of(begun, tmp_path / "p")
    change_rows(project, one_value)
    # Handed over after its first commit.
    leaves = [{"at": "save.pruned", "do": "term-group", "claim": 2}]
    outcome = go_on(
        warm, project, accepted=("data",), environment={"TASUKI_FAILPOINTS": json.dumps(leaves)}
    )
    assert not outcome.refused and not outcome.is_complete, outcome
    unchanged = copy_of(project, tmp_path / "unchanged")
    assert not go_on(warm, unchanged).is_alarm
    change_rows(project, two_swapped)
    outcome = go_on(warm, project)
    assert "the content of its files" in outcome.refused and not outcome.is_complete


def test_data_with_which_the_order_cannot_go_on_cannot_be_accepted(warm, begun, tmp_path):
    project = copy_of(begun, tmp_path / "p")
    change_rows(project, lambda rows: rows[:-1])
    outcome = go_on(warm, project, accepted=("data",))
    assert "the order of samples cannot go on with them" in outcome.refused
    assert "--new" in outcome.refused and "--accept-change" not in outcome.refused


def test_an_edited_copy_of_the_code_can_be_accepted_and_is_an_event(warm, begun, tmp_path):
    project = copy_of(begun, tmp_path / "p")
    append(project.run.code / "recipes.py", "\nX = 1\n")
    assert "--accept-change code" in go_on(warm, project).refused
    before = read_json(project.run.spec)["fingerprints"]["code"]
    outcome = go_on(warm, project, accepted=("code",))
    assert outcome.is_complete and outcome.says("with the code as it was edited there")
    (event,) = (e for e in read_events(project.run) if e["kind"] == "code-changed")
    after = read_json(project.run.spec)["fingerprints"]["code"]
    assert (event["before"], event["after"]) == (before, after) and before != after


def test_a_rank_that_starts_on_edited_code_fails_at_once_with_the_reason(warm, begun, tmp_path):
    """As a requeued job does, which no person starts."""
    project = copy_of(begun, tmp_path / "p")
    (project.run.code / "recipes.py").unlink()
    claims = highest_claim(project.run)
    assert warm.start(project.job.path).wait() == 1
    end = read_attempt_end(project.run, claims + 1)
    assert end is not None and end["ending"] == "mistake"
    assert "recipes.py is gone" in end["message"] and "--code current" in end["hint"]


def test_code_taken_over_from_the_project_may_read_the_data_in_another_way(warm, begun, tmp_path):
    """Samples that are computed differently by new code are no change of the data."""
    from tasuki.commands.resume import take_current_code

    project = copy_of(begun, tmp_path / "p")
    path = project.folder / "recipes.py"
    path.write_text(path.read_text().replace("self.rows[i] + self.shift", "2 * self.rows[i]"))
    take_current_code(project.run, SystemClock())
    outcome = go_on(warm, project)
    assert outcome.is_complete and not outcome.is_alarm, outcome

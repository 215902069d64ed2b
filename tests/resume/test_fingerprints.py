"""Changes of spec, code, data and versions between two attempts are found; others raise no alarm
(R15)."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.harness.faulty import armed
from tests.harness.project import Project, all_of, make_project

from tasuki.clock import SystemClock
from tasuki.commands.freeze import is_code_changed, snapshot_code
from tasuki.commands.resume import take_current_code
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
        params={"pause": 0.0},
        stages=[{"name": "one", "data": "data/rows.npy", "epochs": 4}],
        defaults={"save": {"every": "2 steps"}},
    )
    (folder / "data").mkdir()
    rows = np.random.default_rng(1).random((60, 6), dtype=np.float32)
    np.save(folder / "data" / "rows.npy", rows)
    np.array([0.25], dtype=np.float32).tofile(folder / "shift.bin")
    order = {"at": "step.done", "do": "term-group", "count": 5, "claim": 1}
    assert warm.start(project.job.path, **armed(order)).wait() == 75, project.logs()
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
        request = RunRequest(plan=all_of(spec), clock=SystemClock(), accepted=accepted)
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


def change_rows(project: Project, change: Callable[[Any], Any]) -> None:
    path = project.folder / "data" / "rows.npy"
    np.save(path, change(np.load(path)))


def append(path: Path, text: str) -> None:
    path.write_text(path.read_text() + text)


def one_value(rows: Any) -> Any:
    rows[17, 3] += 1e-6
    return rows


def two_swapped(rows: Any) -> Any:
    rows[[5, 40]] = rows[[40, 5]]
    return rows


FOUND: dict[str, tuple[Callable[[Project], object], str]] = {
    "learning rate": (lambda p: change_spec(p, lr=0.5), "stages.one.lr: 0.001 → 0.5"),
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
    "two samples swapped": (lambda p: change_rows(p, two_swapped), "the content of its files"),
    "data that no key names": (
        lambda p: np.array([0.5], dtype=np.float32).tofile(p.folder / "shift.bin"),
        "the content of its samples, although the files that `data:` names are the same",
    ),
    "version of torch": (
        lambda p: p.run.frozen.write_text(json.dumps(read_json(p.run.frozen) | {"torch": "2.3.1"})),
        "torch: 2.3.1 → ",
    ),
}
"""What of a spec is a change is tested in `unit/spec/test_resolved.py`."""


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


HARMLESS: list[Callable[[Project], object]] = [
    copy,  # of the data in their place
    touch,  # times of the data
    link,  # data behind a link
    lambda p: (p.folder / "data" / "rows.npy").chmod(0o400),
    lambda p: (p.folder / "data" / "val.npy").write_bytes(b"x"),
    lambda p: change_spec(p, save={"every": "3 steps", "keep": 5}),
    lambda p: append(p.folder / "tasuki.yaml", "\n# a comment\n"),
    lambda p: (p.folder / "README.md").write_text("# Notes\n"),
    caches,  # beside the code
    more_cpus,
]


def test_changes_of_spec_code_data_and_versions_are_found(warm, begun, tmp_path):
    missed = []
    for number, (name, (change, words)) in enumerate(FOUND.items()):
        project = copy_of(begun, tmp_path / f"found-{number}")
        change(project)
        outcome = go_on(warm, project)
        if not (outcome.is_alarm and outcome.says(words)):
            missed.append((name, outcome))
    print(f"R15: {len(FOUND) - len(missed)} of {len(FOUND)} found")
    assert missed == []


def test_harmless_changes_raise_no_alarm_all_at_once(warm, begun, tmp_path):
    project = copy_of(begun, tmp_path / "p")
    for change_nothing in HARMLESS:
        change_nothing(project)
    outcome = go_on(warm, project)
    assert not outcome.is_alarm and outcome.is_complete, (outcome, project.logs())


def test_what_decides_which_samples_come_when_cannot_be_accepted_into_a_begun_run(
    warm, begun, tmp_path
):
    for key, value in (("seed", 6), ("effective_batch", 4)):
        project = copy_of(begun, tmp_path / key)
        change_spec(project, **{key: value})
        refused = go_on(warm, project, accepted=(f"stages.one.{key}",)).refused
        assert "--new" in refused and "--accept-change" not in refused


# -- going on with a change -----------------------------------------------------------------------


def test_changed_data_are_refused_until_a_person_accepts_them_and_that_holds_until_the_next_commit(
    warm, begun, tmp_path
):
    project = copy_of(begun, tmp_path / "p")
    change_rows(project, one_value)
    refused = go_on(warm, project)
    assert "--accept-change data" in refused.refused and "--new" in refused.refused
    assert go_on(warm, project).refused == refused.refused  # trying again accepts nothing
    # The first attempt dies before it commits: the next one needs no word of a person.
    claim = highest_claim(project.run) + 1
    environment = armed(
        {"at": "step.begin", "do": "kill", "claim": claim},
        {"at": "save.pruned", "do": "term-group", "claim": claim + 1},
    )
    outcome = go_on(warm, project, accepted=("data",), environment=environment)
    assert not outcome.refused and not outcome.is_complete, project.logs()
    words = "WARNING: the data of stage one changed, as accepted: the content of its files"
    assert outcome.warnings == [words] * 2
    kinds = [event["kind"] for event in read_events(project.run)]
    assert (kinds.count("accepted"), kinds.count("data-changed")) == (1, 2)
    assert read_json(project.run.spec)["accepted"]["data"]["claim"] == claim - 1
    # It is used up by the commit.
    unchanged = copy_of(project, tmp_path / "unchanged")
    assert not go_on(warm, unchanged).is_alarm
    change_rows(project, two_swapped)
    outcome = go_on(warm, project)
    assert "the content of its files" in outcome.refused and not outcome.is_complete


def test_data_with_which_the_order_cannot_go_on_cannot_be_accepted(warm, begun, tmp_path):
    project = copy_of(begun, tmp_path / "p")
    change_rows(project, lambda rows: np.concatenate([rows, rows[:1]]))
    outcome = go_on(warm, project, accepted=("data",))
    assert "1568 bytes before, 1 files, 1592 bytes now" in outcome.refused
    assert "the order of samples cannot go on with them" in outcome.refused
    assert "--new" in outcome.refused and "--accept-change" not in outcome.refused


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
    project = copy_of(begun, tmp_path / "p")
    path = project.folder / "recipes.py"
    path.write_text(path.read_text().replace("self.rows[i] + self.shift", "2 * self.rows[i]"))
    take_current_code(project.run, SystemClock())
    outcome = go_on(warm, project)
    assert outcome.is_complete and not outcome.is_alarm, outcome


# -- the copy of the code -------------------------------------------------------------------------


def test_two_first_starts_at_once_leave_the_whole_code(tmp_path):
    """Real processes that freeze the same run, again and again."""
    project = make_project(tmp_path / "p")
    for number in range(20):
        (project.folder / f"module_{number}.py").write_text("x = 1\n" * 200)
    spec = load_spec(str(project.folder), environ={})
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    children = []
    for _ in range(4):
        pid = os.fork()
        if pid == 0:
            try:
                for _ in range(10):
                    snapshot_code(run, spec)
                os._exit(0)
            finally:
                os._exit(1)
        children.append(pid)
    assert [os.waitpid(pid, 0)[1] for pid in children] == [0, 0, 0, 0]
    assert [path.name for path in run.path.iterdir()] == ["code"]
    assert len(list(run.code.glob("module_*.py"))) == 20


def test_a_run_s_code_holds_no_runs_of_other_specs(tmp_path):
    """Each would hold all earlier ones, and every new run would look like changed code."""
    project = make_project(tmp_path / "p")
    spec = load_spec(str(project.folder), environ={})
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()
    snapshot_code(run, spec)
    before = sorted(path.relative_to(run.code) for path in run.code.rglob("*"))
    shutil.copytree(spec.runs, project.folder / "runs-of-another-spec")
    assert list((project.folder / "runs-of-another-spec").rglob("recipes.py"))
    other = RunFolder(tmp_path / "other")
    other.path.mkdir()
    snapshot_code(other, spec)
    assert sorted(path.relative_to(other.code) for path in other.code.rglob("*")) == before
    assert not is_code_changed(project.run, spec)

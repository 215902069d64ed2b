"""S6: what tasuki writes is private whatever the umask, and it writes into its own folders only."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from tests.harness.project import RECIPES

from tasuki.checkpoint.lineage import find_latest
from tasuki.errors import TasukiError
from tasuki.runs.claims import take_claim
from tasuki.runs.runs import RunFolder

pytestmark = pytest.mark.timeout(600)  # a busy machine is no failure
SPEC = {
    "project": "t",
    "recipe": "recipes:Learner",
    "cluster": {"gpu": "cpu", "gpus": 1, "cpus": 1},
    "defaults": {"effective_batch": 8, "save": {"every": "3 steps"}},
    "experiments": {
        "exp": {
            "stages": [
                {
                    "name": "one",
                    "data": "d",
                    "steps": 7,
                    "validate": {"every": "3 steps"},
                    "evaluate": {"after": "each_stage"},
                }
            ]
        }
    },
}


def run_openly(folder: Path) -> None:
    """A whole run by a person whose umask hides nothing."""
    folder.mkdir()
    (folder / "recipes.py").write_text(RECIPES)
    (folder / "tasuki.yaml").write_text(json.dumps(SPEC))
    done = subprocess.run(
        [sys.executable, "-m", "tasuki", "run", "."],
        cwd=folder,
        umask=0,
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.long
def test_a_whole_run_is_private_under_umask_000(tmp_path):
    run_openly(tmp_path / "p")
    runs = tmp_path / "p" / "runs"
    paths = [runs, *runs.rglob("*")]
    open_ones = [
        f"{path.relative_to(runs)} {stat.S_IMODE(path.lstat().st_mode):04o}"
        for path in paths
        if stat.S_IMODE(path.lstat().st_mode) not in ((0o700,) if path.is_dir() else (0o600,))
    ]
    print(f"S6: {len(paths)} files and folders under umask 000: {len(open_ones)} open to others")
    assert open_ones == []
    assert len(paths) > 30


needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give files away")


@pytest.fixture
def elsewhere(tmp_path) -> Path:
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    return folder


@pytest.mark.parametrize("name", [".", "claims", "checkpoints"])
@pytest.mark.parametrize("how", ["linked", pytest.param("foreign", marks=needs_root)])
def test_a_linked_or_foreign_folder_is_not_written_to(bench, tmp_path, elsewhere, name, how):
    told = bench.do(
        "tests.resume.storage.test_private:write_into",
        folder=str(tmp_path / "runs"),
        name=name,
        how=how,
        elsewhere=str(elsewhere),
    )
    assert told == "refused"
    assert list(elsewhere.rglob("*")) == []


def write_into(folder: str, name: str, how: str, elsewhere: str) -> str:
    """Begin an attempt and save, in a run one of whose folders is not its own."""
    from tests.resume.storage.driver import begin_attempt, save

    run = RunFolder(Path(folder) / "exp")
    path = run.path / name
    path.parent.mkdir(parents=True)
    if how == "linked":
        path.symlink_to(elsewhere)
    else:
        path.mkdir(exist_ok=True)
        os.chown(path, 12345, 12345)
    try:
        begin_attempt(run)
        save(run, 1)
    except TasukiError:
        return "refused"
    return "written"


@pytest.mark.parametrize("thing", ["claims", "checkpoints"])
def test_a_file_in_the_way_of_a_folder_is_an_error_of_ours(tmp_path, thing):
    run = RunFolder(tmp_path)
    (run.path / thing).write_bytes(b"")
    with pytest.raises(TasukiError):
        take_claim(run)
        find_latest(run, lambda *_: None)

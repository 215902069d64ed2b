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


@pytest.mark.parametrize("how", ["linked", pytest.param("foreign", marks=needs_root)])
def test_a_linked_or_foreign_folder_is_not_written_to(bench, tmp_path, how):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for name in (".", "claims", "checkpoints"):
        told = bench.do(
            "tests.resume.storage.driver:write_into",
            folder=str(tmp_path / f"runs{name}"),
            name=name,
            how=how,
            elsewhere=str(elsewhere),
        )
        assert told == "refused", name
        assert list(elsewhere.rglob("*")) == [], name

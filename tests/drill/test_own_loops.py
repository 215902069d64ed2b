"""`tasuki drill` of loops that are not ours: scripts with `tasuki.open_run`, Lightning, HF's
Trainer. Each is a real script, started as `tasuki run -- python train.py` starts it."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tasuki.commands.drill_scenarios import NAMES
from tests.cli.person import Said, person_environment
from tests.integrations.subjects import FRAMEWORKS

SCRIPT = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
import tasuki

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.2), nn.Linear(8, 1))
opt = torch.optim.AdamW(model.parameters(), lr=1e-2)
data = DataLoader(TensorDataset(torch.randn(400, 4), torch.randn(400, 1)), 8, shuffle=True)
calls = [0]

with tasuki.open_run(save="1h") as run:
    run.track(model=model, optimizer=opt)
    for x, y in run.steps(data, epochs=100):
        loss = nn.functional.mse_loss(model(x), y)
        opt.zero_grad()
        loss.backward()
        opt.step()
        run.log(loss=loss)
"""
COUNTING = SCRIPT.replace(
    "        opt.zero_grad()",
    "        calls[0] += 1\n        loss = loss * (1 + 0.01 * calls[0])\n        opt.zero_grad()",
)
EPOCHS = SCRIPT.replace(
    "    for x, y in run.steps(data, epochs=100):\n",
    "    for epoch in run.epochs(100):\n      for x, y in run.steps(data, accumulation=2):\n",
)


def drill(folder: Path, *words: str, script: str = "train.py", **environment: str) -> Said:
    command = [sys.executable, "-m", "tasuki", "drill", *words, "--", "python", script]
    done = subprocess.run(
        command,
        check=False,
        cwd=folder,
        env=person_environment() | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=500,
    )
    return Said(done.returncode, done.stdout, done.stderr)


def scenarios(said: Said) -> dict[str, dict]:
    return {one["name"]: one for one in json.loads(said.out)["scenarios"]}


@pytest.mark.timeout(300)
def test_an_own_loop_is_interrupted_in_few_steps_and_found_equal(tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    said = drill(tmp_path, "--scenarios", "term", "--json")
    assert said.code == 0, said
    report, found = json.loads(said.out), scenarios(said)
    assert report["shortened"]["steps"] == 18 and report["shortened"]["steps_per_epoch"] == 6
    assert found["term"]["equal"] is True and found["term"]["attempts"] == 2
    assert found["term"]["each_sample_once"] is True
    assert not (tmp_path / "runs" / "train").exists()  # no run of the user's is touched


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("text", [SCRIPT, EPOCHS], ids=["steps", "epochs"])
def test_an_own_loop_passes_every_scenario(tmp_path, text):
    (tmp_path / "train.py").write_text(text)
    said = drill(tmp_path, "--json")
    assert said.code == 0, said
    found = scenarios(said)
    assert set(found) == set(NAMES) and all(one["equal"] for one in found.values()), said.out


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("where", ["__main__", "main()"])
def test_a_value_that_a_script_does_not_track_is_named(tmp_path, where):
    text = COUNTING
    if where == "main()":
        imports, _, body = text.partition("torch.manual_seed")
        lines = f"torch.manual_seed{body}".splitlines()
        text = imports + "def main():\n" + "\n".join(f"    {line}" for line in lines) + "\nmain()\n"
    (tmp_path / "train.py").write_text(text)
    said = drill(tmp_path, "--scenarios", "term", "--json")
    assert said.code == 1, said
    finding = scenarios(said)["term"]["finding"]
    assert (finding["cause"], finding["suspect"]) == ("hidden", f"module {where}.calls[0]")
    assert "run.track" in finding["advice"]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", ["light", "hugging"])
def test_a_training_of_a_framework_passes_every_scenario(tmp_path, name):
    for file in ("common", name):
        shutil.copy(FRAMEWORKS / f"{file}.py", tmp_path)
    (tmp_path / "train.py").write_text(
        f"import sys, runpy, tasuki\nsys.argv = ['x', 'it']\nrunpy.run_path('{name}.py')\n"
    )
    said = drill(tmp_path, "--json", EPOCHS="100", ACCUMULATION="2", STRIKE="", TASUKI_SITE="")
    assert said.code == 0, said
    found = scenarios(said)
    assert all(one["equal"] for one in found.values()), said.out
    assert {one["each_sample_once"] for one in found.values()} == {True}


def test_a_script_that_tasuki_does_not_save_is_refused_before_it_runs(tmp_path):
    (tmp_path / "train.py").write_text("open('ran', 'w')\n")
    said = drill(tmp_path)
    assert said.code == 2 and not (tmp_path / "ran").exists(), said
    assert "runs a command: `tasuki drill` does nothing for it" in said.err
    assert "tasuki.open_run" in said.err

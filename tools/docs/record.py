"""Types every verb that has `--json` in scratch projects, and notes what its output looks like.

`make docs-json` writes `shapes.json` anew: some minutes. Slurm is a private one of this machine;
verbs that need it keep what was recorded where there is none. Long tests do the same and compare.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tools.docs.json_page import FILE
from tools.docs.shapes import Shape, merge, read_recorded, shape_of, write_recorded

Command = tuple[str, tuple[str, ...]]
"""The name of a section, and the words after `tasuki`."""

TWICE_THE_PASSES = ("--set", "micro_batch=1", "--time-budget", "8s")
"""So that `tune` has a winner."""

SINE: tuple[Command, ...] = (
    ("plan", ("plan",)),
    ("plan", ("plan", "--no-measure", "--fits", "--set", "cluster.gpu=a100-40gb")),
    ("estimate", ("estimate", "--gpu", "a100-40gb", "--alternatives")),
    ("check", ("check", "--stages", "coarse")),
    ("verify gradients", ("verify", "gradients")),
    ("tune", ("tune", "--only", "precision,micro_batch", *TWICE_THE_PASSES)),
    ("tune --batch-size", ("tune", "--batch-size")),
    ("run", ("run", "--profile", "--set", "save.every=100 steps")),
    ("status", ("status",)),
    ("logs", ("logs", "sine")),
    ("history", ("history",)),
    ("verify samples", ("verify", "samples", "sine")),
    ("why", ("why", "sine")),
    ("watch", ("watch", "sine")),
    ("report", ("report", "sine", "-o", "report.html")),
    ("checkpoint show", ("checkpoint", "show", "sine")),
    ("checkpoint show CKPT", ("checkpoint", "show", "sine@latest")),
    ("checkpoint verify", ("checkpoint", "verify", "sine")),
    ("checkpoint diff", ("checkpoint", "diff", "sine@6300", "sine@6400")),
    ("checkpoint prune", ("checkpoint", "prune", "sine", "--keep", "2", "--dry-run")),
    ("evaluate", ("evaluate", "sine", "--benchmark")),
    ("export", ("export", "sine")),
    ("inspect SPEC", ("inspect",)),
    ("doctor", ("doctor",)),
    ("verify resume", ("verify", "resume")),
    ("run", ("run", "--new", "--preempt-at", "6s", "--set", "cluster.requeue=false")),
    ("status", ("status",)),
    ("cancel", ("cancel", "sine")),
    ("resume", ("resume", "sine", "--here")),
)
"""In a project that `tasuki new` made, in this order."""

FILES: tuple[Command, ...] = (
    ("inspect", ("inspect", "a.h5", "--check")),
    ("data check", ("data", "check", "a.h5")),
    ("data merge", ("data", "merge", "a.h5", "b.h5", "-o", "all.h5")),
    ("data split", ("data", "split", "all.h5")),
    ("data tokenize", ("data", "tokenize", "a.txt", "-o", "tokens", "--bytes", "--chunk", "64")),
    ("data check TOKENS", ("data", "check", "tokens")),
    ("run", ("run", "lost.yaml")),
    ("verify resume", ("verify", "resume", "lost.yaml")),
)
"""In a folder with HDF5 files, a text, and a script that loses state when it is resumed."""

LOST = """\
import torch
from torch.utils.data import DataLoader, TensorDataset
import tasuki

torch.manual_seed(0)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
noise = torch.Generator().manual_seed(3)  # is not tracked
with tasuki.open_run() as run:
    run.track(model=model, optimizer=optimizer)
    for (x,) in run.steps(DataLoader(TensorDataset(torch.ones(32, 1)), 4), epochs=100):
        loss = (model(x) + torch.randn(4, 1, generator=noise)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        run.log(loss=loss)
"""
LOST_SPEC = """\
project: lost
experiments: {lost: {stages: [{name: train, command: [python, lost.py]}]}}
"""

ON_SLURM: tuple[Command, ...] = (
    ("doctor", ("doctor", "--test-job")),
    ("submit", ("submit", "--dry-run")),
    ("submit", ("submit",)),
    ("status", ("status",)),
    ("cancel", ("cancel", "sine")),
)
"""On a cluster, where a job waits and is then cancelled."""


def make_files(folder: Path) -> None:
    import h5py
    import numpy

    for name, seed in (("a", 1), ("b", 2)):
        drawn = numpy.random.default_rng(seed)
        with h5py.File(folder / f"{name}.h5", "w") as file:
            file["n"] = numpy.array([4, 4, 8, 8, 8, 16] * 3)
            file["x"] = drawn.normal(size=(18, 3))
    (folder / "a.txt").write_text("every second of the clock\n\n" * 30)
    (folder / "lost.py").write_text(LOST)
    (folder / "lost.yaml").write_text(LOST_SPEC)


def verbs_with_json() -> set[str]:
    """`plan`, `data check` …: everything that takes `--json`, as the command line says."""
    import click

    from tasuki.cli.main import cli

    found: set[str] = set()

    def look(command: click.Command, path: str) -> None:
        if isinstance(command, click.Group):
            context = click.Context(command)
            for name in command.list_commands(context):
                inner = command.get_command(context, name)
                assert inner is not None
                look(inner, f"{path} {name}".strip())
        elif any("--json" in parameter.opts for parameter in command.params):
            found.add(path)

    look(cli, "")
    return found


def has_verb(words: Iterable[str]) -> bool:
    from tasuki.cli.main import GROUPS

    return next(iter(words)) in {verb for verbs in GROUPS.values() for verb in verbs}


RUN_FILES = (
    "training_state.json",
    "metrics_history.jsonl",
    "final_metrics.json",
    "final_results.json",
    "training_complete.marker",
    "stages/<stage>/metrics.json",
    "stages/<stage>/evaluation.json",
    "claims/<claim>/end.json",
)

Type = Callable[[Path, tuple[str, ...]], Any]
"""Types words in a folder; the JSON that came back."""


def type_json(folder: Path, words: tuple[str, ...], **environment: str) -> Any:
    if "--batch-size" in words:  # the memory of a CPU has no known limit
        environment = {"TASUKI_MEMORY_CAP": "64M", **environment}
    done = subprocess.run(
        [sys.executable, "-m", "tasuki", *words, "--json"],
        cwd=folder,
        # Figures of the machine come every half minute, and these runs are shorter.
        env={**os.environ, "TASUKI_SITE": "", "TASUKI_STATS_EVERY_S": "1", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode not in (0, 1, 75) or not done.stdout:
        raise RuntimeError(f"tasuki {' '.join(words)}: {done.returncode}\n{done.stderr}")
    return json.loads(done.stdout)


def record(commands: Iterable[Command], folder: Path, type_: Type) -> dict[str, Shape]:
    shapes: dict[str, Shape] = {}
    for name, words in commands:
        if has_verb(words):
            shapes[name] = merge(shapes.get(name, {}), shape_of(type_(folder, words)))
    return shapes


def record_here(scratch: Path) -> dict[str, Shape]:
    """All that needs no Slurm."""
    files = scratch / "files"
    files.mkdir(parents=True)
    make_files(files)
    shapes = {"new": shape_of(type_json(scratch, ("new", "sine")))}
    theirs = "num_train_epochs: 2\ntrain_bs: 4\nlearning_rate: 0.1\n"
    (scratch / "sine" / "more.yaml").write_text(theirs)
    words = ("new", str(scratch / "five"), "--from-yaml", "more.yaml")
    shapes["new"] = merge(shapes["new"], shape_of(type_json(scratch / "sine", words)))
    _write_cluster(scratch / "sine" / "tasuki.yaml")
    for part, folder in ((SINE, scratch / "sine"), (FILES, files)):
        for name, shape in record(part, folder, type_json).items():
            shapes[name] = merge(shapes.get(name, {}), shape)
    return {**shapes, **shapes_of_files(scratch / "sine" / "runs" / "sine")}


def shapes_of_files(run: Path) -> dict[str, Shape]:
    """Of those that scripts read; of lines, all together."""
    shapes = {}
    for name in RUN_FILES:
        found = sorted(run.glob(name.replace("<stage>", "*").replace("<claim>", "*")))
        lines = [
            line
            for path in found
            for line in (path.read_text().splitlines() if "jsonl" in name else [path.read_text()])
        ]
        shapes[FILE + name] = merge(*(shape_of(json.loads(line)) for line in lines))
    return shapes


def _write_cluster(spec: Path) -> None:
    text = spec.read_text()
    marked = "# cluster: {time_limit: 8h, gpus: 1}"
    assert marked in text
    line = "cluster: {time_limit: 8h, gpu: cpu, cpus: 1, price_per_gpu_hour: 2}  #"
    spec.write_text(text.replace(marked, line))


def record_on_slurm(scratch: Path) -> dict[str, Shape]:
    """On a private cluster; nothing where there is none."""
    from tasuki.testing.slurm import Cluster, missing_programs

    if missing_programs():
        return {}
    scratch.mkdir(parents=True)
    type_json(scratch, ("new", "sine"))
    with Cluster(scratch / "slurm") as cluster:
        sets = "cluster.partition=low;cluster.gpu=cpu;cluster.cpus=1;cluster.memory=400M"
        environment = {**cluster.environment, "TASUKI_SET": sets}
        return record(ON_SLURM, scratch / "sine", lambda f, w: type_json(f, w, **environment))


def main() -> None:
    with tempfile.TemporaryDirectory() as scratch:
        shapes = record_here(Path(scratch) / "here")
        for name, shape in record_on_slurm(Path(scratch) / "cluster").items():
            shapes[name] = merge(shapes.get(name, {}), shape)
    write_recorded({**read_recorded(), **shapes})


if __name__ == "__main__":
    main()

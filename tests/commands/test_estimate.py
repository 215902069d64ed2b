"""`tasuki estimate`: what stages need before they run; what is given wins, what is known stays."""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from rich.console import Console

import tasuki
from tasuki.estimation.facts import stage_key
from tasuki.runs.atomic import write_json
from tasuki.runs.attempts import write_attempt_end, write_holder
from tasuki.runs.claims import take_claim
from tasuki.runs.history import append_history
from tasuki.runs.runs import RunFolder
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import to_plain
from tasuki.views.estimate import show_estimate
from tests.commands.person import person_environment
from tests.commands.test_help import modules_of

GIB = 1 << 30
RECIPE = """
import torch
from torch import nn


class Rows:
    sizes = [16] * 40 + [32] * 24 + [64] * 8

    def __len__(self):
        return len(self.sizes)

    def __getitem__(self, index):
        return {"x": torch.zeros(self.sizes[index], 8)}


class Wide:
    def __init__(self, width=256, dtype="float32"):
        self.width, self.dtype = width, dtype

    def build_model(self):
        blocks = [nn.Sequential(nn.Linear(8, self.width), nn.Linear(self.width, 8))]
        return nn.Sequential(*blocks, *(nn.Sequential(nn.Linear(8, 8)) for _ in range(2)))

    def build_dataset(self, source, split):
        open(source).close()
        return Rows()

    def loss(self, model, batch):
        return model(batch["x"]).square().mean()

    def example_batch(self, size, batch):
        return {"x": torch.zeros(batch, size, 8, dtype=getattr(torch, self.dtype))}


class Counting(Wide):
    def loss(self, model, batch):
        if type(batch["x"]) is torch.Tensor:
            open("stepped", "w").close()
        return super().loss(model, batch) * torch.histc(batch["x"]).cumsum(0).numpy().sum()


class Lacking(Wide):
    def loss(self, model, batch):
        if type(batch["x"]) is torch.Tensor:
            raise NotImplementedError("no kernel for a CPU")
        return super().loss(model, batch) * batch["x"].numpy().sum()
"""
SPEC = """
recipe: recipes:Wide
cluster: {gpu: a100-40gb}
defaults: {effective_batch: 8, epochs: 3, data: rows.txt}
experiments:
  exp:
    stages:
      - {name: small, size: 16}
      - {name: mixed, size: [32, 64]}
"""
TINY = """
gpus:
  tiny: {memory: 700MiB, bandwidth: 100GB/s, tflops: {fp32: 1.0}}
"""
CONTRACT = {
    *("experiment", "stage", "bucket", "gpu", "samples", "micro_batch", "max_micro_batch"),
    *("cost_budget", "tensor_peak_bytes", "peak_bytes", "headroom_bytes", "breakdown", "step_s"),
    *("wall_s", "wall_s_p90", "limit_s", "host_bytes", "source", "error", "submit_command"),
}


def write_project(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "recipes.py").write_text(RECIPE)
    (folder / "tasuki.yaml").write_text(SPEC)
    (folder / "rows.txt").write_text("72 rows")
    (folder / "site.yaml").write_text(TINY)
    return folder


@pytest.fixture(scope="module")
def asked(tmp_path_factory) -> Path:
    """A project of which everything was found out once."""
    folder = write_project(tmp_path_factory.mktemp("estimate") / "p")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        tasuki.estimate()
    return folder


@pytest.fixture
def deaf(asked, here, monkeypatch):
    """Types commands where no child can be started: all that counts is what is kept."""

    def type_there(*words, folder=asked, **environment):
        monkeypatch.setattr(sys, "executable", "/bin/false")
        return here(folder, *words, **environment)

    return type_there


def test_a_second_estimate_starts_no_process_and_has_the_keys_of_the_contract(deaf):
    said = deaf("estimate", "--json")
    assert said.code == 0, said
    rows = said.json()["stages"]
    assert all(set(row) >= CONTRACT for row in rows)
    assert [(r["stage"], r["bucket"], r["samples"]) for r in rows] == [
        ("small", 16, 40),
        ("mixed", 32, 24),
        ("mixed", 64, 8),
    ]
    for row in rows:
        assert sum(row["breakdown"]["device"].values()) == row["peak_bytes"]
        assert row["peak_bytes"] + row["headroom_bytes"] == row["capacity_bytes"]
        assert 0 < row["tensor_peak_bytes"] < row["peak_bytes"]
        assert row["micro_batch"] == 8 < row["max_micro_batch"]
        assert row["source"] == "predicted" and row["error"] == 0.5


def test_the_time_of_a_stage_is_that_of_all_its_steps_its_start_and_its_saves(deaf):
    first, *mixed = deaf("estimate", "--json").json()["stages"]
    assert first["train_s"] == pytest.approx(first["step_s"] * 3 * 5)
    assert first["wall_s"] > first["train_s"] + 5.0, "a process has to start"
    assert first["wall_s_p90"] > first["wall_s"]
    assert sum(r["wall_s"] for r in mixed) == pytest.approx(mixed[0]["stage_wall_s"])
    share = mixed[0]["wall_s"] / mixed[0]["stage_wall_s"]
    assert share == pytest.approx(mixed[0]["step_s"] * 3 * 3 / mixed[0]["train_s"])


def test_one_command_submits_all_stages_and_asks_for_the_largest(deaf):
    """A run that is in the queue is not submitted again: one command for each would lose stages."""
    said = deaf("estimate", "--set", "experiments.exp.stages.1.expect.wall=9h")
    assert said.out.count("tasuki submit") == 1, said.out
    rows = deaf("estimate", "--json", "--set", "experiments.exp.stages.1.expect.wall=9h").json()[
        "stages"
    ]
    small, *mixed = rows
    assert small["limit_s"] < mixed[0]["limit_s"]
    [one] = {row["submit_command"] for row in rows}
    hours = -(-mixed[0]["limit_s"] // 60) // 60
    assert "--stages" not in one and f"--time {hours:.0f}h" in one


def test_the_command_to_submit_can_be_pasted(deaf):
    import shlex

    from tasuki.cli.submit import command

    row = deaf("estimate", "--json", "--stages", "small").json()["stages"][0]
    assert row["submit_command"] == "tasuki submit --stages small --time 10m --memory 3G"
    words = shlex.split(row["submit_command"])
    parsed = command.make_context("submit", words[2:])
    assert parsed.params["limit"] == "10m" and parsed.params["stages"] == ("small",)


@pytest.mark.parametrize("name", ["h100", "A100-SXM4-80GB", "cpu"])
def test_the_command_asks_for_the_card_that_was_asked_about(asked, here, name):
    """By the name that was given: the site file knows it by that, or not at all."""
    words = ["--set", "cluster.gpu=null", "--gpu", name, "--stages", "small"]
    [row] = here(asked, "estimate", "--json", *words).json()["stages"]
    assert f" --set cluster.gpu={name} --time " in row["submit_command"]
    [row] = here(asked, "estimate", "--json", "--set", f"cluster.gpu={name}", *words[-2:]).json()[
        "stages"
    ]
    assert row["submit_command"].count("cluster.gpu") == 1


def test_cards_of_the_site_are_compared_too(deaf, asked):
    shown = deaf("estimate", "--compare", "--json", TASUKI_SITE=str(asked / "site.yaml")).json()
    assert {"tiny", "t4"} < {row["gpu"] for row in shown["stages"]}


def test_of_two_cards_each_has_one_table(deaf):
    shown = deaf("estimate", "--gpu", "t4", "l4").out
    assert (shown.count("on t4"), shown.count("on l4")) == (1, 1)


def test_a_given_peak_beyond_the_card_does_not_fit_and_one_within_it_does(deaf, asked):
    said = deaf("estimate", "--gpu", "t4", "--set", "expect.peak=20G")
    assert said.code == 1 and "`expect.peak` is 21.5 GB: 5.84 GB more" in said.out
    assert "memory: 21.5 GB, given" in said.out and "as traced, needs" in said.out
    site = str(asked / "site.yaml")
    said = deaf("estimate", "--gpu", "tiny", "--set", "expect.peak=100M", TASUKI_SITE=site)
    assert said.code == 0, said


LINE = {
    "format": 1,
    "kind": "stage",
    "at": 1.79e9,
    "run": "old",
    "experiment": "old",
    "ranks": 1,
    "stage": "small",
    "samples": 40,
    "steps": 15,
    "steps_per_epoch": 5,
    "effective_batch": 8,
    "step_s": 2.0,
    "train_s": 30.0,
}


@pytest.mark.long
@pytest.mark.parametrize(
    ("device", "model", "gpu", "is_known"),
    [
        ("cpu", "x86_64 AVX512", "cpu", True),
        ("cpu", "x86_64 AVX512", "a100-40gb", False),
        ("cuda", "NVIDIA A100-SXM4-40GB", "a100", True),
        ("cuda", "NVIDIA A100-SXM4-40GB", "h200", False),
    ],
)
def test_steps_of_another_device_tell_nothing_of_a_card(
    tmp_path, here, device, model, gpu, is_known
):
    """Whoever tried it on a CPU first, or has no name for the card that is here."""
    folder = write_project(tmp_path / "p")
    stage = load_spec(str(folder / "tasuki.yaml"), environ={}).experiments[0].stages[0]
    key = stage_key(stage, device=device, ranks=1)
    line = {**LINE, "key": key, "device": device, "device_model": model, "gpu": None}
    append_history(folder / "runs", "old.1", line)
    words = ["--set", "cluster.gpu=null", "--stages", "small", "--gpu", gpu]
    [row] = here(folder, "estimate", "--json", *words).json()["stages"]
    assert (row["source"], row["step_s"] == 2.0) == (
        ("history", True) if is_known else ("predicted", False)
    )


@pytest.mark.long
def test_a_run_tells_of_its_stage_only_while_it_is_the_same_work_on_the_same_card(asked, here):
    run = RunFolder(asked / "runs" / "exp")
    take_claim(run)
    spec = load_spec(str(asked / "tasuki.yaml"), environ={})
    frozen = {"spec": to_plain(spec.experiments[0]), "cluster": to_plain(spec.cluster)}
    write_json(run.spec, frozen)
    told = [
        {"kind": "worker-started", "phase": "train", "ranks": 1},
        {"kind": "memory", "on": "cuda"},
        {"kind": "progress", "step_s": 2.0, "total_steps": 15},
    ]
    run.events.mkdir(exist_ok=True)
    lines = [{"t": 1.0 + n, "claim": 1, "stage": "small", **one} for n, one in enumerate(told)]
    (run.events / "1.0.rank0.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    words = ("estimate", "--json", "--stages", "small")
    [row] = here(asked, *words).json()["stages"]
    assert (row["source"], row["step_s"], row["train_s"]) == ("this run", 2.0, 30.0)
    [row] = here(asked, *words, "--set", "epochs=300").json()["stages"]
    assert (row["source"], row["train_s"]) == ("this run", 3000.0)
    for other in ("params.width=128", "cluster.gpu=cpu", "cluster.gpu=h100", "cluster.gpus=2"):
        [row] = here(asked, *words, "--set", other).json()["stages"]
        assert row["source"] == "predicted", other
    shutil.rmtree(run.path)


def test_a_warm_estimate_imports_neither_torch_nor_numpy(asked):
    class Here:
        folder, python, environment = asked, sys.executable, person_environment(TASUKI_SITE="")

    imported = modules_of(Here, "tasuki", "estimate", "--json")
    assert "tasuki.commands.estimate" in imported
    assert not {"torch", "numpy", "recipes"} & imported


@pytest.mark.parametrize("name", ["recipes.py", "rows.txt"])
def test_other_code_and_other_data_are_looked_at_anew(deaf, asked, name):
    file = asked / name
    before, at = file.read_text(), file.stat()
    file.write_text(f"{before}\n# longer")
    said = deaf("estimate")
    file.write_text(before)
    os.utime(file, ns=(at.st_atime_ns, at.st_mtime_ns))
    assert said.code != 0, "the child that is asked cannot answer here"
    assert deaf("estimate").code == 0


def test_what_is_given_wins_and_is_shown_as_given(asked, here):
    words = ["--set", "micro_batch=2", "--set", "expect.wall=4h", "--set", "expect.peak=2G"]
    more = ["--set", "cluster.memory=64G", "--set", "cluster.time_limit=8h"]
    said = here(asked, "estimate", "--json", *words, *more)
    row = said.json()["stages"][0]
    assert (row["micro_batch"], row["accumulation"]) == (2, 4)
    assert row["peak_bytes"] == 2 * GIB
    assert (row["stage_wall_s"], row["source"]) == (4 * 3600, "given")
    assert (row["limit_s"], row["host_bytes"]) == (8 * 3600, 64 * GIB)
    sources = row["sources"]
    given = ("micro_batch", "peak", "wall", "limit", "host")
    assert {sources[name] for name in given} == {"given"}
    assert "--time" not in row["submit_command"] and "--memory" not in row["submit_command"]
    little = here(asked, "estimate", "--json", "--set", "cluster.memory=100M").json()
    assert any("the host needs about" in note for note in little["stages"][0]["notes"])
    assert not any("the host needs about" in note for note in row["notes"])


def test_several_cards_are_compared_without_asking_again(deaf):
    said = deaf("estimate", "--stages", "small", "--gpu", "t4", "h100-sxm", "--compare", "--json")
    assert said.code == 0, said
    small, large = said.json()["stages"]
    assert (small["gpu"], large["gpu"]) == ("t4", "h100-sxm")
    assert small["max_micro_batch"] < large["max_micro_batch"]
    assert small["tensor_peak_bytes"] == large["tensor_peak_bytes"]
    shown = deaf("estimate", "--compare", "--stages", "small")
    assert shown.code == 0 and all(name in shown.out for name in ("v100-16gb", "a100-40gb", "h200"))


def test_an_unknown_card_is_refused_with_near_names(deaf):
    said = deaf("estimate", "--gpu", "a100-41gb")
    assert said.code == 2 and "a100-40gb" in said.err


@pytest.mark.long
def test_what_cannot_fit_says_by_how_much_and_what_would_help(asked, here):
    site = {"TASUKI_SITE": str(asked / "site.yaml")}
    words = ("--gpu", "tiny", "--set", "params.width=400000", "--stages", "small")
    said = here(asked, "estimate", *words, "--json", **site)
    assert said.code == 1, said
    (row,) = said.json()["stages"]
    missing = -row["headroom_bytes"]
    assert missing > 0 and row["max_micro_batch"] == 0
    told = "; ".join(row["remedies"])
    assert "more than a tiny has" in told and "gradient_checkpointing: true" in told
    assert "would hold it" in told


def test_an_example_that_disagrees_with_the_data_is_refused(asked, here):
    said = here(asked, "estimate", "--set", "params.dtype=float64", "--stages", "small")
    assert said.code == 1, said
    assert "disagrees with the data: `x` is float64 2 × 16 × 8, in the data float32" in said.err


def test_without_data_memory_is_known_and_time_is_not(asked, here):
    said = here(asked, "estimate", "--set", "data=gone.txt", "--stages", "small", "--json")
    assert said.code == 0, said
    (row,) = said.json()["stages"]
    assert row["peak_bytes"] and row["step_s"]
    assert row["samples"] is row["wall_s"] is row["limit_s"] is None
    assert any("gone.txt" in note for note in row["notes"])


@pytest.mark.long
def test_what_cannot_be_traced_is_measured_by_estimate_alone_and_kept(asked, here, deaf):
    words = ("--set", "recipe=recipes:Counting", "--stages", "small", "--json")
    stepped = asked / "stepped"
    said = here(asked, "plan", *words)
    assert said.code == 0, said
    assert any("`tasuki estimate` measures it" in text for text in said.json()["warnings"])
    assert not stepped.exists(), "a plan takes no real steps, nor does what it kept forbid them"
    said = here(asked, "estimate", *words)
    assert said.code == 0, said
    (row,) = said.json()["stages"]
    assert stepped.exists()
    assert row["untraced"]["op"] and row["unmeasured"] is None
    assert row["sources"]["tensors"].startswith("measured by real steps on a CPU")
    assert any("as no GPU is here" in note for note in row["notes"])
    assert row["tensor_peak_bytes"] > 8 * 16 * 256 * 4, "what the widest layer gives"
    stepped.unlink()
    (again,) = deaf("estimate", *words).json()["stages"]
    assert again == row and not stepped.exists()
    piece = deaf("plan", "--no-measure", *words).json()["jobs"][0]["lanes"][0]["stages"][0]
    assert piece["peak_bytes"] == row["peak_bytes"], "as for `submit`: what is kept counts"


@pytest.mark.long
def test_a_real_step_that_fails_is_told_with_what_could_not_be_traced(asked, here):
    words = ("--set", "recipe=recipes:Lacking", "--stages", "small", "--json")
    said = here(asked, "estimate", *words)
    assert said.code == 0, said
    (row,) = said.json()["stages"]
    assert row["peak_bytes"] is None and row["untraced"]["op"]
    assert "no kernel for a CPU" in row["unmeasured"]
    assert any("nor measured here" in note and "no kernel" in note for note in row["notes"])


@pytest.mark.long
def test_damaged_newer_and_foreign_files_are_said_and_made_anew(here, tmp_path):
    folder = write_project(tmp_path / "p")
    before = here(folder, "estimate", "--json").json()["stages"]
    kept = sorted((folder / "runs" / ".probes").iterdir())
    for file, content in zip(kept, ("{torn", '{"format": 99}', '{"key": "x"}'), strict=True):
        file.write_text(content)
    said = here(folder, "estimate", "--json")
    assert said.code == 0, said
    notes = "\n".join(said.json()["notes"])
    assert "is damaged" in notes and "format 99" in notes and "holds something else" in notes
    after = said.json()["stages"]
    for key in ("peak_bytes", "wall_s"):
        assert [row[key] for row in after] == [row[key] for row in before]
    assert all((file.stat().st_mode & 0o777) == 0o600 for file in kept)
    assert here(folder, "estimate", "--json").json()["notes"] == []


@pytest.mark.long
def test_where_nothing_can_be_kept_it_still_works(asked, here):
    said = here(asked, "estimate", "--set", "runs=rows.txt/runs", "--stages", "small", "--json")
    assert said.code == 0, said
    assert "nothing is kept" in "\n".join(said.json()["notes"])
    assert said.json()["stages"][0]["peak_bytes"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_tables_fit_the_window(deaf, width):
    found = deaf("estimate", "--json").json()
    out = io.StringIO()
    show_estimate(found, console=Console(file=out, width=width, no_color=True))
    lines = out.getvalue().splitlines()
    head = next(at for at, line in enumerate(lines) if "10m, 3G" in line)
    assert all(len(line) <= width for line in lines[: head + 1])
    assert "\x1b" not in out.getvalue()
    assert "small" in out.getvalue() and "tasuki submit --time 10m --memory 3G" in out.getvalue()


# -- plan, inspect, kills --------------------------------------------------------------------------


def test_a_plan_takes_the_time_that_nobody_can_measure_here_from_a_prediction(deaf):
    rows = deaf("estimate", "--json").json()["stages"]
    said = deaf("plan", "--json")
    assert said.code == 0, said
    pieces = said.json()["jobs"][0]["lanes"][0]["stages"]
    assert [(p["stage"], p["source"]) for p in pieces] == [
        ("small", "predicted"),
        ("mixed", "predicted"),
    ]
    assert pieces[0]["expected_s"] >= rows[0]["wall_s"]
    assert pieces[1]["peak_bytes"] == max(r["peak_bytes"] for r in rows[1:])
    assert any("± 50%" in warning for warning in said.json()["warnings"])


@pytest.mark.long
def test_a_plan_says_when_a_batch_does_not_fit_the_card(asked, here):
    site = {"TASUKI_SITE": str(asked / "site.yaml")}
    words = ("--set", "cluster.gpu=tiny", "--set", "params.width=400000", "--stages", "small")
    said = here(asked, "plan", *words, "--json", **site)
    assert any("does not fit" in warning for warning in said.json()["warnings"]), said


def test_a_plan_names_a_batch_that_is_predicted_and_says_auto_where_nothing_is(deaf):
    said = deaf("plan", "--no-measure", "--json")
    pieces = [piece for job in said.json()["jobs"] for piece in job["lanes"][0]["stages"]]
    told = {(p["micro_batch"], p["accumulation"], p["budget"], p["batch_source"]) for p in pieces}
    assert told == {(8, 1, None, "predicted")}, said
    said = deaf("plan", "--no-measure", "--set", "params.width=77", "--json")
    pieces = [piece for job in said.json()["jobs"] for piece in job["lanes"][0]["stages"]]
    assert {(p["micro_batch"], p["batch_source"]) for p in pieces} == {(None, "auto")}
    assert "8, auto" in deaf("plan", "--no-measure", "--set", "params.width=77").out


def kill_once(folder: Path, *, asked_bytes: int | None) -> None:
    """A run whose rank got SIGKILL and said nothing, as a supervisor leaves it."""
    runs = folder / "runs"
    run = RunFolder(runs / "exp")
    run.path.mkdir(parents=True)
    run.spec.write_text(json.dumps({"format": 1, "spec": {"name": "exp", "stages": []}}))
    claim = take_claim(run)
    write_holder(run, claim, job="p-01", start=1, at=1.0)
    message = "rank 0 was killed by SIGKILL without a word (SIGKILL: often the node's memory)"
    write_attempt_end(run, claim, {"ending": "failed", "cause": "none", "message": message})
    (runs / ".plans").mkdir(exist_ok=True)
    plan = {"format": 1, "jobs": [{"name": "p-01", "host_bytes": asked_bytes}]}
    (runs / ".plans" / "p.json").write_text(json.dumps(plan))


def test_after_a_kill_for_memory_the_next_job_asks_for_half_as_much_again(deaf, tmp_path):
    folder = write_project(tmp_path / "p")
    kill_once(folder, asked_bytes=64 * GIB)
    words = ("--no-measure", "--json", "--set", "cluster.memory=64G")
    said = deaf("plan", *words, folder=folder)
    assert said.code == 0, said
    assert [job["host_bytes"] for job in said.json()["jobs"]] == [96 * GIB]
    assert any("killed 1 time for its memory" in w for w in said.json()["warnings"])
    new = deaf("plan", *words, "--new", folder=folder)
    assert [job["host_bytes"] for job in new.json()["jobs"]] == [64 * GIB]


def test_inspect_tells_the_batch_of_each_size_once_a_probe_is_known(asked, here):
    said = here(asked, "inspect", "tasuki.yaml", "--json")
    assert said.code == 0, said
    buckets = said.json()["buckets"]
    assert [(b["size"], b["micro_batch"]) for b in buckets] == [(16, 8), (32, 8), (64, 8)]
    assert all(b["peak_bytes"] > 0 and b["gpu"] == "a100-40gb" for b in buckets)

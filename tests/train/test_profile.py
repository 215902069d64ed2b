"""`--profile`: where a step's time goes, and that nothing else changes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from tests.commands.projects import Project
from tests.train.engines import CPU, make_engine
from torch import nn

import tasuki
from tasuki.data.loader import MicroBatch
from tasuki.data.split import Batch
from tasuki.loop.stopwatch import Stopwatch
from tasuki.runs.events import read_events
from tasuki.runs.profiles import read_profiles
from tasuki.runs.runs import RunFolder
from tasuki.spec.resolved import ResolvedStage
from tasuki.testing.clock import FakeClock
from tasuki.train.busy import busy_s
from tasuki.train.guidance import Loading
from tasuki.train.profile import PARTS, Profile
from tasuki.train.snapshot import Progress
from tasuki.train.spans import HostTimeline, Spans
from tasuki.train.window import plan_window

# -- spans --------------------------------------------------------------------------------------


def test_spans_count_what_inner_ones_took_only_once_and_what_follows_the_last_step_not_at_all():
    clock = FakeClock()
    spans = Spans(HostTimeline(clock))
    clock.sleep(1)
    with spans.span("validate"):
        clock.sleep(2)
        with spans.span("save"):
            clock.sleep(4)
    clock.sleep(8)
    spans.end_step()
    with spans.span("save"):
        clock.sleep(100)
    assert spans.add_up() == ({"validate": 2.0, "save": 4.0}, 15.0)


# -- the window ---------------------------------------------------------------------------------


def walk(steps: int, *, step_s: float, settles_at: int = 0) -> tuple[int, int, int]:
    """(steps before it is measured, measured steps, traced steps) of a stage."""
    window = plan_window(steps)
    begun = 0
    for done in range(1, steps + 1):
        if begun == 0:
            if window.is_warm(done, done * step_s, is_settled=done >= settles_at):
                begun = done
        elif window.is_measured(done, begun, (done - begun) * step_s):
            return begun, done - begun, window.steps_to_trace(done, step_s=step_s)
    return begun, 0, 0


@pytest.mark.parametrize(
    ("case", "expected"),
    [
        ({"steps": 1000, "step_s": 0.1}, (5, 20, 3)),
        ({"steps": 100_000, "step_s": 0.001}, (5, 1000, 3)),  # short steps: a whole second
        ({"steps": 100_000, "step_s": 1e-5}, (5, 2000, 3)),
        ({"steps": 1000, "step_s": 4.0}, (5, 5, 3)),  # long ones: 20 seconds
        ({"steps": 1000, "step_s": 60.0}, (5, 1, 1)),
        ({"steps": 1000, "step_s": 0.1, "settles_at": 70}, (70, 20, 3)),  # the loader's workers
        ({"steps": 1000, "step_s": 0.1, "settles_at": 999}, (150, 20, 3)),  # 15 s at the most
        ({"steps": 30, "step_s": 0.1, "settles_at": 999}, (10, 17, 3)),  # a short stage
        ({"steps": 12, "step_s": 0.1}, (4, 5, 3)),
        ({"steps": 3, "step_s": 0.1}, (1, 1, 1)),
        ({"steps": 2, "step_s": 0.1}, (1, 1, 0)),
        ({"steps": 1, "step_s": 0.1}, (1, 0, 0)),
    ],
)
def test_which_steps_are_measured_and_traced(case, expected):
    assert walk(**case) == expected


# -- a profile of an engine whose parts take known times ----------------------------------------


class Bench:
    """A real engine on a clock that only moves where a part says so."""

    def __init__(self, folder: Path, *, steps: int = 40) -> None:
        self.clock = clock = FakeClock()
        self.said: list[str] = []
        self.steps, self.saves = steps, 0
        model = nn.Linear(2, 1)

        def loss(model: nn.Module, batch: torch.Tensor) -> torch.Tensor:
            clock.sleep(2)
            return model(batch).square().mean()

        class Later(torch.optim.SGD):
            def step(self, closure: Any = None) -> None:  # type: ignore[override]
                clock.sleep(1)
                super().step(closure)

        optimizer = Later(model.parameters(), lr=0.1)
        self.engine = make_engine(model, loss, optimizer)
        self.stopwatch = Stopwatch(clock)
        self.task: Any = SimpleNamespace(
            clock=clock,
            device=CPU,
            threads=1,
            stopwatch=self.stopwatch,
            orders=SimpleNamespace(claim=3),
            ranks=SimpleNamespace(world=1),
            run=RunFolder(folder / "exp"),
            stage=ResolvedStage(name="a"),
            say=self.said.append,
        )
        batch = Batch(effective_batch=4, micro_batch=4, accumulation=1)
        tracked = SimpleNamespace(optimizer=optimizer)
        self.setup: Any = SimpleNamespace(total_steps=steps, batch=batch, tracked=tracked)
        self.loss: float | None = None
        self.profile = Profile(
            self.task,
            self.setup,
            self.engine,
            step=0,
            loading=lambda: Loading(is_settled=True),
            last_loss=lambda: self.loss,
        )

    def batches(self) -> Iterator[MicroBatch]:
        self.clock.sleep(0.5)
        yield MicroBatch(torch.ones(4, 2), 4)

    def walk(self, steps: int | None = None, *, save_every: int = 0) -> None:
        for step in range(self.steps if steps is None else steps):
            self.engine.step(self.profile.begin_step(self.batches()), 4)
            self.loss = 1.0 / (step + 1)
            self.profile.end_step()
            self.clock.sleep(0.25)
            if save_every and step % save_every == 0:
                with self.stopwatch.part("save"):
                    self.clock.sleep(3)

    def result(self) -> dict[str, Any]:
        (profile,) = read_profiles(self.task.run)
        return profile


def wrapped(bench: Bench) -> set[str]:
    names = {"_forward", "_backward", "_sum_over_ranks", "_finish_gradients", "_apply", "part"}
    return names & {*vars(bench.engine), *vars(bench.stopwatch)}


def test_the_parts_are_what_was_spent_in_them_and_add_up_to_the_window(tmp_path):
    bench = Bench(tmp_path)
    bench.walk(save_every=1)
    bench.profile.finish(Progress(step=40), {"loss": 0.01})
    told = bench.result()
    steps = told["to_step"] - told["from_step"]
    assert (told["from_step"], steps) == (5, 3)  # 20 seconds of steps of 6.75 s
    assert told["parts"] == {
        "data wait": 0.5 * steps,
        "forward": 2.0 * steps,
        "backward": 0.0,
        "clip": 0.0,
        "optimizer": 1.0 * steps,
        "save": 3.0 * steps,
        "validate": 0.0,
        "other": 0.25 * steps,
    }
    assert sum(told["parts"].values()) == told["window_s"] == 6.75 * steps
    assert told["attempt"] == 3 and told["loss"] == {"first": 1.0, "lowest": 0.01, "last": 0.01}


def test_the_engine_is_wrapped_in_the_window_only(tmp_path):
    bench = Bench(tmp_path)
    bench.walk(4)
    assert wrapped(bench) == set()
    bench.walk(2)
    assert len(wrapped(bench)) == 6
    bench.walk(20)
    assert wrapped(bench) == set()
    trace = bench.task.run.profile / bench.result()["trace"]
    names = [e["name"] for e in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert {"data wait", "forward", "backward", "clip", "optimizer"} <= set(names)
    assert sum(name.startswith("step ") for name in names) == 3


def test_a_handover_in_the_window_tells_what_was_measured_until_then(tmp_path):
    bench = Bench(tmp_path)
    bench.walk(6)
    with bench.stopwatch.part("handover"):
        bench.clock.sleep(50)
    bench.profile.finish(Progress(), {})
    told = bench.result()
    assert (told["from_step"], told["to_step"], told["trace"]) == (5, 6, None)
    assert told["window_s"] == 3.75 and "handover" not in told["parts"]
    assert wrapped(bench) == set()


@pytest.mark.parametrize("steps", [3, 7, 12], ids=["warming up", "measuring", "tracing"])
def test_who_leaves_it_leaves_the_engine_as_it_was(tmp_path, steps):
    bench = Bench(tmp_path)
    bench.walk(steps)
    bench.profile.leave()
    assert wrapped(bench) == set() and bench.said[1:] == []
    bench.walk(5)
    assert wrapped(bench) == set()
    early = Bench(tmp_path / "early")
    early.walk(3)
    early.profile.finish(Progress(), {})
    assert early.said == ["Profile: too few steps to measure"]
    assert read_profiles(early.task.run) == []


def test_a_profile_that_cannot_be_written_ends_no_run(tmp_path):
    bench = Bench(tmp_path)
    (tmp_path / "exp").write_text("a file is in the way")
    bench.walk()
    bench.profile.finish(Progress(), {})
    assert any("WARNING: the profile was given up: " in words for words in bench.said)
    assert wrapped(bench) == set()


def test_the_newest_profile_of_each_stage_counts(tmp_path):
    run = RunFolder(tmp_path)
    run.profile.mkdir()
    for claim, stage in ((2, "a"), (10, "a"), (9, "b")):
        value = {"format": 1, "stage": stage, "attempt": claim}
        (run.profile / f"{claim}.{stage}.json").write_text(json.dumps(value))
    assert [(p["stage"], p["attempt"]) for p in read_profiles(run)] == [("a", 10), ("b", 9)]


def test_a_gpu_is_busy_while_anything_runs_on_it():
    def event(cat: str, begin: float, length: float) -> dict[str, Any]:
        return {"ph": "X", "cat": cat, "ts": begin, "dur": length, "name": "x"}

    events = [
        event("kernel", 0, 10),
        event("kernel", 5, 10),  # of another stream
        event("gpu_memcpy", 30, 5),
        event("cpu_op", 0, 1000),
        {"ph": "M", "name": "process_name"},
    ]
    trace = gzip.compress(json.dumps({"traceEvents": events}).encode())
    assert busy_s(trace) == pytest.approx(20e-6)


# -- real runs ----------------------------------------------------------------------------------


def weights_of(made: Project) -> bytes:
    return next((made.run().path / "stages").glob("*/weights.safetensors")).read_bytes()


def test_a_profiled_run_tells_its_parts_and_learns_the_same_weights_bit_for_bit(
    project, here, monkeypatch
):
    plain, made = (project(name) for name in ("plain", "made"))
    assert here(plain.folder, "run").code == 0
    said = here(made.folder, "run", "--profile", "--json")
    assert said.code == 0, f"{said}\n{made.logs()}"
    assert weights_of(plain) == weights_of(made)
    assert not plain.run().profile.exists()
    (told,) = said.json()["profiles"]
    assert set(told["parts"]) == set(PARTS)
    assert sum(told["parts"].values()) == pytest.approx(told["window_s"], rel=1e-6)
    assert all(seconds >= 0 for seconds in told["parts"].values())
    for part in ("data wait", "forward", "backward", "clip", "optimizer"):
        assert told["parts"][part] > 0
    assert told["to_step"] - told["from_step"] >= 1 and told["from_step"] >= 5
    assert told == json.loads(next(made.run().profile.glob("*.json")).read_text())
    trace = made.run().profile / told["trace"]
    names = [e["name"] for e in json.loads(gzip.decompress(trace.read_bytes()))["traceEvents"]]
    assert [names.count(name) for name in ("forward", "backward", "optimizer")] == [3, 3, 3]
    assert names.count("data wait") == 9  # for the step, its one micro-batch, and that it was last
    again = here(made.folder, "run", "--profile")
    assert again.code == 0 and "nothing is left to profile" in again.err
    assert "where a step's time goes" in again.out and "forward" in again.out
    for advice in told["advice"]:
        assert f"→ {advice}" in " ".join(again.out.split()) and f"Profile: {advice}" in made.logs()
    monkeypatch.chdir(made.folder)
    assert tasuki.run(profile=True)["profiles"] == [told]
    assert tasuki.run()["profiles"] == []


@pytest.mark.long
def test_a_preempted_run_is_profiled_in_each_attempt_and_the_newest_is_shown(project):
    made = project(stages=[{"name": "one", "data": "d", "epochs": 18}])
    notice = json.dumps([{"at": "step.begin", "do": "term", "claim": 1, "count": 40}])
    said = made.type("run", "--profile", "--json", TASUKI_FAILPOINTS=notice)
    assert said.code == 0, f"{said}\n{made.logs()}"
    claims = {int(path.name.partition(".")[0]) for path in made.run().profile.glob("*.json")}
    (told,) = said.json()["profiles"]
    assert said.run["attempts"] == 2 and told["attempt"] == max(claims) == 2
    (restored,) = [e for e in read_events(made.run()) if (e["kind"], e["claim"]) == ("restored", 2)]
    assert told["from_step"] >= restored["step"] + 5  # counted in the stage, not in the attempt


@pytest.mark.long
def test_two_ranks_leave_one_profile_of_the_first(project):
    made = project(cluster__gpus=2, cluster__gpu="cpu")
    said = made.type("run", "--profile", "--json")
    assert said.code == 0, f"{said}\n{made.logs()}"
    (told,) = said.json()["profiles"]
    assert told["ranks"] == 2 and told["parts"]["backward"] > 0
    assert sum(told["parts"].values()) == pytest.approx(told["window_s"], rel=1e-6)
    assert len(list(made.run().profile.glob("*.json"))) == 1

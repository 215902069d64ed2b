"""What tasuki adds to a step: the real step loop against a bare PyTorch loop, and where it goes.

Run as `python bench/overhead.py`; about a minute. A tiny MLP, because only there a loop's own cost
shows. Both loops take the same samples in the same order, collate, clip and set learning rates
alike, on one thread; their final weights are compared bit for bit.

tasuki's side is the worker's own code from its task to the end of the stage (`run_training`), in a
run folder of its own per repetition; the time is that of `Training.run`, so log lines and signs of
life are in it, the first and the last checkpoint are not. The bare loop knows its samples and
learning rates beforehand: no bare loop is quicker.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import patch

import msgspec
import torch
from _measure import (
    Spread,
    differences,
    machine_facts,
    print_facts,
    print_table,
    ratios,
    run_interleaved,
    spread,
    write_results,
)
from torch import Tensor, nn
from torch.optim.lr_scheduler import OneCycleLR
from torch.utils.data import default_collate

from tasuki.actions.freeze import freeze_run
from tasuki.clock import SystemClock
from tasuki.data import loader
from tasuki.data.loader import Share, share_of_step
from tasuki.runtime.stopwatch import Stopwatch
from tasuki.runtime.watch import Watch
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec, ResolvedStage
from tasuki.spec.values import Every
from tasuki.store.atomic import FORMAT, make_folder, write_json
from tasuki.store.claims import take_claim
from tasuki.store.jobs import job_folder
from tasuki.store.runs import RunFolder
from tasuki.telemetry.wire import Wire
from tasuki.train import training, worker
from tasuki.train.engine import StepEngine
from tasuki.train.optim import PureSchedule, default_optimizer, schedule_factor, warmup_steps
from tasuki.train.orders import Orders
from tasuki.train.prepare import Setup
from tasuki.train.training import Training, run_training

ROUNDS = 7
STEPS = 2_000
PART_STEPS = 500
"""Of a repetition that looks for one part: there are many of them."""

_SPEC = """
project: bench
recipe: tiny_recipe:Tiny
runs: runs
cluster: { gpu: cpu, gpus: 1, cpus: 1 }
experiments:
  tiny:
    stages:
      - { name: tiny, data: generated, steps: 2000, effective_batch: 32, lr: 0.001, seed: 7 }
    save: { every: 1h }
"""
_RECIPE = '''
import torch
from torch import nn


class Tiny:
    def build_model(self):
        return nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)
        )

    def build_dataset(self, source, split):
        """A list: the cheapest data set there is."""
        generator = torch.Generator().manual_seed(1)
        inputs = torch.randn(8192, 64, generator=generator)
        classes = torch.randint(10, (8192,), generator=generator)
        return list(zip(inputs, classes))

    def loss(self, model, batch):
        inputs, classes = batch
        return nn.functional.cross_entropy(model(inputs), classes)
'''


class Ran(NamedTuple):
    step_s: float
    weights: dict[str, Tensor]


# -- tasuki's loop ----------------------------------------------------------------------------


class TimedTraining(Training):
    """The real one, with a clock around its loop."""

    at_start: Callable[[Training], None] = staticmethod(lambda _: None)
    last: TimedTraining
    taken_s: float

    def run(self) -> None:
        TimedTraining.last = self
        TimedTraining.at_start(self)
        began = time.perf_counter()
        super().run()
        self.taken_s = time.perf_counter() - began


@dataclass(frozen=True, slots=True)
class Bench:
    """The project in its temporary folder, and the worker's connection to a supervisor."""

    spec: ResolvedSpec
    watch: Watch
    supervisor: socket.socket
    numbers: Iterator[int]

    @property
    def runs(self) -> Path:
        return Path(self.spec.runs)

    def train(self, **changes: Any) -> Ran:
        """One run from its first start to the end of its stage, as a worker does it."""
        self._hear()
        run = self._freeze(changes)
        orders = Orders(
            job=job_folder(self.runs, "bench").path,
            run=run.path,
            claim=take_claim(run),
            phase="train",
            stage="tiny",
            number=1,
            rank=0,
            world=1,
            fd=None,
        )
        set_bare_torch()
        clock = SystemClock()
        with _silent_stdout(), patch.object(training, "Training", TimedTraining):
            run_training(worker._make_task(orders, self.watch, Stopwatch(clock), clock))
        done = TimedTraining.last
        steps = done.setup.total_steps
        return Ran(done.taken_s / steps, copy_weights(done.setup.model))

    def _hear(self) -> None:
        """As a supervisor does: a rank blocks when some 270 messages were not read."""
        with contextlib.suppress(BlockingIOError):
            while self.supervisor.recv(65536):
                pass

    def _freeze(self, changes: dict[str, Any]) -> RunFolder:
        [experiment] = self.spec.experiments
        stage = msgspec.structs.replace(experiment.stages[0], **changes)
        run = RunFolder(self.runs / f"tiny-{next(self.numbers)}")
        experiment = msgspec.structs.replace(experiment, name=run.name, stages=(stage,))
        freeze_run(run, experiment, self.spec, SystemClock())
        return run

    def look_at_start(self) -> tuple[Setup, ResolvedStage, dict[str, Tensor]]:
        """What the bare loop is built from: the data, their order, and the weights of step 0."""
        found = []

        def look(begun: Training) -> None:
            found.append((begun.setup, begun.task.stage, copy_weights(begun.setup.model)))

        with patch.object(TimedTraining, "at_start", look):
            self.train()
        return found[0]


@contextlib.contextmanager
def open_bench() -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name:
        folder = Path(name)
        (folder / "tasuki.yaml").write_text(_SPEC)
        (folder / "tiny_recipe.py").write_text(_RECIPE)
        spec = load_spec(str(folder / "tasuki.yaml"), environ={})
        job = job_folder(Path(spec.runs), "bench")
        make_folder(job.path)
        lanes = {"format": FORMAT, "device": "cpu", "cpus": 1, "lanes": [{"gpus": [0]}]}
        write_json(job.lanes, lanes)
        ours, theirs = socket.socketpair()
        with ours, theirs:
            ours.setblocking(False)
            watch = Watch(Wire(theirs), SystemClock())
            # Its thread runs beside the bare loop too: ten short looks a second.
            watch.hold_on()
            watch.start()
            yield Bench(spec, watch, ours, itertools.count(1))


@contextlib.contextmanager
def _silent_stdout() -> Iterator[None]:
    """A worker writes to descriptor 1, which is its log."""
    sys.stdout.flush()
    kept = os.dup(1)
    with open(os.devnull, "wb") as nowhere:  # noqa: PTH123 (a device, not a path)
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


def set_bare_torch() -> None:
    """As torch starts, but on one thread; `apply_settings` changes it for an exact stage."""
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(False)


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


# -- the bare loop ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Bare:
    """What somebody writes by hand who knows all samples and learning rates beforehand."""

    setup: Setup
    stage: ResolvedStage
    weights: dict[str, Tensor]
    samples: list[list[int]]
    rates: list[float]

    def train(self, steps: int, *, deterministic: bool = False, onecycle: bool = False) -> Ran:
        set_bare_torch()
        torch.use_deterministic_algorithms(deterministic, warn_only=True)
        model = self.setup.recipe.build_model()
        model.load_state_dict(self.weights)
        model.train()
        parameters = list(model.parameters())
        optimizer = default_optimizer(
            model, lr=self.stage.lr, weight_decay=self.stage.weight_decay
        )
        loop = self._with_onecycle if onecycle else self._with_known_rates
        began = time.perf_counter()
        loop(model, parameters, optimizer, steps)
        return Ran((time.perf_counter() - began) / steps, copy_weights(model))

    def _with_known_rates(
        self, model: nn.Module, parameters: list[Tensor], optimizer: Any, steps: int
    ) -> None:
        dataset, loss_of, clip = self.setup.dataset, self.setup.recipe.loss, self.stage.clip
        [group] = optimizer.param_groups
        for indices, rate in zip(self.samples[:steps], self.rates[:steps], strict=True):
            batch = default_collate([dataset[i] for i in indices])
            group["lr"] = rate
            loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)

    def _with_onecycle(
        self, model: nn.Module, parameters: list[Tensor], optimizer: Any, steps: int
    ) -> None:
        dataset, loss_of, clip = self.setup.dataset, self.setup.recipe.loss, self.stage.clip
        schedule = OneCycleLR(
            optimizer, self.stage.lr, total_steps=len(self.rates), pct_start=0.1,
            cycle_momentum=False,
        )  # fmt: skip
        for indices in self.samples[:steps]:
            batch = default_collate([dataset[i] for i in indices])
            loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, clip)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad(set_to_none=True)


def prepare_bare(bench: Bench) -> Bare:
    setup, stage, weights = bench.look_at_start()
    order, total = setup.order, setup.total_steps
    steps = [order.step(*divmod(step, order.steps_per_epoch)) for step in range(total)]
    warmup = warmup_steps(stage.warmup, total)
    factor = schedule_factor(stage.schedule, total=total, warmup=warmup)
    rates = [stage.lr * factor(step) for step in range(total)]
    return Bare(setup, stage, weights, [step.indices.tolist() for step in steps], rates)


# -- parts of tasuki's overhead: the real loop with one thing taken out ---------------------------


def _lean_step(self: Training, batches: Any, num_samples: int) -> None:
    """`Training._step` without its times."""
    assert self.setup.schedule is not None
    self.setup.schedule.set_for(self.progress.step)
    self.engine.step(batches, num_samples)
    self.progress.step += 1
    self.progress.samples += num_samples


def _lean_engine_step(self: StepEngine, batches: Any, num_samples: int) -> None:  # noqa: ARG001
    """`StepEngine.step` for one micro-batch on one rank, without the window of losses."""
    self._module(next(iter(batches)).data).backward()
    nn.utils.clip_grad_norm_(self._parameters, self._clip)
    self._optimizer.step()
    self._optimizer.zero_grad(set_to_none=True)


def part_cases(bench: Bench, bare: Bare) -> dict[str, Callable[[], Ran]]:
    """By name: the loop without that part."""
    [experiment] = bench.spec.experiments
    length = msgspec.structs.replace(experiment.stages[0].length, count=PART_STEPS)

    def without(target: Any, name: str, stand_in: Any) -> Callable[[], Ran]:
        def run() -> Ran:
            with patch.object(target, name, stand_in):
                return bench.train(length=length)

        return run

    shares = _known_shares(bare)
    rate_of = iter(itertools.cycle(bare.rates[:PART_STEPS]))

    def known_rate(self: PureSchedule, step: int) -> None:  # noqa: ARG001
        self._optimizer.param_groups[0]["lr"] = next(rate_of)

    return {
        "seeds of each sample": without(loader, "seed_everything", lambda _: None),
        "random states kept": without(loader, "kept_random_states", contextlib.nullcontext),
        "order, seeds and split": without(loader, "share_of_step", lambda _, step, **__: shares[step]),
        "learning rate": without(PureSchedule, "set_for", known_rate),
        "engine (window of losses)": without(StepEngine, "step", _lean_engine_step),
        "times of the step": without(Training, "_step", _lean_step),
        "log lines, every 10 steps": lambda: bench.train(
            length=length, log_every=Every(unit="steps", count=1e9)
        ),
        "deterministic algorithms": lambda: bench.train(length=length, exact=False),
    }


def _known_shares(bare: Bare) -> list[Share]:
    order, batch = bare.setup.order, bare.setup.batch.micro_batch
    return [
        share_of_step(order, step, micro_batch=batch, rank=0, world=1) for step in range(PART_STEPS)
    ]


# -- measuring and showing --------------------------------------------------------------------


def main() -> int:
    with open_bench() as bench:
        bare = prepare_bare(bench)
        [experiment] = bench.spec.experiments
        short = msgspec.structs.replace(experiment.stages[0].length, count=PART_STEPS)
        whole = run_interleaved(
            {
                "bare": lambda: bare.train(STEPS),
                "bare, torch's OneCycleLR": lambda: bare.train(STEPS, onecycle=True),
                "bare, deterministic algorithms": lambda: bare.train(STEPS, deterministic=True),
                "tasuki": bench.train,
            },
            rounds=ROUNDS,
        )
        parts = run_interleaved(
            {
                "bare": lambda: bare.train(PART_STEPS),
                "tasuki": lambda: bench.train(length=short),
                **part_cases(bench, bare),
            },
            rounds=ROUNDS,
        )
    facts = {**machine_facts("tasuki", "torch", "numpy"), "threads": torch.get_num_threads()}
    print_facts(facts)
    results = {
        "machine": facts,
        "steps": {"whole": STEPS, "parts": PART_STEPS},
        "whole": _whole(whole),
        "parts": _parts(parts),
    }
    _show(results)
    write_results("overhead", results)
    return 0


def _whole(ran: dict[str, list[Ran]]) -> dict[str, dict[str, Any]]:
    times = _times(ran)
    return {
        name: {
            "step_s": spread(found),
            "added_s": differences(found, times["bare"]),
            "ratio": ratios(found, times["bare"]),
            "is_bitwise_equal": all(
                is_equal(one.weights, other.weights)
                for one, other in zip(ran[name], ran["bare"], strict=True)
            ),
        }
        for name, found in times.items()
    }


def _parts(ran: dict[str, list[Ran]]) -> dict[str, Spread]:
    """What the loop saves without each part; what no part explains; the sum."""
    times = _times(ran)
    names = [name for name in times if name not in ("bare", "tasuki")]
    found = {name: differences(times["tasuki"], times[name]) for name in names}
    explained = [
        sum(whole - lacking for lacking in without)
        for whole, *without in zip(times["tasuki"], *(times[n] for n in names), strict=True)
    ]
    added = [t - b for t, b in zip(times["tasuki"], times["bare"], strict=True)]
    found["the rest: boundaries, agreement, generators"] = differences(added, explained)
    found["all that tasuki adds"] = spread(added)
    return found


def _times(ran: dict[str, list[Ran]]) -> dict[str, list[float]]:
    return {name: [one.step_s for one in found] for name, found in ran.items()}


def is_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


def _show(results: dict[str, Any]) -> None:
    print_table(
        f"A step, medians of {ROUNDS} interleaved rounds of {STEPS} steps [quartiles]",
        ["loop", "µs per step", "added µs", "ratio to bare", "final weights"],
        [
            [
                name,
                found["step_s"].show(0, scale=1e6),
                found["added_s"].show(1, scale=1e6),
                found["ratio"].show(3),
                "same bits" if found["is_bitwise_equal"] else "DIFFER",
            ]
            for name, found in results["whole"].items()
        ],
    )
    print_table(
        f"What a step saves without one part ({ROUNDS} rounds of {PART_STEPS} steps)",
        ["part", "µs per step"],
        [[name, found.show(1, scale=1e6)] for name, found in results["parts"].items()],
    )


if __name__ == "__main__":
    sys.exit(main())

"""tasuki's real step loop and a bare PyTorch loop over the same samples, in one process.

tasuki's side is the worker's own code from its task to the end of the stage (`run_training`), in a
separate run folder per repetition. It is stopped every CHUNK steps for the turn of another loop:
two loops that take turns every few milliseconds see the same machine, however busy it is. Used by
overhead.py, which describes what is measured.
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
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils.data import default_collate

from tasuki.clock import SystemClock
from tasuki.commands.freeze import freeze_run
from tasuki.loop.stopwatch import Stopwatch
from tasuki.loop.watch import Watch
from tasuki.runs.atomic import FORMAT, make_folder, write_json
from tasuki.runs.claims import take_claim
from tasuki.runs.jobs import job_folder
from tasuki.runs.runs import RunFolder
from tasuki.runs.wire import Wire
from tasuki.spec.load import load_spec
from tasuki.spec.resolved import ResolvedSpec, ResolvedStage
from tasuki.train import training, worker
from tasuki.train.optim import default_optimizer, schedule_factor, warmup_steps
from tasuki.train.orders import Orders
from tasuki.train.prepare import Setup
from tasuki.train.training import Training, run_training

CHUNK = 10
"""Steps between two turns: one log line."""
TINY, LARGER = 256, 1536
"""Widths of the MLP: a step takes less than a millisecond, or 15 to 20."""
Weights = dict[str, Tensor]

_SPEC = """
project: bench
recipe: tiny_recipe:Tiny
runs: runs
cluster: {{ gpu: cpu, gpus: 1, cpus: 1 }}
experiments:
  tiny:
    params: {{ width: {width} }}
    stages:
      - {{ name: tiny, data: generated, steps: 1, effective_batch: 32, lr: 0.001, seed: 7 }}
    save: {{ every: 1h }}
"""
_RECIPE = '''
import os
import sys

sys.path.insert(0, {bench!r})
from _step_tools import make_mlp, make_samples
from torch import nn


class Samples(list):
    """A custom data set: tasuki cannot know that it uses no random numbers."""


class Tiny:
    def __init__(self, width):
        self.width = width

    def build_model(self):
        return make_mlp(self.width)

    def build_dataset(self, source, split):
        kind = list if os.environ.get("BENCH_DATA") == "plain" else Samples
        return kind(make_samples())

    def loss(self, model, batch):
        inputs, classes = batch
        return nn.functional.cross_entropy(model(inputs), classes)
'''


class Taken(NamedTuple):
    wall_s: float
    cpu_s: float
    """Of the loop's own thread: not what other people's processes take away."""


class ChunkClock:
    def __init__(self) -> None:
        self._cpu, self._wall = time.thread_time(), time.perf_counter()

    def stop(self) -> Taken:
        return Taken(time.perf_counter() - self._wall, time.thread_time() - self._cpu)


# -- tasuki's loop ----------------------------------------------------------------------------


class Turns:
    """What happens between the chunks of tasuki's loop."""

    def begin(self, loop: Training) -> None:
        """Before the first chunk."""

    def before_chunk(self, loop: Training) -> None:
        """The next chunk is about to start."""

    def after_chunk(self, taken: Taken) -> None:
        """A chunk of tasuki's loop is over: others may have their turn."""


class ChunkedTraining(Training):
    """tasuki's loop, with a stop every CHUNK steps."""

    turns: Turns
    last: ChunkedTraining

    def _make_loader(self) -> Any:
        ChunkedTraining.last = self
        self.turns.begin(self)
        loader = super()._make_loader()
        all_steps = loader.steps

        def chunked() -> Iterator[Any]:
            steps = all_steps()
            for _ in range(self.setup.total_steps // CHUNK):
                self.turns.before_chunk(self)
                clock = ChunkClock()
                yield from itertools.islice(steps, CHUNK)
                self.turns.after_chunk(clock.stop())

        loader.steps = chunked  # type: ignore[method-assign]
        return loader


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

    def train(self, steps: int, turns: Turns) -> Weights:
        """One run from its first start to the end of its stage, as a worker does it."""
        assert steps % CHUNK == 0, steps
        self._hear()
        run = self._freeze(steps)
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
        clock = SystemClock()
        ChunkedTraining.turns = turns
        with _silent_stdout(), patch.object(training, "Training", ChunkedTraining):
            run_training(worker._make_task(orders, self.watch, Stopwatch(clock), clock))
        return copy_weights(ChunkedTraining.last.setup.model)

    def _hear(self) -> None:
        """As a supervisor does: a rank blocks when 278 messages were not read."""
        with contextlib.suppress(BlockingIOError):
            while self.supervisor.recv(65536):
                pass

    def _freeze(self, steps: int) -> RunFolder:
        [experiment] = self.spec.experiments
        [stage] = experiment.stages
        length = msgspec.structs.replace(stage.length, count=steps)
        run = RunFolder(self.runs / f"tiny-{next(self.numbers)}")
        stage = msgspec.structs.replace(stage, length=length)
        experiment = msgspec.structs.replace(experiment, name=run.name, stages=(stage,))
        freeze_run(run, experiment, self.spec, SystemClock())
        return run


@contextlib.contextmanager
def open_bench(width: int = TINY) -> Iterator[Bench]:
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name:
        folder = Path(name)
        (folder / "tasuki.yaml").write_text(_SPEC.format(width=width))
        (folder / "tiny_recipe.py").write_text(_RECIPE.format(bench=str(Path(__file__).parent)))
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


def copy_weights(model: nn.Module) -> Weights:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def is_equal(one: Weights, other: Weights) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[k], other[k]) for k in one)


# -- bare loops -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Given:
    """What a bare loop needs to do the same as tasuki's."""

    recipe: Any
    dataset: Any
    stage: ResolvedStage
    weights: Weights
    """Of step 0."""
    samples: list[list[int]]
    """The dataset indices of each step."""
    rates: list[float]
    """The learning rate of each step."""


def give(loop: Training) -> Given:
    """Everything known beforehand: no bare loop is quicker."""
    setup: Setup = loop.setup
    stage, order, total = loop.task.stage, setup.order, setup.total_steps
    steps = [order.step(*divmod(step, order.steps_per_epoch)) for step in range(total)]
    warmup = warmup_steps(stage.warmup, total)
    factor = schedule_factor(stage.schedule, total=total, warmup=warmup)
    return Given(
        recipe=setup.recipe,
        dataset=setup.data.dataset,
        stage=stage,
        weights=copy_weights(setup.model),
        samples=[step.indices.tolist() for step in steps],
        rates=[stage.lr * factor(step) for step in range(total)],
    )


class BareLoop:
    """Forward, backward, clip, step, as written by hand."""

    def __init__(self, given: Given) -> None:
        self.given = given
        self.model: nn.Module = given.recipe.build_model()
        self.model.load_state_dict(given.weights)
        self.model.train()
        self.parameters = list(self.model.parameters())
        self.optimizer: Optimizer = default_optimizer(
            self.model, lr=given.stage.lr, weight_decay=given.stage.weight_decay
        )
        self.step = 0

    def run_chunk(self, before: Callable[[], None] = lambda: None) -> Taken:
        """The next CHUNK steps, with torch's own default of not insisting on determinism."""
        with deterministic(False):
            before()
            clock = ChunkClock()
            self._run(slice(self.step, self.step + CHUNK))
            taken = clock.stop()
        self.step += CHUNK
        return taken

    def _run(self, which: slice) -> None:
        given, model, optimizer = self.given, self.model, self.optimizer
        dataset, loss_of, clip = given.dataset, given.recipe.loss, given.stage.clip
        [group] = optimizer.param_groups
        for indices, rate in zip(given.samples[which], given.rates[which], strict=True):
            batch = default_collate([dataset[i] for i in indices])
            group["lr"] = rate
            loss = loss_of(model, batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.parameters, clip)
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)


@contextlib.contextmanager
def deterministic(wanted: bool) -> Iterator[None]:
    before = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(wanted, warn_only=True)
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before, warn_only=True)

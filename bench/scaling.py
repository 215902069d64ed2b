"""What a second rank brings: the same steps on one rank and on two, one thread each.

Run as `python bench/scaling.py`; about a minute. Steps are those of tasuki's engine over DDP and
gloo on this machine's cores, with the same effective batch: two ranks take half of it each. One
rank and two take turns; the ratio is taken within a round. The wait for the exchange is measured
as a run does it. Two ranks need two free cores: the CPU time beside the wall time tells whether
they had them. GPUs and NCCL are not measured here.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor, nn

from _measure import (
    machine_facts,
    print_facts,
    print_table,
    ratios,
    run_interleaved,
    spread,
    write_results,
)
from tasuki.clock import SystemClock
from tasuki.data.loader import MicroBatch
from tasuki.data.split import share_of_rank
from tasuki.loop.ranks import Ranks, wrap_module
from tasuki.train.engine import LossModule, StepEngine
from tasuki.train.exchange import measure_exchange

ROUNDS = 9
STEPS = 4
BATCH = 256
WIDTHS = {"82 k weights": 128, "525 k weights": 512}
FEATURES = 512
CPU = torch.device("cpu")


class Taken(NamedTuple):
    """Of one step: the slowest rank's wall time, all ranks' CPU time."""

    wall_s: float
    cpu_s: float


class Worker:
    """One rank with its share of every step."""

    def __init__(self, rank: int, world: int, width: int) -> None:
        torch.manual_seed(0)
        model = nn.Sequential(
            *(nn.Linear(FEATURES, width), nn.GELU(), nn.Linear(width, width), nn.GELU()),
            nn.Linear(width, 1),
        )
        module = wrap_module(LossModule(model, _loss), Ranks(rank, world, None, None), CPU)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        self.engine = StepEngine(module, optimizer, device=CPU, clip=1.0, world=world)
        self._batch = torch.randn(len(share_of_rank(BATCH, rank, world)), FEATURES)
        self._world = world
        self.engine.throw_away(self._batch)

    def run(self) -> Taken:
        began, cpu = time.monotonic(), time.process_time()
        for _ in range(STEPS):
            self.engine.step(iter([MicroBatch(self._batch, len(self._batch))]), BATCH)
        return Taken((time.monotonic() - began) / STEPS, (time.process_time() - cpu) / STEPS)

    def exchange(self) -> float:
        if self._world == 1:
            return 0.0
        return measure_exchange(self.engine, self._batch, device=CPU, clock=SystemClock())


def _loss(model: nn.Module, batch: Tensor) -> Tensor:
    return ((model(batch) - batch.sum(1, keepdim=True)) ** 2).mean()


def serve(rank: int, world: int, store: str, width: int, pipe: Connection) -> None:
    """Answers one question after another until there is none."""
    torch.set_num_threads(1)
    if world > 1:
        dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    worker = Worker(rank, world, width)
    pipe.send(None)
    while (question := pipe.recv()) is not None:
        pipe.send(getattr(worker, question)())


class Group:
    """The ranks of one case, waiting for questions."""

    def __init__(self, world: int, width: int, folder: Path) -> None:
        context = multiprocessing.get_context("spawn")
        pipes = [context.Pipe() for _ in range(world)]
        self.pipes = [ours for ours, _ in pipes]
        store = str(folder / f"store-{world}-{width}")
        self._processes = [
            context.Process(target=serve, args=(rank, world, store, width, theirs), daemon=True)
            for rank, (_, theirs) in enumerate(pipes)
        ]
        for process in self._processes:
            process.start()
        for pipe in self.pipes:
            pipe.recv()

    def ask(self, question: str) -> list[Any]:
        for pipe in self.pipes:
            pipe.send(question)
        return [pipe.recv() for pipe in self.pipes]

    def run(self) -> Taken:
        taken = self.ask("run")
        return Taken(max(t.wall_s for t in taken), sum(t.cpu_s for t in taken))

    def close(self) -> None:
        for pipe in self.pipes:
            pipe.send(None)
        for process in self._processes:
            process.join()


@contextmanager
def groups(width: int) -> Iterator[dict[int, Group]]:
    with tempfile.TemporaryDirectory() as folder:
        made = {world: Group(world, width, Path(folder)) for world in (1, 2)}
        try:
            yield made
        finally:
            for group in made.values():
                group.close()


def measure(width: int) -> dict[str, Any]:
    with groups(width) as made:
        found = run_interleaved({str(w): group.run for w, group in made.items()}, rounds=ROUNDS)
        waits = [max(made[2].ask("exchange")) for _ in range(5)]
    one, two = found["1"], found["2"]
    step_s = [t.wall_s for t in two]
    speedup = ratios([t.wall_s for t in one], step_s)
    return {
        "step_s": {"1": spread([t.wall_s for t in one]), "2": spread(step_s)},
        "cpu_s": {"1": spread([t.cpu_s for t in one]), "2": spread([t.cpu_s for t in two])},
        "speedup": speedup,
        "cpu_ratio": ratios([t.cpu_s for t in two], [t.cpu_s for t in one]),
        "efficiency": speedup.median / 2,
        "exchange": spread([wait / spread(step_s).median for wait in waits]),
    }


def main() -> int:
    results = {name: measure(width) for name, width in WIDTHS.items()}
    facts = {**machine_facts("tasuki", "torch"), "threads": 1, "effective_batch": BATCH}
    print_facts(facts)
    print_table(
        "two ranks against one, the same effective batch",
        [
            "model",
            "ms/step, 1 rank",
            "2 ranks",
            "times as fast",
            "efficiency",
            "CPU time",
            "exchange",
        ],
        [
            [
                name,
                found["step_s"]["1"].show(1, scale=1e3),
                found["step_s"]["2"].show(1, scale=1e3),
                found["speedup"].show(),
                f"{found['efficiency']:.0%}",
                found["cpu_ratio"].show(),
                f"{found['exchange'].median:.0%}",
            ]
            for name, found in results.items()
        ],
    )
    write_results("scaling", {"machine": facts, "cases": results})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())

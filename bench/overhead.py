"""What tasuki adds to a step: the real step loop against a bare PyTorch loop, and where it goes.

Run as `python bench/overhead.py`; about five minutes. A tiny MLP, because only there a loop's own
cost shows. Both loops take the same samples in the same order, collate, clip and set learning rates
alike, on one thread; their final weights are compared bit for bit.

Log lines and signs of life are in tasuki's time, the first and the last checkpoint are not. The
bare loop knows its samples and learning rates beforehand. The same for a larger MLP, whose steps
take 15 to 20 ms on a quiet machine: there what is added must not show. `BENCH_INSTRUCTIONS=1` also
counts instructions (_instructions.py): slow, but the same on a busy machine.
"""

from __future__ import annotations

import contextlib
import gc
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

import torch

from _instructions import count_instructions
from _loops import (
    CHUNK,
    LARGER,
    TINY,
    BareLoop,
    Bench,
    OneCycleLoop,
    Taken,
    Turns,
    Weights,
    deterministic,
    give,
    is_equal,
    open_bench,
)
from _measure import (
    Spread,
    differences,
    machine_facts,
    print_facts,
    print_table,
    ratios,
    rounds_within,
    run_interleaved,
    spread,
    write_results,
)
from _peers import Worker, find_peers
from _step_tools import STEPS_PER_TURN, TOOLS
from tasuki.data import loader
from tasuki.data.drawn import ThriftyFetcher
from tasuki.data.shares import share_of_step
from tasuki.train.engine import StepEngine
from tasuki.train.gradients import clip_alike, drop
from tasuki.train.optim import PureSchedule
from tasuki.train.training import Training

ROUNDS = 15
BUDGET_S = 20.0
"""For each of the two measurements."""
STEPS = 1_000
LARGER_STEPS = 200
LARGER_BUDGET_S = 80.0
"""Long enough to tell 1 % from noise: two hundred pairs of chunks."""
TURNS = 15
"""Of each tool."""
BARE = "bare loop"
CHUNKS_OF_PART = 12
"""In each round."""
IS_PLAIN = os.environ.get("BENCH_DATA") == "plain"
NUM_PARTS = 7
NUM_KINDS = NUM_PARTS + 2
"""Of chunks of tasuki's loop: whole, without each part, without all of them."""
ALL = "all of these at once"
ADDED = "all that tasuki adds"
BARE_LOOPS: dict[str, type[BareLoop]] = {"bare": BareLoop, "bare, torch OneCycleLR": OneCycleLoop}
Costs = dict[str, list[Taken]]
Exchange = Callable[[Training], contextlib.AbstractContextManager[Any]]
"""Takes one part out of tasuki's loop for a while."""


def main() -> int:
    with open_bench() as bench:
        check_exchanges(bench)
        rounds = [measure_whole(bench) for _ in rounds_within(BUDGET_S, most=ROUNDS)]
        parts = [measure_parts(bench) for _ in rounds_within(BUDGET_S, most=ROUNDS)]
    larger, once = measure_larger()
    peers = find_peers()
    tools = beside_tools(peers) if peers is not None else {}
    facts = {**machine_facts("tasuki", "torch", "numpy"), "threads": torch.get_num_threads()}
    print_facts(facts)
    results = {
        "machine": facts,
        "steps": {"whole": STEPS, "of each part": CHUNKS_OF_PART * CHUNK},
        "whole": _whole(rounds),
        "larger": _whole(larger),
        "first_chunk_of_larger": once,
        "instructions": _count() if os.environ.get("BENCH_INSTRUCTIONS") == "1" else {},
        "parts": _parts(parts),
        "tools": tools,
    }
    _show(results)
    write_results("overhead", results)
    return 0


# -- tasuki against bare ----------------------------------------------------------------------


class WithBareLoops(Turns):
    """After each chunk of tasuki's loop the same steps of each bare loop."""

    def __init__(self) -> None:
        self.costs: Costs = {name: [] for name in (*BARE_LOOPS, "tasuki")}
        self.loops: dict[str, BareLoop] = {}

    def begin(self, loop: Training) -> None:
        given = give(loop)
        self.loops = {name: kind(given) for name, kind in BARE_LOOPS.items()}

    def after_chunk(self, taken: Taken) -> None:
        self.costs["tasuki"].append(taken)
        for name, bare in self.loops.items():
            self.costs[name].append(bare.run_chunk())


def measure_whole(bench: Bench, *, steps: int = STEPS) -> tuple[dict[str, Taken], dict[str, bool]]:
    """Per step, by loop: the time, and whether the final weights are the bare loop's."""
    costs, equal = _train(bench, steps)
    means = {
        name: Taken(sum(t.wall_s for t in taken) / steps, sum(t.cpu_s for t in taken) / steps)
        for name, taken in costs.items()
    }
    return means, equal


def measure_larger() -> tuple[list[tuple[dict[str, Taken], dict[str, bool]]], Spread]:
    """Per step: each chunk but the first of a run against the bare loops' beside it. And what the
    first one takes over a bare one, in seconds of CPU time: the memory of two steps is measured in
    it, once in an attempt, which a run of 200 steps would show and a real one does not."""
    later, once = [], []
    with open_bench(LARGER) as bench:
        for _ in rounds_within(LARGER_BUDGET_S, most=ROUNDS):
            costs, equal = _train(bench, LARGER_STEPS)
            once.append(costs["tasuki"][0].cpu_s - costs["bare"][0].cpu_s)
            for number in range(1, LARGER_STEPS // CHUNK):
                chunk = {name: taken[number] for name, taken in costs.items()}
                per_step = {n: Taken(t.wall_s / CHUNK, t.cpu_s / CHUNK) for n, t in chunk.items()}
                later.append((per_step, equal))
    return later, spread(once)


def _train(bench: Bench, steps: int) -> tuple[Costs, dict[str, bool]]:
    """What each chunk took, by loop; whether the final weights are the bare loop's."""
    gc.collect()
    turns = WithBareLoops()
    weights: dict[str, Weights] = {"tasuki": bench.train(steps, turns)}
    weights |= {name: bare.model.state_dict() for name, bare in turns.loops.items()}
    equal = {name: is_equal(found, weights["bare"]) for name, found in weights.items()}
    return turns.costs, equal


def _whole(rounds: list[tuple[dict[str, Taken], dict[str, bool]]]) -> dict[str, dict[str, Any]]:
    found = {}
    for name in (*BARE_LOOPS, "tasuki"):
        own, bare = ([means[n] for means, _ in rounds] for n in (name, "bare"))
        found[name] = {
            "wall": _compare([t.wall_s for t in own], [t.wall_s for t in bare]),
            "cpu": _compare([t.cpu_s for t in own], [t.cpu_s for t in bare]),
            "is_bitwise_equal": all(equal[name] for _, equal in rounds),
        }
    return found


def _count() -> dict[str, dict[str, float] | None]:
    return {"tiny": count_instructions(TINY), "larger": count_instructions(LARGER)}


def _compare(values: list[float], baseline: list[float]) -> dict[str, Spread]:
    return {
        "step_s": spread(values),
        "added_s": differences(values, baseline),
        "ratio": ratios(values, baseline),
    }


# -- beside other tools -----------------------------------------------------------------------


def beside_tools(python: Path) -> dict[str, dict[str, Spread]]:
    """The same step by each tool, in processes that take turns on one core."""
    with tempfile.TemporaryDirectory(prefix="tasuki-bench-") as name, contextlib.ExitStack() as end:
        log = Path(name) / "log"
        workers = {}
        for tool in TOOLS:
            used = sys.executable if tool == "tasuki" else python
            workers[tool] = Worker(used, "_step_tools.py", tool, name, log=log)
            end.callback(workers[tool].close)
        for worker in workers.values():
            worker.ask()  # imports, first steps
        rounds = run_interleaved({tool: w.ask for tool, w in workers.items()}, rounds=TURNS)
    bare = [taken["cpu_s"] for taken in rounds[BARE]]
    return {
        tool: _compare([taken["cpu_s"] for taken in found], bare) for tool, found in rounds.items()
    }


# -- parts of the overhead: the real loop with one thing taken out -------------------------------


class WithoutParts(Turns):
    """Each chunk lacks another part, in an order shuffled anew when all have had their turn.

    In a fixed order a part's place in it would be measured too: after which other one it comes.
    """

    def __init__(self, uses: Counter[str] | None = None) -> None:
        self.costs: Costs = {}
        self._uses = uses
        self._exchanges: dict[str, Exchange] = {}
        self._names: Iterator[str] = iter(())
        self._name = ""
        self._now = contextlib.ExitStack()
        self._bare: BareLoop | None = None

    def begin(self, loop: Training) -> None:
        parts = exchanges(loop, self._uses)
        assert len(parts) == NUM_PARTS
        self._exchanges = {
            "tasuki": lambda _: contextlib.nullcontext(),
            **parts,
            ALL: lambda loop: _together(parts, loop),
        }
        self.costs = {name: [] for name in ("bare", *self._exchanges)}
        self._names = _shuffled_for_ever(list(self.costs), Random(1))
        self._bare = BareLoop(give(loop))

    def before_chunk(self, loop: Training) -> None:
        self._name = next(self._names)
        if self._name == "bare":
            assert self._bare is not None
            self.costs["bare"].append(self._bare.run_chunk())
            self._name = next(self._names)
        self._now.enter_context(self._exchanges[self._name](loop))
        # Chunks begin on multiples of the log period.
        loop._set_boundary()

    def after_chunk(self, taken: Taken) -> None:
        self._now.close()
        self.costs[self._name].append(taken)


@contextlib.contextmanager
def _together(parts: dict[str, Exchange], loop: Training) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for exchange in parts.values():
            stack.enter_context(exchange(loop))
        yield


def _shuffled_for_ever(names: list[str], random: Random) -> Iterator[str]:
    while True:
        # One bare chunk per shuffle, never two in a row: it comes before one of the others.
        others = random.sample(names[1:], len(names) - 1)
        at = random.randrange(len(others))
        yield from [*others[:at], names[0], *others[at:]]


def exchanges(loop: Training, uses: Counter[str] | None = None) -> dict[str, Exchange]:
    """By the name of a part: how it is taken out. `uses` counts the calls of the stand-ins."""
    setup = loop.setup
    shares = [
        share_of_step(setup.order, step, setup.data.split, is_seeded=not IS_PLAIN)
        for step in range(setup.total_steps)
    ]

    def swap(target: Any, name: str, stand_in: Any) -> Exchange:
        def counted(*arguments: Any, **options: Any) -> Any:
            assert uses is not None
            uses[name] += 1
            return stand_in(*arguments, **options)

        if uses is not None:
            uses[name] = 0
        return lambda _: patch.object(target, name, stand_in if uses is None else counted)

    return {
        "random numbers watched": swap(
            ThriftyFetcher, "__call__", lambda self, request: self.fetcher(request, seed=None)
        ),
        "order, seeds' values, split": swap(
            loader, "share_of_step", lambda _, step, *__, **___: shares[step]
        ),
        "learning rate": swap(PureSchedule, "set_for", lambda *_: None),
        "engine: ways of a loss, window": swap(StepEngine, "step", _lean_engine_step),
        "times of a step": swap(Training, "_step", _lean_step),
        "log lines, every 10 steps": lambda loop: patch.object(loop, "_log_period", float("inf")),
        "deterministic algorithms": lambda _: deterministic(False),
    }


def _lean_step(self: Training, batches: Any, num_samples: int, began: float) -> float:
    """`Training._step` without its times."""
    assert self.setup.schedule is not None
    self.setup.schedule.set_for(self.progress.step)
    self.engine.step(batches, num_samples)
    self.progress.step += 1
    self.progress.samples += num_samples
    return began


def _lean_engine_step(self: StepEngine, batches: Any, *_: Any, **__: Any) -> bool:
    """`StepEngine.step` for one micro-batch on one rank, without the window of losses."""
    self._module(next(iter(batches)).data).backward()
    clip_alike(self._parameters, self._clip)
    self._optimizer.step()
    drop(self._parameters)
    return True


def check_exchanges(bench: Bench) -> None:
    """A stand-in for what the loop does not call any more would show 0 µs. Also the warm-up."""
    uses: Counter[str] = Counter()
    bench.train(NUM_KINDS * CHUNK, WithoutParts(uses))
    unused = [name for name, count in uses.items() if not count]
    if unused:
        sys.exit(f"error: tasuki's step loop does not call {', '.join(unused)}: mend `exchanges`")


def measure_parts(bench: Bench) -> dict[str, float]:
    """CPU seconds per step by what was taken out.

    The first quartile of the chunks: neighbours on the machine only ever make a chunk slower.
    """
    gc.collect()
    turns = WithoutParts()
    bench.train(NUM_KINDS * CHUNKS_OF_PART * CHUNK, turns)
    return {
        name: spread([t.cpu_s for t in taken]).low / CHUNK for name, taken in turns.costs.items()
    }


def _parts(rounds: list[dict[str, float]]) -> dict[str, Spread]:
    """What the loop saves without each part, and without all; what it adds to bare even then."""
    names = [name for name in rounds[0] if name not in ("bare", "tasuki")]
    found = {name: spread([r["tasuki"] - r[name] for r in rounds]) for name in names}
    found["the rest: boundaries, agreement, generators"] = spread(
        [r[ALL] - r["bare"] for r in rounds]
    )
    found[ADDED] = spread([r["tasuki"] - r["bare"] for r in rounds])
    return found


# -- showing ----------------------------------------------------------------------------------


def _show(results: dict[str, Any]) -> None:
    whole, parts = results["whole"], results["parts"]
    _show_whole("tiny", whole, STEPS)
    _show_whole("larger", results["larger"], CHUNK)
    once = results["first_chunk_of_larger"]
    print(f"\nonce in an attempt, in its first steps: {once.show(1, scale=1e3)} ms more")
    for name, counts in results["instructions"].items():
        if counts is None:
            print("\ninstructions: not counted, there is no valgrind")
            continue
        ratio = counts["tasuki"] / counts["bare"]
        print(f"\ninstructions of a {name} step: {counts}, ratio {ratio:.4f}")
    if results["tools"]:
        _show_tools(results["tools"])
    rounds = parts[ADDED].rounds
    print_table(
        f"CPU time a step saves without one part: medians of {rounds} rounds [quartiles]",
        ["part", "µs per step"],
        [[name, found.show(1, scale=1e6)] for name, found in parts.items()],
    )


def _show_tools(tools: dict[str, dict[str, Spread]]) -> None:
    print_table(
        f"The tiny step by each tool, CPU time: medians of {TURNS} turns of {STEPS_PER_TURN} steps "
        "[quartiles]; processes take turns on one core",
        ["tool", "µs per step", "added µs", "ratio to bare"],
        [
            [
                name,
                found["step_s"].show(0, scale=1e6),
                found["added_s"].show(0, scale=1e6),
                found["ratio"].show(3),
            ]
            for name, found in tools.items()
        ],
    )


def _show_whole(size: str, whole: dict[str, Any], steps: int) -> None:
    rounds = whole["bare"]["wall"]["step_s"].rounds
    for title, kind in (("wall time", "wall"), ("CPU time", "cpu")):
        print_table(
            f"A {size} step, {title}: medians of {rounds} rounds of {steps} steps [quartiles]; "
            f"the loops take turns every {CHUNK} steps",
            ["loop", "µs per step", "added µs", "ratio to bare", "final weights"],
            [
                [
                    name,
                    found[kind]["step_s"].show(0, scale=1e6),
                    found[kind]["added_s"].show(0, scale=1e6),
                    found[kind]["ratio"].show(3),
                    "same bits" if found["is_bitwise_equal"] else "DIFFER",
                ]
                for name, found in whole.items()
            ],
        )


if __name__ == "__main__":
    sys.exit(main())

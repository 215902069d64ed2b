"""`log`: what `run.log(loss=loss)` costs a custom loop, with it and without in turns.

In CPU time, as the machine may be busy; the lines that are written every ten steps are included.
The loss is a tensor with a graph. A part of use.py.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

import tasuki
from _measure import Figure, differences, run_interleaved, sized, spread

NUM_STEPS, ROUNDS = sized((4_000, 45), smoke=(50, 1))
GOAL_US = 3.0


def measure(folder: Path) -> list[Figure]:
    with contextlib.chdir(folder):
        loss = torch.ones(1, requires_grad=True).sum()
        model = torch.nn.Linear(1, 1)
        run = tasuki.open_run("log", log_every=10)
        run.track(model=model)
        with run:
            steps = run.steps(2 * NUM_STEPS * (ROUNDS + 1))
            cases = {
                "empty": lambda: _time_steps(steps, lambda: None),  # calling it is the loop's cost
                "logged": lambda: _time_steps(steps, lambda: run.log(loss=loss)),
                "call": lambda: _time_calls(lambda: run.log(loss=loss)),
            }
            taken = run_interleaved(cases, rounds=ROUNDS)
            run.finish()
    in_loop = differences(taken["logged"], taken["empty"], scale=1e6)
    alone = spread(taken["call"], scale=1e6)
    return [
        Figure("`run.log(loss=loss)` in a loop", "the loop without", in_loop, "µs", GOAL_US),
        Figure("… the call alone", "", alone, "µs", GOAL_US),
    ]


def _time_steps(steps: Iterator[object], act: Callable[[], None]) -> float:
    """CPU seconds of a step."""
    started = time.thread_time()
    for _ in range(NUM_STEPS):
        next(steps)
        act()
    return (time.thread_time() - started) / NUM_STEPS


def _time_calls(log: Callable[[], None]) -> float:
    """CPU seconds of a call."""
    started = time.thread_time()
    for _ in range(NUM_STEPS):
        log()
    return (time.thread_time() - started) / NUM_STEPS

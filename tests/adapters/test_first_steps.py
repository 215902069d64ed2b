"""What a loop of one's own does wrong in silence is said in its first steps, and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from tasuki.integrations.first_steps import FirstSteps
from tasuki.loop.things import Things


class Loop:
    """A loop that calls `each(loop)` in each step; `told` is what it hears."""

    def __init__(self, *, began_at: int = 0, uneven: str = "", **tracked: Any) -> None:
        self.model = nn.Linear(6, 1)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        things = Things()
        for name, thing in (tracked or {"model": self.model, "opt": self.optimizer}).items():
            things.add(name, thing)
        self.began_at = self.step = began_at
        self.things, self.uneven, self.told = things, uneven, list[str]()

    def go(self, steps: int, each: Any = lambda loop: None, *, accumulation: int = 1) -> list[str]:
        self.first = FirstSteps(
            self.things,
            step=self.began_at,
            accumulation=accumulation,
            uneven=self.uneven,
            now_at=lambda: self.step,
            say=self.told.append,
        )
        for _ in range(steps):
            each(self)
            self.step += 1
            if self.step == self.first.look_at:
                self.first.look()
        self.first.end()
        return self.told

    def learn(self) -> None:
        self.model(torch.ones(2, 6)).sum().backward()
        self.optimizer.step()


def in_a_loop_of_its_own(loop: Loop) -> None:
    """An optimizer made again in each step has no state to lose."""
    torch.optim.Adam([torch.zeros(2, requires_grad=True)]).step()
    loop.learn()


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("model sched", "an optimizer (SGD) trains `model` and is not tracked"),
        ("opt sched", "optimizer (SGD) trains 2 parameters that no tracked"),
        ("model opt", "a scheduler sets the learning rate of the tracked optimizer"),
        ("model opt sched", ""),
        ("wrapper", ""),
    ],
)
def test_what_trains_and_is_not_tracked_is_said_once(names, words):
    class Wrapper:
        def __init__(self, *parts: Any) -> None:
            self.parts = self.model, self.opt, self.sched = parts

        def state_dict(self) -> dict[str, Any]:
            return {str(i): part.state_dict() for i, part in enumerate(self.parts)}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise NotImplementedError

    loop = Loop()
    sched = torch.optim.lr_scheduler.StepLR(loop.optimizer, 5)
    things = {"model": loop.model, "opt": loop.optimizer, "sched": sched}
    things["wrapper"] = Wrapper(*things.values())
    loop.things = Things()
    for name in names.split():
        loop.things.add(name, things[name])
    told = loop.go(12, in_a_loop_of_its_own)
    assert [words in line for line in told] == [True] * bool(words), told


def as_compiled(loop: Loop) -> None:
    """A compiled step may call no hook."""
    torch._foreach_sub_([p.detach() for p in loop.model.parameters()], 0.1)


@pytest.mark.parametrize(
    ("steps", "accumulation", "each", "num"),
    [
        (12, 1, lambda loop: None, 10),
        (6, 1, lambda loop: None, 6),
        (27, 2, lambda loop: None, 20),
        (27, 1, lambda loop: loop.learn() if loop.step == 5 else None, None),
        (12, 12, lambda loop: loop.learn() if loop.step == 11 else None, None),
        (15, 1, as_compiled, None),
    ],
    ids=["10", "at the end", "accumulation", "one", "the last of 12", "compiled"],
)
def test_a_tracked_optimizer_that_never_steps_is_told_of_once(steps, accumulation, each, num):
    told = Loop().go(steps, each, accumulation=accumulation)
    assert len(told) == (num is not None), told
    for line in told:
        assert f"WARNING: the tracked `opt` (SGD) has not stepped in {num} steps" in line
        assert "is `opt.step()` in the loop?" in line


@pytest.mark.parametrize(("began_at", "num_told"), [(0, 1), (50, 0)])
def test_a_second_optimizer_is_told_of_only_where_it_never_steps_in_an_attempt_from_the_start(
    began_at, num_told
):
    loop = Loop(began_at=began_at)
    seldom, never = (torch.optim.SGD([nn.Parameter(torch.ones(2))]) for _ in range(2))
    weights = [one.param_groups[0]["params"][0] for one in (seldom, never)]
    loop.things.add("net", nn.ParameterList(weights))
    loop.things.add("seldom", seldom)
    loop.things.add("never", never)

    def each(loop: Loop) -> None:
        loop.learn()
        if loop.step == 50:
            seldom.step()

    told = loop.go(105, each)
    assert len(told) == num_told, told
    assert all("`never` (SGD) has not stepped in 100 steps" in line for line in told), told


@pytest.mark.parametrize("has_weighed", [False, True])
def test_a_loop_with_uneven_shares_that_does_not_weigh_its_loss_is_told_so_once(has_weighed):
    def each(loop: Loop) -> None:
        loop.first.has_weighed = has_weighed
        loop.learn()

    told = Loop(uneven="a smaller batch of 3 samples does not share out evenly").go(12, each)
    assert len(told) == (not has_weighed)
    assert all("`loss = loss_fn(model(x), y) * run.weight`" in line for line in told)

"""What trains in a loop and is in no checkpoint: said once, aloud, when the loop begins.

A resume would put the rest back and go on, in silence, as another training. Parameters and
schedulers are seen before the first step. An optimizer is seen when it steps, by a hook of torch on
all of them that lives for the first steps only, so that later ones cost nothing. One that steps
only once is somebody's inner loop, made anew each time, and has no state to lose.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.hooks import RemovableHandle

from tasuki.loop.things import Things

LISTENS_STEPS = 100
"""A second optimizer may step every few steps only."""


class Untracked:
    """Of one loop."""

    def __init__(self, things: Things, *, say: Callable[[str], None]) -> None:
        self._say = say
        known = list({id(thing): thing for thing in _within(things)}.values())
        self._optimizers = [thing for thing in known if isinstance(thing, Optimizer)]
        self._has_scheduler = any(isinstance(thing, LRScheduler) for thing in known)
        self._names = dict(_named_parameters(things))
        modules = [thing for thing in known if isinstance(thing, nn.Module)]
        self._tensors = {id(p) for module in modules for p in module.parameters()}
        self._tensors |= {id(thing) for thing in known if isinstance(thing, Tensor)}
        self._stepped_at: WeakKeyDictionary[Optimizer, int] = WeakKeyDictionary()
        self._hook: RemovableHandle | None = None
        self._has_told = False

    def look(self) -> None:
        """Before the first step: what tracked optimizers work with."""
        for optimizer in self._optimizers:
            kind = type(optimizer).__name__
            if missing := [p for p in _parameters(optimizer) if id(p) not in self._tensors]:
                count = f"{len(missing)} parameter{'s' if len(missing) > 1 else ''}"
                self._warn(
                    f"the tracked optimizer ({kind}) trains {count} that no tracked model has",
                    "model=model",
                )
            if hasattr(optimizer.step, "_wrapped_by_lr_sched") and not self._has_scheduler:
                self._warn(
                    f"a scheduler sets the learning rate of the tracked optimizer ({kind}), and is "
                    "not tracked itself",
                    "scheduler=scheduler",
                )

    def listen(self, step: Callable[[], int]) -> None:
        """To all optimizers, until `stop`; `step` tells how far the loop is."""

        def hear(optimizer: Optimizer, *_: Any) -> None:
            if self._has_told or any(optimizer is known for known in self._optimizers):
                return
            if self._stepped_at.setdefault(optimizer, step()) != step():
                self._tell(optimizer)

        self._hook = register_optimizer_step_post_hook(hear)

    def stop(self) -> None:
        if self._hook is not None:
            self._hook.remove()
            self._hook = None

    def _tell(self, optimizer: Optimizer) -> None:
        self._has_told = True
        names = {self._names.get(id(p)) for p in _parameters(optimizer)} - {None}
        whose = f"`{min(map(str, names))}`" if names else "parameters that are not tracked either"
        kind = type(optimizer).__name__
        self._warn(
            f"an optimizer ({kind}) trains {whose} and is not tracked", "optimizer=optimizer"
        )

    def _warn(self, what: str, argument: str) -> None:
        self._say(
            f"WARNING: {what}: no checkpoint holds it, and a run that is interrupted goes on "
            f"without what it had learnt; add run.track({argument}) before run.steps, and begin "
            "another run"
        )


def _within(things: Things) -> Iterator[Any]:
    """What is tracked, and what that is made of: a wrapper answers for what it wraps. The states of
    modules and schedulers leave out what else hangs on them, such as an optimizer."""
    for _, thing in things.items():
        yield thing
        if isinstance(thing, dict):
            yield from thing.values()
        elif not isinstance(thing, nn.Module | LRScheduler):
            yield from getattr(thing, "__dict__", {}).values()


def _named_parameters(things: Things) -> Iterator[tuple[int, str]]:
    for name, thing in things.items():
        if isinstance(thing, nn.Module):
            yield from ((id(parameter), name) for parameter in thing.parameters())


def _parameters(optimizer: Optimizer) -> Iterable[Tensor]:
    return (p for group in optimizer.param_groups for p in group["params"] if p.requires_grad)

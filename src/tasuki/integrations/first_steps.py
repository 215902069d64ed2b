"""What the first steps of a loop show about it, and what is said then: nothing later costs a step.

Who writes a loop hears here what would otherwise go wrong in silence: something trains and is not
tracked (untracked.py), what is tracked does not train, or ranks of unlike shares count alike.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from torch.optim import Optimizer

from tasuki.integrations.untracked import LISTENS_STEPS, Untracked
from tasuki.loop.things import Things

IDLE_STEPS = 10
"""Of the optimizer: in so many at least one of those that are tracked steps."""


class FirstSteps:
    """Of one attempt; from the step on which it goes on."""

    def __init__(
        self,
        things: Things,
        *,
        step: int,
        accumulation: int,
        uneven: str,
        now_at: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        """`uneven`: what is so about the shares of ranks."""
        self._began_at, self._uneven, self._say = step, uneven, say
        self._now_at = now_at
        self.has_weighed = False
        """Has the loop asked for `run.weight`?"""
        self._untracked = Untracked(things, say=say)
        self._untracked.look()
        self._untracked.listen(now_at)
        self._idle = _Idle(things)
        self._looks = [
            (step + accumulation, self._look_at_weight),
            (step + IDLE_STEPS * accumulation, self._look_whether_any_steps),
            (step + max(LISTENS_STEPS, IDLE_STEPS * accumulation), self._look_last),
        ]
        self.look_at = self._looks[0][0]
        """The number of steps that are done when it is time."""

    def look(self) -> None:
        while self._looks and self._looks[0][0] <= self._now_at():
            self._looks.pop(0)[1]()
        self.look_at = self._looks[0][0] if self._looks else -1

    def end(self) -> None:
        """The loop is through, maybe before all was looked at; what it has not done in an attempt
        that only ends it shows nothing."""
        if self._began_at == 0:
            for _, look in self._looks:
                look()
        self.stop()

    def stop(self) -> None:
        self._looks, self.look_at = [], -1
        self._untracked.stop()
        self._idle.stop()

    def _look_at_weight(self) -> None:
        if self._uneven and not self.has_weighed:
            self._say(
                f"WARNING: {self._uneven}, and DDP averages ranks as if it did: scale the loss, "
                "`loss = loss_fn(model(x), y) * run.weight`, or choose a `batch_size` that divides "
                "the samples"
            )

    def _look_whether_any_steps(self) -> None:
        if self._idle.are_all():
            self._tell_idle()

    def _look_last(self) -> None:
        if self._began_at == 0:  # else one that steps seldom may have done so before
            self._tell_idle()
        self.stop()

    def _tell_idle(self) -> None:
        num = self._now_at() - self._began_at
        many = f"{num} steps" if num != 1 else "a step"
        for name, kind in self._idle.take():
            self._say(
                f"WARNING: the tracked `{name}` ({kind}) has not stepped in {many}, and so "
                f"has learnt nothing: is `{name}.step()` in the loop?"
            )


class _Idle:
    """Tracked optimizers that have not stepped. A compiled step may call no hook: what it has
    changed is seen by the version of a tensor."""

    def __init__(self, things: Things) -> None:
        found = [(name, thing) for name, thing in things.items() if isinstance(thing, Optimizer)]
        self._left, self._num = dict(found), len(found)
        self._versions = {name: _version(one) for name, one in found}
        self._hooks = [
            one.register_step_post_hook(partial(self._hear, name)) for name, one in found
        ]

    def are_all(self) -> bool:
        return self._num == len(self._idle())

    def take(self) -> list[tuple[str, str]]:
        """Their names and kinds; once."""
        found, self._left = self._idle(), {}
        return [(name, type(one).__name__) for name, one in found.items()]

    def stop(self) -> None:
        while self._hooks:
            self._hooks.pop().remove()

    def _idle(self) -> dict[str, Optimizer]:
        left = self._left.items()
        return {name: one for name, one in left if _version(one) == self._versions[name]}

    def _hear(self, name: str, *_: Any) -> None:
        self._left.pop(name, None)


def _version(optimizer: Optimizer) -> int:
    """Of all that it works with; grows whenever something of it is changed."""
    parameters = (p for group in optimizer.param_groups for p in group["params"])
    return sum(p._version for p in parameters if not p.is_inference())

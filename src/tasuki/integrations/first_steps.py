"""What the first steps of a loop show about it, and what is said then: nothing later costs a step.

Who writes a loop hears here what would otherwise go wrong in silence: something trains and is not
tracked (untracked.py), or ranks of unlike shares count alike. Called by run.py, which compares
`look_at` with the steps that are done, and looks when it is reached.
"""

from __future__ import annotations

from collections.abc import Callable

from tasuki.integrations.untracked import LISTENS_STEPS, Untracked
from tasuki.runtime.things import Things


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
        self._looks = [
            (step + accumulation, self._look_at_weight),
            (step + max(LISTENS_STEPS, accumulation), self._untracked.stop),
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

    def _look_at_weight(self) -> None:
        if self._uneven and not self.has_weighed:
            self._say(
                f"WARNING: {self._uneven}, and DDP averages ranks as if it did: scale the loss, "
                "`loss = loss_fn(model(x), y) * run.weight`, or choose a `batch_size` that divides "
                "the samples"
            )

"""What every start tells and asks, recipe or not."""

from __future__ import annotations

import contextlib
from typing import Any

from tasuki.checkpoint.manifest import Manifest
from tasuki.errors import StoreError
from tasuki.estimate.intervals import SaveCost
from tasuki.runtime.exact import what_differs
from tasuki.runtime.worker import Worker
from tasuki.telemetry.view import last_save_s


def cost_before(worker: Worker) -> SaveCost | None:
    """So that a resumed attempt knows how long a save takes before it makes one."""
    told = None
    with contextlib.suppress(StoreError):
        told = last_save_s(worker.run, before=worker.claim)
    if told is None:
        return None
    worker.watch.save_s.append(told[1])
    return SaveCost(blocked_s=told[0], total_s=told[1])


def say_differences(worker: Worker, facts: dict[str, Any], *, world: int) -> None:
    """`world`: as it was when the checkpoint was made. Stages of a run may have their own."""
    if not worker.stage.exact:
        return
    changed = what_differs(worker.run, facts, world=world)
    if changed:
        told = "; ".join(changed)
        worker.say(
            f"WARNING: not as at the first start ({told}): from here on the same samples, but "
            "numbers only close, not bit for bit"
        )
        worker.event("inexact", changed=changed)


def say_resuming(worker: Worker, manifest: Manifest) -> None:
    at = manifest.position
    worker.say(
        f"Resuming from epoch {at.epoch} step {at.stage_step} (sample {at.samples}) of stage "
        f"{at.stage}, attempt {worker.claim}"
    )

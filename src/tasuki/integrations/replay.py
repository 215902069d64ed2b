"""The last steps once more, where a loop's steps are all done and what follows them is not.

A script may need what its loop's body has set (`run.finish({"loss": loss.item()})`), and an attempt
that goes on from the last checkpoint would enter no body. So a loop is also saved before its last
step, and such an attempt goes through that one again; then the last checkpoint is restored, which
stays the truth: nothing of what is repeated is written, saved or counted as progress. Where that
save failed or is damaged, the steps from the newest good checkpoint before it are.
"""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

from tasuki.checkpoint.lineage import lineage
from tasuki.checkpoint.verify import read_manifest, verify
from tasuki.errors import DamagedCheckpoint
from tasuki.loop.worker import Worker

_DECIDE_WITHIN = timedelta(minutes=30)
_KEY = "tasuki/replay"


def agree_on_replay(worker: Worker, end: str) -> str | None:
    """The checkpoint before the last step; None: there is none. Rank 0 looks, the others hear."""
    store = worker.ranks.store
    if worker.is_first:
        found = _find_before(worker, end)
        if store is not None:
            store.set(_KEY, json.dumps(found))
        return found
    assert store is not None
    store.wait([_KEY], _DECIDE_WITHIN)
    told: str | None = json.loads(store.get(_KEY))
    return told


def _find_before(worker: Worker, end: str) -> str | None:
    """The newest good one of this stage before `end`."""
    for name in lineage(worker.run, head=end)[1:]:
        path = worker.run.checkpoints / name
        try:
            if read_manifest(path).position.stage != worker.stage.name:
                return None
            verify(path)
        except DamagedCheckpoint as error:
            worker.say(f"WARNING: a checkpoint before the last step is damaged: {error}")
            continue
        return name
    return None


def is_open_end(worker: Worker, name: str, told: dict[str, Any]) -> bool:
    """Are all steps done in this checkpoint, and is what follows them not? `told`: its progress."""
    is_end = read_manifest(worker.run.checkpoints / name).position.is_end
    return is_end and told.get("finished") is None


def say_replaying(worker: Worker, end: str, count: int) -> None:
    last = "the last one is" if count == 1 else f"the last {count:,} are"
    worker.say(
        f"All steps were done ({end}): {last} repeated, for what follows the loop, and then left "
        "as saved"
    )

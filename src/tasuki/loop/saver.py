"""Commit checkpoints from all ranks, beside the training.

At a step boundary every rank copies its state to host memory (`begin`) and trains on. A thread of
each rank writes its part; rank 0's publishes when all parts are there. One save at a time: who asks
for a second waits for the first. How a save ended is told at the next step boundary (`news`).

`hold` only copies. Where a step outlasts the notice, the watch commits what was held last
(`publish_held`) while the step still runs.
"""

from __future__ import annotations

import contextlib
import json
import threading
import traceback
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import Any

from torch import Tensor
from torch.distributed import DistStoreError, Store

from tasuki.checkpoint.codec import encode
from tasuki.checkpoint.commit import Checkpoint, discard_draft, open_draft, publish
from tasuki.checkpoint.frozen import FrozenParameters, store_frozen
from tasuki.checkpoint.host import HostBuffer, HostImage
from tasuki.checkpoint.manifest import Position
from tasuki.checkpoint.parts import write_held
from tasuki.checkpoint.records import FileRecord
from tasuki.checkpoint.retention import make_room, quarantine
from tasuki.checkpoint.verify import verify_from_disk
from tasuki.clock import Clock
from tasuki.data.used import Used
from tasuki.errors import (
    CheckpointError,
    ClaimLost,
    DamagedCheckpoint,
    DiskFull,
    NotFinite,
    RunError,
    StoreError,
    TasukiError,
)
from tasuki.failpoints import failpoint
from tasuki.runs.atomic import translated
from tasuki.runs.runs import RunFolder

_PARTS_WITHIN = timedelta(minutes=30)
_GIVEN_UP_WITHIN = timedelta(seconds=5)
_HELD_WITHIN = timedelta(seconds=2)
_HELD_AT_WITHIN = timedelta(seconds=8)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Order:
    """A state that was copied, and all that its checkpoint says beside it."""

    position: Position
    facts: dict[str, Any]
    used: Used | None
    """Which samples this rank used; summed over all ranks for the manifest."""
    image: HostImage
    frozen: Mapping[str, Tensor]
    buffer: int
    round: str
    """Names the save between the ranks."""
    blocked_s: float
    begun_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Saved:
    """How a save ended."""

    position: Position
    name: str | None = None
    """Of the checkpoint: it is durable."""
    error: BaseException | None = None
    """Why there is none."""
    blocked_s: float
    total_s: float
    """From the step boundary until it was durable."""
    size: int
    """Bytes of this rank's part."""


class Saver:
    """The writing side of checkpoints for one attempt."""

    def __init__(
        self,
        run: RunFolder,
        *,
        claim: int,
        clock: Clock,
        rank: int = 0,
        world: int = 1,
        connect: Callable[[], Store] | None = None,
        is_pinned: bool = False,
        after: Callable[[Checkpoint, Saved], None] = lambda _checkpoint, _saved: None,
    ) -> None:
        """`connect` gives a connection to the ranks' key-value store; `after` is called by rank
        0's thread when a checkpoint is durable."""
        self._run, self._claim, self._clock = run, claim, clock
        self._rank, self._world = rank, world
        self._store = connect() if connect is not None and world > 1 else None
        self.before: Callable[[], None] = lambda: None
        """Make what a checkpoint counts on durable: rank 0's thread does this first."""
        self.after = after
        self.parent: str | None = None
        """The last checkpoint of this lineage."""
        self.frozen: FrozenParameters | None = None
        self.must_be_finite: Callable[[str], bool] = lambda _name: False
        """Of tensors by name; a state in which one of them is not finite is not committed."""
        self.news: Saved | None = None
        """The last save that ended, until somebody takes it."""
        self.is_hurried: Callable[[], bool] = lambda: False
        """The end is near: nothing is read back."""
        self.committed: Saved | None = None
        """The last one that is durable."""
        self._buffers = [HostBuffer(is_pinned=is_pinned) for _ in range(2)]
        self._held: deque[_Order] = deque(maxlen=2)
        self._thread: threading.Thread | None = None
        self._current: _Order | None = None
        self._count = 0
        self._has_read_back = False
        self._lock = threading.Lock()
        """Held by whoever fills or picks a buffer: the loop, or the watch that publishes."""

    # -- the training loop --------------------------------------------------------------------

    @property
    def host_bytes(self) -> int:
        """Taken for the copies that saves are written from."""
        return sum(buffer.size for buffer in self._buffers)

    @property
    def is_busy(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def begin(
        self,
        position: Position,
        state: dict[str, Any],
        *,
        facts: dict[str, Any],
        used: Used | None = None,
    ) -> float:
        """Returns when the state is copied, with the seconds that took; the commit goes on by
        itself. `facts` are rank 0's.
        """
        failpoint("save.begin")
        began = self._clock.monotonic()
        self._join()
        with self._lock:
            self._count += 1
            name = str(self._count)
            order = self._copy(position, state, facts, used, began=began, round_name=name)
            self._held.clear()
            self._current = order
        failpoint("save.copied")
        self._thread = threading.Thread(
            target=self._work_aside, args=(order,), name=f"tasuki-save-{name}", daemon=True
        )
        self._thread.start()
        return order.blocked_s

    def hold(
        self,
        position: Position,
        state: dict[str, Any],
        *,
        facts: dict[str, Any],
        used: Used | None = None,
    ) -> float:
        """Copy only: for `publish_held`. Returns the seconds it took."""
        with self._lock:
            now = self._clock.monotonic()
            order = self._copy(position, state, facts, used, began=now, round_name="held")
            self._held.append(order)
        return order.blocked_s

    def drop_held(self, step: int | None = None) -> None:
        """What was held at this step (None: at any) is no longer what may be committed. Does not
        come back while the watch publishes it."""
        with self._lock:
            kept = [o for o in self._held if step is not None and o.position.stage_step != step]
            self._held = deque(kept, maxlen=2)

    def wait(self) -> Saved | None:
        """Until nothing is in flight; how the last save ended, if nobody took that yet."""
        self._join()
        return self.take_news()

    def take_news(self) -> Saved | None:
        news, self.news = self.news, None
        return news

    def wait_for(self, within_s: float) -> None:
        """Until nothing is in flight, or so long: before leaving in a hurry."""
        thread = self._thread
        if thread is not None:
            thread.join(max(0.0, within_s))

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
            self._current = None

    def _copy(
        self,
        position: Position,
        state: dict[str, Any],
        facts: dict[str, Any],
        used: Used | None,
        *,
        began: float,
        round_name: str,
    ) -> _Order:
        apart = self.frozen.addresses() if self.frozen is not None else frozenset()
        encoded = encode(state, frozen=apart)
        number = self._free_buffer()
        image = self._buffers[number].hold(encoded)
        now = self._clock.monotonic()
        return _Order(
            position=position,
            facts=facts,
            used=used,
            image=image,
            frozen=encoded.frozen,
            buffer=number,
            round=round_name,
            blocked_s=now - began,
            begun_at=began,
        )

    def _free_buffer(self) -> int:
        """Not the one that is being written, and rather not the one that was held last."""
        writing = self._current.buffer if self._current is not None and self.is_busy else None
        newest = self._held[-1].buffer if self._held else None
        free = [number for number in (0, 1) if number not in (writing, newest)]
        if not free:  # what is being written is as good as what was held
            free = [number for number in (0, 1) if number != writing]
        while self._held and self._held[0].buffer == free[0]:
            self._held.popleft()
        return free[0]

    # -- what was held ------------------------------------------------------------------------

    @property
    def held_step(self) -> int | None:
        return self._held[-1].position.stage_step if self._held else None

    def publish_held(self, *, within_s: float) -> Saved | None:
        """From the watch's thread, while a step runs: commit the last state that all ranks hold.

        A save in flight is waited for first, and may be all that is needed. None: nothing new can
        be made durable. The loop stands still meanwhile, should it come to a boundary.
        """
        with self._lock:
            self.wait_for(within_s)
            if self.is_busy:
                return None
            at = self._agree_on_held()
            if at is None or (self.committed and at == self.committed.position.stage_step):
                return self.committed
            order = next(o for o in reversed(self._held) if o.position.stage_step == at)
            return self._work(order)

    def _agree_on_held(self) -> int | None:
        """The newest step that every rank holds, or that is committed."""
        done = self.committed.position.stage_step if self.committed else None
        steps = {order.position.stage_step for order in self._held}
        steps |= {done} if done is not None else set()
        if self._store is None:
            return max(steps, default=None)
        self._store.set(f"tasuki/held/{self._rank}", json.dumps(sorted(steps)))
        if self._rank == 0:
            try:
                for rank in range(1, self._world):
                    self._store.wait([f"tasuki/held/{rank}"], _HELD_WITHIN)
                    steps &= set(json.loads(self._store.get(f"tasuki/held/{rank}")))
            except DistStoreError:
                steps = set()
            self._store.set("tasuki/held/at", json.dumps(max(steps, default=None)))
        try:
            self._store.wait(["tasuki/held/at"], _HELD_AT_WITHIN)
        except DistStoreError:
            return None
        at: int | None = json.loads(self._store.get("tasuki/held/at"))
        return at

    # -- the thread ---------------------------------------------------------------------------

    def _work_aside(self, order: _Order) -> None:
        self.news = self._work(order)

    def _work(self, order: _Order) -> Saved:
        checkpoint: Checkpoint | None = None
        name, error = None, None
        try:
            if self._rank == 0:
                checkpoint = self._lead(order)
                name = checkpoint.name
            else:
                name = self._follow(order)
        except BaseException as caught:  # told at the next step boundary, whatever it is
            error = caught
        saved = Saved(
            position=order.position,
            name=name,
            error=error,
            blocked_s=order.blocked_s,
            total_s=self._clock.monotonic() - order.begun_at,
            size=order.image.size,
        )
        if name is not None:
            self.parent, self.committed = name, saved
        return saved if checkpoint is None else self._finish(checkpoint, saved)

    def _finish(self, checkpoint: Checkpoint, saved: Saved) -> Saved:
        """Pruning and telling. What fails here does not undo the commit; a lost claim ends us."""
        try:
            self.after(checkpoint, saved)
        except ClaimLost as error:
            return replace(saved, name=None, error=error)
        except Exception:
            traceback.print_exc()
        return saved

    def _lead(self, order: _Order) -> Checkpoint:
        draft: Path | None = None
        try:
            self.before()
            self._refuse_not_finite(order)
            make_room(self._run, claim=self._claim, need=order.image.size)
            frozen = self._store_frozen(order)
            draft = open_draft(self._run, claim=self._claim, position=order.position)
            self._tell(order, "draft", {"name": draft.name})
            with translated(draft):
                failpoint("save.draft")
                records = write_held(draft, 0, order.image)
                failpoint("save.written")
            used = order.used
            for rank in range(1, self._world):
                part, theirs = self._hear_part(order, rank)
                records += part
                used = used + theirs if used is not None and theirs is not None else None
            facts = order.facts if used is None else {**order.facts, "used": used.to_json()}
            checkpoint = self._publish(order, draft, records, frozen, facts)
            self._read_back(checkpoint)
        except BaseException as error:
            self._tell(order, "draft", _failure(error))
            self._tell(order, "committed", _failure(error))
            if draft is not None:
                self._await_parts(order)
                discard_draft(draft)
            raise
        self._tell(order, "committed", {"name": checkpoint.name})
        return checkpoint

    def _publish(
        self,
        order: _Order,
        draft: Path,
        records: list[FileRecord],
        frozen: list[FileRecord],
        facts: dict[str, Any],
    ) -> Checkpoint:
        return publish(
            self._run,
            draft,
            position=order.position,
            claim=self._claim,
            parent=self.parent,
            world=self._world,
            records=records,
            frozen=frozen,
            facts=facts,
            created_at=self._clock.wall(),
        )

    def _refuse_not_finite(self, order: _Order) -> None:
        name = order.image.first_not_finite(self.must_be_finite)
        if name is not None:
            at = order.position
            what = "the loss" if name.startswith("rank.") else name.removeprefix("shared.model.")
            raise NotFinite(
                f"{what} is NaN or infinite at or before step {at.stage_step} of stage `{at.stage}`"
            )

    def _store_frozen(self, order: _Order) -> list[FileRecord]:
        """Once per attempt: they are the same until one of them changes, which then goes apart."""
        if not order.frozen:
            return []
        assert self.frozen is not None
        if self.frozen.record is None:
            self.frozen.record = store_frozen(self._run, order.frozen)
        return [self.frozen.record]

    def _read_back(self, checkpoint: Checkpoint) -> None:
        """The first save of an attempt is read again from the disk: a bad one shows now."""
        if self._has_read_back or self.is_hurried():
            return
        try:
            verify_from_disk(checkpoint.path)
        except DamagedCheckpoint as error:
            quarantine(self._run, checkpoint.name, claim=self._claim)
            self.frozen = None  # its file may be to blame: from now on all goes into the part
            raise StoreError(
                f"{checkpoint.name} came back from the disk as something else: {error}",
                hint="the disk or its file system loses what it was given; use another one",
            ) from error
        self._has_read_back = True

    def _follow(self, order: _Order) -> str:
        told = self._hear(order, "draft")
        try:
            draft = _checked(told)
            self._refuse_not_finite(order)
            with translated(self._run.checkpoints):
                records = write_held(self._run.checkpoints / draft["name"], self._rank, order.image)
                failpoint("save.written")
        except BaseException as error:
            self._tell(order, f"part/{self._rank}", _failure(error))
            raise
        used = order.used.to_json() if order.used is not None else None
        part = {"records": [r.to_json() for r in records], "used": used}
        self._tell(order, f"part/{self._rank}", part)
        return str(_checked(self._hear(order, "committed"))["name"])

    # -- between the ranks --------------------------------------------------------------------

    def _hear_part(self, order: _Order, rank: int) -> tuple[list[FileRecord], Used | None]:
        value = _checked(self._hear(order, f"part/{rank}"))
        records = [FileRecord.from_json(record) for record in value["records"]]
        return records, Used.from_json(value["used"]) if value["used"] is not None else None

    def _await_parts(self, order: _Order) -> None:
        """Until nobody writes any more into a draft that is given up: a file that comes while the
        folder is removed would keep it there."""
        keys = [f"tasuki/save/{order.round}/part/{rank}" for rank in range(1, self._world)]
        if keys and self._store is not None and not self.is_hurried():
            with contextlib.suppress(Exception):  # a rank is dead: the next attempt sweeps
                self._store.wait(keys, _GIVEN_UP_WITHIN)

    def _tell(self, order: _Order, what: str, value: dict[str, Any]) -> None:
        if self._store is not None:
            self._store.set(f"tasuki/save/{order.round}/{what}", json.dumps(value))

    def _hear(self, order: _Order, what: str) -> dict[str, Any]:
        assert self._store is not None
        key = f"tasuki/save/{order.round}/{what}"
        self._store.wait([key], _PARTS_WITHIN)
        value: dict[str, Any] = json.loads(self._store.get(key))
        return value


_KINDS: dict[str, type[TasukiError]] = {
    kind.__name__: kind for kind in (ClaimLost, DiskFull, StoreError, NotFinite, CheckpointError)
}


def _failure(error: BaseException) -> dict[str, Any]:
    if isinstance(error, TasukiError):
        known = (kind.__name__ for kind in type(error).__mro__ if kind.__name__ in _KINDS)
        name = next(known, type(error).__name__)
        return {"error": name, "message": error.message, "hint": error.hint}
    return {"error": "RunError", "message": f"{type(error).__name__}: {error}", "hint": ""}


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    """Another rank's failure becomes ours, of the same kind."""
    if "error" not in value:
        return value
    raise _KINDS.get(value["error"], RunError)(value["message"], hint=value["hint"])

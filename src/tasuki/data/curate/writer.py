"""Write samples of some files into others: laid out at once, filled block by block, then named.

HDF5 is asked for nothing but files whose data sets lie in one plain piece each (outputs.py); after
that their structures do not change any more, and values go past HDF5 to their place. So a kill at
any moment costs the last block only, a second call goes on where the journal (journal.py) says,
and the result is the same byte for byte. It is also the form that is read fastest. Compressed
outputs could not be filled that way, which is why there are none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.curate.contents import Bools, Contents
from tasuki.data.curate.extras import shared_extras, told
from tasuki.data.curate.journal import Work
from tasuki.data.curate.outputs import Picks, Target, lay_out, total_bytes
from tasuki.data.curate.talk import OnProgress, Talk
from tasuki.errors import DataError, StoreError
from tasuki.runs.atomic import free_bytes, fsync_folder, translated
from tasuki.units import format_bytes

Parts = NDArray[np.int8]
"""For each sample of all sources, in their order: which output it goes to; -1: to none."""

_WRITER = 1
"""Of the way outputs are laid out: another one must not go on with files of this one."""
_MUCH_LARGER = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Which samples of which files become which outputs. Every output has samples."""

    sources: tuple[Contents, ...]
    outputs: tuple[Path, ...]
    parts: Parts
    avoid: tuple[Bools | None, ...]
    """For each source the samples that must not be read."""
    num_bytes: int = 0
    """Of all outputs, about."""

    def picks(self, output: int, *, before: int | None = None) -> Picks:
        """The samples of an output; only those among the first `before` of all sources."""
        chosen = self.parts == output
        if before is not None:
            chosen[before:] = False
        return [
            (source, chosen[begin : begin + len(source)])
            for source, begin in zip(self.sources, self.starts, strict=True)
        ]

    @property
    def starts(self) -> list[int]:
        """The number of each source's first sample."""
        return [0, *np.cumsum([len(source) for source in self.sources[:-1]]).tolist()]

    @property
    def key(self) -> str:
        """Differs wherever the outputs would."""
        facts = {
            "writer": _WRITER,
            "sources": [[str(one.path.absolute()), one.stamp] for one in self.sources],
            "outputs": [path.name for path in self.outputs],
            "columns": [[c.name, c.kind, c.dtype.str, c.shape] for c in self.sources[0].columns],
        }
        digest = hashlib.sha256(json.dumps(facts).encode())
        digest.update(np.ascontiguousarray(self.parts).data)
        return digest.hexdigest()


def make_plan(
    sources: Sequence[Contents],
    outputs: Sequence[Path],
    parts: Parts,
    *,
    avoid: Sequence[Bools | None] | None = None,
) -> Plan:
    plan = Plan(
        sources=tuple(sources),
        outputs=tuple(outputs),
        parts=parts,
        avoid=tuple(avoid or [None] * len(sources)),
    )
    num_bytes = sum(total_bytes(plan.picks(number)) for number in range(len(outputs)))
    return replace(plan, num_bytes=num_bytes)


def refuse_existing(outputs: Sequence[Path], work: Work | None, *, force: bool) -> None:
    """An output that an interrupted call gave its name already is no obstacle."""
    for path in outputs:
        if path.exists() and not force and not _is_published(path, work):
            raise StoreError(
                f"`{path}` exists already",
                hint="`--force` replaces it when the new one is complete; or choose another `-o`",
            )


def refuse_sources(outputs: Sequence[Path], sources: Sequence[Path]) -> None:
    for path in outputs:
        if path.resolve() in [source.resolve() for source in sources]:
            raise StoreError(
                f"`{path}` is to be read and to be written",
                hint="choose another `-o`: sources are never changed",
            )


def _is_published(path: Path, work: Work | None) -> bool:
    if work is None or work.writing is None or not work.is_publishing:
        return False
    return path.name in work.writing["files"] and not work.partial(path).exists()


def write(plan: Plan, work: Work, *, block_bytes: int, force: bool, talk: Talk) -> list[str]:
    """Make the outputs, or go on with them; warnings. Leaves no work folder behind."""
    warnings = fill(plan, work, block_bytes=block_bytes, on_progress=talk.progress)
    publish(plan, work, force=force)
    work.remove()
    return warnings


def fill(plan: Plan, work: Work, *, block_bytes: int, on_progress: OnProgress) -> list[str]:
    """Everything but the names; warnings."""
    refuse_too_little_room(plan.num_bytes, plan.outputs, work)
    state = work.writing
    if state is not None and (state["plan"] != plan.key or not _is_whole(state, plan, work)):
        work.say("the sources or what is asked for changed: starting the output over")
        state = None
    if state is None:
        state = _begin(plan, work, on_progress)
    elif state["next"]:
        share = state["next"] / len(plan.parts)
        work.say(f"going on where the last call stopped: {share:.0%} is written")
    if not state["publishing"]:
        _fill(plan, work, state, block_bytes, on_progress)
    warnings: list[str] = state["warnings"]
    return warnings


def _is_whole(state: dict[str, Any], plan: Plan, work: Work) -> bool:
    """Whether the unfinished files are those that the journal is about."""
    for path in plan.outputs:
        partial = work.partial(path)
        if state["publishing"] and not partial.exists() and path.exists():
            continue
        if not partial.exists() or _identity(partial) != state["files"][path.name]:
            return False
    return True


def _identity(path: Path) -> list[int]:
    facts = path.stat()
    return [facts.st_ino, facts.st_size]


def _begin(plan: Plan, work: Work, on_progress: OnProgress) -> dict[str, Any]:
    work.keep_writing(None)
    _tell_growth(plan, work)
    extras, different = shared_extras(plan.sources)
    warnings = []
    if different:
        names = ", ".join(told(extra) for extra in different[:6])
        warnings.append(f"left out, as the files do not agree on it: {names}")
    with translated(work.folder, need=plan.num_bytes):
        for number, path in enumerate(plan.outputs):
            picks = plan.picks(number)
            failed = lay_out(work.partial(path), picks, extras, on_progress=on_progress)
            if failed and number == 0:
                names = ", ".join(told(extra) for extra in failed[:6])
                warnings.append(f"left out, as it could not be copied: {names}")
        fsync_folder(work.folder)
    exact = sum(work.partial(path).stat().st_size for path in plan.outputs)
    refuse_too_little_room(exact, plan.outputs, work)
    state = {
        "plan": plan.key,
        "files": {path.name: _identity(work.partial(path)) for path in plan.outputs},
        "next": 0,
        "publishing": False,
        "warnings": warnings,
    }
    work.keep_writing(state)
    return state


def _tell_growth(plan: Plan, work: Work) -> None:
    stored = sum(source.path.stat().st_size for source in plan.sources)
    stored = round(stored * float((plan.parts >= 0).mean()))
    if plan.num_bytes > _MUCH_LARGER * stored + (1 << 20):
        work.say(
            f"the sources are compressed: {format_bytes(stored)} become "
            f"{format_bytes(plan.num_bytes)} (outputs are not: that is read fastest)"
        )


def least_bytes(sources: Sequence[Contents]) -> int:
    """Of all samples together, as far as it is known before they are read."""
    return total_bytes([(source, ~source.unsafe) for source in sources])


def refuse_too_little_room(num_bytes: int, outputs: Sequence[Path], work: Work | None) -> None:
    """Said before anything is written. What is complete needs no room any more."""
    if work is None or work.is_publishing:
        return
    free = free_bytes(work.folder) + sum(_taken(work.partial(path)) for path in outputs)
    if num_bytes > free:
        names = " and ".join(f"`{path}`" for path in outputs)
        raise StoreError(
            f"{names} need{'s' if len(outputs) == 1 else ''} {format_bytes(num_bytes)}, "
            f"{format_bytes(free)} free",
            hint="make room, or choose another disk with `-o`",
        )


def _taken(path: Path) -> int:
    return path.stat().st_blocks * 512 if path.exists() else 0


def _fill(
    plan: Plan, work: Work, state: dict[str, Any], block_bytes: int, on_progress: OnProgress
) -> None:
    done, total = state["next"], len(plan.parts)
    with ExitStack() as stack, translated(work.folder, need=plan.num_bytes):
        targets = []
        for number, path in enumerate(plan.outputs):
            picks = plan.picks(number, before=done)
            target = Target(work.partial(path), plan.sources[0].columns, picks_done=picks)
            targets.append(stack.enter_context(target))
        num_bytes = 0
        for begin, source, avoid in zip(plan.starts, plan.sources, plan.avoid, strict=True):
            if begin + len(source) <= done:
                continue
            for block in source.blocks(max(0, done - begin), avoid=avoid):
                parts = plan.parts[begin + block.begin : begin + block.end]
                _refuse_failed(source, block.begin + np.flatnonzero(block.failed * (parts >= 0)))
                for number, target in enumerate(targets):
                    if (parts == number).any():
                        target.write(block, parts == number)
                done, num_bytes = begin + block.end, num_bytes + block.num_bytes
                if num_bytes >= block_bytes or done == total:
                    for target in targets:
                        target.sync()
                    state["next"], num_bytes = done, 0
                    work.keep_writing(state)
                on_progress("writing", done, total)


def _refuse_failed(source: Contents, samples: NDArray[np.intp]) -> None:
    if len(samples):
        raise DataError(
            f"sample {samples[0]} of `{source.path}` could be read before, and now it cannot",
            hint="is the disk failing? Run the same command again to go on",
        )


def publish(plan: Plan, work: Work, *, force: bool) -> None:
    """Give the outputs their names."""
    state = work.writing
    assert state is not None
    if not state["publishing"]:
        for source in plan.sources:
            source.refuse_changed()
        refuse_existing(plan.outputs, work, force=force)
        work.keep_writing(state | {"publishing": True})
    with translated(work.folder):
        for path in plan.outputs:
            if work.partial(path).exists():
                work.partial(path).replace(path)
        for folder in {path.parent for path in plan.outputs}:
            fsync_folder(folder)

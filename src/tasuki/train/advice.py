"""What went wrong and what to write instead, in plain words: memory that was too little, data that
are not there, an embedding that is too small.

Translates torch's and Python's errors at the border, once.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from tasuki.data.order import Order
from tasuki.data.split import Batch
from tasuki.errors import DataError, RecipeError, RunError, place_of
from tasuki.runs.nearby import look_beside
from tasuki.spec.allocator import GROWING_SEGMENTS
from tasuki.spec.resolved import ResolvedStage
from tasuki.train.allocator import VARIABLES
from tasuki.units import format_bytes

if TYPE_CHECKING:
    from tasuki.train.prepare import Setup
    from tasuki.train.shortage import Shortage
    from tasuki.train.snapshot import Progress
    from tasuki.train.task import Task

_NO_MEMORY = (
    *("out of memory", "can't allocate memory", "DefaultCPUAllocator: not enough memory"),
    *("CUBLAS_STATUS_ALLOC_FAILED", "CUDNN_STATUS_ALLOC_FAILED", "std::bad_alloc"),
)
"""Not CUDNN_STATUS_NOT_SUPPORTED: it also says what no smaller batch will change."""
_LONGEST_CHAIN = 8
_BYTES_ASKED = re.compile(r"tried to allocate (\d+) bytes")
_ASKED = re.compile(r"Tried to allocate (\d[\d.]* \w+)")
_BYTES_OVER = re.compile(r"(\d+) bytes too many")
_FREE = re.compile(r"of which (\d[\d.]* \w+) is free")
_TOO_LARGE = (
    "the model and its optimizer alone are too large: use a GPU (or a node) with more memory, a "
    "smaller model, or an optimizer that keeps less"
)
_OWN_LOADER = "make the batches of the recipe's own loader smaller, and `accumulation` larger"
_OWN_EVALUATE = (
    "take smaller batches in the recipe's `evaluate`, or use a GPU (or a node) with more memory"
)
_NO_ROW = "index out of range in self"
"""What torch says of an embedding on a CPU."""
_HDF5_NAME = re.compile(r"name = '([^']+)'")


class OutOfMemory(RunError):
    """The device, or the host, had no room."""

    def __init__(self, message: str, *, hint: str, is_mistake: bool = True) -> None:
        super().__init__(message, hint=hint)
        self.is_mistake = is_mistake
        """Trying again meets the same wall: a person must change something."""
        self.is_peer = False
        """It happened to another rank, which knows more about it."""


def is_out_of_memory(error: BaseException) -> bool:
    """Or what somebody has made of such an error: `raise … from error`."""
    return _memory_error(error) is not None


def _memory_error(error: BaseException) -> BaseException | None:
    found: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if found is None or isinstance(found, OutOfMemory):  # explained already
            return None
        if _tells_of_memory(found):
            return found
        found = found.__cause__
    return None


def _tells_of_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError | torch.cuda.OutOfMemoryError):
        return True
    if isinstance(error, OSError):  # a fork, a map
        return error.errno == errno.ENOMEM
    # CUDA libraries and the CPU's allocator raise plain RuntimeErrors.
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _NO_MEMORY)


def let_go(error: BaseException) -> None:
    """Of what the frames of a failed pass hold: it takes the room."""
    held: BaseException | None = error
    for _ in range(_LONGEST_CHAIN):
        if held is None:
            return
        traceback.clear_frames(held.__traceback__)
        held = held.__cause__ or held.__context__


class Place:
    """Where training stands, as far as it has come."""

    def __init__(self) -> None:
        self._progress: Progress | None = None
        self._first_step = 0

    def begin(self, progress: Progress) -> None:
        """From here on the steps are counted in `progress`."""
        self._progress, self._first_step = progress, progress.step

    @property
    def step(self) -> int:
        return self._progress.step if self._progress else 0

    @property
    def has_saved(self) -> bool:
        """A new checkpoint since it began."""
        return self._progress is not None and self._progress.saved_step > self._first_step


@contextlib.contextmanager
def memory_advice(task: Task, setup: Setup) -> Iterator[Place]:
    """Around the steps of a stage: out of memory becomes a message that says what to write."""
    place = Place()
    try:
        yield place
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise explain_memory(
            task.stage,
            error,
            doing=f"stage `{task.stage.name}` ran out of memory at step {place.step}",
            batch=setup.batch if isinstance(setup.order, Order) else None,
            hint="" if isinstance(setup.order, Order) else _OWN_LOADER,
            size=_size_at(setup, place.step),
            ranks=task.ranks.world,
            # A fresh process after some progress may well get further: memory was in pieces.
            is_mistake=not place.has_saved,
        ) from error


@contextlib.contextmanager
def setup_advice(stage: ResolvedStage) -> Iterator[None]:
    """Around everything else a worker does: what has not said more about itself."""
    try:
        yield
    except Exception as error:
        if isinstance(error, IndexError) and str(error) == _NO_ROW:
            raise _explain_row(error) from error
        if not is_out_of_memory(error):
            raise
        doing = f"setting up stage `{stage.name}` ran out of memory"
        raise explain_memory(stage, error, doing=doing) from error


@contextlib.contextmanager
def evaluation_advice(
    stage: ResolvedStage, batch: int | None, *, then: str | None = None
) -> Iterator[None]:
    """Around an evaluation in batches of so many samples; None: the recipe makes its own."""
    try:
        yield
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        raise explain_memory(
            stage,
            error,
            doing=f"evaluating stage `{stage.name}` ran out of memory",
            batch=Batch(
                effective_batch=stage.effective_batch or batch, micro_batch=batch, accumulation=1
            )
            if batch is not None
            else None,
            then=then,
            hint=_OWN_EVALUATE if batch is None else _product_hint(stage, batch),
        ) from error


def _explain_row(error: IndexError) -> RecipeError:
    return RecipeError(
        f"IndexError: {error}{place_of(error)}: an embedding was asked for a row that it does not "
        "have",
        hint="give `nn.Embedding` as many rows as the vocabulary has tokens (`TokenDataset.vocab`; "
        "`index.json` of a folder of tokens), and one of positions as many as a sample is long",
    )


def _product_hint(stage: ResolvedStage, batch: int) -> str:
    """Where all three are written, only who wrote them knows for how many ranks."""
    if stage.accumulation is None or batch == 1:
        return ""
    return (
        f"write a smaller `micro_batch` than {batch}, and a larger `accumulation`: with the ranks "
        "their product is the effective batch"
    )


def _size_at(setup: Setup, step: int) -> int | None:
    epoch, step_in_epoch = divmod(min(step, setup.total_steps - 1), setup.order.steps_per_epoch)
    if not isinstance(setup.order, Order):
        return None  # a loader of the user's own
    bucket = setup.order.step(epoch, step_in_epoch).bucket
    return setup.order.plan.buckets[bucket].size


def explain_memory(
    stage: ResolvedStage,
    error: BaseException,
    *,
    doing: str,
    batch: Batch | None = None,
    size: int | None = None,
    ranks: int = 1,
    then: str | None = None,
    hint: str = "",
    shortage: Shortage | None = None,
    is_mistake: bool = True,
) -> OutOfMemory:
    """`doing` says what ran out of memory; with a `batch` the hint names the next one to try, and
    with a `shortage` there is none."""
    told = ""
    if batch is not None:
        told = f" with a micro-batch of {_amount(stage, batch)}" + (
            f" of size {size}" if size else ""
        )
    if batch is not None and not hint:
        ways = [*_ways(stage, batch, ranks, shortage), *_allocator_way(error)]
        words = "; or ".join(way for way, _ in ways)
        hint = f"{words}; then {then or ways[0][1]}"
    return OutOfMemory(
        f"{doing}{told}{asked_for(error)}{f'; {shortage.in_words()}' if shortage else ''}",
        hint=hint or _TOO_LARGE,
        is_mistake=is_mistake,
    )


def explain_lonely(stage: ResolvedStage, step: int) -> OutOfMemory:
    """Larger micro-batches ran out of memory, and of smaller ones BatchNorm learns nothing."""
    return OutOfMemory(
        f"stage `{stage.name}` ran out of memory, and at step {step} its smaller micro-batches "
        "have a single sample, from which BatchNorm cannot learn",
        hint="use GroupNorm or LayerNorm, which look at single samples; or write "
        "`gradient_checkpointing: true`, or use a GPU (or a node) with more memory",
    )


def _amount(stage: ResolvedStage, batch: Batch) -> str:
    budget = stage.buckets.given_budget
    if budget is not None and batch.micro_batch > 1:
        return f"cost {budget:,}"
    return "1 sample" if batch.micro_batch == 1 else f"{batch.micro_batch} samples"


def asked_for(error: BaseException) -> str:
    """By how much it did not fit, as far as that is told."""
    words = str(_memory_error(error) or error)
    if found := _BYTES_ASKED.search(words):
        asked = format_bytes(int(found[1]))
    elif found := _ASKED.search(words):
        asked = found[1]
    else:
        return ""
    more = ""
    if found := _BYTES_OVER.search(words):
        more = f", {format_bytes(int(found[1]))} too many"
    elif found := _FREE.search(words):
        more = f", {found[1]} were free"
    return f" (it asked for {asked} more{more})"


def _ways(
    stage: ResolvedStage, batch: Batch, ranks: int, shortage: Shortage | None = None
) -> Iterator[tuple[str, str]]:
    """(what to write, how to go on with it), the best first."""
    if stage.buckets.kind == "cost" and batch.micro_batch > 1:
        budget = stage.buckets.given_budget
        half = "N" if budget is None else str(max(1, budget // 2))
        yield f"write `budget: {half}` in `buckets`", "`tasuki run --new`"
        return
    smaller = _smaller(stage, batch, ranks)
    if smaller:
        words = " and ".join(f"`{key}: {value}`" for key, value in smaller.items())
        follows = "" if "accumulation" in smaller else ": accumulation follows"
        stays = f"the effective batch stays {batch.effective_batch}{follows}"
        yield f"write {words} ({stays})", _accept(*smaller)
    if stage.gradient_checkpointing in (False, "auto"):
        gives = shortage.of_checkpointing() if shortage else "slower, far less memory"
        words = f"write `gradient_checkpointing: true` ({gives})"
        yield words, _accept("gradient_checkpointing")
    if not smaller and stage.precision == "fp32":
        yield "write `precision: bf16` (activations of half the size)", _accept("precision")
    if not smaller:
        more = shortage.of_a_card() if shortage else ""
        words = f"use a GPU (or a node) with more memory{more}, or leave the largest samples out"
        yield words, "`tasuki run`"


def _allocator_way(error: BaseException) -> Iterator[tuple[str, str]]:
    """Only a GPU's memory is cut into segments, and only where they do not grow already."""
    is_gpu = isinstance(error, torch.cuda.OutOfMemoryError) or "CUDA" in str(error)
    if is_gpu and not any(GROWING_SEGMENTS in os.environ.get(name, "") for name in VARIABLES):
        words = "where sizes vary write `allocator: expandable_segments`"
        yield words, _accept("allocator")


def _accept(*keys: str) -> str:
    return f"`tasuki run {' '.join(f'--accept-change {key}' for key in keys)}`"


def _smaller(stage: ResolvedStage, batch: Batch, ranks: int) -> dict[str, int]:
    """What to write for about half of the micro-batch; nothing where it is 1 already."""
    half = batch.micro_batch // 2
    if half == 0 or stage.accumulation is None:
        return {"micro_batch": half} if half else {}
    # All of them are written and must agree: the next smaller one that divides evenly.
    share = batch.effective_batch // ranks
    even = next(number for number in range(half, 0, -1) if share % number == 0)
    return {"micro_batch": even, "accumulation": share // even}


def explain_missing_data(source: object, split: str, error: FileNotFoundError) -> DataError:
    """Names the path as it was looked for, what lies beside it, and how to make it."""
    path = _missing_path(source, error).absolute()
    return DataError(
        f"data `{source}` (split {split}) cannot be opened: {error}; there is nothing at {path}; "
        f"{look_beside(path)}",
        hint="check `data:` in the spec (or `--data`): relative paths are relative to the spec's "
        "folder; to make it use `tasuki data merge`, `tasuki data split`, or your project's own "
        "generator",
    )


def _missing_path(source: object, error: FileNotFoundError) -> Path:
    if isinstance(error.filename, str):
        return Path(error.filename)
    if named := _HDF5_NAME.search(str(error)):
        return Path(named[1])
    sources = source if isinstance(source, list) else [source]
    gone = [str(item) for item in sources if not Path(str(item)).exists()]
    return Path(gone[0] if gone else str(sources[0]))

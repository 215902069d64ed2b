"""Blocks through several processes, results in the order of the blocks.

A bounded number of blocks is under way, so that memory does not grow with the data. With one worker
everything happens in this process.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Generator, Iterable
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from tasuki.data.tokens.blocks import Block
from tasuki.data.tokens.encode import BlockEncoder, Encoded
from tasuki.data.tokens.vocabulary import Vocabulary
from tasuki.errors import RunError, TasukiError

_AHEAD = 3
"""Blocks under way, for each worker."""
_SIGNAL_ON_PARENT_DEATH = 1
"""Linux's PR_SET_PDEATHSIG."""

Results = Generator[tuple[Block, Encoded]]

_encoder: BlockEncoder | None = None


def encode_in_order(
    blocks: Iterable[Block], vocabulary: Vocabulary, *, field: str, workers: int
) -> Results:
    """Each block with its tokens."""
    if workers == 1:
        encoder = BlockEncoder(vocabulary, field=field)
        for block in blocks:
            yield block, encoder(block)
        return
    # Spawned: a fork of a process in which a tokenizer was trained has locks that nobody frees.
    pool = ProcessPoolExecutor(
        workers,
        mp_context=multiprocessing.get_context("spawn"),
        initializer=_prepare,
        initargs=(vocabulary, field, os.getpid()),
    )
    try:
        yield from _through(pool, blocks, most=_AHEAD * workers)
    except BrokenProcessPool as error:
        raise RunError(
            "a process that tokenised died",
            hint="often memory: fewer `--workers`; the same command goes on",
        ) from error
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def _through(pool: ProcessPoolExecutor, blocks: Iterable[Block], *, most: int) -> Results:
    waiting: deque[tuple[Block, Future[Encoded]]] = deque()
    unread = iter(blocks)
    failed: TasukiError | None = None
    while True:
        try:
            block = next(unread)
        except StopIteration:
            break
        except TasukiError as error:
            failed = error  # told after what came before it, as with one worker
            break
        waiting.append((block, pool.submit(_encode, block)))
        if len(waiting) >= most:
            yield _next(waiting)
    while waiting:
        yield _next(waiting)
    if failed is not None:
        raise failed


def _next(waiting: deque[tuple[Block, Future[Encoded]]]) -> tuple[Block, Encoded]:
    block, future = waiting.popleft()
    return block, future.result()


def _prepare(vocabulary: Vocabulary, field: str, parent: int) -> None:
    """A worker must not outlive a parent that was killed: it would wait for work for ever."""
    global _encoder  # noqa: PLW0603  # how an executor's processes keep what they need
    ctypes.CDLL(None).prctl(_SIGNAL_ON_PARENT_DEATH, signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(0)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _encoder = BlockEncoder(vocabulary, field=field)


def _encode(block: Block) -> Encoded:
    assert _encoder is not None
    return _encoder(block)

"""`tasuki.open_run()` gives a Run: what a script of one's own writes against.

    with tasuki.open_run() as run:
        run.track(model=model, optimizer=opt, scheduler=sched)
        for batch in run.steps(loader, epochs=10):
            …
            run.log(loss=loss)

A thin face over Loop (loop.py): finds out what people meant, refuses in words what cannot be.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, Literal, Self

from torch import Tensor
from torch.optim import Optimizer

from tasuki.errors import RunError, UsageError
from tasuki.integrations.batches import Batches, Feed, Wanted, make_feed
from tasuki.integrations.first_steps import FirstSteps
from tasuki.integrations.loop import Course, HandedOver, Loop
from tasuki.integrations.rows import read
from tasuki.integrations.several import PassedOver, leave_block
from tasuki.integrations.tracked import Tracked
from tasuki.integrations.watch import LoopWatch
from tasuki.loop.best import Best, is_better, keep_if_better
from tasuki.loop.room import when_there_is_room
from tasuki.loop.things import Things

_STEPS_HINT = "for batch in run.steps(loader, epochs=10): …"


class Run:
    """A run, as its script sees it. Made by `tasuki.open_run`."""

    def __init__(self, loop: Loop, watch: LoopWatch, *, is_kernel: bool) -> None:
        self._loop, self._watch, self._is_kernel = loop, watch, is_kernel
        loop.replays = True
        self._pid = os.getpid()
        self._pending = loop.rows.pending
        self._things = Things()
        self._first_steps: FirstSteps | None = None
        self._batches: Batches | None = None
        self._feed: Feed | None = None
        self._loader: Any = None
        self._accumulation = 1
        self._num_epochs: int | None = None
        """Of run.epochs, if the script goes through epochs itself."""
        self._is_begun = False
        """The steps have; on a resume at the end of run.epochs without a loader."""
        self._is_in_step = False
        self._is_finished = False
        self._metrics: Mapping[str, Any] | None = None

    # -- what people use ------------------------------------------------------------------------

    def track(self, **things: Any) -> None:
        """What belongs to the run's state, by name: modules, optimizers, schedulers, a GradScaler,
        anything with `state_dict` and `load_state_dict`, dicts of plain values. Restored at once if
        the run has a checkpoint."""
        if self._feed is not None:
            raise RunError(
                f"`{next(iter(things), 'track')}` is tracked after the steps have begun",
                hint="call run.track before run.steps: every checkpoint holds the same things",
            )
        for name, thing in things.items():
            self._things.add(name, thing)
            if isinstance(thing, Optimizer):
                thing.register_step_pre_hook(self._on_optimizer_step)
        state = self._loop.find()
        if state is not None:
            self._things.restore(state, only=set(things) & set(state))

    def steps(
        self,
        loader: Any,
        *,
        epochs: int | None = None,
        steps: int | None = None,
        accumulation: int = 1,
    ) -> Iterator[Any]:
        """The batches of `loader` from where the run stands, for so many epochs or steps. Saves in
        the background, stops at the notice. With `accumulation` only every so many batches: where
        the gradients of the last ones have been used."""
        if accumulation < 1:
            raise UsageError(f"`accumulation={accumulation}` is less than 1", hint=_STEPS_HINT)
        if self._num_epochs is not None:
            return self._steps_of_epoch(loader, epochs, steps, accumulation)
        if self._feed is not None:
            raise RunError(
                "run.steps was called a second time",
                hint="a run has one loop: write `for epoch in run.epochs(10):` around it, make "
                "stages of a spec, or give each loop a run of its own, which is passed over when "
                "it is complete: `if not tasuki.is_complete('second'):`, and in it `with "
                "tasuki.open_run('second') as run:`",
            )
        feed = self._begin(loader, epochs=epochs, steps=steps, accumulation=accumulation)
        return self._iterate(feed)

    def epochs(self, count: int) -> Iterator[int]:
        """The epochs that are left, where a script does something after each:

        for epoch in run.epochs(10):
            for batch in run.steps(loader):
                …
            validate(model)
        """
        if self._feed is not None or self._num_epochs is not None:
            raise RunError("a run has one loop, which has begun", hint="call run.epochs once")
        if not isinstance(count, int) or count < 1:
            raise UsageError(f"`{count}` is no number of epochs", hint="run.epochs(10)")
        self._num_epochs = count
        return self._iterate_epochs(count)

    def log(self, *, split: str = "train", **values: Any) -> None:
        """Numbers and texts of this step. Tensors are read only when a line is written, every
        `log_every` steps; a line holds the newest value of each name."""
        is_train = split == "train"
        kept = self._pending if is_train else {}
        for name, value in values.items():
            if isinstance(value, Tensor):
                # On the CPU reading is quicker than keeping: 0.3 µs, and `detach` takes 0.8. A
                # tensor of a GPU is kept, without the step's graph; so is one that is no number,
                # for which `item` raises: to ask before would cost every step.
                try:
                    kept[name] = value.item() if value.is_cpu else value.detach()
                except RuntimeError:
                    kept[name] = value.detach()
            else:
                kept[name] = value
        if not is_train:
            self._loop.rows.add(kept, split)
            if self._is_begun and not self._is_in_step:  # else when the step is done
                self._loop.write_others()

    def save(self) -> None:
        """A checkpoint after this step, beside those that come by themselves."""
        self._refuse_outside("run.save")
        self._loop.save()

    def best(
        self, metric: Any = None, *, mode: Literal["min", "max"] = "min", **named: Any
    ) -> bool | None:
        """Keep the model's weights if this metric is the best so far: `run.best(val_loss)`, or
        `run.best(accuracy=acc, mode="max")`. They become the run's `weights.safetensors`. Was it
        the best? Rank 0 alone decides and knows; None on the others."""
        self._refuse_outside("run.best")
        if (metric is None) == (not named) or len(named) > 1:
            raise UsageError("run.best takes one metric", hint="run.best(val_loss=loss)")
        name, value = next(iter(named.items()), ("metric", metric))
        if mode not in ("min", "max"):
            raise UsageError(f"there is no mode `{mode}`", hint='mode="min" or mode="max"')
        model = self._things.model
        if model is None:
            raise RunError("no model is tracked", hint="call run.track(model=model) first")
        loop, before = self._loop, self._loop.progress.best
        if not loop.worker.is_first:
            return None
        if loop.replayed is not None:  # its weights were kept when the step was done
            is_best = is_better(float(value), before, mode)
            if is_best:
                loop.progress.best = Best(name, float(value), loop.progress.step + 1, "")
            return is_best
        loop.progress.best = when_there_is_room(
            lambda: keep_if_better(
                loop.worker,
                model.state_dict(),
                before,
                metric=name,
                value=float(value),
                mode=mode,
                step=loop.progress.step + self._is_in_step,
            ),
            say=loop.worker.say,
            clock=loop.worker.clock,
            should_stop=lambda: self.should_stop,
        )
        return loop.progress.best is not before

    def finish(self, metrics: Mapping[str, Any] | None = None) -> None:
        """The run is done, with these results. Only needed for results, or where a loop ends before
        its last step; else the end of the `with` block does it."""
        if metrics is not None and self._loop.worker.is_first:  # the others' are not kept
            self._metrics = read(dict(metrics))
        self._is_finished = True

    @property
    def should_stop(self) -> bool:
        """The end is near: the loop stops at the next step. For long work inside a step."""
        return self._watch.has_notice

    @property
    def step(self) -> int:
        """Steps that are done."""
        return self._loop.progress.step

    @property
    def completes_step(self) -> bool:
        """With `accumulation`: is this batch the last of its group, after which the optimizer
        steps? The last batch of an epoch is, and that of the loop."""
        assert self._feed is not None
        done, per_epoch = self.step + 1, self._feed.steps_per_epoch
        return (done % per_epoch) % self._accumulation == 0 or done == self._feed.total_steps

    @property
    def weight(self) -> float:
        """With several ranks: by what this rank's mean loss is to be scaled, so that DDP's mean
        over ranks is the mean over the step's samples. 1.0 where all have as many; 0.0 for samples
        that are only borrowed, by a rank that has none."""
        if self._first_steps is not None:
            self._first_steps.has_weighed = True
        return self._batches.weight if self._batches is not None else 1.0

    @property
    def epoch(self) -> int:
        return self.step // self._loop.course.steps_per_epoch if self._is_begun else 0

    @property
    def path(self) -> Any:
        """The run's folder."""
        return self._loop.worker.run.path

    # -- the loop -------------------------------------------------------------------------------

    def _begin(
        self, loader: Any, *, epochs: int | None, steps: int | None, accumulation: int
    ) -> Feed:
        """Every start is a restore; from here on only step boundaries end the attempt."""
        if not self._things:
            raise RunError(
                "nothing is tracked: a resume could put nothing back",
                hint="call run.track(model=model, optimizer=optimizer) before run.steps",
            )
        loop, worker = self._loop, self._loop.worker
        wanted = Wanted(
            epochs=epochs,
            steps=steps,
            seed=worker.stage.seed,
            stage=worker.stage.name,
            rank=worker.ranks.rank,
            world=worker.ranks.world,
            say=worker.say,
            accumulation=accumulation,
        )
        feed = make_feed(loader, wanted)
        self._feed, self._loader, self._accumulation = feed, loader, accumulation
        for line in feed.told:
            worker.say(line)
        course = Course(
            total_steps=feed.total_steps,
            steps_per_epoch=feed.steps_per_epoch,
            counts_epochs=steps is None and not isinstance(loader, int),
            facts={**feed.facts, "accumulation": accumulation},
            knows_samples=feed.order is not None,
            order=feed.order,
            last_boundary=_last_boundary(feed, accumulation),
        )
        holds = self._begin_loop(course)
        self._batches = Batches(
            feed.open(loop.progress.step, holds.place), shared_by=feed.shared_by
        )
        holds.batches = self._batches
        loop.before_leaving = self._batches.stop
        self._first_steps = FirstSteps(
            self._things,
            step=loop.progress.step,
            accumulation=accumulation,
            uneven=feed.uneven,
            now_at=lambda: loop.progress.step,
            say=worker.say,
        )
        return feed

    def _begin_loop(self, course: Course) -> Tracked:
        loop, things = self._loop, self._things
        state = loop.find()
        if state is not None:
            things.refuse_others(state)
        loop.lr = self._lr
        holds = Tracked(things)
        loop.begin(holds, course)
        self._is_begun = True
        if loop.finished is not None:
            self._complete_at_once(loop.finished)
        return holds

    def _iterate(self, feed: Feed) -> Iterator[Any]:
        yield from self._take_steps(feed, feed.total_steps)
        self._end_loop()

    def _end_loop(self) -> None:
        self._stop_batches()
        if self._first_steps is not None:
            self._first_steps.end()
        self._loop.end()

    def _take_steps(self, feed: Feed, until: int) -> Iterator[Any]:
        loop, batches, progress = self._loop, self._batches, self._loop.progress
        first = self._first_steps
        assert batches is not None and first is not None
        # At the end of a loop that was left early there are steps that nobody wants any more.
        while progress.step < until and not loop.is_at_end:
            if os.getpid() != self._pid:
                raise RunError(
                    "a fork of the script goes on with its loop",
                    hint="let forks do something else, and leave: the run is their parent's",
                )
            if progress.step % feed.steps_per_epoch % self._accumulation == 0:
                loop.boundary()
            else:
                loop.begin_step()
            batch = batches.next()
            self._is_in_step = True
            yield batch
            self._end_step()
            if progress.step == first.look_at:
                first.look()

    def _end_step(self) -> None:
        batches = self._batches
        assert batches is not None
        self._is_in_step = False
        self._loop.end_step(
            samples=batches.samples, indices=batches.indices, waited_s=batches.waited_s
        )

    def _iterate_epochs(self, count: int) -> Iterator[int]:
        loop = self._loop
        course, step, is_end = loop.stands_at()
        if is_end and course is not None:
            self._begin_loop(course)  # all is done but for what comes after the loop
        else:
            first = step // course.steps_per_epoch if course is not None else 0
            for epoch in range(first, count):
                yield epoch
                if self._feed is None or loop.progress.step < (epoch + 1) * (
                    self._feed.steps_per_epoch
                ):
                    raise RunError(
                        f"epoch {epoch} was left before its last batch",
                        hint="go through all of run.steps(loader) in each epoch; a shorter one is "
                        "run.steps(loader, steps=…) without run.epochs",
                    )
        self._end_loop()

    def _steps_of_epoch(
        self, loader: Any, epochs: int | None, steps: int | None, accumulation: int
    ) -> Iterator[Any]:
        if epochs is not None or steps is not None:
            raise UsageError(
                "inside run.epochs the steps of one epoch are taken",
                hint="write run.steps(loader), without `epochs` and `steps`",
            )
        feed = self._feed
        if feed is None:
            count = self._num_epochs
            feed = self._begin(loader, epochs=count, steps=None, accumulation=accumulation)
        elif loader is not self._loader or accumulation != self._accumulation:
            raise RunError(
                "another loader than in the first epoch",
                hint="make the loader once, before run.epochs",
            )
        epoch = self._loop.progress.step // feed.steps_per_epoch
        return self._take_steps(feed, (epoch + 1) * feed.steps_per_epoch)

    def _lr(self) -> float | None:
        optimizers = self._things.optimizers
        return float(optimizers[0].param_groups[0]["lr"]) if optimizers else None

    def _on_optimizer_step(self, *_: Any) -> None:
        may_step = self._is_in_step or (self._num_epochs is not None and self._is_begun)
        if not may_step and not self._loop.is_over:
            raise RunError(
                "the optimizer was stepped outside of `run.steps`: no checkpoint would know of it",
                hint=f"step it inside the loop only: {_STEPS_HINT}",
            )

    def _refuse_outside(self, what: str) -> None:
        if not self._is_begun:
            raise RunError(f"{what} was called before the steps began", hint=_STEPS_HINT)

    # -- the end --------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> bool | None:
        if os.getpid() != self._pid:
            return None  # a fork of the script: the run is its parent's
        try:
            if isinstance(error, HandedOver) and not self._is_kernel:
                self._loop.leave()
            is_meant = isinstance(error, SystemExit) and error.code in (0, None)
            if error is None or is_meant:
                self._end_well()  # who leaves with 0 says that all is done: is it?
            else:
                self._loop.fail(error)
        except BaseException as problem:
            self._loop.fail(problem)
            raise
        finally:
            self._stop_batches()
            if self._first_steps is not None:
                self._first_steps.stop()
            self._watch.end()
        return isinstance(error, PassedOver)

    def _end_well(self) -> None:
        """The `with` block is through: is the run?"""
        loop = self._loop
        if loop.is_over:
            return
        if self._batches is None and not loop.is_at_end:
            raise RunError(
                "the script has ended without a step of `run.steps`: nothing can be resumed",
                hint=f"go through the data with it: {_STEPS_HINT}",
            )
        if not loop.is_at_end:
            if not self._is_finished:
                at = f"step {loop.progress.step}{loop.course.of_total()}"
                raise RunError(
                    f"the loop was left at {at}: the run is not done",
                    hint="where a loop may end early, call run.finish() after it: `break` alone is "
                    "no end, and the next attempt goes on from the last checkpoint",
                )
            if self._is_in_step:  # the one that was left by `break`
                self._end_step()
            loop.finished = {"metrics": self._metrics}
            self._end_loop()
        loop.complete(self._metrics)

    def _complete_at_once(self, finished: Mapping[str, Any]) -> None:
        """The loop was left early with these results, and only its end is missing: whether it would
        be left there again, nobody knows."""
        loop = self._loop
        loop.end()
        loop.complete(finished["metrics"])
        words = f"run `{loop.worker.run.name}` is complete: the attempt before had all its results"
        if self._is_kernel:
            raise RunError(words, hint="more epochs are another run: tasuki.open_run('other')")
        leave_block(loop.worker.run, words, is_first_rank=loop.worker.is_first)

    def _stop_batches(self) -> None:
        if self._batches is not None:
            self._batches.stop()


def _last_boundary(feed: Feed, accumulation: int) -> int:
    """Where the last step begins, or the last group of them."""
    last = feed.total_steps - 1
    return last - (last % feed.steps_per_epoch) % accumulation


def show_errors_briefly() -> None:
    """Errors of ours that nobody catches: in words, with the script's line, without a traceback."""
    from tasuki.errors import TasukiError, place_of

    theirs = sys.excepthook

    def show(
        kind: type[BaseException], error: BaseException, traceback: TracebackType | None
    ) -> None:
        if not isinstance(error, TasukiError):
            theirs(kind, error, traceback)
            return
        hint = f"\nhint: {error.hint}" if error.hint else ""
        sys.stderr.write(f"error: {error.message}{place_of(error)}{hint}\n")

    if getattr(theirs, "__module__", "") != __name__:
        sys.excepthook = show

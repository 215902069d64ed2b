"""Lightning trainings that survive: one callback.

    from tasuki.integrations.lightning import TasukiCallback

    trainer = L.Trainer(max_epochs=10, callbacks=[TasukiCallback()])
    trainer.fit(model, train_loader, val_loader)

The loop stays Lightning's. The callback gives it batches in an order that can be taken up anywhere,
saves in the background, hands over at the notice (exit 75), and puts everything back in the next
attempt (lightning_state.py). Lightning's own signal handlers and requeueing are switched off.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import wraps
from pathlib import Path
from typing import Any

from torch import Tensor

from tasuki.errors import UsageError
from tasuki.integrations.versions import LIGHTNING, check_version, installed, refuse_absent

refuse_absent(LIGHTNING)

from lightning.pytorch import LightningModule, Trainer  # noqa: E402 (first: is it there?)
from lightning.pytorch.callbacks import Callback, GradientAccumulationScheduler  # noqa: E402
from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy  # noqa: E402

from tasuki.integrations.driven import (  # noqa: E402
    Driven,
    TrainerHolds,
    Ways,
    begin_talking,
    forget_workers,
)
from tasuki.integrations.lightning_state import (  # noqa: E402
    capture,
    capture_logged,
    restore,
    restore_logged,
)
from tasuki.integrations.loop import Course, HandedOver  # noqa: E402

__all__ = ["TasukiCallback"]


_WAYS = Ways(
    capture=capture,
    restore=restore,
    own="logged",
    capture_own=capture_logged,
    restore_own=restore_logged,
    model=lambda trainer: trainer.lightning_module,
)


class TasukiCallback(Callback):
    """Makes `trainer.fit` resumable, bit for bit. The arguments are those of `tasuki.open_run`."""

    def __init__(self, run: str | Path | None = None, **options: Any) -> None:
        self._run, self._options = run, options
        self._driven: Driven | None = None
        self._loss: Tensor | None = None

    # -- the start ------------------------------------------------------------------------------

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:  # noqa: ARG002
        if stage != "fit":
            return
        begin_talking()
        warning = check_version(LIGHTNING, installed(LIGHTNING))
        _refuse_others(trainer)
        driven = self._driven = Driven(self._run, self._options, another="TasukiCallback('other')")
        self._holds = TrainerHolds(trainer, driven, _WAYS)
        worker = driven.loop.worker
        if worker.ranks.world != trainer.world_size:
            raise UsageError(
                f"Lightning has {trainer.world_size} ranks, and this process was started as one of "
                f"{worker.ranks.world}",
                hint="start the ranks with torchrun or srun: Lightning's own processes cannot meet",
            )
        for line in filter(None, [warning, *_switch_off(trainer)]):
            worker.say(line)
        self._take_data(trainer, driven)
        self._keep_validations_apart(trainer, driven)
        state = driven.find()
        if state is not None:
            # As a checkpoint of Lightning's own, so that hooks find what they expect; what counts
            # is put back when the first batch is asked for.
            trainer._checkpoint_connector._loaded_checkpoint = state["lightning"]
            trainer.should_stop = state["trainer"]["should_stop"]

    def _take_data(self, trainer: Trainer, driven: Driven) -> None:
        source = trainer.fit_loop._data_source
        theirs = source.dataloader

        def ours() -> _Loader:
            return _Loader(self, trainer, driven, theirs())

        source.dataloader = ours

    def _keep_validations_apart(self, trainer: Trainer, driven: Driven) -> None:
        loop = trainer.fit_loop.epoch_loop.val_loop
        theirs = loop.run

        @wraps(theirs)
        def run() -> Any:
            if trainer.sanity_checking:
                return theirs()
            if loop._combined_loader is not None and driven.is_exact:
                for loader in loop._combined_loader.flattened:
                    forget_workers(loader)
            with driven.validating():
                return theirs()

        loop.run = run

    # -- the steps ------------------------------------------------------------------------------

    def at_step(self, trainer: Trainer) -> None:
        """Lightning is about to ask for the first batch of a step."""
        driven = self._driven
        assert driven is not None
        if not driven.is_begun:
            self._settle(trainer, driven)
        else:
            self._log_step(trainer, driven)
        driven.at_step(self._holds, _course(trainer))

    def _settle(self, trainer: Trainer, driven: Driven) -> None:
        driven.settle(trainer.strategy.model)
        optimizers = trainer.optimizers
        if optimizers:
            driven.loop.lr = lambda: float(optimizers[0].param_groups[0]["lr"])

    def _log_step(self, trainer: Trainer, driven: Driven) -> None:
        """What the training logged; what validations did stands in lines of their own."""
        logged = trainer._logger_connector._logged_metrics
        pending, told = driven.loop.rows.pending, set[str]()
        for result in trainer.fit_loop.epoch_loop._results.values():
            for name in {result.meta.forked_name(True), result.meta.forked_name(False)}:
                if name in logged:
                    pending[name] = logged[name]
                    told.add(name)
        if self._loss is not None and "loss" not in told:
            pending["loss"] = self._loss  # the newest one: the module has logged none by that name

    def on_train_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,  # noqa: ARG002
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
        # Where Lightning steps by itself, it divides a loss by the batches of a step.
        parts = trainer.accumulate_grad_batches if pl_module.automatic_optimization else 1
        is_number = isinstance(loss, Tensor) and loss.numel() == 1
        self._loss = loss.detach() * parts if loss is not None and is_number else None

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        driven = self._driven
        if driven is None or trainer.sanity_checking or trainer.state.fn != "fit":
            return
        found = trainer.fit_loop.epoch_loop.val_loop._results.metrics(on_step=False)["log"]
        if found:
            driven.loop.rows.add(dict(found), "val")

    # -- the end --------------------------------------------------------------------------------

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:  # noqa: ARG002
        driven = self._driven
        assert driven is not None
        if driven.is_begun:
            self._log_step(trainer, driven)
        self._holds.is_at_end = True
        driven.end(self._holds, _course(trainer))
        driven.complete()
        self._driven = None

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._driven is not None:  # all steps were done before this attempt
            self.on_train_end(trainer, pl_module)

    def on_exception(
        self,
        trainer: Trainer,  # noqa: ARG002
        pl_module: LightningModule,  # noqa: ARG002
        exception: BaseException,
    ) -> None:
        driven, self._driven = self._driven, None
        if driven is None:
            return
        if isinstance(exception, HandedOver):
            driven.loop.leave()  # at once: what the frameworks tear down takes seconds
        driven.fail(exception)


class _Loader:
    """What Lightning iterates over: it asks for a batch where nothing is half done."""

    def __init__(
        self, callback: TasukiCallback, trainer: Trainer, driven: Driven, loader: Any
    ) -> None:
        self._callback, self._trainer, self._driven = callback, trainer, driven
        is_gathered = trainer.lightning_module.automatic_optimization
        gathered = trainer.accumulate_grad_batches if is_gathered else 1
        is_whole = trainer.limit_train_batches in (None, 1.0)
        self._length = driven.feed_from(loader, accumulation=gathered, is_whole=is_whole)
        self.dataset = getattr(loader, "dataset", None)
        self.batch_size = getattr(loader, "batch_size", None)

    def __len__(self) -> int:
        return self._length

    def state_dict(self) -> dict[str, Any]:
        """Lightning asks whether a loader can be resumed. This one stands where Lightning's
        counters stand, and keeps nothing."""
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """There is nothing to put back."""

    def __iter__(self) -> Iterator[Any]:
        while True:
            if self._is_at_step():
                self._callback.at_step(self._trainer)  # may put back where Lightning stands
            number = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
            if number >= self._length:
                return
            yield self._driven.batch(
                self._trainer.fit_loop.epoch_progress.current.processed, number
            )

    def _is_at_step(self) -> bool:
        number = self._trainer.fit_loop.epoch_loop.batch_progress.current.ready
        is_done = not self._trainer.lightning_module.automatic_optimization
        return is_done or number % self._trainer.accumulate_grad_batches == 0


def _course(trainer: Trainer) -> Course:
    """In steps of the optimizer, as they are foreseen: a training may end before. Where a module
    steps by itself they are batches, and `max_steps`, which are its own, limit none."""
    module, batches = trainer.lightning_module, trainer.num_training_batches
    is_manual = not module.automatic_optimization
    accumulation = 1 if is_manual else trainer.accumulate_grad_batches
    per_epoch = max(1, math.ceil(batches / accumulation))
    epochs = trainer.max_epochs if trainer.max_epochs not in (None, -1) else None
    limits = [per_epoch * epochs] if epochs is not None else []
    facts = {"accumulate_grad_batches": accumulation}
    if trainer.max_steps != -1:
        if is_manual:
            facts["max_steps"] = trainer.max_steps
        else:
            limits.append(trainer.max_steps)
    elif not limits:
        raise UsageError(
            "this training has no end: `max_epochs` is -1, and there are no `max_steps`",
            hint="give Trainer `max_epochs` or `max_steps`; it may still stop before",
        )
    return Course(
        total_steps=min(limits, default=None),
        steps_per_epoch=per_epoch,
        facts=facts,
    )


def _refuse_others(trainer: Trainer) -> None:
    strategy = trainer.strategy
    if type(strategy) not in (SingleDeviceStrategy, DDPStrategy):
        raise UsageError(
            f"tasuki cannot put back what `{type(strategy).__name__}` shards or hands out",
            hint="it knows one device and DDP: Trainer(strategy='auto') or 'ddp'",
        )
    if any(isinstance(one, GradientAccumulationScheduler) for one in trainer.callbacks):
        raise UsageError(
            "with GradientAccumulationScheduler nobody can tell how many steps an epoch has",
            hint="give Trainer one number of `accumulate_grad_batches`",
        )
    if trainer.overfit_batches:
        raise UsageError(
            "`overfit_batches` takes the same batches again and again: nothing to resume",
            hint="leave the callback out while you look for mistakes",
        )


def _switch_off(trainer: Trainer) -> list[str]:
    """What would act on the same signals, or requeue the same job."""
    connector = trainer._signal_connector
    connector.register_signal_handlers = lambda: None
    environment = trainer._accelerator_connector.cluster_environment
    told = ["Lightning's handlers of signals are switched off: tasuki saves, and exits with 75"]
    if getattr(environment, "auto_requeue", False):
        environment.auto_requeue = False
        told[0] = (
            "Lightning's handlers of signals and its requeueing (SLURMEnvironment) are switched "
            "off: tasuki saves, and exits with 75"
        )
    if getattr(trainer, "_val_check_time_interval", None) is not None:
        told.append(
            "WARNING: `val_check_interval` is a time: when validations happen depends on the "
            "clock, and so does all that depends on them"
        )
    return told

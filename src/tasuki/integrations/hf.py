"""HF Trainers that survive: another import.

    from tasuki.integrations.hf import Trainer     # instead of: from transformers import Trainer

    Trainer(model, args, train_dataset=data).train()

or, for any subclass of it: `Trainer = resumable(SFTTrainer)`. A callback is not enough: the Trainer
gives callbacks neither its batches nor its loop. The loop stays HF's; what is overridden are the
places where it asks for data and where it would load a checkpoint of its own. Its saves and its
handler of SIGTERM (`enable_jit_checkpoint`) are switched off.
"""

from __future__ import annotations

import signal
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from torch.utils.data import DataLoader, IterableDataset, RandomSampler, SequentialSampler

from tasuki.errors import UsageError
from tasuki.integrations.versions import HF, check_version, installed, refuse_absent

refuse_absent(HF)

import transformers  # noqa: E402 (first: is it there?)
from transformers import trainer as _module  # noqa: E402
from transformers.trainer_utils import SaveStrategy  # noqa: E402

from tasuki.integrations.driven import Driven, TrainerHolds, Ways, begin_talking  # noqa: E402
from tasuki.integrations.hf_state import (  # noqa: E402
    capture,
    capture_sums,
    model_of,
    restore,
    restore_counters,
    restore_sums,
    without_times,
)
from tasuki.integrations.loop import Course, HandedOver  # noqa: E402

__all__ = ["Trainer", "resumable"]

_HOOKS = ("_init_training_state", "_run_epoch", "_load_rng_state", "get_batch_samples")
_OURS = "a checkpoint of tasuki"


_WAYS = Ways(
    capture=capture,
    restore=restore,
    own="sums",
    capture_own=capture_sums,
    restore_own=restore_sums,
    model=model_of,
)


class _Resumable(transformers.Trainer):
    """The parts of a Trainer that make it resumable; mixed in before it by `resumable`."""

    def __init__(
        self,
        *args: Any,
        run: str | Path | None = None,
        run_options: Mapping[str, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        """`run` and `run_options` are the arguments of `tasuki.open_run`."""
        self._run, self._run_options = run, dict(run_options or {})
        self._driven: Driven | None = None
        self._holds: TrainerHolds | None = None
        self._first_epoch = 0
        self._losses: deque[Any] = deque()
        """Of the micro-batches of a step; each is its share of the step's."""
        super().__init__(*args, **kwargs)

    # -- the start ------------------------------------------------------------------------------

    def train(
        self,
        resume_from_checkpoint: str | bool | None = None,
        trial: Any = None,
        ignore_keys_for_eval: list[str] | None = None,
    ) -> Any:
        begin_talking()
        warning = check_version(HF, installed(HF))
        _refuse_others(self, resume_from_checkpoint, trial)
        told = _switch_off(self)  # first: our handlers of signals come after theirs are gone
        driven = self._driven = Driven(
            self._run, self._run_options, another="Trainer(…, run='other')"
        )
        self._holds = TrainerHolds(self, driven, _WAYS)
        try:
            if driven.loop.worker.ranks.world != self.args.world_size:
                raise UsageError(
                    f"the Trainer has {self.args.world_size} ranks, and this process was started "
                    f"as one of {driven.loop.worker.ranks.world}",
                    hint="start the ranks with torchrun",
                )
            for line in filter(None, [warning, *told]):
                driven.loop.worker.say(line)
            output = super().train(None, trial, ignore_keys_for_eval)
            driven.complete()
        except HandedOver:
            driven.loop.leave()  # at once: what the frameworks tear down takes seconds
        except BaseException as error:
            driven.fail(error)
            raise
        finally:
            self._driven = None
        return output

    def get_train_dataloader(self) -> Any:
        loader, driven, args = super().get_train_dataloader(), self._driven, self.args
        if driven is None:
            return loader
        return _Loader(driven, _plain(self, loader), args.gradient_accumulation_steps)

    def _init_training_state(
        self,
        max_steps: int,
        num_update_steps_per_epoch: int,
        num_train_epochs: int,
        resume_from_checkpoint: str | None,
        trial: Any,
    ) -> tuple[int, int]:
        where = super()._init_training_state(
            max_steps, num_update_steps_per_epoch, num_train_epochs, resume_from_checkpoint, trial
        )
        driven, holds = self._driven, self._holds
        if driven is None or holds is None:
            return where
        holds.course = Course(
            total_steps=max_steps,
            steps_per_epoch=num_update_steps_per_epoch,
            facts={"gradient_accumulation_steps": self.args.gradient_accumulation_steps},
        )
        driven.loop.lr = self._get_learning_rate  # also where no step is left to be done
        state = driven.find()
        if state is None:
            return where
        restore_counters(self, state)
        step = self.state.global_step
        self._first_epoch, left = divmod(step, num_update_steps_per_epoch)
        if state["is_at_end"]:
            self._first_epoch, left = num_train_epochs, 0  # no epoch is left
        return self._first_epoch, left * self.args.gradient_accumulation_steps

    def _run_epoch(self, **kwargs: Any) -> None:
        driven = self._driven
        is_resumed = driven is not None and driven.find() is not None and not driven.is_begun
        if is_resumed and kwargs["epoch"] == self._first_epoch:
            kwargs["resume_from_checkpoint"] = _OURS  # count from where the run stands
        super()._run_epoch(**kwargs)

    def _load_rng_state(self, checkpoint: str | None) -> None:
        """Random numbers come back with everything else."""
        if checkpoint != _OURS:
            super()._load_rng_state(checkpoint)

    # -- the steps ------------------------------------------------------------------------------

    def get_batch_samples(self, epoch_iterator: Any, num_batches: int, device: Any) -> Any:
        driven, holds = self._driven, self._holds
        if driven is not None and holds is not None:
            if not driven.is_begun:
                self._settle(driven)
            driven.at_step(holds, holds.course)
            self._losses = deque(maxlen=num_batches)
        return super().get_batch_samples(epoch_iterator, num_batches, device)

    def _settle(self, driven: Driven) -> None:
        driven.settle(self.model_wrapped)
        driven.loop.lr = self._get_learning_rate
        driven.loop.newest_loss = self._newest_loss

    def training_step(self, *args: Any, **kwargs: Any) -> Any:
        loss = super().training_step(*args, **kwargs)
        self._losses.append(loss)
        return loss

    def _newest_loss(self) -> float | None:
        """Of the last step: the Trainer itself tells a mean, every `logging_steps`."""
        return float(sum(self._losses)) if self._losses else None

    def log(self, logs: dict[str, float], start_time: float | None = None) -> None:
        super().log(logs, start_time)
        driven = self._driven
        if driven is None:
            return
        numbers = {k: v for k, v in logs.items() if k != "epoch" and isinstance(v, int | float)}
        found = without_times(numbers)
        if any(name.startswith("eval_") for name in found):
            driven.loop.rows.add(found, "val")
        else:
            driven.loop.rows.pending.update(found)

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        if self._driven is None or not self._driven.is_begun:
            return super().evaluate(*args, **kwargs)
        if self._driven.is_exact:
            getattr(self, "_eval_dataloaders", {}).clear()  # see Driven.validating: made anew
        with self._driven.validating():
            return super().evaluate(*args, **kwargs)

    # -- the end --------------------------------------------------------------------------------

    def _finalize_training(self, *args: Any, **kwargs: Any) -> Any:
        driven, holds = self._driven, self._holds
        if driven is not None and holds is not None:
            holds.is_at_end = True
            driven.end(holds, holds.course)
        return super()._finalize_training(*args, **kwargs)


def resumable(trainer: type[transformers.Trainer]) -> type[Any]:
    """The same Trainer, made resumable: `Trainer = resumable(SFTTrainer)`."""
    missing = [name for name in _HOOKS if not hasattr(trainer, name)]
    if missing:
        check_version(HF, installed(HF))
        raise UsageError(
            f"{trainer.__name__} has no {missing[0]}: it is none that tasuki knows",
            hint=f"transformers {HF.words} is tested; this is {installed(HF)}",
        )
    return type(trainer.__name__, (_Resumable, trainer), {"__module__": trainer.__module__})


Trainer = resumable(transformers.Trainer)


class _Loader:
    """What the Trainer iterates over; where it stands is told by epoch and skipped batches."""

    def __init__(self, driven: Driven, loader: Any, accumulation: int) -> None:
        self._driven = driven
        self._length = driven.feed_from(loader, accumulation=accumulation)
        self.dataset = getattr(loader, "dataset", None)
        self.batch_size = getattr(loader, "batch_size", None)
        self._epoch = self._first = 0

    def __len__(self) -> int:
        return self._length

    def set_epoch(self, epoch: int) -> None:
        self._epoch = epoch

    def skip(self, num_batches: int) -> _Loader:
        """At the next pass."""
        self._first = num_batches
        return self

    def __iter__(self) -> Iterator[Any]:
        epoch, first, self._first = self._epoch, self._first, 0
        for number in range(first, self._length):
            yield self._driven.batch(epoch, number)


_theirs = _module.skip_first_batches


def _skip_first_batches(dataloader: Any, num_batches: int = 0) -> Any:
    """Ours stands anywhere at once; the Trainer has no hook for it, only this function's name."""
    if isinstance(dataloader, _Loader):
        return dataloader.skip(num_batches)
    return _theirs(dataloader, num_batches)


_module.skip_first_batches = _skip_first_batches


def _plain(trainer: transformers.Trainer, loader: Any) -> Any:
    """The loader as torch makes it: accelerate's is one more wrapper around the same data, whose
    order we take over where it is a plain one."""
    kind = trainer.args.train_sampling_strategy
    is_plain = isinstance(loader, DataLoader) and kind in ("random", "sequential")
    if not is_plain or (loader.batch_size is None and loader.batch_sampler is None):
        return loader
    if type(trainer)._get_train_sampler is not transformers.Trainer._get_train_sampler:
        return loader  # an order of the user's own
    dataset = loader.dataset
    if isinstance(dataset, IterableDataset):
        return loader  # it has no order to take over
    sampler = RandomSampler(dataset) if kind == "random" else SequentialSampler(dataset)
    return DataLoader(
        dataset,
        batch_size=trainer._train_batch_size,
        sampler=sampler,
        collate_fn=loader.collate_fn,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=loader.pin_memory,
        drop_last=trainer.args.dataloader_drop_last,
        worker_init_fn=None,  # each sample is fetched under random numbers of its own
        multiprocessing_context=loader.multiprocessing_context,
    )


def _refuse_others(trainer: transformers.Trainer, resume_from: Any, trial: Any) -> None:
    if trial is not None:
        raise UsageError(
            "a hyperparameter search is no single run",
            hint="use transformers.Trainer for it, or one run for each trial (`each:` in a spec)",
        )
    if isinstance(resume_from, str):
        raise UsageError(
            f"`resume_from_checkpoint={resume_from!r}`: tasuki goes on from its own checkpoints",
            hint="leave it out; to begin with the weights of that folder, load them into the model "
            "(from_pretrained)",
        )
    is_sharded = trainer.is_deepspeed_enabled or trainer.is_fsdp_enabled
    if is_sharded or getattr(trainer, "is_model_parallel", False):
        raise UsageError(
            "tasuki cannot put back what DeepSpeed or FSDP shard, nor a model on several devices",
            hint="it knows one device and DDP",
        )
    if trainer.args.auto_find_batch_size:
        raise UsageError(
            "`auto_find_batch_size` begins a training anew in other batches",
            hint="give `per_device_train_batch_size`; a recipe has `micro_batch: auto`",
        )


def _switch_off(trainer: transformers.Trainer) -> list[str]:
    """What would act on the same signals, or save the same state a second time."""
    args, told = trainer.args, []
    from transformers.trainer_jit_checkpoint import JITCheckpointCallback

    for one in list(trainer.callback_handler.callbacks):
        if isinstance(one, JITCheckpointCallback):
            trainer.remove_callback(one)
            manager = one.jit_manager
            if manager is not None and signal.getsignal(signal.SIGTERM) == manager._sigterm_handler:
                signal.signal(signal.SIGTERM, manager._original_sigterm_handler or signal.SIG_DFL)
            told.append("`enable_jit_checkpoint` is switched off: tasuki saves at the notice")
    needs_best = args.load_best_model_at_end or args.save_strategy == SaveStrategy.BEST
    if needs_best and not args.save_only_model:
        args.save_only_model = True
        told.append(
            "the Trainer saves only models (`save_only_model`), for the best one at the end"
        )
    elif args.save_strategy != SaveStrategy.NO and not needs_best:
        args.save_strategy = SaveStrategy.NO
        told.append("the Trainer's own saves (`save_strategy`) are switched off: tasuki saves")
    if args.ignore_data_skip:
        args.ignore_data_skip = False  # at a resume it would begin the epoch's data again
        told.append(
            "`ignore_data_skip` is switched off: a resume takes up any batch at once, repeats none"
        )
    if args.eval_on_start:
        told.append("`eval_on_start`: every attempt of the run begins with an evaluation")
    return told

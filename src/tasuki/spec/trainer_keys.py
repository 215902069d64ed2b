"""Keys of transformers' Trainer, and of scripts around it, in the words of a spec.

Pure: one file's mapping in, a stage's keys and what became of each key out. Every value keeps the
place where it was written, so that a mistake in it is told with their file and line.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from tasuki.errors import SpecError
from tasuki.spec.check import check_mapping, quote
from tasuki.spec.positions import Mark, Node, Scalar
from tasuki.spec.spelling import spell
from tasuki.spec.written import Stage

Fate: TypeAlias = Literal["translated", "param", "none"]

NAMES: Mapping[str, tuple[str, ...]] = {
    "data": ("data_path", "train_file", "train_data", "dataset_path", "data"),
    "validation": ("validation_file", "val_file", "eval_file", "val_data", "eval_data"),
    "epochs": ("num_train_epochs", "num_epochs", "epochs"),
    "steps": ("max_steps", "max_train_steps"),
    "batch": (
        *("per_device_train_batch_size", "train_bs", "train_batch_size", "batch_size"),
        "micro_batch_size",
    ),
    "accumulation": ("gradient_accumulation_steps", "grad_accum", "accumulation_steps"),
    "gpus": ("num_gpus", "n_gpus", "nproc_per_node"),
    "lr": ("learning_rate", "lr"),
    "schedule": ("lr_scheduler_type", "lr_scheduler"),
    "warmup_steps": ("warmup_steps",),
    "warmup_ratio": ("warmup_ratio",),
    "weight_decay": ("weight_decay",),
    "clip": ("max_grad_norm", "grad_clip", "gradient_clip_val"),
    "seed": ("seed",),
    "bf16": ("bf16",),
    "fp16": ("fp16",),
    "tf32": ("tf32",),
    "gradient_checkpointing": ("gradient_checkpointing",),
    "compile": ("torch_compile",),
    "save_steps": ("save_steps",),
    "save_strategy": ("save_strategy",),
    "keep": ("save_total_limit",),
    "log": ("logging_steps", "log_steps"),
    "eval_steps": ("eval_steps",),
    "eval_strategy": ("eval_strategy", "evaluation_strategy"),
    "metric": ("metric_for_best_model",),
    "is_greater": ("greater_is_better",),
    "workers": ("dataloader_num_workers", "num_workers"),
    "pin": ("dataloader_pin_memory",),
    "prefetch": ("dataloader_prefetch_factor",),
    "optim": ("optim",),
    "output": ("output_dir",),
    "init": ("init_checkpoint", "init_from", "load_checkpoint", "init_adapter", "adapter_path"),
}
"""Our word for a meaning → what people call it."""

SECTIONS = ("training", "training_args", "training_arguments", "trainer")
"""Mappings whose keys mean the same as at the top of the file."""

NO_COUNTERPART: Mapping[str, str] = {
    "resume_from_checkpoint": "a run goes on from its last checkpoint by itself",
    "overwrite_output_dir": "a run is never overwritten: `tasuki run --new` begins another",
    "logging_dir": "the run's folder holds the logs",
    "logging_strategy": "training logs in steps: `log_every`",
    "run_name": "runs are named by their experiment",
    "report_to": "write `sinks: [tensorboard]` at the top of tasuki.yaml",
    "load_best_model_at_end": "with `validate` the best weights are kept anyway",
    "do_train": "stages are trained",
    "do_eval": "`validate` and `evaluate` decide",
    "do_predict": "`evaluate` decides",
    "per_device_eval_batch_size": "evaluation takes the batch that fits",
    "eval_bs": "evaluation takes the batch that fits",
    "eval_accumulation_steps": "evaluation takes the batch that fits",
    "dataloader_drop_last": "the last samples of an epoch are never dropped",
    "dataloader_persistent_workers": "workers persist",
    "data_seed": "the order of samples follows from `seed`",
    "group_by_length": "samples of like size share a batch: `buckets`",
    "gradient_checkpointing_kwargs": "`gradient_checkpointing` may list modules instead",
    "save_only_model": "checkpoints hold all that a resume needs",
    "save_safetensors": "weights are safetensors always",
    "save_on_each_node": "rank 0 saves",
    "disable_tqdm": "progress is a line now and then",
    "local_rank": "tasuki starts the ranks",
    "ddp_find_unused_parameters": "found out by itself",
    "ddp_backend": "nccl on GPUs, gloo on CPUs",
    "deepspeed": "ranks are DDP; a script of your own may be a `command`",
    "fsdp": "ranks are DDP; a script of your own may be a `command`",
    "fsdp_config": "ranks are DDP; a script of your own may be a `command`",
    "auto_find_batch_size": "`micro_batch: auto` is the default",
    "push_to_hub": "nothing is uploaded",
    "hub_model_id": "nothing is uploaded",
}

_SCHEDULES = {
    "linear": "linear",
    "cosine": "cosine",
    "constant": "constant",
    "constant_with_warmup": "constant",
    "warmup_stable_decay": "wsd",
}
_ADAMW = ("adamw", "adamw_hf", "adamw_torch", "adamw_torch_fused")


@dataclass(frozen=True, slots=True)
class Told:
    """What became of one key."""

    key: str
    value: object
    mark: Mark
    fate: Fate
    words: str
    """Translated: the key and value here. No counterpart: why."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A key of the stage, and how people had it."""

    node: Node
    said: str
    """`train_bs 1 × grad_accum 16`; empty: as it is called here."""


@dataclass(slots=True)
class Reading:
    """One file while it is read: what is left to look at, and what came out."""

    found: dict[str, tuple[str, Node]]
    """Meaning → (their key, value)."""
    entries: dict[str, Entry] = field(default_factory=dict)
    told: list[Told] = field(default_factory=list)
    params: dict[str, Node] = field(default_factory=dict)

    def take(self, meaning: str) -> tuple[str, Node] | None:
        """Their key and its value; `null` counts as not written."""
        taken = self.found.pop(meaning, None)
        return None if taken is None or taken[1].content is None else taken

    def put(self, path: str, value: Scalar | Node, *sources: tuple[str, Node]) -> None:
        """`save.every` ← value, told of every key that it comes from."""
        key, _, inner = path.partition(".")
        mark = sources[0][1].mark
        said = " × ".join(f"{name} {_short(node)}" for name, node in sources)
        node = value if isinstance(value, Node) else Node(value, mark)
        self._refuse_wrong(path, node, sources[0][0])
        for name, source in sources:
            if all(told.mark != source.mark for told in self.told):
                self._tell(name, source, "translated", f"{path}: {spell(node.plain())}")
        if inner:
            before = self.entries.get(key)
            held = dict(before.node.entries()) if before else {}
            said = f"{before.said}, {said}" if before else said
            node = Node({**held, inner: node}, mark)
        self.entries[key] = Entry(node, said)

    def drop(self, source: tuple[str, Node], why: str) -> None:
        self._tell(*source, "none", why)

    def keep(self, source: tuple[str, Node], why: str = "") -> None:
        """As a param of the recipe, by their name."""
        self.params[source[0]] = source[1]
        self._tell(*source, "param", why)

    def _tell(self, key: str, node: Node, fate: Fate, words: str) -> None:
        self.told.append(Told(key, node.plain(), node.mark, fate, words))

    def _refuse_wrong(self, path: str, node: Node, theirs: str) -> None:
        for key in reversed(path.split(".")):
            node = Node({key: node}, node.mark)
        try:
            check_mapping(node, Stage, where="a stage")
        except SpecError as error:
            last = path.rpartition(".")[2]
            message = error.message.replace(f"`{last}`", f"`{theirs}`", 1)
            raise SpecError(message, hint=error.hint.replace(f"`{last}:", f"`{theirs}:")) from None


def read_keys(root: Node) -> Reading:
    """Sort the keys of a file by what they mean; the rest become params."""
    meanings = {name: meaning for meaning, names in NAMES.items() for name in names}
    reading = Reading({})
    for key, node in _flat(root):
        if key in meanings:
            _refuse_contradiction(reading, meanings[key], key, node)
            reading.found.setdefault(meanings[key], (key, node))
        elif key in NO_COUNTERPART:
            reading.drop((key, node), NO_COUNTERPART[key])
        elif key in reading.params:
            raise SpecError(
                f"{node.mark}: `{key}` is written twice (first in line "
                f"{reading.params[key].mark.line})",
                hint="keep one of the two",
            )
        else:
            reading.keep((key, node))
    return reading


def _flat(root: Node) -> Iterable[tuple[str, Node]]:
    for key, node in root.entries().items():
        if key in SECTIONS and isinstance(node.content, dict):
            yield from node.content.items()
        else:
            yield key, node


def _refuse_contradiction(reading: Reading, meaning: str, key: str, node: Node) -> None:
    if meaning not in reading.found:
        return
    other, before = reading.found[meaning]
    if before.plain() != node.plain():
        raise SpecError(
            f"{node.mark}: `{key}: {_short(node)}` contradicts `{other}: {_short(before)}` in "
            f"line {before.mark.line}",
            hint="keep one of the two",
        )
    reading.drop((key, node), f"the same as `{other}`")


def translate_keys(reading: Reading) -> None:
    """Everything that one file can say by itself; `init` and `output` are left for the others."""
    _translate_length(reading)
    _translate_batch(reading)
    _translate_rate(reading)
    _translate_precision(reading)
    _translate_saves(reading)
    _translate_validation(reading)
    for meaning, path in (
        ("data", "data"),
        ("weight_decay", "weight_decay"),
        ("clip", "clip"),
        ("seed", "seed"),
        ("compile", "compile"),
        ("pin", "loader.pin"),
        ("prefetch", "loader.prefetch"),
    ):
        if source := reading.take(meaning):
            reading.put(path, source[1], source)
    if source := reading.take("workers"):
        # Asked for each process by itself: `auto` measures, and stays within the lane's CPUs.
        has_any = type(source[1].content) is int and source[1].content > 0
        reading.put("loader.workers", "auto" if has_any else source[1], source)
    if source := reading.take("log"):
        reading.put("log_every", _steps(source), source)
    if source := reading.take("optim"):
        if str(source[1].content) in _ADAMW:
            reading.drop(source, "AdamW is the default")
        else:
            reading.keep(source, "for the recipe's build_optimizer; the default is AdamW")


def _translate_length(reading: Reading) -> None:
    epochs, steps = reading.take("epochs"), reading.take("steps")
    if steps and isinstance(steps[1].content, int) and steps[1].content <= 0:
        reading.drop(steps, "no number of steps")
        steps = None
    if steps:
        reading.put("steps", steps[1], steps)
    if epochs and steps:
        reading.drop(epochs, f"`{steps[0]}` decides")
    elif epochs:
        value = epochs[1].content
        if isinstance(value, float) and not value.is_integer():
            raise SpecError(
                f"{epochs[1].mark}: `{epochs[0]}: {value}` is no whole number of epochs",
                hint="write a whole number, or `max_steps`",
            )
        reading.put("epochs", int(value) if isinstance(value, float) else epochs[1], epochs)


def _translate_batch(reading: Reading) -> None:
    """The samples of a step are kept; how they are split is tasuki's to choose."""
    batch, accumulation = reading.take("batch"), reading.take("accumulation")
    gpus = reading.take("gpus")
    if gpus:
        reading.put("gpus", gpus[1], gpus)
    if batch:
        sources = [source for source in (batch, accumulation, gpus) if source]
        product = math.prod(_count(source) for source in sources)
        reading.put("effective_batch", product, *sources)
    elif accumulation:
        reading.drop(accumulation, "no batch size stands beside it: write `effective_batch`")
    if source := reading.take("gradient_checkpointing"):
        # It was there because memory was short: `auto` recomputes only where it is.
        is_wanted = source[1].content is True
        reading.put("gradient_checkpointing", "auto" if is_wanted else source[1], source)


def _translate_rate(reading: Reading) -> None:
    if source := reading.take("lr"):
        reading.put("lr", source[1], source)
    if source := reading.take("schedule"):
        known = _SCHEDULES.get(str(source[1].content))
        if known:
            reading.put("schedule", known, source)
        else:
            reading.keep(source, "for the recipe's build_schedule; the default is OneCycle")
    steps, ratio = reading.take("warmup_steps"), reading.take("warmup_ratio")
    if steps and not (ratio and steps[1].content == 0):
        reading.put("warmup", steps[1], steps)
        if ratio:
            reading.drop(ratio, f"`{steps[0]}` decides")
    elif ratio:
        if steps:
            reading.drop(steps, f"`{ratio[0]}` decides")
        value = ratio[1].content
        reading.put("warmup", float(value) if type(value) is int else ratio[1], ratio)


def _translate_precision(reading: Reading) -> None:
    sources = [source for kind in ("bf16", "fp16", "tf32") if (source := reading.take(kind))]
    for key, node in sources:
        if not isinstance(node.content, bool):
            raise SpecError(
                f"{node.mark}: `{key}` must be true or false, not {quote(node)}",
                hint=f"write for example `{key}: true`",
            )
    wanted = [source for source in sources if source[1].content]
    halves = [source for source in wanted if source[0] != "tf32"]
    if len(halves) > 1:
        raise SpecError(
            f"{halves[1][1].mark}: both `bf16` and `fp16` are wanted", hint="keep one of the two"
        )
    chosen = next(iter(halves or wanted or sources), None)
    if chosen:
        reading.put("precision", chosen[0] if wanted else "fp32", chosen)
    for source in sources:
        if source is not chosen:
            reading.drop(source, f"`precision` is {chosen[0] if chosen and wanted else 'fp32'}")


def _translate_saves(reading: Reading) -> None:
    every, strategy = reading.take("save_steps"), reading.take("save_strategy")
    word = str(strategy[1].content) if strategy else "steps"
    if strategy and word == "epoch":
        reading.put("save.every", "1 epoch", strategy)
    elif strategy and word != "steps":
        reading.drop(strategy, "saves are taken when they pay: `save: {every: auto}`")
    elif strategy:
        reading.drop(strategy, "`save_steps` decides")
    if every and word == "steps":
        reading.put("save.every", _steps(every), every)
    elif every:
        reading.drop(every, "`save_strategy` decides")
    if source := reading.take("keep"):
        reading.put("save.keep", source[1], source)


def _translate_validation(reading: Reading) -> None:
    every, strategy = reading.take("eval_steps"), reading.take("eval_strategy")
    word = str(strategy[1].content) if strategy else "steps"
    if strategy and word == "epoch":
        reading.put("validate.every", "1 epoch", strategy)
    elif strategy:
        why = "`eval_steps` decides" if word == "steps" else "without `validate` there is none"
        reading.drop(strategy, why)
    if every and word == "steps":
        reading.put("validate.every", _steps(every), every)
    elif every:
        reading.drop(every, "`eval_strategy` decides")
    is_validated = "validate" in reading.entries
    if source := reading.take("validation"):
        reading.put("validate.data", source[1], source)
        is_validated = True
    metric, is_greater = reading.take("metric"), reading.take("is_greater")
    if not is_validated:
        for source in (metric, is_greater):
            if source:
                reading.drop(source, "nothing is validated")
        return
    if metric:
        name = metric[1].content
        value = name.removeprefix("eval_") if isinstance(name, str) else metric[1]
        reading.put("validate.metric", value, metric)
    if is_greater:
        mode = "max" if is_greater[1].content is True else "min"
        reading.put("validate.mode", mode, is_greater)


def _steps(source: tuple[str, Node]) -> str:
    return f"{_count(source)} steps"


def _count(source: tuple[str, Node]) -> int:
    key, node = source
    if type(node.content) is not int or node.content < 1:
        raise SpecError(
            f"{node.mark}: `{key}` must be a whole number of at least 1, not {quote(node)}",
            hint=f"write for example `{key}: 16`",
        )
    return node.content


def _short(node: Node) -> str:
    return quote(node).strip("`")

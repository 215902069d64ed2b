"""A spec out of configuration files that people had before: one file per experiment or stage.

Pure. `exp3_stage2.yaml` is the second stage of `exp3`, any other file an experiment by itself. What
comes out are texts to write and what became of each key; `commands/new_from_yaml.py` reads and
writes. Nothing is guessed: a key that means nothing here is handed to the recipe, or named.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePath

from tasuki.errors import SpecError
from tasuki.spec.check import name_at, refuse_non_finite
from tasuki.spec.positions import Mark, Node
from tasuki.spec.spelling import spell, spell_text
from tasuki.spec.trainer_keys import Entry, Reading, Told, read_keys, translate_keys

_STAGE = re.compile(r"(.+?)[_.-]?stage[_.-]?(\d{1,6})", re.IGNORECASE | re.ASCII)
_WEIGHTS = (".safetensors", ".pt", ".pth", ".ckpt", ".bin")
_DEFAULTS = {
    "epochs": "1",
    "effective_batch": "8",
    "lr": "0.001",
    "schedule": "onecycle",
    "weight_decay": "0.01",
    "clip": "1.0",
    "seed": "0",
    "precision": "fp32",
}
"""What a spec means where it says nothing; a Trainer means other things by some of them."""
_ORDER = (
    *("data", "init_from", "epochs", "steps", "effective_batch", "gpus", "lr", "schedule"),
    *("warmup", "weight_decay", "clip", "seed", "precision", "gradient_checkpointing", "compile"),
    *("loader", "save", "validate", "log_every"),
)


@dataclass(frozen=True, slots=True)
class TranslatedStage:
    """One file of theirs as a stage."""

    name: str
    experiment: str
    number: int
    """Its place in the chain; -1: the file is an experiment by itself."""
    mark: Mark
    reading: Reading

    @property
    def is_stage(self) -> bool:
        return self.number >= 0

    @property
    def file(self) -> str:
        return f"{self.name}.yaml"


@dataclass(frozen=True, slots=True)
class Translation:
    """What to write, and what to say about it."""

    files: Mapping[str, str]
    """Name → text; the spec itself comes first."""
    told: tuple[Told, ...]
    notes: tuple[str, ...]


def translate_files(roots: Mapping[str, Node], *, project: str, recipe: str) -> Translation:
    """`roots`: their files by path, in the order in which they were named."""
    stages = [_translate_file(path, root) for path, root in roots.items()]
    chains = _chain(stages)
    for chain in chains.values():
        for before, stage in zip((None, *chain), chain, strict=False):
            _translate_start(stage, before, stages)
    for stage in stages:
        if source := stage.reading.take("output"):
            stage.reading.drop(source, "a run's folder is runs/EXPERIMENT")
    texts = {"tasuki.yaml": _spell_spec(chains, project=project, recipe=recipe)}
    texts |= {stage.file: _spell_stage(stage) for stage in stages}
    told = tuple(told for stage in stages for told in stage.reading.told)
    return Translation(texts, told, tuple(_notes(chains, stages)))


def _translate_file(path: str, root: Node) -> TranslatedStage:
    stem = PurePath(path).stem
    mark = Mark(path)
    if stem == "tasuki":
        raise SpecError(f"{path}: the spec itself will be called so", hint="rename the file")
    name_at(stem, mark, what="stage")
    if root.content is None:
        raise SpecError(f"{root.mark}: the file is empty", hint="leave it out")
    if not isinstance(root.content, dict):
        raise SpecError(f"{root.mark}: the file holds no keys", hint="write `key: value` lines")
    refuse_non_finite(root)
    reading = read_keys(root)
    translate_keys(reading)
    match = _STAGE.fullmatch(stem)
    experiment = name_at(match[1].rstrip("_.-"), mark, what="experiment") if match else stem
    return TranslatedStage(stem, experiment, int(match[2]) if match else -1, mark, reading)


def _chain(stages: Sequence[TranslatedStage]) -> dict[str, list[TranslatedStage]]:
    """Experiment → its stages in order."""
    names: dict[str, TranslatedStage] = {}
    chains: dict[str, list[TranslatedStage]] = {}
    for stage in stages:
        if stage.name.lower() in names:
            other = names[stage.name.lower()]
            raise SpecError(
                f"{stage.mark}: {other.mark} is called `{other.name}` too",
                hint="rename one of the files",
            )
        names[stage.name.lower()] = stage
        chains.setdefault(stage.experiment, []).append(stage)
    for experiment, chain in chains.items():
        chain.sort(key=lambda stage: stage.number)
        for before, stage in itertools.pairwise(chain):
            _refuse_same_place(experiment, before, stage)
    return chains


def _refuse_same_place(experiment: str, one: TranslatedStage, other: TranslatedStage) -> None:
    hint = "name stages exp3_stage1.yaml, exp3_stage2.yaml, …"
    if not one.is_stage:
        raise SpecError(
            f"{other.mark}: `{experiment}` is an experiment by itself already: {one.mark}",
            hint=hint,
        )
    if one.number == other.number:
        raise SpecError(
            f"{other.mark}: this is stage {one.number} of `{experiment}`, and so is {one.mark}",
            hint=hint,
        )


def _translate_start(
    stage: TranslatedStage, before: TranslatedStage | None, stages: Sequence[TranslatedStage]
) -> None:
    """Another file's output, a file of weights, or nothing that could be found again."""
    source = stage.reading.take("init")
    if source is None:
        return
    node = source[1]
    text = str(node.content)
    wanted = _tidy(text)
    for other in stages:
        output = other.reading.found.get("output")
        if other is stage or output is None or output[1].content is None:
            continue
        if _is_inside(wanted, _tidy(str(output[1].content))):
            is_own = other.experiment == stage.experiment
            word = other.name if is_own else f"{other.experiment}/{other.name}"
            stage.reading.put("init_from", "previous" if other is before else word, source)
            return
    if text in ("none", "previous") and (before or text == "none"):
        stage.reading.put("init_from", text, source)
    elif wanted.endswith(_WEIGHTS):
        is_rooted = wanted.startswith(("/", "~", "$"))
        stage.reading.put("init_from", wanted if is_rooted else f"./{wanted}", source)
    else:
        stage.reading.drop(source, "no other file has this `output_dir`; write `init_from`")


def _tidy(path: str) -> str:
    parts = [part for part in path.split("/") if part not in ("", ".")]
    return ("/" if path.startswith("/") else "") + "/".join(parts)


def _is_inside(path: str, folder: str) -> bool:
    return path == folder or path.startswith(f"{folder}/")


# -- what is written ------------------------------------------------------------------------------


def _spell_spec(
    chains: Mapping[str, Sequence[TranslatedStage]], *, project: str, recipe: str
) -> str:
    num_files = sum(len(chain) for chain in chains.values())
    files = f"{num_files} file{'s' if num_files > 1 else ''}"
    most = max(_gpus_of(stage) for chain in chains.values() for stage in chain)
    lines = [
        f"# Made by `tasuki new --from-yaml` from {files}. `tasuki plan` shows what would be done.",
        f"project: {spell_text(project)}",
        f"recipe: {recipe} # `params` are its constructor's keywords",
        "runs: runs",
        "",
        f"cluster: {{ gpus: {most} }} # of a job; `time_limit: 6h` limits it"
        if most > 1
        else "# cluster: { time_limit: 6h, gpus: 4 } # limits of a job; its GPUs are shared out",
        "",
        "defaults:",
        "  gpus: 1 # of each stage",
        "",
        "experiments:",
    ]
    for experiment, chain in chains.items():
        names = ", ".join(spell_text(stage.file) for stage in chain)
        lines.append(f"  {spell_text(experiment)}: {{ stages: [{names}] }}")
    return "\n".join(lines) + "\n"


def _gpus_of(stage: TranslatedStage) -> int:
    entry = stage.reading.entries.get("gpus")
    return entry.node.content if entry and isinstance(entry.node.content, int) else 1


def _spell_stage(stage: TranslatedStage) -> str:
    """Each key with what it was called; params as they were."""
    entries = stage.reading.entries
    lines = [f"# From {PurePath(stage.mark.file).name}: what it was called there stands behind."]
    lines += [_spell_entry(key, entries[key]) for key in _ORDER if key in entries]
    if not entries and not stage.reading.params:
        lines.append(f"name: {spell_text(stage.name)}")  # a file without any key is no stage
    if stage.reading.params:
        lines.append("params:")
        for key, node in stage.reading.params.items():
            lines.append(f"  {spell_text(key)}: {spell(node.plain())}")
    return "\n".join(lines) + "\n"


def _spell_entry(key: str, entry: Entry) -> str:
    # Their text may hold line ends, which would end the comment.
    said = " ".join(entry.said.split())
    value = spell(entry.node.plain())
    is_news = said.isprintable() and said != f"{key} {value}"
    return f"{key}: {value} # {said}" if is_news else f"{key}: {value}"


def _notes(
    chains: Mapping[str, Sequence[TranslatedStage]], stages: Sequence[TranslatedStage]
) -> list[str]:
    notes = []
    for experiment, chain in chains.items():
        numbers = [stage.number for stage in chain]
        has_gap = any(b - a > 1 for a, b in itertools.pairwise([0, *numbers]))
        if has_gap:
            listed = ", ".join(map(str, numbers))
            notes.append(f"`{experiment}` has the stages {listed}: is a file missing?")
        unsaid = [s.name for s in chain[1:] if "init_from" not in s.reading.entries]
        if unsaid:
            notes.append(
                f"{', '.join(unsaid)}: starts from the weights of the stage before, as stages do"
            )
    for key, default in _DEFAULTS.items():
        rivals = ("epochs", "steps") if key == "epochs" else (key,)
        without = [s.file for s in stages if not any(r in s.reading.entries for r in rivals)]
        if without:
            files = "any file" if len(without) == len(stages) else ", ".join(without)
            notes.append(f"`{key}` is not in {files}: tasuki's default is {default}")
    return notes

"""From the written spec to a list of experiments with explicit stages.

Pure. Picks the config, gives an experiment without `stages` its one stage, expands `each`, and
applies the settings that name stages. What comes out is a list of drafts, ready to be merged.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import PurePath

from tasuki.errors import SpecError
from tasuki.spec.check import name_at, nearest, quote
from tasuki.spec.layers import merge_layers, put, split_key, without
from tasuki.spec.positions import Mark, Node
from tasuki.spec.settings import Setting

ONLY_STAGE = "train"
MAX_EACH = 1000
_RESERVED = {"previous", "none"}
"""Words of `init_from`."""


@dataclass(frozen=True, slots=True)
class Draft:
    """One experiment before its layers are merged."""

    name: str
    origin: str
    """As written; differs from `name` after `each`."""
    mark: Mark
    layer: Node
    """The experiment's own keys, without `stages`, `each` and `name`."""
    stages: tuple[Node, ...]
    """With `stages: auto` one without a name, for what settings say about all of them."""
    auto: Node | None = None
    """The written `stages: auto`, until the data have been looked at."""
    varied: tuple[str, ...] = ()
    """The keys that `each` goes over."""


def pick_weaker_layers(root: Node, *, config: str | None) -> Node:
    """Everything that an experiment starts from: top, defaults, config."""
    entries = root.entries()
    top = {key: child for key, child in entries.items() if key in ("recipe", "command")}
    layers = [Node(top, root.mark)]
    if (defaults := entries.get("defaults")) is not None:
        layers.append(Node(defaults.entries(), defaults.mark))
    if config is not None:
        configs = entries["configs"].entries() if "configs" in entries else {}
        if config not in configs:
            near = nearest(config, configs)
            known = f"known: {' '.join(configs)}" if configs else "the spec has no `configs`"
            raise SpecError(
                f"{root.mark.file}: there is no config `{config}`",
                hint=f"did you mean `{near}`?" if near else known,
            )
        layers.append(Node(configs[config].entries(), configs[config].mark))
    return merge_layers(*layers)


def draft_experiments(root: Node, weaker: Node) -> list[Draft]:
    """The experiments in written order, `each` expanded."""
    experiments = root.entries().get("experiments")
    if experiments is None or not experiments.entries():
        raise SpecError(
            f"{experiments.mark if experiments else root.mark}: there are no experiments",
            hint="write `experiments: {baseline: {data: train.h5, epochs: 3}}`",
        )
    drafts: dict[str, Draft] = {}
    for key, node in experiments.entries().items():
        for draft in _expand(key, Node(node.entries(), node.mark), weaker):
            name_at(draft.name, draft.mark, what="experiment")
            if draft.name in drafts:
                raise SpecError(
                    f"{draft.mark}: two experiments are called `{draft.name}`",
                    hint="rename one of them",
                )
            drafts[draft.name] = draft
    return list(drafts.values())


def _expand(key: str, node: Node, weaker: Node) -> list[Draft]:
    full = merge_layers(weaker, node)
    stages = full.entries().get("stages")
    is_auto = stages is not None and stages.content == "auto"
    written = node.entries().get("name")
    name = str(written.content) if written is not None and written.content else key
    draft = Draft(
        name=name,
        origin=name,
        mark=node.mark,
        layer=without(node, "name", "stages", "each"),
        stages=(Node({}, node.mark),) if is_auto else _stages_of(name, full, node.mark),
        auto=stages if is_auto else None,
    )
    each = full.entries().get("each")
    if each is None or not each.entries():
        return [draft]
    return _expand_each(draft, each)


def _stages_of(name: str, full: Node, mark: Mark) -> tuple[Node, ...]:
    written = full.entries().get("stages")
    if written is not None and isinstance(written.content, tuple) and written.content:
        return written.content
    own = without(full, "name", "stages", "each").entries().keys() - {"recipe"}
    if (written is None or written.content is None) and own:
        return (Node({"name": Node(ONLY_STAGE, mark)}, mark),)
    raise SpecError(
        f"{written.mark if written is not None else mark}: experiment `{name}` has no stages",
        hint="write `stages: [{name: small, data: small.h5, epochs: 3}]`, or `data:` and `epochs:`",
    )


def _expand_each(draft: Draft, each: Node) -> list[Draft]:
    values: list[list[tuple[str, Node]]] = []
    num_drafts = 1
    for key, listed in each.entries().items():
        items = listed.content if isinstance(listed.content, tuple) else ()
        _refuse_idle_each(draft, key, listed)
        values.append([(key, item) for item in items])
        num_drafts *= len(items)
        if num_drafts > MAX_EACH:
            raise SpecError(
                f"{each.mark}: `each` makes more than {MAX_EACH:,} experiments",
                hint="list fewer values",
            )
    drafts = []
    for combination in itertools.product(*values):
        layer, name = draft.layer, draft.name
        for key, item in combination:
            layer = put(layer, key.split("."), item)
            name = f"{name}_{_value_name(key, item)}"
        varied = tuple(key for key, _ in combination)
        drafts.append(replace(draft, name=name, layer=layer, mark=each.mark, varied=varied))
    return drafts


def _refuse_idle_each(draft: Draft, key: str, listed: Node) -> None:
    first = key.split(".", maxsplit=1)[0]
    if first in ("name", "stages", "each"):
        raise SpecError(
            f"{listed.mark}: `each` cannot go over `{first}`", hint="use a key of a stage"
        )
    if "." not in key and all(first in stage.entries() for stage in draft.stages):
        raise SpecError(
            f"{listed.mark}: `each` over `{key}` changes nothing: every stage has its own",
            hint=f"remove `{key}` from the stages",
        )


def _value_name(key: str, item: Node) -> str:
    """`data/hcrl_sa.h5` → `hcrl_sa`, 0.001 → `0.001`, [512, 1024] → `512-1024`."""
    if isinstance(item.content, dict):
        raise SpecError(
            f"{item.mark}: `each` takes texts, numbers and lists, not a mapping",
            hint="write for example `each: {params.d_model: [256, 512]}`",
        )
    parts = item.content if isinstance(item.content, tuple) else (item,)
    texts = [_stem(key, part) for part in parts]
    name = re.sub(r"[^A-Za-z0-9_.-]+", "_", "-".join(texts), flags=re.ASCII).strip("_.-")
    if not name:
        raise SpecError(
            f"{item.mark}: {quote(item)} leaves no letters for a name",
            hint="write these experiments out",
        )
    return name


def _stem(key: str, part: Node) -> str:
    if not isinstance(part.content, str):
        return quote(part).strip("`")
    is_path = key.rsplit(".", maxsplit=1)[-1] in ("data", "init_from") or "/" in part.content
    return PurePath(part.content).stem if is_path else part.content


def apply_late(drafts: Sequence[Draft], settings: Sequence[Setting]) -> list[Draft]:
    """Settings that go into stages, or into one experiment; the last one wins."""
    changed = list(drafts)
    for setting in settings:
        if setting.is_bare:
            changed = [_put_in_stages(draft, setting) for draft in changed]
        else:
            changed = _put_in_experiment(changed, setting)
    return changed


def _put_in_stages(draft: Draft, setting: Setting) -> Draft:
    stages = tuple(put(stage, setting.path, setting.value) for stage in draft.stages)
    return replace(draft, stages=stages)


def _put_in_experiment(drafts: list[Draft], setting: Setting) -> list[Draft]:
    known = {word: None for draft in drafts for word in (draft.name, draft.origin)}
    name, rest = split_key(setting.path[1:], known)
    if name not in known or not rest:
        near = nearest(name, known)
        raise SpecError(
            f"{setting.mark}: there is no experiment `{name}`",
            hint=f"did you mean `{near}`?" if near else f"choose one of {', '.join(known)}",
        )
    return [
        _put_in_draft(draft, rest, setting) if name in (draft.name, draft.origin) else draft
        for draft in drafts
    ]


def _put_in_draft(draft: Draft, path: Sequence[str], setting: Setting) -> Draft:
    if path[0] != "stages":
        return replace(draft, layer=put(draft.layer, path, setting.value))
    if draft.auto is not None:
        raise SpecError(
            f"{setting.mark}: the stages of `{draft.name}` are found in the data (`stages: auto`)",
            hint="say what holds for all of them, or write `epochs: {512: 30, 1024: 20}`",
        )
    changed = put(Node(draft.stages, draft.mark), path[1:], setting.value)
    assert isinstance(changed.content, tuple)
    return replace(draft, stages=changed.content)


def rename(drafts: list[Draft], name: str) -> list[Draft]:
    """TASUKI_NAME: another name for the one experiment."""
    mark = Mark("TASUKI_NAME")
    if len(drafts) != 1:
        raise SpecError(
            f"TASUKI_NAME={name} renames one experiment, but the spec has {len(drafts)}",
            hint="unset TASUKI_NAME, or keep one experiment in the spec",
        )
    return [replace(drafts[0], name=name_at(name, mark, what="experiment"))]


def name_stage(stage: Node, *, where: str) -> str:
    """The name of a stage, or a SpecError."""
    written = stage.entries().get("name")
    if written is None or not isinstance(written.content, str):
        raise SpecError(f"{stage.mark}: {where} has no name", hint="add `name: small_512`")
    if written.content in _RESERVED:
        raise SpecError(
            f"{written.mark}: a stage cannot be called `{written.content}`",
            hint="`init_from` gives this word a meaning; choose another name",
        )
    return name_at(written.content, written.mark, what="stage")

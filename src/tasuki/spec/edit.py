"""Put values into the stage of a written spec. Comments and quotes stay: ruamel's round trip."""

from __future__ import annotations

import io
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap
from ruamel.yaml.util import load_yaml_guess_indent

from tasuki.errors import SpecError
from tasuki.spec.expand import ONLY_STAGE


class WrittenStage(NamedTuple):
    """The mapping of a stage in a file that was read."""

    file: Path
    document: Any
    mapping: Any


def find_written_stage(spec: Path, experiment: str, stage: str) -> WrittenStage:
    """Return where a stage is written out.

    Raises:
        SpecError: It comes from Python, `each`, `stages: auto` or `defaults`, or has an anchor.
    """
    found = None if spec.suffix == ".py" else _find_in_experiments(spec, experiment, stage)
    if found is not None and found.mapping.anchor.value is None:
        return found
    why = "has an anchor, which other stages use," if found else "is not written out"
    raise SpecError(
        f"stage '{stage}' of '{experiment}' {why} in {spec}",
        hint="leave --write out, and write the winners into the spec by hand",
    )


def change_stage(written: WrittenStage, changes: Mapping[str, Any]) -> str:
    """Return the text of the file with other values of the stage, by dotted keys."""
    for key, value in changes.items():
        *parents, last = key.split(".")
        mapping = written.mapping
        for parent in parents:
            mapping = mapping.setdefault(parent, CommentedMap())
        if last in mapping:
            mapping[last] = value
        else:
            # Not at the end: ruamel keeps comments about the next stage with the last key.
            mapping.insert(min(1, len(mapping)), last, value)
    out = io.StringIO()
    _make_yaml(written.file.read_text(encoding="utf-8")).dump(written.document, out)
    return out.getvalue()


def _find_in_experiments(spec: Path, experiment: str, stage: str) -> WrittenStage | None:
    document = _read(spec)
    experiments = document.get("experiments")
    if isinstance(experiments, Mapping):
        return _find_stage(spec, document, experiments.get(experiment), stage)
    files = [spec.parent / str(item) for item in experiments or ()]
    for file in files:
        if file.stem == experiment and file.is_file():
            document = _read(file)
            return _find_stage(file, document, document, stage)
    return None


def _find_stage(file: Path, document: Any, experiment: Any, stage: str) -> WrittenStage | None:
    if not isinstance(experiment, Mapping) or "each" in experiment:
        return None
    stages = experiment.get("stages")
    if stages is None and stage == ONLY_STAGE:
        return WrittenStage(file, document, experiment)
    for item in stages if isinstance(stages, list) else ():
        if isinstance(item, Mapping) and item.get("name") == stage:
            return WrittenStage(file, document, item)
        other = file.parent / str(item)
        if isinstance(item, str) and other.is_file():
            content = _read(other)
            if content.get("name", other.stem) == stage:
                return WrittenStage(other, content, content)
    return None


def _read(file: Path) -> Any:
    text = file.read_text(encoding="utf-8")
    return _make_yaml(text).load(text)


def _make_yaml(text: str) -> Any:
    """Return a reader and writer that indents as this text does."""
    yaml = YAML()
    yaml.preserve_quotes = True
    yaml.width = 4096  # long lines stay lines
    _, sequence, offset = load_yaml_guess_indent(text, yaml=YAML())
    mapping = min(map(len, re.findall(r"^( +)[^ #-]", text, re.MULTILINE)), default=2)
    yaml.indent(mapping=mapping, sequence=sequence or 2, offset=offset or 0)
    return yaml

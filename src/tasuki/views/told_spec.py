"""A frozen spec as lines of YAML, for people. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tasuki.spec.spelling import spell


def spec_lines(told: Mapping[str, Any]) -> str:
    """Of the values of commands/told_spec.py."""
    return "\n".join(_lines(told)) + "\n"


def _lines(told: Mapping[str, Any]) -> Iterator[str]:
    yield f"project: {spell(told['project'])}"
    if told["cluster"]:
        yield f"cluster: {spell(told['cluster'])}"
    if told["sinks"]:
        yield f"sinks: {spell(told['sinks'])}"
    if told["all"]:
        yield "defaults:"
        yield from (f"  {key}: {spell(value)}" for key, value in told["all"].items())
    yield "stages:"
    for stage in told["stages"]:
        for number, (key, value) in enumerate(stage.items()):
            yield f"  {'  ' if number else '- '}{key}: {spell(value)}"

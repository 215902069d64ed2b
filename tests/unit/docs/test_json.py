"""The JSON of every verb has the keys and types that the reference tells."""

from __future__ import annotations

import pytest
from tools.docs.record import record_here, record_on_slurm, verbs_with_json
from tools.docs.shapes import Shape, read_recorded, shape_of, unknown

from tests.commands.projects import kill_leftovers

TOLD = read_recorded()


def test_every_verb_that_has_json_is_in_the_reference():
    told = {name for name in TOLD if not name.startswith("file ")}
    missing = {verb for verb in verbs_with_json() if not any(_is_of(name, verb) for name in told)}
    assert missing - {"demo", "extend"} == set(), "`make docs-json` records them"


def _is_of(name: str, verb: str) -> bool:
    return name == verb or name.startswith(f"{verb} ")


def test_a_key_or_a_type_that_is_not_told_is_found():
    told = shape_of({"a": 1, "b": [{"c": "x"}]})
    assert unknown(shape_of({"a": None, "b": []}), told) == []
    assert unknown(shape_of({"a": 1, "b": [], "d": 2}), told) == ["`d` is not told"]
    assert unknown(shape_of({"a": "1"}), told) == ["`a` is told as ['number'], and is ['text']"]


@pytest.mark.long
@pytest.mark.timeout(2400)
def test_recorded_anew_every_verb_has_the_keys_that_the_reference_tells(tmp_path):
    try:
        seen = {**record_here(tmp_path / "here")}
        on_slurm = record_on_slurm(tmp_path / "cluster")
    finally:
        kill_leftovers(tmp_path)
    faults = {
        name: found
        for shapes in (seen, on_slurm)
        for name, shape in shapes.items()
        if (found := unknown(shape, TOLD[name]) + gone(shape, TOLD[name], is_all=shapes is seen))
    }
    assert faults == {}


def gone(seen: Shape, told: Shape, *, is_all: bool) -> list[str]:
    """Keys that are told and never came, though what holds them did."""
    if not is_all:
        return []
    lists = [place for place in told if place.endswith("[]")]
    return [
        f"`{place}` did not come"
        for place in told
        if place not in seen
        and "slurm" not in place
        and not any(place.startswith(inside) and inside not in seen for inside in lists)
        and place.rpartition(".")[0] in seen
        and seen[place.rpartition(".")[0]] != ["null"]
    ]

"""`docs/reference/json.md`: keys and types of every verb's JSON, from real output."""

from __future__ import annotations

from functools import cache

from tools.docs.shapes import Shape, read_recorded

FILE = "file "
"""How sections of `shapes.json` begin that are files of a run and no verbs."""

HEAD = """\
# JSON

What `--json` prints, and what the [Python functions](python.md) return. Recorded from real output, and held against it by
the tests: keys may come, none goes or changes its type without a new `format`. `[]` is an element of a list, `NAME` a
name of yours (a metric, an experiment, a card). `null` means not known, or not there, and may stand for any value. `_s` are
seconds, `_bytes` bytes, `_p90` what nine of ten stay below; times of day are seconds since 1970 or ISO 8601 in UTC.

stdout is the JSON alone; whatever else there is to say goes to stderr. Exit codes: [here](exit-codes.md).
"""


AS_ELSEWHERE: dict[tuple[str, str], str] = {
    ("submit", "plan"): "plan",
    ("submit", "runs[]"): "status",
    ("run", "runs[]"): "status",
    ("resume", "runs[]"): "status",
}
"""Parts that are told elsewhere: verb and place, and the verb that tells it."""


def json_page() -> str:
    recorded = {n: s for n, s in read_recorded().items() if not n.startswith(FILE)}
    parts = [HEAD]
    for name in sorted(recorded):
        block = shape_block(recorded[name], verb=name)
        parts += [f"## {name}\n", f"`tasuki {name} --json`\n", block]
    return "\n".join(parts)


def shape_block(shape: Shape, *, verb: str = "") -> str:
    """Indented by depth: a tree is read more easily than paths."""
    lines = []
    for place, kinds in shape.items():
        parts = place.replace("[]", ".[]").split(".")
        depth = sum(part != "[]" for part in parts) - 1
        if not place or _is_inside(verb, place):
            continue
        elsewhere = AS_ELSEWHERE.get((verb, place)) or AS_ELSEWHERE.get((verb, f"{place}[]"))
        if elsewhere:
            lines.append(
                f"{'  ' * depth}{parts[-1]}: {_words(place, kinds)}, as `{elsewhere}` has it"
            )
        elif parts[-1] != "[]":
            lines.append(f"{'  ' * depth}{parts[-1]}: {_words(place, kinds)}")
        elif set(kinds) != {"mapping"}:  # keys of mappings follow by themselves
            lines.append(f"{'  ' * (depth + 1)}each: {_words(place, kinds)}")
    return "```text\n" + "\n".join(lines) + "\n```\n"


def _is_inside(verb: str, place: str) -> bool:
    told = [above for (of, above), by in AS_ELSEWHERE.items() if of == verb and by]
    return any(
        place.startswith((f"{above}.", f"{above}[]")) or (place == above and above.endswith("[]"))
        for above in told
    )


def _words(place: str, kinds: list[str]) -> str:
    shown = [kind for kind in kinds if kind != "null"]
    if not shown:  # not known in the cases that were recorded: what the same key is elsewhere
        shown = sorted(_kinds_by_key().get(_key(place), set()))
        return f"{' or '.join(shown)}, or null" if shown else "null, where nothing is known"
    return " or ".join(shown) + (", or null" if "null" in kinds else "")


@cache
def _kinds_by_key() -> dict[str, set[str]]:
    found: dict[str, set[str]] = {}
    for shape in read_recorded().values():
        for place, kinds in shape.items():
            found.setdefault(_key(place), set()).update(set(kinds) - {"null"})
    return found


def _key(place: str) -> str:
    return place.rpartition(".")[2]

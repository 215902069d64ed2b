"""What a drill found, in words: entries of traces, their kinds, and what to do about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tasuki.commands.drill_scenarios import planned_kills
from tasuki.commands.drill_trace import Entries
from tasuki.jobs.phase import SILENTLY_KILLED

_GENERATORS = (
    "torch.Generator",
    "numpy.random.Generator",
    "numpy.random.RandomState",
    "random.Random",
    "random.SystemRandom",
)
_RANDOM = {"python": "Python's", "numpy": "numpy's", "torch": "torch's", "cuda": "the GPU's"}
_KILLED = SILENTLY_KILLED.format("SIGKILL")
_PLAIN = ("int", "float", "bool", "str", "complex", "NoneType", "itertools.count")


def retell(run: dict[str, Any]) -> dict[str, Any]:
    """A run of the drill while it goes (`brief_run`): of kills by the drill nobody's memory is to
    blame."""
    told = list(run["notable"])
    for claim in planned_kills(run["experiment"]):
        for at, text in enumerate(told):
            if text.startswith(f"attempt {claim} failed: ") and _KILLED in text:
                told[at] = f"attempt {claim}: killed by the drill, as planned"
    return {**run, "notable": told}


def in_words(entry: str) -> str:
    """`model.head.weight` → weights `head.weight` of the model."""
    group, _, rest = entry.partition(".")
    match group:
        case "ids":
            return "the choice of samples"
        case "batch":
            return "the batch"
        case "loss":
            return "the loss"
        case "model":
            return f"`{rest}` of the model"
        case "random":
            return f"{_RANDOM.get(rest, rest)} random numbers"
        case "optimizer" if rest.startswith("state."):
            name, _, key = rest.removeprefix("state.").rpartition(".")
            return f"the optimizer's `{key}` of `{name}`"
        case "optimizer":
            return f"the optimizer's `{rest.partition('.')[2]}`"
        case _:
            return f"the {entry}"


def kind_of(own: Entries, reference: Entries, name: str) -> str:
    """generator, tensor, number or other."""
    text = reference.get(name) or own.get(name) or ""
    if text.startswith(_GENERATORS):
        return "generator"
    if text.startswith(("Tensor", "array")):
        return "tensor"
    return "number" if text.partition(" ")[0] in _PLAIN else "other"


def root_of(name: str) -> str:
    """What belongs together: `recipe.teacher` of `recipe.teacher.0.weight`."""
    owner, _, rest = name.partition(".")
    if owner == "optimizer" and rest.startswith("state."):
        return f"optimizer.state.{rest.rpartition('.')[2]}"
    if owner == "model":
        return name
    return f"{owner}.{rest.partition('.')[0].partition('[')[0]}"


def say_suspect(name: str, own: Entries, reference: Entries, facts: Mapping[str, Any]) -> str:
    """`self.noise` of the recipe (a torch.Generator)."""
    owner, _, rest = name.partition(".")
    first, inside = _split(rest)
    kind = (reference.get(name) or own.get(name) or "").partition(" ")[0].partition("(")[0]
    values = _values(own.get(name), reference.get(name))
    told = f"({'an' if kind[:1] in 'aeiou' else 'a'} {kind}{values})"
    if inside:
        told = f"(in it `{inside.lstrip('.')}`, {told[1:]}"
    match owner.partition(" ")[0]:
        case "recipe":
            return f"the recipe's `self.{first}` {told}"
        case "model":
            attribute = f"{first}{inside}"
            told = told if not inside else f"({told.partition(', ')[2]}"
            return f"`{attribute}` of the model {told}, which is neither a parameter nor a buffer,"
        case "data":
            return f"`{first}` of the {'loader' if facts.get('is_foreign') else 'data set'} {told}"
        case "optimizer" if rest.startswith("state."):
            parameter, _, key = rest.removeprefix("state.").rpartition(".")
            told = f"(of `{parameter}`, {told.partition(', ')[2]}"
            return f"the optimizer's `{key}` {told}, which is not in its `state_dict`,"
        case "optimizer" | "schedule":
            return f"`{first}` of the {owner} {told}, which its `state_dict` leaves out,"
        case _:
            return f"`{first}` of {owner} {told}"


def _split(rest: str) -> tuple[str, str]:
    """The attribute, and where in it: `teacher`, `.0.weight`; `counts`, `[0]`."""
    for place, character in enumerate(rest):
        if character in ".[":
            return rest[:place], rest[place:]
    return rest, ""


def _values(own: str | None, reference: str | None) -> str:
    """Where they can be shown: `: 9 undisturbed, 0 resumed`."""
    if own is None:
        return ": not there yet after the resume"
    if reference is None:
        return ": there only after the resume"
    pairs = [text.partition(" ") for text in (reference, own)]
    if any(kind not in _PLAIN for kind, _, _ in pairs):
        return ""
    return f": {pairs[0][2] or pairs[0][0]} undisturbed, {pairs[1][2] or pairs[1][0]} resumed"


def advice_on(suspect: str, kind: str, facts: Mapping[str, Any]) -> str:
    owner = suspect.partition(".")[0].partition(" ")[0]
    if facts.get("is_loop") and owner == "module":
        return (
            "let it be part of the run: `run.track(name=thing)` for what has a state_dict, "
            "`run.track(state=a_dict)` for plain values; or let it follow from `run.step`"
        )
    match owner:
        case "data" if facts.get("is_foreign"):
            return (
                "give the loader `state_dict` and `load_state_dict`, or let it shuffle with "
                "torch's global random numbers (`torch.randperm`), which tasuki seeds for each "
                "epoch; or return a map-style data set, whose order is tasuki's"
            )
        case "data" if kind == "generator":
            return (
                "draw from torch's, numpy's or Python's global random numbers: tasuki seeds them "
                "for each sample; or make the generator from the sample's index"
            )
        case "data":
            return "let a sample hang on its index alone, not on how many were read before it"
        case "optimizer":
            return (
                "keep it in `state` or `param_groups`, or let `state_dict` give it and "
                "`load_state_dict` put it back"
            )
        case "schedule":
            return "let its `state_dict` give it and its `load_state_dict` put it back"
        case _ if kind == "generator":
            return (
                "draw from torch's global random numbers, which every checkpoint holds (leave "
                "`generator=` out)"
            )
        case "model":
            return "make it a buffer: `self.register_buffer(name, torch.tensor(value))`"
        case _:
            return (
                "keep it in the model as a buffer (`model.register_buffer(name, tensor)`): "
                "buffers are part of every checkpoint"
            )


def never_twice(group: str, facts: Mapping[str, Any], ops: Sequence[str]) -> tuple[str, str]:
    """What makes undisturbed runs differ, by what differs first, and what to do."""
    if group == "batch" and facts.get("is_foreign"):
        words = "the loader that `build_dataset` returned gives other batches each time"
        advice = (
            "let it shuffle and draw with torch's, numpy's or Python's global random numbers, "
            "which tasuki seeds"
        )
    elif group == "batch":
        words = (
            "the same samples, but other content: the data draw from random numbers that nobody "
            "seeds, from the clock or from the system"
        )
        advice = advice_on("data", "generator", facts)
    elif group == "ids":
        words = "other samples: the data are not the same at every start"
        advice = "let `build_dataset` list its files in a fixed order (`sorted`)"
    elif group == "random":
        words = (
            "the random numbers themselves: something seeds them from the clock or the system, or "
            "draws a different number of them each time"
        )
        advice = "look for `seed()` without a number, and for loops that hang on time"
    else:
        named = f" (torch names {', '.join(ops)})" if ops else ""
        words = (
            "the same batch, weights and random numbers gave another result: an operation without "
            f"a deterministic form{named}, or a loss that reads the clock or the system's random "
            "numbers (`time`, `os.urandom`, `uuid`)"
        )
        advice = "use an operation that has a deterministic form; draw from torch's random numbers"
    return words, advice

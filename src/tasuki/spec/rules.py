"""What a key may hold: a msgspec type, the words for it, and what to write instead.

Each alias is one kind of value. msgspec checks type and range; `Rule` turns its refusal into plain
words and names the reader for values with a grammar of their own. Used by `written.py` and read by
`check.py`; there is no other list of what is valid.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from msgspec import Meta

from tasuki.spec.allocator import parse_allocator
from tasuki.spec.buckets import check_buckets
from tasuki.spec.commands import parse_command
from tasuki.spec.export import parse_export
from tasuki.spec.sinks import parse_sinks
from tasuki.spec.values import (
    LARGEST_COUNT,
    parse_deadline,
    parse_epochs,
    parse_every,
    parse_every_steps,
    parse_every_steps_or_epochs,
    parse_sizes,
    read_bandwidth,
    read_bytes,
    read_card_bytes,
    read_duration,
    read_positive_duration,
)

_LARGEST_FLOAT = 1.7976931348623157e308


@dataclass(frozen=True, slots=True)
class Rule:
    """The words for one kind of value."""

    kind: str
    """Said when the type is wrong: `epochs` must be *a whole number*."""
    range: str = ""
    """Said when the type is right and the value is not: `epochs` must be *at least 1*."""
    example: str = ""
    """What to write, after `key: `."""
    read: Callable[[object], object] | None = None
    choices: tuple[str, ...] = ()


Count = Annotated[
    int, Meta(ge=1, le=LARGEST_COUNT), Rule("a whole number", "at least 1", example="20")
]
Gpus = Annotated[
    int, Meta(ge=1, le=1024), Rule("a whole number", "between 1 and 1024", example="1")
]
"""Of a node: a plan has a row for each."""
GpusOrAuto = Annotated[
    Annotated[int, Meta(ge=1, le=1024)] | Literal["auto"],
    Rule("a whole number or `auto`", "between 1 and 1024, or `auto`", example="1"),
]
Seed = Annotated[
    int, Meta(ge=0, le=2**63 - 1), Rule("a whole number", "between 0 and 2^63 - 1", example="42")
]
CountOrAuto = Annotated[
    Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | Literal["auto"],
    Rule("a whole number or `auto`", "a whole number of at least 1, or `auto`", example="auto"),
]
Workers = Annotated[
    Annotated[int, Meta(ge=0, le=1024)] | Literal["auto"],
    Rule("a whole number or `auto`", "between 0 and 1024, or `auto`", example="auto"),
]
Positive = Annotated[
    float,
    Meta(gt=0, le=_LARGEST_FLOAT),
    Rule("a number", "larger than 0 and finite", example="1e-3"),
]
NotNegative = Annotated[
    float,
    Meta(ge=0, le=_LARGEST_FLOAT),
    Rule("a number", "0 or larger, and finite", example="0.01"),
]
Fraction = Annotated[
    float, Meta(gt=0, le=1), Rule("a number", "larger than 0 and at most 1", example="0.5")
]
Warmup = Annotated[
    Annotated[int, Meta(ge=0, le=LARGEST_COUNT)] | Annotated[float, Meta(ge=0, le=1)],
    Rule(
        "a fraction or a number of steps",
        "a fraction between 0.0 and 1.0, or a whole number of steps",
        example="0.1",
    ),
]
Flag = Annotated[bool, Rule("true or false", example="true")]
FlagOrAuto = Annotated[
    bool | Literal["auto"], Rule("true, false or `auto`", "true, false or `auto`", example="true")
]
Recompute = Annotated[
    bool | Annotated[int, Meta(ge=1, le=LARGEST_COUNT)] | Literal["auto"] | list[str],
    Rule(
        "true, false, `auto`, a number or a list of modules",
        "true, false, `auto`, every how many blocks (at least 1), or a list of modules",
        example="true",
    ),
]
_MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")
Compile = Annotated[
    bool | Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"],
    Rule(
        f"true, false or one of {', '.join(_MODES)}",
        f"true, false or one of {', '.join(_MODES)}",
        example="true",
        choices=_MODES,
    ),
]
Requeue = Annotated[
    bool | Annotated[int, Meta(ge=0, le=LARGEST_COUNT)],
    Rule("true, false or a whole number", "0 or larger", example="5"),
]
Text = Annotated[str, Meta(min_length=1), Rule("text", "more than an empty text")]
Command = Annotated[
    Annotated[list[str], Meta(min_length=1)] | str,
    Rule(
        "a list of texts",
        "more than an empty list",
        example='[python, train.py, --lr, "3e-4"]',
        read=parse_command,
    ),
]
RecipeName = Annotated[
    str,
    Meta(pattern=r"^[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*$"),
    Rule(
        "a module and a class",
        "a module and a class, as in `module.sub:Class`",
        example="recipes.matrix_gnn:MatrixGNN",
    ),
]
Sources = Annotated[
    str | Annotated[list[str], Meta(min_length=1)],
    Rule("text or a list of texts", "more than an empty list", example="data/train.h5"),
]
SizesText = Annotated[
    int | str | list[int],
    Rule("a size, a list of sizes or a range", example="[512, 1024]", read=parse_sizes),
]
DurationText = Annotated[
    str | int | float, Rule("a duration", example="8h", read=read_positive_duration)
]
DeadlineText = Annotated[
    str | int | float,
    Rule("a duration or a date with a time", example="6h", read=parse_deadline),
]
GraceText = Annotated[str | int | float, Rule("a duration", example="60s", read=read_duration)]
BytesText = Annotated[str | int, Rule("a number of bytes", example="96G", read=read_bytes)]
CardBytes = Annotated[str | int, Rule("a number of bytes", example="40GB", read=read_card_bytes)]
Bandwidth = Annotated[
    str | int, Rule("a number of bytes per second", example="1555GB/s", read=read_bandwidth)
]
Tflops = Annotated[
    float,
    Meta(gt=0, le=1e6),
    Rule("a number", "larger than 0, in 10¹² operations per second", example="19.5"),
]
_EVERY = "how often"
EveryText = Annotated[str | int | float, Rule(_EVERY, example="10m", read=parse_every)]
EveryStepsOrEpochs = Annotated[
    str | int | float, Rule(_EVERY, example="1 epoch", read=parse_every_steps_or_epochs)
]
EverySteps = Annotated[str | int | float, Rule(_EVERY, example="10 steps", read=parse_every_steps)]
Mapping = Annotated[dict[str, Any], Rule("a mapping", example="{key: value}")]
Options = Annotated[
    dict[str, str | int | float | bool], Rule("a mapping of texts", example="{comment: x}")
]
Each = Annotated[
    dict[str, Annotated[list[Any], Meta(min_length=1)]],
    Rule(
        "a mapping from keys to lists of values",
        "a mapping from keys to lists of at least one value",
        example="{data: [a.h5, b.h5]}",
    ),
]
Sinks = Annotated[
    str | list[Any] | dict[str, Any],
    Rule("a name, a list of names or a mapping", example="[tensorboard]", read=parse_sinks),
]
Alerts = Annotated[
    dict[str, Any],
    Rule(
        "a mapping from outcomes to commands",
        example="{complete: [python, tell.py], held: [python, tell.py]}",
    ),
]
"""Its entries are checked one by one (check.py)."""
Allocator = Annotated[str, Rule("text", example="expandable_segments", read=parse_allocator)]
Exports = Annotated[
    str | list[Any] | dict[str, Any],
    Rule(
        "a format, a list of formats or a mapping", example="[safetensors, pt]", read=parse_export
    ),
]
Epochs = Annotated[
    Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]
    | dict[str, Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]],
    Rule(
        "a whole number",
        "at least 1",
        example="20",
        read=parse_epochs,
    ),
]
Buckets = Annotated[
    Literal["exact", "auto", "default"]
    | Annotated[list[Annotated[int, Meta(ge=1, le=LARGEST_COUNT)]], Meta(min_length=1)]
    | dict[str, Any],
    Rule(
        "`exact`, `auto`, a list of boundaries or a budget",
        "`exact`, `auto`, a list of sizes or `{cost: …, budget: …}`",
        example="exact",
        read=check_buckets,
    ),
]


def _one_of(*words: str, example: str = "") -> Rule:
    listed = f"{', '.join(words[:-1])} or {words[-1]}"
    return Rule(f"one of {listed}", f"one of {listed}", example=example or words[0], choices=words)


Precision = Annotated[
    Literal["fp32", "tf32", "bf16", "fp16"],
    _one_of("fp32", "tf32", "bf16", "fp16", example="bf16"),
]
Order = Annotated[
    Literal["shuffle", "smallest_first", "largest_first", "score"],
    _one_of("shuffle", "smallest_first", "largest_first", "score"),
]
OnNan = Annotated[Literal["stop", "skip", "roll_back"], _one_of("stop", "skip", "roll_back")]
Schedule = Annotated[
    Literal["onecycle", "cosine", "linear", "constant", "wsd"],
    _one_of("onecycle", "cosine", "linear", "constant", "wsd"),
]
Cut = Annotated[Literal["stage", "fill"], _one_of("stage", "fill")]
Backend = Annotated[Literal["auto", "local", "slurm"], _one_of("auto", "local", "slurm")]
Ranks = Annotated[
    Annotated[int, Meta(ge=1, le=1024)] | Literal["tasuki", "own"],
    Rule(
        "a whole number, `own` or `tasuki`",
        "between 1 and 1024, `own` or `tasuki`",
        example="4",
        choices=("tasuki", "own"),
    ),
]
Mode = Annotated[Literal["min", "max"], _one_of("min", "max")]
After = Annotated[Literal["end", "each_stage"], _one_of("end", "each_stage")]
Context = Annotated[Literal["auto", "fork", "spawn"], _one_of("auto", "fork", "spawn")]

"""`allocator:` in a spec: torch's own options for how memory is taken from a GPU.

Pure. Checked when the spec is read: torch itself reads them when a GPU is first used, hours later
on a cluster, and where there is none it takes any word. What is set in a worker is decided in
train/allocator.py.
"""

from __future__ import annotations

import difflib
import re

from tasuki.errors import UsageError

LEAVE_ALONE = "default"
GROWING_SEGMENTS = "expandable_segments:True"
"""For sizes that vary: segments grow instead of lying about in the wrong size."""

_HINT = "write `expandable_segments`, `max_split_size_mb:512`, several joined by commas, or default"
_FLAG = (re.compile(r"true|false", re.IGNORECASE), "True or False")
_NUMBER = (re.compile(r"\d{1,9}"), "a whole number")
_SPLIT = (re.compile(r"[2-9]\d|\d{3,9}"), "a whole number of at least 20")
_SHARE = (re.compile(r"0?\.\d*[1-9]\d*"), "larger than 0.0 and smaller than 1.0")
_FRACTION = (re.compile(r"0?\.\d+|1|1\.0+"), "between 0.0 and 1.0")
_BACKEND = (re.compile(r"native|cudaMallocAsync"), "native or cudaMallocAsync")
_PAIR = r"(?:\d+|>):\d+"
_DIVISIONS = (
    re.compile(rf"\d+|\[{_PAIR}(?:,{_PAIR})*\]"),
    "a number, or a list such as [256:1,512:2,>:4]",
)
_OPTIONS = {
    "expandable_segments": _FLAG,
    "max_split_size_mb": _SPLIT,
    "garbage_collection_threshold": _SHARE,
    "roundup_power2_divisions": _DIVISIONS,
    "backend": _BACKEND,
    "max_non_split_rounding_mb": _NUMBER,
    "large_segment_size_mb": _NUMBER,
    "per_process_memory_fraction": _FRACTION,
    "release_lock_on_cudamalloc": _FLAG,
    "graph_capture_record_stream_reuse": _FLAG,
    "throw_on_cudamalloc_oom": _FLAG,
    "pinned_use_cuda_host_register": _FLAG,
    "pinned_num_register_threads": _NUMBER,
    "pinned_use_background_threads": _FLAG,
    "pinned_free_catch_all": _FLAG,
    "pinned_reserve_segment_size_mb": _NUMBER,
    "pinned_max_round_threshold_mb": _NUMBER,
    "pinned_max_cached_size_mb": _NUMBER,
}
"""As torch 2.13 knows them; an older torch knows fewer."""


def parse_allocator(text: object) -> str | None:
    """The settings as torch reads them; None for `default`, which leaves torch alone."""
    if not isinstance(text, str) or not text.strip():
        raise UsageError(f"`{text}` is no setting of the allocator", hint=_HINT)
    if text.strip() == LEAVE_ALONE:
        return None
    # A comma inside brackets belongs to a list.
    parts = re.split(r",(?![^\[]*\])", re.sub(r"\s+", "", text))
    return ",".join(_option(part) for part in parts)


def _option(part: str) -> str:
    name, colon, value = part.partition(":")
    if name not in _OPTIONS:
        near = difflib.get_close_matches(name.lower(), _OPTIONS, n=1)
        raise UsageError(
            f"`{name}` is no option of torch's allocator",
            hint=f"did you mean `{near[0]}`?" if near else _HINT,
        )
    pattern, words = _OPTIONS[name]
    if not colon and pattern is _FLAG[0]:
        value = "True"
    if pattern.fullmatch(value) is None:
        shown = f", not `{value}`" if value else ""
        raise UsageError(
            f"`{name}` must be {words}{shown}", hint=f"write for example `{name}:{_example(name)}`"
        )
    return f"{name}:{value.capitalize() if pattern is _FLAG[0] else value}"


def _example(name: str) -> str:
    examples = {
        _FLAG[1]: "True",
        _SHARE[1]: "0.8",
        _FRACTION[1]: "0.9",
        _BACKEND[1]: "native",
        _DIVISIONS[1]: "8",
    }
    return examples.get(_OPTIONS[name][1], "512")

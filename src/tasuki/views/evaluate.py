"""What an evaluation found: metrics, and how fast the model is."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tasuki.units import format_bytes
from tasuki.views.text import count, neutral

_PEAK = {
    "device": "peak memory of the device",
    "host": "peak memory of the process (host RSS, torch itself included)",
}


def show_evaluation(found: dict[str, Any], *, console: Console | None = None) -> None:
    console = console or Console()
    data = found["data"]
    on = ", ".join(data) if isinstance(data, list) else str(data)
    console.print(
        f"{escape(found['weights'])} on {escape(on)} ({escape(found['split'])})", highlight=False
    )
    console.print(_values("metric", found["metrics"]))
    benchmark = found.get("benchmark")
    if benchmark is None:
        return
    if "buckets" not in benchmark:
        console.print(_values("benchmark", benchmark))
        return
    console.print(_buckets(benchmark))
    console.print(
        f"in all {_rate(benchmark['samples_per_s'])} samples/s, a batch in "
        f"{benchmark['latency_p50_ms']:.3g} ms (p95 {benchmark['latency_p95_ms']:.3g} ms) on "
        f"{escape(benchmark['device'])}; {_PEAK[benchmark['peak_of']]}: "
        f"{format_bytes(benchmark['peak_bytes'])}",
        highlight=False,
    )


def _values(title: str, values: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column(title)
    table.add_column("value", justify="right")
    for name, value in values.items():
        table.add_row(escape(neutral(name)), _number(value))
    return table


def _buckets(benchmark: dict[str, Any]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("size", "samples", "batch", "samples/s", "p50 ms", "p95 ms", "peak"):
        table.add_column(name, justify="right")
    for bucket in benchmark["buckets"]:
        table.add_row(
            count(bucket["size"]),
            count(bucket["samples"]),
            count(bucket["batch"]),
            _rate(bucket["samples_per_s"]),
            f"{bucket['latency_p50_ms']:.3g}",
            f"{bucket['latency_p95_ms']:.3g}",
            format_bytes(bucket["peak_bytes"]),
        )
    return table


def _rate(per_s: float) -> str:
    return f"{per_s:,.0f}" if per_s >= 100 else f"{per_s:.3g}"


def _number(value: float | str) -> str:
    """NaN and inf come as words."""
    return value if isinstance(value, str) else f"{value:.6g}"

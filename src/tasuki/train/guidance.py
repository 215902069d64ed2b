"""From what was measured of a run's steps to sentences: what is slow, and what to write instead.

Pure, and silent where all is well. What to do when memory was too little is in advice.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from tasuki.units import format_step

_STARVED = 0.6
"""A process that gets less of the CPU time it could use measures others, not itself."""
_WAIT = 0.10
_SHORT_WAIT_S = 1e-3
"""Of a step: below it the time of a step is what any step costs, and no loader makes it less."""
_OPTIMIZER = 0.25
_IDLE = 0.20
"""Beyond what the wait for data explains."""
_SAVE = 0.05
_VALIDATE = 0.20
_OVERFLOWS = 0.02
_FEW_OVERFLOWS = 20
"""The search of a scale begins with some."""
_EMPTY = 0.5
_FULL = 0.92
_RISE = 3.0
"""A loss so many times the lowest has risen, if at least half of what was learnt is lost."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loading:
    """How samples came while it was measured."""

    workers: int = 0
    is_auto: bool = True
    is_settled: bool = True
    """`auto` has found what it wanted."""
    is_own: bool = False
    """The recipe's own loader."""
    spare_cpus: int = 0
    """CPUs of this rank beside its threads."""
    cpus: int = 1
    """Of this rank."""
    reason: str = ""
    """Why `auto` stopped where it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    first: float | None = None
    lowest: float | None = None
    last: float | None = None
    skipped: int = 0
    """Steps that were not finite and left out."""
    steps: int = 0
    overflows: int = 0
    """Of fp16, in which a scale is searched: a few are nothing."""
    lr: float = 1e-3
    clip: float | None = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """What was measured; shares are of the time of the window."""

    shares: Mapping[str, float]
    """data wait, forward, backward, optimizer, save, validate, other."""
    step_s: float | None = None
    cpu_share: float | None = None
    """What the process got of the CPU time it could have used; None: unknown, or it hardly waited
    for any."""
    threads: int = 1
    stage_shares: Mapping[str, float] = field(default_factory=dict)
    """save and validate, of the attempt's whole time in the stage."""
    busy: float | None = None
    """The share of the time in which the GPU computed or copied; None: there is none."""
    peak_bytes: int | None = None
    total_bytes: int | None = None
    """Of the GPU; None: there is none."""
    micro_batch: int = 1
    accumulation: int = 1
    effective_batch: int = 1
    is_fused: bool = True
    is_checkpointed: bool = False
    """Activations are computed again instead of kept."""
    is_compiled: bool = False
    is_save_auto: bool = False
    """`save: {every: auto}` already."""
    loading: Loading = field(default_factory=Loading)
    losses: Losses = field(default_factory=Losses)

    def share(self, part: str) -> float:
        return self.shares.get(part, 0.0)


def advise(figures: Figures) -> list[str]:
    """What to change, the most urgent first; empty where all is well."""
    starved = list(_starved(figures))
    if starved:  # what follows is about shares of the time
        return [*starved, *_unstable(figures.losses), *_memory_full(figures)]
    return [
        *_unstable(figures.losses),
        *_memory_full(figures),
        *_slow_loading(figures),
        *_idle_gpu(figures),
        *_optimizer(figures),
        *_saves(figures),
        *_validation(figures),
        *_memory_free(figures),
    ]


def _starved(figures: Figures) -> Iterator[str]:
    share = figures.cpu_share
    if share is None or share >= _STARVED:
        return
    fewer = ", or with `cluster: {cpus: 1}`" if figures.threads > 1 else ""
    yield (
        f"this process got {share:.0%} of the CPU time it could use: others use this machine, and "
        f"shares mean little; measure again when it is quiet{fewer}"
    )


def _slow_loading(figures: Figures) -> Iterator[str]:
    share = figures.share("data wait")
    if share <= _WAIT:
        return
    step_s = figures.step_s
    if step_s is not None and share * step_s < _SHORT_WAIT_S:
        yield (
            f"a step takes only {format_step(step_s)}, of it data wait "
            f"{format_step(share * step_s)}: {_larger_steps(figures)}"
        )
        return
    yield f"data wait is {share:.0%} of a step: {_faster_loading(figures.loading)}"


def _larger_steps(figures: Figures) -> str:
    ways = []
    if figures.accumulation > 1:
        ways.append(f"a larger `micro_batch` than {figures.micro_batch}")
    ways.append(_larger_batch(figures))
    return f"{', or '.join(ways)}; or nothing"


def _larger_batch(figures: Figures) -> str:
    return (
        f"a larger `effective_batch` than {figures.effective_batch} (fewer steps in an epoch: that "
        "changes the training, and `lr` with it)"
    )


def _faster_loading(loading: Loading) -> str:
    if loading.is_own:
        return (
            "give the recipe's own loader more workers (`num_workers`), or return a map-style data "
            "set from `build_dataset`, which is fetched ahead"
        )
    cheaper = "make samples cheaper to fetch"
    if not loading.is_auto and loading.workers < loading.spare_cpus:
        return f"write `workers: auto`, or more `workers` than {loading.workers}"
    if not loading.is_auto:
        return (
            f"write `workers: auto`, or more `workers` than {loading.workers} and more "
            f"`cluster.cpus`: each rank has {_cpus(loading.cpus)}"
        )
    if loading.workers >= loading.spare_cpus:
        return f"{_no_more_workers(loading)}; or {cheaper}"
    if not loading.is_settled:
        return "`workers: auto` was still trying more workers; the log says what it found"
    return f"more loader workers do not help ({loading.reason}): {cheaper}"


def _no_more_workers(loading: Loading) -> str:
    """Where the CPU computes, `auto` takes none of fewer than four CPUs: a number does."""
    if loading.workers:
        return (
            f"all {_cpus(loading.cpus)} of a rank are in use, {loading.workers} of them by loader "
            "workers; a larger `cluster.cpus` allows more"
        )
    off = f"loader workers are off because each rank has {_cpus(loading.cpus)}"
    if loading.cpus > 1:
        return f"{off}; `loader: {{workers: 1}}` takes one of them"
    return f"{off}; with 2 (`cluster.cpus`) and `loader: {{workers: 1}}` there is one"


def _cpus(num: int) -> str:
    return "1 CPU" if num == 1 else f"{num} CPUs"


def _idle_gpu(figures: Figures) -> Iterator[str]:
    if figures.busy is None:
        return
    idle = 1.0 - figures.busy - figures.share("data wait")
    idle -= figures.share("save") + figures.share("validate")
    if idle <= _IDLE:
        return
    ways = []
    if figures.accumulation > 1:
        ways.append(f"write a larger `micro_batch` than {figures.micro_batch}")
    if not figures.is_compiled:
        ways.append("write `compile: true`")
    ways.append("do the work in fewer and larger operations")
    yield f"the GPU idles {idle:.0%} of the time although data are there: {'; or '.join(ways)}"


def _optimizer(figures: Figures) -> Iterator[str]:
    share = figures.share("optimizer")
    if share <= _OPTIMIZER:
        return
    ways = []
    if not figures.is_fused:
        ways.append("give the recipe's optimizer `fused=True`")
    ways.append(_larger_batch(figures))
    yield f"the optimizer is {share:.0%} of a step: {'; or '.join(ways)}"


def _saves(figures: Figures) -> Iterator[str]:
    share = figures.stage_shares.get("save", 0.0)
    if share <= _SAVE:
        return
    if figures.is_save_auto:
        yield (
            f"training stands still for saves {share:.0%} of the time, although `save: {{every: "
            "auto}` chose when: a quicker place for `runs`, or a longer stage, makes it less"
        )
        return
    yield (
        f"training stands still for saves {share:.0%} of the time: write `save: {{every: "
        "auto}`, which weighs that against what an interruption loses, or save less often"
    )


def _validation(figures: Figures) -> Iterator[str]:
    share = figures.stage_shares.get("validate", 0.0)
    if share > _VALIDATE:
        yield (
            f"validation takes {share:.0%} of the time: validate less often (`validate: {{every: "
            "…}`), or on fewer samples"
        )


def _used(figures: Figures) -> float | None:
    if not figures.peak_bytes or not figures.total_bytes:
        return None
    return figures.peak_bytes / figures.total_bytes


def _memory_full(figures: Figures) -> Iterator[str]:
    used = _used(figures)
    if used is None or used <= _FULL:
        return
    ways = []
    if figures.micro_batch > 1:
        ways.append(
            f"write `micro_batch: {figures.micro_batch // 2}` (the effective batch stays "
            f"{figures.effective_batch})"
        )
    if not figures.is_checkpointed:
        ways.append("write `gradient_checkpointing: true`")
    ways.append("use a GPU with more memory")
    yield (
        f"the GPU's memory is nearly full ({used:.0%} at the peak), and a larger sample may not "
        f"fit: {'; or '.join(ways)}"
    )


def _memory_free(figures: Figures) -> Iterator[str]:
    used = _used(figures)
    if used is None or used >= _EMPTY:
        return
    ways = []
    if figures.accumulation > 1:
        ways.append(
            f"a larger `micro_batch` than {figures.micro_batch} fits (the effective batch stays "
            f"{figures.effective_batch})"
        )
    if figures.is_checkpointed:
        ways.append("`gradient_checkpointing: false` is quicker")
    if ways:
        yield f"the peak leaves {1 - used:.0%} of the GPU's memory free: {'; or '.join(ways)}"


def _unstable(losses: Losses) -> Iterator[str]:
    found = []
    if losses.skipped:
        steps = "step was" if losses.skipped == 1 else "steps were"
        found.append(f"{losses.skipped} {steps} not finite and left out")
    if _has_risen(losses):
        found.append(f"the loss rose from {losses.lowest:.3g} to {losses.last:.3g}")
    if losses.overflows > max(_FEW_OVERFLOWS, _OVERFLOWS * losses.steps):
        yield (
            f"gradients overflowed in {losses.overflows} of {losses.steps} steps, which were left "
            "out: write `precision: bf16`"
        )
    if not found:
        return
    clip = "`clip: 1.0`" if losses.clip is None else f"a smaller `clip` than {losses.clip:g}"
    yield (
        f"training is unstable ({'; '.join(found)}): lower `lr` ({losses.lr:g} now), a longer "
        f"`warmup`, or {clip}"
    )


def _has_risen(losses: Losses) -> bool:
    first, lowest, last = losses.first, losses.lowest, losses.last
    if first is None or lowest is None or last is None or lowest <= 0:
        return False
    return last > _RISE * lowest and last - lowest > (first - lowest) / 2

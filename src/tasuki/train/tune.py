"""`python -m tasuki.train.tune FD`: what each switch buys on this recipe, for `tasuki tune`.

A child process (answers.py) that leaves nothing behind. Baseline and variant live side by side and
take turns, block by block, in random order, on the same samples; so a busy minute of the machine
hits both. First comes the baseline against itself with another seed: whatever that measures is
noise. A variant that cannot be measured is a row with its reason.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch

from tasuki.answers import Told, answer
from tasuki.data.fetch import host_random_states, seed_everything
from tasuki.data.foreign import ForeignOrder
from tasuki.data.tempo import share_cpus
from tasuki.errors import RunError, TasukiError
from tasuki.estimation.ratios import CONFIDENCE, FEWEST_PAIRS, Ratio, ratio_of
from tasuki.estimation.tuning import (
    Facts,
    Judged,
    Measured,
    Variant,
    Yardstick,
    changed,
    expected_s,
    judge,
    loss_difference,
    most_s,
    nothing_to_try,
    variants_for,
    why_none,
    winners,
)
from tasuki.spec.resolved import ResolvedStage, stage_from_plain
from tasuki.train.contestant import Block, Contestant, Ground, first_steps
from tasuki.train.data import prepare_data
from tasuki.train.prepare import start_seed
from tasuki.train.recipe import load_recipe
from tasuki.train.recompute import find_blocks
from tasuki.units import Duration, format_seconds

_WARM_UP = 3
"""Steps: the first ones allocate, compile and open files."""
_WANTED_PAIRS = 20
_FEWEST_STEPS = 2
"""Of a block."""
_MOST_PAIRS = 200
_SHORTEST_BLOCK_S = 0.02
_LONGEST_BLOCK_S = 2.0
_ORDER_SEED = 20
_LONGEST_REASON = 200
_OF_A_RUN = ", the model runs as it is written"
"""What the warning of a failed compiler goes on with; here it is not run."""

Row = dict[str, Any]


def work(order: dict[str, Any], told: Told) -> dict[str, Any]:
    stage = stage_from_plain(order["stage"])
    return _Tuning(stage, order, told).measure()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Figures:
    """A contestant beside the baseline."""

    ratio: Ratio
    wall: Ratio
    cpu: Ratio
    step_s: float
    base_step_s: float
    memory_bytes: int
    steps: int
    start_s: float
    losses: list[float]


class _Tuning:
    """The whole measurement of one stage."""

    def __init__(self, stage: ResolvedStage, order: Mapping[str, Any], told: Told) -> None:
        self._stage, self._order, self._told = stage, order, told
        self._began = self._measures_from = time.monotonic()
        self._starting_s = 0.0
        """Of variants: building, compiling, the first steps. Not in the budget."""
        self._budget_s = float(order["budget_s"])
        self._spent_s = 0.0
        """Of the budget: pairs alone. Compilers and large data take their time besides."""
        self._turns = random.Random(_ORDER_SEED)
        told.begin("opening the data")
        self._ground = _lay_ground(stage, order)
        told.begin("starting the stage as it is")
        self._base = Contestant(stage, self._ground)
        block = self._warm_up(self._base)
        self._wait_share = block.wait_s / block.wall_s if block.wall_s else 0.0
        self._step_s = block.wall_s
        """As far as is known: for how long it takes."""
        self._base_bytes = 0
        self._base_start_s = 0.0
        self._done = self._total = 0

    def measure(self) -> dict[str, Any]:
        variants = variants_for(self._stage, self._facts(), only=self._order["only"])
        # The control comes first, and what is kept is measured once more, together.
        self._total = 2 + sum(not variant.refused for variant in variants)
        answer = self._head() | {"variants": [_as_row(variant) for variant in variants]}
        if self._order["is_dry"]:
            return answer
        if not (variants and self._total > 2):
            raise nothing_to_try(why_none(variants))
        self._measures_from = time.monotonic()
        control = self._control()
        self._base_start_s = control.start_s
        yardstick = Yardstick(
            ratio=control.ratio, loss_difference=self._difference(control.losses)[0]
        )
        rows = [self._row(variant, yardstick) for variant in variants]
        asked = self._order["asked"]
        kept = winners([(found, judged) for _, found, judged in rows], asked=asked)
        together = self._together(kept, yardstick) if len(kept) > 1 else None
        return answer | {
            "baseline": {
                "step_s": control.base_step_s,
                "memory_bytes": self._base_bytes,
                "loss": self._base.losses[-1],
                "steps": len(self._base.losses),
            },
            "control": self._figures_row(control),
            "tolerance": yardstick.tolerance,
            "rows": [row for row, _, _ in rows],
            "together": together,
            "keep": {key: value for one in kept for key, value in one.variant.changes.items()},
            "took_s": time.monotonic() - self._began,
        }

    def _head(self) -> dict[str, Any]:
        device = self._ground.device
        is_gpu = device.type == "cuda"
        return {
            "device": torch.cuda.get_device_name(device) if is_gpu else "cpu",
            "threads": self._base.threads,
            "clock": "cpu" if self._is_quiet(self._base) else "wall",
            "confidence": CONFIDENCE,
            "wait_share": self._wait_share,
            "first_step_s": self._step_s,
            "expected_s": self._expected_s(self._total),
            "notes": self._notes(),
        }

    def _notes(self) -> list[str]:
        notes = []
        if self._stage.init_from != "none":
            notes.append(
                f"`init_from: {self._stage.init_from}` is left out: losses are those of fresh "
                "weights"
            )
        if isinstance(self._ground.data.order, ForeignOrder):
            notes.append(
                "the recipe brings a loader of its own: its first batches are used again and "
                "again, and how long it takes to load them is not measured"
            )
        if self._ground.ranks > 1:
            notes.append(
                f"measured is one of {self._ground.ranks} ranks, without what they tell each other"
            )
        return notes

    def _facts(self) -> Facts:
        ground, base = self._ground, self._base
        is_gpu = ground.device.type == "cuda"
        return Facts(
            is_gpu=is_gpu,
            precisions=_precisions(ground.device),
            ranks=ground.ranks,
            cpus=ground.cpus,
            spare_cpus=share_cpus(ground.cpus, is_gpu=is_gpu, workers=None)[1],
            workers=base.workers,
            num_blocks=len(find_blocks(base.model)),
            is_foreign=isinstance(ground.data.order, ForeignOrder),
            wait_share=self._wait_share,
        )

    # -- what is measured -------------------------------------------------------------------------

    def _control(self) -> _Figures:
        self._say("baseline against itself")
        self._base_bytes = self._base.peak_bytes(others_bytes=0)
        seed = start_seed(self._stage, "tune", 0)
        return self._against_base(self._stage, seed=seed, is_first=True)

    def _row(self, variant: Variant, yardstick: Yardstick) -> tuple[Row, Measured, Judged]:
        row = _as_row(variant)
        if variant.refused:
            found = Measured(variant=variant, error=f"not tried: {variant.refused}")
        elif self._is_over():
            found = Measured(variant=variant, error=self._no_time())
        else:
            self._say(variant.label)
            figures, error = self._try(changed(self._stage, variant.changes))
            found = self._measured(variant, figures, error)
            row |= self._figures_row(figures) if figures is not None else {}
        judged = judge(found, yardstick, budget=self._longer())
        row |= {"verdict": judged.verdict, "keep": judged.is_kept, "error": found.error or None}
        return row, found, judged

    def _together(self, kept: list[Measured], yardstick: Yardstick) -> Row:
        changes = {k: v for one in kept for k, v in one.variant.changes.items()}
        variant = Variant(switch="together", value=None, was=None, changes=changes)
        return self._row(variant, yardstick)[0]

    def _measured(self, variant: Variant, figures: _Figures | None, error: str) -> Measured:
        if figures is None:
            return Measured(variant=variant, error=error)
        return Measured(
            variant=variant,
            ratio=figures.ratio,
            memory_share=figures.memory_bytes / self._base_bytes if self._base_bytes else None,
            loss_difference=self._difference(figures.losses)[0],
            later_s=figures.start_s - self._base_start_s,
            saves_s=self._ground.total_steps * (figures.base_step_s - figures.step_s),
        )

    def _try(self, stage: ResolvedStage) -> tuple[_Figures | None, str]:
        """Figures, or why there are none: whatever a variant raises is said, and forgotten."""
        try:
            return self._against_base(stage), ""
        except torch.OutOfMemoryError:
            return None, "out of memory, beside the baseline"
        except TasukiError as error:
            return None, error.message[:_LONGEST_REASON]
        except Exception as error:
            lines = str(error).strip().splitlines() or [""]
            return None, f"{type(error).__name__}: {lines[0]}"[:_LONGEST_REASON]
        finally:
            gc.collect()
            if self._ground.device.type == "cuda":
                torch.cuda.empty_cache()

    def _against_base(
        self, stage: ResolvedStage, *, seed: int | None = None, is_first: bool = False
    ) -> _Figures:
        self._tell(" (starting)")
        began = time.monotonic()
        try:
            other = self._started(stage, seed)
        finally:
            start_s = time.monotonic() - began
            self._starting_s += start_s
        try:
            self._refuse_idle(other, stage)
            if not is_first:
                self._base.rewind()
                self._warm_up(self._base)
                self._base.run(1)
            memory_bytes = other.peak_bytes(others_bytes=self._base.resident_bytes())
            steps, pairs = self._pairs(other, self._slot_end(), must_end=not is_first)
            self._refuse_idle(other, stage)
            return self._figures(other, steps, pairs, memory_bytes, start_s)
        finally:
            other.leave()

    def _started(self, stage: ResolvedStage, seed: int | None) -> Contestant:
        other = Contestant(stage, self._ground, seed=seed)
        try:
            self._warm_up(other)
        except BaseException:
            other.leave()
            raise
        return other

    def _refuse_idle(self, other: Contestant, stage: ResolvedStage) -> None:
        """A switch without effect has no gain to be measured."""
        if stage.compile != self._stage.compile and not other.is_as_compiled_as_asked:
            why = other.last_warning.replace(_OF_A_RUN, "")
            raise RunError(why or "without effect on this recipe")

    def _pairs(
        self, other: Contestant, until: float, *, must_end: bool
    ) -> tuple[int, list[tuple[Block, Block]]]:
        """Steps of a block, and (baseline, other) until the time is over; RunError where it is over
        before there are enough. Without the control nothing can be said: it need not end."""
        # At least one: the other's turn has emptied the caches. In a run steps do not begin so, and
        # what costs both the same drags a ratio towards 1.
        lead_in = max(1, self._base.lead_in(), other.lead_in())
        steps = self._block_steps(other, until, lead_in)
        pairs: list[tuple[Block, Block]] = []
        began, spent_s = time.monotonic(), self._spent_s
        while len(pairs) < FEWEST_PAIRS or (time.monotonic() < until and len(pairs) < _MOST_PAIRS):
            if must_end and len(pairs) < FEWEST_PAIRS and self._is_over():
                raise RunError(self._no_time())
            turn = [self._base, other]
            self._turns.shuffle(turn)
            blocks = {id(one): one.run(steps, lead_in=lead_in) for one in turn}
            pairs.append((blocks[id(self._base)], blocks[id(other)]))
            self._spent_s = spent_s + time.monotonic() - began
            # On a machine that others use the first step is no measure.
            self._step_s = median(a.wall_s + b.wall_s for a, b in pairs) / (2 * steps)
            self._tell(f" (pair {len(pairs)})")
        return steps, pairs

    def _block_steps(self, other: Contestant, until: float, lead_in: int) -> int:
        """Long blocks drown the clock's own noise, many pairs narrow the interval. By the quickest
        step: on a busy machine blocks stay long, and pairs get fewer."""
        times = [c.run(1, lead_in=lead_in).wall_s for c in (self._base, other) for _ in range(3)]
        wanted = (until - time.monotonic()) / _WANTED_PAIRS / 2
        block_s = min(_LONGEST_BLOCK_S, max(_SHORTEST_BLOCK_S, wanted))
        return max(_FEWEST_STEPS, lead_in, round(block_s / max(1e-6, min(times))) - lead_in)

    def _figures(
        self,
        other: Contestant,
        steps: int,
        pairs: list[tuple[Block, Block]],
        memory_bytes: int,
        start_s: float,
    ) -> _Figures:
        wall = ratio_of([(a.wall_s, b.wall_s) for a, b in pairs])
        cpu = ratio_of([(a.quiet_s, b.quiet_s) for a, b in pairs])
        is_quiet = self._is_quiet(self._base) and self._is_quiet(other)
        return _Figures(
            ratio=cpu if is_quiet else wall,
            wall=wall,
            cpu=cpu,
            step_s=median(_seconds(b, is_quiet) for _, b in pairs) / steps,
            base_step_s=median(_seconds(a, is_quiet) for a, _ in pairs) / steps,
            memory_bytes=memory_bytes,
            steps=len(other.losses),
            start_s=start_s,
            losses=other.losses,
        )

    def _is_quiet(self, one: Contestant) -> bool:
        """One thread does all the work: its CPU time is what a person waits, whatever others do."""
        is_alone = one.threads == 1 and not one.workers
        return self._ground.device.type == "cpu" and is_alone

    def _warm_up(self, one: Contestant) -> Block:
        one.run(_WARM_UP - 1)
        return one.run(1)

    # -- time ---------------------------------------------------------------------------------

    def _slot_end(self) -> float:
        """What is left of the budget, shared by what is left to measure."""
        left_s = max(0.0, self._budget_s - self._spent_s)
        return time.monotonic() + left_s / max(1, self._total - self._done + 1)

    def _is_over(self) -> bool:
        """What is measured already is shown; the rest would take far longer than was asked for."""
        return self._measuring_s() > most_s(self._budget_s)

    def _measuring_s(self) -> float:
        return time.monotonic() - self._measures_from - self._starting_s

    def _no_time(self) -> str:
        """With a budget within which all rows would be measured."""
        whole_s = expected_s(step_s=self._step_s, num=self._total, budget_s=self._budget_s)
        wanted_s = max(whole_s, 2 * self._budget_s)
        return f"no time left: try --budget {Duration(max(60.0, 60.0 * -(-wanted_s // 60)))}"

    def _longer(self) -> str:
        return str(Duration(max(60.0, 4 * self._budget_s)))

    def _say(self, what: str) -> None:
        self._done += 1
        self._what = what
        self._tell()

    def _tell(self, pair: str = "") -> None:
        """Over what is measured: pairs of slow steps take longer than the budget."""
        left_s = self._expected_s(self._total - self._done + 1)
        what = f"{self._what}{pair}, about {format_seconds(round(left_s))}"
        self._told.progress(what, self._done - 1, self._total)

    def _expected_s(self, num: int) -> float:
        left_s = max(0.0, self._budget_s - self._spent_s)
        end_s = max(0.0, most_s(self._budget_s) - self._measuring_s())
        return min(end_s, expected_s(step_s=self._step_s, num=num, budget_s=left_s))

    # -- rows -----------------------------------------------------------------------------------

    def _difference(self, losses: list[float]) -> tuple[float, bool]:
        return loss_difference(self._base.losses, losses) or (0.0, False)

    def _figures_row(self, figures: _Figures) -> Row:
        difference, is_same = self._difference(figures.losses)
        share = figures.memory_bytes / self._base_bytes if self._base_bytes else None
        return {
            **_spread(figures.ratio),
            "pairs": figures.ratio.pairs,
            "steps": figures.steps,
            "step_s": figures.step_s,
            "wall": _spread(figures.wall),
            "cpu": _spread(figures.cpu),
            "memory_bytes": figures.memory_bytes,
            "memory_share": share,
            "loss_difference": difference,
            "loss_is_same": is_same,
            "start_s": figures.start_s,
        }


def _lay_ground(stage: ResolvedStage, order: Mapping[str, Any]) -> Ground:
    """Recipe and data, in the order in which a run asks for them."""
    is_gpu = order["device"] == "cuda" and torch.cuda.is_available()
    cpus = max(1, order["cpus"] // order["ranks"])
    torch.set_num_threads(share_cpus(cpus, is_gpu=is_gpu, workers=None)[0])
    assert stage.recipe is not None
    seed_everything(start_seed(stage, "model", 0))
    recipe = load_recipe(stage.recipe, stage.params, paths=[Path(order["folder"])])
    data = prepare_data(recipe, stage, rank=0, world=order["ranks"])
    is_foreign = isinstance(data.order, ForeignOrder)
    states = host_random_states()
    return Ground(
        recipe=recipe,
        data=data,
        device=torch.device("cuda" if is_gpu else "cpu"),
        total_steps=data.order.total_steps(stage.length.unit, stage.length.count),
        ranks=order["ranks"],
        cpus=cpus,
        random=states,
        replayed=first_steps(data) if is_foreign else (),
    )


def _precisions(device: torch.device) -> tuple[str, ...]:
    if device.type == "cpu":
        return ("fp32", "bf16")
    tf32 = ("tf32",) if torch.cuda.get_device_capability(device) >= (8, 0) else ()
    bf16 = ("bf16",) if torch.cuda.is_bf16_supported(False) else ()
    return ("fp32", *tf32, *bf16, "fp16")


def _seconds(block: Block, is_quiet: bool) -> float:
    return block.quiet_s if is_quiet else block.wall_s


def _spread(ratio: Ratio) -> dict[str, float]:
    return {"gain": ratio.value, "low": ratio.low, "high": ratio.high}


def _as_row(variant: Variant) -> Row:
    return {
        "switch": variant.switch,
        "value": variant.value,
        "was": variant.was,
        "changes": variant.changes,
        "label": variant.label,
    }


if __name__ == "__main__":
    answer(work)

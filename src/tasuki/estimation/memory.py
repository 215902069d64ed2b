"""What a card must hold for a batch of a size, and the largest batch that fits it.

Pure: from a probe's value (probes.py). Tensors are exact where the probe is; what the allocator
reserves for them is simulated (allocator.py); the CUDA context, workspaces of libraries and buffers
of the exchange lie outside any trace and are assumed until they were measured; a margin is put on
all of it. So each figure carries the words for where it comes from, and none is called exact but
the tensors'. Not seen by any trace: other processes on the card.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from tasuki.estimation.allocator import MIB, simulate
from tasuki.estimation.gpus import Gpu
from tasuki.estimation.probes import Probe

ASSUMED = "assumed"
MARGIN, MARGIN_INEXACT = 0.10, 0.25
"""On everything. The second where the probe's traces did not align."""
MOST_BATCH = 1 << 20
"""Nobody asks for more; where memory does not grow with the batch, this is the answer."""


@dataclass(frozen=True, slots=True)
class Figure:
    """A number of bytes and where it comes from."""

    bytes: int
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Beside:
    """What lies on the card beside the tensors of one rank."""

    context: Figure = Figure(512 * MIB, ASSUMED)
    """Of CUDA with torch's kernels; `torch.cuda.mem_get_info` on the node tells it."""
    workspaces: Figure = Figure(64 * MIB, ASSUMED)
    """cuBLAS keeps 8 to 32 MiB, cuBLASLt up to 32 MiB more."""
    communication: Figure = Figure(256 * MIB, ASSUMED)
    """NCCL's buffers; with several ranks only."""
    ranks: int = 1
    margin: float = MARGIN
    margin_source: str = ASSUMED
    grows: bool = True
    """Growing segments, tasuki's default on GPUs; else torch's."""
    is_cpu: bool = False


def beside_on(gpu: Gpu, *, ranks: int = 1, grows: bool = True) -> Beside:
    """What is assumed for a card. A CPU has no context, no cache and no copies on a card."""
    if not gpu.is_cpu:
        return Beside(ranks=ranks, grows=grows)
    none = Figure(0, "none on a CPU")
    return Beside(context=none, workspaces=none, communication=none, ranks=ranks, is_cpu=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What one rank's card must hold."""

    batch: int
    size: int
    tensors: Figure
    """Live ones at the peak: comparable with a profiler."""
    reserved: Figure
    """By the allocator for them, cached blocks included."""
    context: Figure
    workspaces: Figure
    exchange: Figure
    """DDP's copy of the gradients, and the buffers of what sends them."""
    margin: Figure
    kinds: dict[str, int] = field(default_factory=dict)
    """`tensors` by kind."""

    @property
    def peak_bytes(self) -> int:
        """What the card must hold."""
        return self.reserved.bytes + self._others + self.margin.bytes

    @property
    def _others(self) -> int:
        return self.context.bytes + self.workspaces.bytes + self.exchange.bytes

    @property
    def breakdown(self) -> dict[str, int]:
        """`peak_bytes` in parts, as `estimate` shows them under `device`."""
        parts = {
            **self.kinds,
            "cached": self.reserved.bytes - self.tensors.bytes,
            "context": self.context.bytes,
            "workspaces": self.workspaces.bytes,
            "exchange": self.exchange.bytes,
            "margin": self.margin.bytes,
        }
        return {name: count for name, count in parts.items() if count}

    @property
    def sources(self) -> dict[str, str]:
        """Figure → where it comes from."""
        names = ("tensors", "reserved", "context", "workspaces", "exchange", "margin")
        return {name: getattr(self, name).source for name in names}

    def headroom(self, capacity: int) -> int:
        """What is left of a card; negative: by how much it is too small."""
        return capacity - self.peak_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Largest:
    """The largest batch that fits."""

    batch: int
    """0: not even one sample does."""
    needs: Needs
    """Of that batch; of one sample where not even that fits."""
    missing_bytes: int = 0
    """How much the card would have to be larger for one sample."""


def needs_of(probe: Probe, *, batch: int, size: int = 0, beside: Beside) -> Needs:
    """Everything for one batch and size."""
    tensors = Figure(probe.peak(batch=batch, size=size), _tensor_source(probe))
    reserved = _reserved(probe, tensors, batch=batch, size=size, beside=beside)
    exchange = _exchange(probe, batch=batch, size=size, beside=beside)
    together = reserved.bytes + beside.context.bytes + beside.workspaces.bytes + exchange.bytes
    share, source = _margin(probe, beside)
    return Needs(
        batch=batch,
        size=size,
        tensors=tensors,
        reserved=reserved,
        context=beside.context,
        workspaces=beside.workspaces,
        exchange=exchange,
        margin=Figure(_share_of(together, share), f"{share:.0%}, {source}"),
        kinds=probe.breakdown(batch=batch, size=size),
    )


def largest_batch(
    probe: Probe, *, capacity: int, size: int = 0, beside: Beside, most: int = MOST_BATCH
) -> Largest:
    """The largest batch of a size that fits a card: this one does, the next one does not.

    Tensors alone give an upper bound, exactly; what the allocator adds is then simulated from there
    downwards. Tensors fit into holes by chance, so that a smaller batch may well reserve more than
    a larger one; on a full card torch gives cached memory back then, and goes on. A still larger
    one that might fit by chance is not looked for."""
    bound = largest_by(
        lambda batch: _least(probe, batch=batch, size=size, beside=beside) <= capacity, most=most
    )

    def fits(batch: int) -> bool:
        return needs_of(probe, batch=batch, size=size, beside=beside).peak_bytes <= capacity

    low, step = bound, 1
    while low > 0 and not fits(low):
        low, bound, step = max(0, low - step), low - 1, 2 * step
    found = low + largest_by(lambda more: fits(low + more), most=bound - low)
    needs = needs_of(probe, batch=max(1, found), size=size, beside=beside)
    missing = 0 if found else needs.peak_bytes - capacity
    return Largest(batch=found, needs=needs, missing_bytes=max(0, missing))


def largest_by(fits: Callable[[int], bool], *, most: int) -> int:
    """The largest of 1 … most that fits, if all below one that fits fit, too; 0: none."""
    low, high = 0, 1
    while high <= most and fits(high):
        low, high = high, 2 * high
    high = min(high, most + 1)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(middle) else (low, middle)
    return low


def cost_budget(
    probe: Probe, *, capacity: int, sizes: Iterable[int], beside: Beside, power: int = 1
) -> int:
    """The largest cost of a micro-batch, counted in size**power of its samples, that fits at each
    of the sizes. A size of which not even one sample fits is left out: no budget helps it; 0 if
    that holds for all."""
    budgets = [
        largest_batch(probe, capacity=capacity, size=size, beside=beside).batch * size**power
        for size in sizes
    ]
    return min((budget for budget in budgets if budget), default=0)


def _tensor_source(probe: Probe) -> str:
    if probe.is_exact:
        checks = "; ".join(
            f"checked at {_point(probe, batch, size)}: {(predicted - traced) / max(1, traced):+.2%}"
            for batch, size, predicted, traced in probe.checked
        )
        how = _how(probe) or "traced"
        return f"{how}, fitted allocation by allocation{f' ({checks})' if checks else ''}"
    how = f"{told}: " if (told := _how(probe)) else ""
    points = ", ".join(_point(probe, batch, size) for batch, size in probe.probes)
    if probe.unit == "cost":
        return f"{how}a line over the {'measured' if how else 'traced'} peaks at {points}"
    return f"{how}a curve through the peaks at {points}, which may be too low beyond them"


def _how(probe: Probe) -> str:
    """Empty: traced, as most are."""
    if probe.measured_on is None:
        return ""
    return f"measured by real steps on a {'GPU' if probe.measured_on == 'cuda' else 'CPU'}"


def _point(probe: Probe, batch: int, size: int) -> str:
    return f"{batch} × {size}" if size else f"{probe.unit} {batch}"


def _reserved(probe: Probe, tensors: Figure, *, batch: int, size: int, beside: Beside) -> Figure:
    if beside.is_cpu:
        return Figure(tensors.bytes, "a CPU has no cache")
    events = probe.trace(batch=batch, size=size)
    steps = 1
    if probe.is_closed:
        # The second step finds what the first one left cached, which may not fit its order.
        steps = 2
        events += events[probe.begin :]
    found = simulate(events, grows=beside.grows)
    kind = "growing" if beside.grows else "fixed"
    words = f"simulated allocator, {kind} segments, {steps} step{'s' if steps > 1 else ''}"
    return Figure(found.reserved_peak, words)


def _exchange(probe: Probe, *, batch: int, size: int, beside: Beside) -> Figure:
    if beside.ranks == 1:
        return Figure(0, "one rank")
    other = beside.communication
    if probe.kept_of("gradients", batch=batch, size=size):
        # Gradients come and go with a step: those that stay are the copy.
        words = f"buffers, {other.source}; DDP's copy of the gradients is among the tensors"
        return Figure(other.bytes, words)
    gradients = probe.most_of("gradients", batch=batch, size=size)
    words = f"DDP's copy of the gradients, traced; buffers, {other.source}"
    return Figure(gradients + other.bytes, words)


def _margin(probe: Probe, beside: Beside) -> tuple[float, str]:
    if beside.margin >= MARGIN_INEXACT:
        return beside.margin, beside.margin_source
    if probe.measured_on == "cpu" and not beside.is_cpu:
        return MARGIN_INEXACT, f"{ASSUMED}, as steps on a CPU stand for a GPU's"
    is_over = probe.unit == "cost"  # no traced peak lies above the line
    if probe.is_exact or is_over:
        return beside.margin, beside.margin_source
    return MARGIN_INEXACT, f"{ASSUMED}, as the traces did not align"


def _least(probe: Probe, *, batch: int, size: int, beside: Beside) -> int:
    """What the card must hold at the least: nothing is cached."""
    tensors = probe.peak(batch=batch, size=size)
    others = beside.context.bytes + beside.workspaces.bytes
    if beside.ranks > 1:
        others += beside.communication.bytes
    together = tensors + others
    return together + _share_of(together, _margin(probe, beside)[0])


def _share_of(count: int, share: float) -> int:
    """Rounded up, exactly: margins are given in hundredths of a percent."""
    return -(-count * round(share * 10_000) // 10_000)

"""What graphics cards can hold and do: memory, bandwidth, dense TFLOP/s by precision.

Pure: a table of public data-sheet values, without sparsity; consumer cards with accumulation in
fp32, as training has it. `memory_bytes` is what CUDA reports of the card, at the lower end of what
people report; it is a few percent below what is printed on the box, as ECC and the driver keep the
rest. A site file's `gpus` adds cards and corrects these. Nothing here was measured by us.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache

from tasuki.errors import UsageError
from tasuki.spec.site import SiteGpu

PRECISIONS = ("fp32", "tf32", "fp16", "bf16")
DATA_SHEET = "data sheet"
CPU = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    """One kind of card."""

    name: str
    memory_bytes: int | None
    """That CUDA gives to a process with an empty card; None: the host's memory (`cpu`)."""
    advertised_bytes: int | None
    """The `GB` of memory chips, and of the boxes with them, are GiB."""
    bandwidth: float | None
    """Bytes per second; None: not known."""
    tflops: Mapping[str, float | None] = field(default_factory=dict)
    """Dense, by precision; None: the card has no such units."""
    words: frozenset[str] = frozenset()
    """What its name may consist of."""
    source: str = DATA_SHEET

    @property
    def is_cpu(self) -> bool:
        return self.name == CPU

    def flops(self, precision: str) -> tuple[float, str] | None:
        """Operations per second, and the precision whose units do them: a card without tf32, bf16
        or fp16 computes these with its fp32 units. None: not known."""
        rate = self.tflops.get(precision)
        if rate is not None:
            return rate * 1e12, precision
        rate = self.tflops.get("fp32")
        return None if rate is None else (rate * 1e12, "fp32")


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundGpu:
    """A card, and what had to be assumed to find it."""

    gpu: Gpu
    note: str = ""


def _card(
    name: str,
    gb: int,
    gib: float,
    bandwidth: float,
    fp32: float,
    tf32: float | None,
    half: float,
    *,
    has_bf16: bool = True,
    words: str = "",
) -> Gpu:
    """`gb` as advertised, `gib` as CUDA reports it, `bandwidth` in GB/s, `half` for fp16, bf16."""
    return Gpu(
        name=name,
        memory_bytes=round(gib * 2**30),
        advertised_bytes=gb * 2**30,
        bandwidth=bandwidth * 1e9,
        tflops={"fp32": fp32, "tf32": tf32, "fp16": half, "bf16": half if has_bf16 else None},
        words=frozenset(_words_of(f"{name} {gb}gb {words}")),
    )


_NOISE = {"nvidia", "tesla", "geforce", "quadro", "gpu", "graphics", "generation"}
_WORD = re.compile(r"\d+(?:gb|gib|g)(?![a-z0-9])|[a-z]+\d+[a-z]*|\d+|[a-z]+")


def _words_of(name: str) -> list[str]:
    """`NVIDIA A100-SXM4-80GB` → a100, sxm, 80gb; `RTX3090Ti` → 3090, ti."""
    text = re.sub(r"(sxm|pcie|nvl|ada)\d?(?![a-z])", r" \1 ", name.lower().replace("rtx", " "))
    words = [re.sub(r"^(\d+)(?:gib|g)$", r"\1gb", word) for word in _WORD.findall(text)]
    return [word for word in words if word not in _NOISE]


_CARDS = (
    # name, GB, GiB of CUDA, GB/s, TFLOP/s in fp32, tf32, fp16 and bf16
    _card("p100", 16, 15.88, 732, 9.3, None, 18.7, has_bf16=False, words="pcie sxm"),
    _card("v100-16gb", 16, 15.75, 900, 14.0, None, 112.0, has_bf16=False, words="pcie sxm"),
    _card("v100-32gb", 32, 31.73, 900, 14.0, None, 112.0, has_bf16=False, words="pcie sxm"),
    _card("t4", 16, 14.56, 320, 8.1, None, 65.0, has_bf16=False),
    _card("rtx-2080-ti", 11, 10.56, 616, 13.4, None, 53.8, has_bf16=False),
    _card("rtx-3080", 10, 9.77, 760, 29.8, 29.8, 59.5),
    _card("rtx-3090", 24, 23.68, 936, 35.6, 35.6, 71.0),
    _card("rtx-4080", 16, 15.69, 716.8, 48.7, 48.7, 97.5),
    _card("rtx-4090", 24, 23.63, 1008, 82.6, 82.6, 165.2),
    _card("rtx-5090", 32, 31.35, 1792, 104.8, 104.8, 209.5),
    _card("rtx-a4000", 16, 15.60, 448, 19.2, 38.3, 76.7),
    _card("rtx-a5000", 24, 23.67, 768, 27.8, 55.6, 111.1),
    _card("rtx-a6000", 48, 47.40, 768, 38.7, 77.4, 154.8),
    _card("rtx-6000-ada", 48, 44.40, 960, 91.1, 182.1, 364.2),
    _card("l4", 24, 21.95, 300, 30.3, 60.0, 121.0),
    _card("l40", 48, 44.31, 864, 90.5, 90.5, 181.0),
    _card("l40s", 48, 44.31, 864, 91.6, 183.0, 362.0),
    _card("a10", 24, 21.98, 600, 31.2, 62.5, 125.0, words="pcie"),
    _card("a10g", 24, 21.98, 600, 31.5, 35.0, 70.0),
    _card("a30", 24, 23.49, 933, 10.3, 82.0, 165.0, words="pcie"),
    _card("a40", 48, 44.34, 696, 37.4, 74.8, 149.7, words="pcie"),
    _card("a100-40gb", 40, 39.38, 1555, 19.5, 156.0, 312.0, words="pcie sxm"),
    _card("a100-pcie-80gb", 80, 79.10, 1935, 19.5, 156.0, 312.0),
    _card("a100-sxm-80gb", 80, 79.10, 2039, 19.5, 156.0, 312.0),
    _card("h100-pcie", 80, 79.10, 2000, 51.0, 378.0, 756.0, words="hbm2e"),
    _card("h100-sxm", 80, 79.10, 3350, 67.0, 494.0, 989.0, words="hbm3"),
    _card("h100-nvl", 94, 93.00, 3900, 60.0, 417.0, 835.0, words="hbm3"),
    _card("h200", 141, 139.70, 4800, 67.0, 494.0, 989.0, words="sxm hbm3e"),
    _card("b200", 180, 178.30, 7700, 75.0, 1100.0, 2250.0, words="sxm hbm3e"),
    # Its name has the memory of the processor beside it: `NVIDIA GH200 480GB`.
    _card("gh200", 96, 94.40, 4000, 67.0, 494.0, 989.0, words="480gb hbm3"),
)
_CPU = Gpu(
    name=CPU,
    memory_bytes=None,
    advertised_bytes=None,
    bandwidth=10e9,
    # One core with AVX2. Half precisions are slower than fp32 where a CPU has no units for them.
    tflops={"fp32": 0.05, "tf32": None, "fp16": None, "bf16": None},
    words=frozenset({CPU}),
    source="assumed: one core of a processor",
)
TABLE: Mapping[str, Gpu] = {gpu.name: gpu for gpu in (*_CARDS, _CPU)}


def find_gpu(name: str, *, site: Mapping[str, SiteGpu] | None = None) -> FoundGpu:
    """The card that a name means, as the site file corrects it. A name that fits several means the
    one with the least memory, then the slowest: what fits there fits the others."""
    own = (site or {}).get(name)
    fitting = _fitting(" ".join(_words_of(name)))
    if not fitting and own is None:
        raise _unknown(name, site or {})
    note = ""
    if len(fitting) > 1 and (own is None or own.memory_bytes is None):
        first, *others = (gpu.name for gpu in fitting)
        note = f"`{name}` is taken as {first}; it may also be {', '.join(others)}"
    known = fitting[0] if fitting else None
    gpu = known if own is None else _of_site(name, own, known)
    assert gpu is not None
    return FoundGpu(gpu=gpu, note=note)


def may_mean_the_same(name: str, other: str) -> bool:
    """A spec's word and a driver's, say; of a card that is in no table nothing is known."""
    ones, others = _fitting(" ".join(_words_of(name))), _fitting(" ".join(_words_of(other)))
    return not ones or not others or any(gpu in others for gpu in ones)


@lru_cache(maxsize=256)
def _fitting(words: str) -> tuple[Gpu, ...]:
    """Cards whose names may have these words, the smallest first."""
    asked = frozenset(words.split())
    found = [gpu for gpu in TABLE.values() if asked <= gpu.words and _model_of(gpu) <= asked]
    return tuple(sorted(found, key=lambda gpu: (gpu.memory_bytes or 0, gpu.bandwidth or 0)))


def _model_of(gpu: Gpu) -> frozenset[str]:
    """The words without which a name means another card: `a100`, `6000 ada`, `2080 ti`."""
    variants = {"pcie", "sxm", "nvl"}
    return frozenset(
        word for word in _words_of(gpu.name) if word not in variants and not word.endswith("gb")
    )


def _of_site(name: str, own: SiteGpu, known: Gpu | None) -> Gpu:
    base = known or Gpu(name=name, memory_bytes=None, advertised_bytes=None, bandwidth=None)
    says = own.memory_bytes is not None or own.bandwidth is not None or bool(own.tflops)
    if known is None and own.memory_bytes is None:
        raise UsageError(
            f"how much memory a `{name}` has is not known: the site file's `gpus` does not say it",
            hint=f"add it there: `{name}: {{memory: 40GB, bandwidth: 1555GB/s, tflops: "
            "{fp32: 19.5, bf16: 312}}`",
        )
    return replace(
        base,
        name=base.name if own.memory_bytes is None else name,
        memory_bytes=own.memory_bytes or base.memory_bytes,
        advertised_bytes=own.memory_bytes or base.advertised_bytes,
        bandwidth=own.bandwidth or base.bandwidth,
        tflops={**base.tflops, **own.tflops},
        source=base.source if not says else f"site file{' over data sheet' if known else ''}",
    )


def _unknown(name: str, site: Mapping[str, SiteGpu]) -> UsageError:
    names = [*site, *TABLE]
    word, asked = name.lower().replace("_", "-"), set(_words_of(name))
    near = [known for known in names if word and known.lower().startswith(word)]
    near += difflib.get_close_matches(word, names, n=3, cutoff=0.5)
    near += [gpu.name for gpu in TABLE.values() if asked & _model_of(gpu)]
    near = list(dict.fromkeys(near))
    meant = f"did you mean {', '.join(near[:4])}? " if near else f"known: {', '.join(names)}; "
    return UsageError(
        f"the GPU `{name}` is not known",
        hint=f"{meant}Any other card can be described in a site file: `gpus: {{{name}: {{memory: "
        "40GB, bandwidth: 1555GB/s, tflops: {fp32: 19.5, bf16: 312}}}`",
    )

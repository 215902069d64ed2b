"""A driver with GPUs that a test sets up, under the names of `pynvml`."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

GIB = 1 << 30


class NVMLError(Exception):
    """As pynvml raises it: `str` of it is the driver's sentence."""


@dataclass(frozen=True)
class Card:
    uuid: str
    used: int
    total: int
    util: int | None = 0
    """None: a slice, which has none."""
    is_lost: bool = False


@dataclass
class FakeNvml:
    """Handles are worth nothing before `nvmlInit`, as with the real one."""

    cards: list[Card] = field(default_factory=list)
    init_error: str = ""
    num_inits: int = 0

    def nvmlInit(self) -> None:  # noqa: N802
        if self.init_error:
            raise NVMLError(self.init_error)
        self.num_inits += 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> Card:  # noqa: N802
        self._need_init()
        if not 0 <= index < len(self.cards):
            raise NVMLError("Invalid Argument")
        return self.cards[index]

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> Card:  # noqa: N802
        self._need_init()
        for card in self.cards:
            if card.uuid == uuid:
                return card
        raise NVMLError("Not Found")

    def nvmlDeviceGetMemoryInfo(self, handle: Card) -> SimpleNamespace:  # noqa: N802
        if handle.is_lost:
            raise NVMLError("GPU is lost")
        return SimpleNamespace(
            used=handle.used, total=handle.total, free=handle.total - handle.used
        )

    def nvmlDeviceGetUtilizationRates(self, handle: Card) -> SimpleNamespace:  # noqa: N802
        if handle.util is None:
            raise NVMLError("Not Supported")
        return SimpleNamespace(gpu=handle.util, memory=0)

    def _need_init(self) -> None:
        if not self.num_inits:
            raise NVMLError("Uninitialized")

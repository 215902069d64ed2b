"""One sample does not fit: by how much, and what checkpointing or a larger card would give.

Nothing is measured here: weights, gradients and the optimizer's states are counted, and torch's
error tells what it wanted and what the device has. What a sample takes without a limit nobody knows
then; `tasuki estimate` does.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from tasuki.estimation.gpus import TABLE
from tasuki.train.recompute import find_blocks
from tasuki.units import format_bytes, parse_bytes

_CAPACITY = re.compile(r"(?:total capacity|memory cap) of (\d[\d.]* \w+)")
_OVER = re.compile(r"(\d+) bytes too many")
_ASKED = re.compile(r"Tried to allocate (\d[\d.]* \w+)")
_FREE = re.compile(r"of which (\d[\d.]* \w+) is free")


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortage:
    """What is known of a device on which one sample has no room."""

    held: int
    """Bytes of weights, gradients and the optimizer's states: whatever the batch."""
    is_optimizer_fresh: bool
    """Its states are not there yet."""
    blocks: int
    """Repeated parts of the model, which gradient checkpointing takes."""
    capacity: int | None
    """Bytes; None: the error does not tell."""
    over: int | None
    """What the allocation that failed was too large by. More may follow it."""

    def in_words(self) -> str:
        """For the end of a message."""
        of = f" of {format_bytes(self.capacity)}" if self.capacity is not None else ""
        told = f"weights, gradients and optimizer take {format_bytes(self.held)}{of}"
        if self.is_optimizer_fresh:
            told = f"weights and gradients take {format_bytes(self.held)}{of}"
        if self.capacity is not None:
            room = max(0, self.capacity - self.held)
            told += f", and the sample needs more than the other {format_bytes(room)}"
        return f"{told}; the optimizer's states come on top" if self.is_optimizer_fresh else told

    def of_checkpointing(self) -> str:
        """What it leaves of a sample's activations."""
        if self.blocks < 2:
            return "slower, far less memory"
        return (
            f"slower; of a sample's activations it keeps the inputs of the model's {self.blocks} "
            f"blocks and those inside one: about 1/{self.blocks}"
        )

    def of_a_card(self) -> str:
        """How large it must be, and the smallest known one that is."""
        if self.capacity is None or self.over is None:
            return ""
        need = self.capacity + self.over
        larger = [g for g in TABLE.values() if g.memory_bytes is not None and g.memory_bytes > need]
        card = min(larger, key=lambda gpu: gpu.memory_bytes or 0, default=None)
        known = ""
        if card is not None and self.capacity > 1 << 30:
            known = f": {card.name} has {format_bytes(card.memory_bytes or 0)}"
        return f" (more than {format_bytes(need)}{known})"


def find_shortage(model: nn.Module, optimizer: Any, error: BaseException | None) -> Shortage:
    """`error` is torch's own; None: another rank's."""
    words = str(error or "")
    trained = [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]
    states = [
        value
        for state in optimizer.state.values()
        for value in (state.values() if isinstance(state, dict) else ())
        if isinstance(value, Tensor)
    ]
    tensors = [*model.parameters(), *model.buffers(), *trained, *states]
    found = _CAPACITY.search(words)
    return Shortage(
        held=sum(tensor.numel() * tensor.itemsize for tensor in tensors),
        is_optimizer_fresh=not states,
        blocks=len(find_blocks(model)),
        capacity=parse_bytes(found[1]) if found else None,
        over=_over(words),
    )


def _over(words: str) -> int | None:
    if found := _OVER.search(words):
        return int(found[1])
    asked, free = _ASKED.search(words), _FREE.search(words)
    if asked is None or free is None:
        return None
    return max(0, parse_bytes(asked[1]) - parse_bytes(free[1]))

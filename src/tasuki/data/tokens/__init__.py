"""Tokens in packed chunks: made once by `tasuki data tokenize`, read by `TokenDataset`.

Names are loaded when they are used: the process that tokenises imports no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tasuki.data.tokens.reader import TokenDataset

__all__ = ["TokenDataset"]


def __getattr__(name: str) -> Any:
    if name != "TokenDataset":
        raise AttributeError(f"module 'tasuki.data.tokens' has no attribute {name!r}")
    from tasuki.data.tokens.reader import TokenDataset

    return TokenDataset

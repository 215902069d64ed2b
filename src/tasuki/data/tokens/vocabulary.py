"""What tokens are: a file of the package `tokenizers`, one that is trained here, or bytes.

`tokenizers` is imported here alone, and only where it is needed.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tasuki.data.tokens.cut import PIECE, cut_document
from tasuki.data.tokens.index import LARGEST, TOKENIZER, dtype_of
from tasuki.errors import DataError, UsageError

Tokens = NDArray[np.unsignedinteger[Any]]

END = "<|endoftext|>"
"""What a tokenizer that is trained here ends documents with: its token 0."""
_ENDS = (END, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|end|>", "[SEP]")
"""What others end them with, the surest first."""
_BYTES_END = 256
SMALLEST, LARGEST_TRAINED = 257, 1_000_000
_LARGEST_FILE = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """Tokens, and how text becomes some. Goes to workers as it is."""

    size: int
    end: int
    content: bytes | None
    """Of `tokenizer.json`; None: bytes are the tokens."""
    takes_special: bool = False
    """Special tokens that stand in a text are taken for what they are, not for text."""

    @property
    def dtype(self) -> str:
        return dtype_of(self.size)

    @property
    def sha256(self) -> str | None:
        return None if self.content is None else hashlib.sha256(self.content).hexdigest()

    def told(self) -> dict[str, Any]:
        """For the index."""
        if self.content is None:
            return {"kind": "bytes", "file": None, "sha256": None}
        return {"kind": "tokenizers", "file": TOKENIZER, "sha256": self.sha256}


BYTES = Vocabulary(size=_BYTES_END + 1, end=_BYTES_END, content=None)


class Encoder:
    """Turns texts into tokens, in whatever process."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._dtype = np.dtype(vocabulary.dtype).newbyteorder("<")
        self._end = vocabulary.end
        self._tokenizer = None
        if vocabulary.content is not None:
            # One thread per process: workers are what uses several CPUs.
            os.environ["TOKENIZERS_PARALLELISM"] = "false"
            self._tokenizer = _parse(vocabulary.content, name=TOKENIZER)
            self._tokenizer.no_truncation()
            self._tokenizer.no_padding()
            self._tokenizer.encode_special_tokens = not vocabulary.takes_special

    def encode(self, documents: Sequence[bytes]) -> tuple[list[Tokens], int]:
        """(Tokens of the documents that have any, each with its end; how many have none).

        Documents are UTF-8; whether they are is the caller's to know.
        """
        arrays: list[Tokens] = []
        num_empty = 0
        end = np.array([self._end], dtype=self._dtype)
        for pieces in self._encoded(documents):
            if any(len(piece) for piece in pieces):
                arrays += [*pieces, end]
            else:
                num_empty += 1
        return arrays, num_empty

    def encode_piece(self, piece: bytes) -> Tokens:
        """Of a document that goes on."""
        [[tokens]] = self._encoded([piece], piece=len(piece))
        return tokens

    def _encoded(self, documents: Sequence[bytes], *, piece: int = PIECE) -> Iterator[list[Tokens]]:
        if self._tokenizer is None:
            for data in documents:
                yield [np.frombuffer(data, dtype=np.uint8).astype(self._dtype)]
            return
        cut = [list(cut_document(data, piece=piece)) for data in documents]
        texts = [one.decode() for pieces in cut for one in pieces]
        # Without offsets, which nobody needs: a third quicker than `encode_batch`.
        encode = getattr(self._tokenizer, "encode_batch_fast", self._tokenizer.encode_batch)
        encoded = iter(encode(texts, add_special_tokens=False))
        for pieces in cut:
            yield [np.array(next(encoded).ids, dtype=self._dtype) for _ in pieces]


def load_vocabulary(path: Path, *, end: str | None, takes_special: bool) -> Vocabulary:
    """Of a file that `tokenizers` wrote."""
    from tasuki.runs.atomic import read_plain

    content = read_plain(path, limit=_LARGEST_FILE)
    tokenizer = _parse(content, name=str(path))
    names: dict[str, int] = tokenizer.get_vocab(with_added_tokens=True)
    size = max(names.values(), default=-1) + 1
    if size > LARGEST["uint32"]:
        raise UsageError(
            f"the vocabulary of `{path}` is too large: its largest token is {size - 1:,}",
            hint="tokens are stored in 32 bits at the most",
        )
    return Vocabulary(
        size=size,
        end=_find_end(names, end, path),
        content=content,
        takes_special=takes_special,
    )


def _find_end(names: dict[str, int], wanted: str | None, path: Path) -> int:
    if wanted is not None:
        if wanted in names:
            return names[wanted]
        raise UsageError(
            f"`{path}` has no token `{wanted}`",
            hint=f"it has {_some(names)}; `--end-token` names one of its tokens",
        )
    for name in _ENDS:
        if name in names:
            return names[name]
    raise UsageError(
        f"`{path}` has none of {', '.join(_ENDS)} to end documents with",
        hint="name a token of it: `--end-token TOKEN`",
    )


def _some(names: dict[str, int]) -> str:
    special = [name for name in names if name.startswith(("<", "[")) and len(name) > 2]
    return ", ".join(f"`{name}`" for name in sorted(special or names, key=names.__getitem__)[:6])


def train_vocabulary(texts: Iterable[list[str]], *, size: int, threads: int) -> Vocabulary:
    """A byte-level BPE of these texts: the same file for the same texts, whatever the threads."""
    refuse_size(size)
    # Before the package starts its threads.
    os.environ["TOKENIZERS_PARALLELISM"] = "true" if threads > 1 else "false"
    os.environ["RAYON_NUM_THREADS"] = str(threads)
    tokenizers = import_tokenizers()
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[END],
        initial_alphabet=sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(texts), trainer)
    found = tokenizer.get_vocab_size(with_added_tokens=True)
    content: str = tokenizer.to_str(pretty=True)
    return Vocabulary(size=found, end=tokenizer.token_to_id(END), content=content.encode())


def refuse_size(size: int) -> None:
    if size < SMALLEST:
        raise UsageError(
            f"a vocabulary of {size} is too small: the bytes and the end token are {SMALLEST}",
            hint="some thousands are usual: `--train 32000`; or take `--bytes`",
        )
    if size > LARGEST_TRAINED:
        raise UsageError(
            f"a vocabulary of {size:,} is too large: {LARGEST_TRAINED:,} at the most",
            hint="up to 65,536 a token takes two bytes, beyond that four",
        )


def _parse(content: bytes, *, name: str) -> Any:
    tokenizers = import_tokenizers()
    try:
        return tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the package raises bare ones
        raise DataError(
            f"`{name}` is no file of `tokenizers`: {str(error)[:200]}",
            hint="a tokenizer.json as `Tokenizer.save` writes it; `--train SIZE` makes one",
        ) from error


def import_tokenizers() -> Any:
    try:
        import tokenizers
    except ImportError as error:
        raise UsageError(
            "the package `tokenizers` is not installed",
            hint='pip install "tasuki[tokens]"; `--bytes` needs no package',
        ) from error
    return tokenizers

"""Words for a place in a state: for people in errors, for readers in tensor names.

Pure. Used by the codec, which says where something is that it cannot store.
"""

from __future__ import annotations

from collections.abc import Sequence

MAX_NAME = 240
"""Of a tensor's name in a file. Longer ones are cut: names are for people, references are exact."""


def describe_place(path: Sequence[object]) -> str:
    """`optimizer.state[3]['hook']`: attributes as far as it reads well, then subscripts."""
    words = ""
    for depth, key in enumerate(path):
        if isinstance(key, str) and key.isidentifier() and "[" not in words:
            words += f".{key}" if depth else key
        else:
            words += f"[{key!r}]"
    return words if words and not words.startswith("[") else f"state{words}"


def tensor_name(path: Sequence[object]) -> str:
    """`model.layer1.weight`: printable, and never a name that safetensors keeps for itself."""
    name = ".".join(map(str, path))
    if not name.isprintable():
        name = "".join(char if char.isprintable() else "_" for char in name)
    name = name[:MAX_NAME]
    return "tensor" if name in ("", "__metadata__") else name


def make_unique(name: str, taken: set[str]) -> str:
    """The name, or the name with the first free number; it is taken from now on."""
    unique, number = name, 1
    while unique in taken:
        number += 1
        unique = f"{name}~{number}"
    taken.add(unique)
    return unique

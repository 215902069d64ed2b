"""Is a framework there, and is it one that its adapter is tested with?

An adapter puts state back into places that are no public interface of the framework. So a version
outside of its series is refused, and another one of the series is taken, aloud: what is put back is
compared after each restore in any case.
"""

from __future__ import annotations

import importlib.util
import re
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tasuki.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Tested:
    """Which versions of a package an adapter knows."""

    package: str
    extra: str
    series: str
    """Any of these is taken: `2` takes 2.6 and 2.7."""
    least: tuple[int, int]
    known: tuple[str, ...]
    """Tested ones, as `2.6`."""

    @property
    def words(self) -> str:
        return " and ".join(f"{one}.x" for one in self.known)


LIGHTNING = Tested(package="lightning", extra="lightning", series="2", least=(2, 6), known=("2.6",))
HF = Tested(package="transformers", extra="hf", series="5", least=(5, 0), known=("5.23",))


def refuse_absent(tested: Tested) -> None:
    """Before the framework is imported."""
    if importlib.util.find_spec(tested.package) is None:
        raise UsageError(
            f"{tested.package} is not installed", hint=f'pip install "tasuki[{tested.extra}]"'
        )


def installed(tested: Tested) -> str:
    try:
        return version(tested.package)
    except PackageNotFoundError:
        return "unknown"


def check_version(tested: Tested, found: str) -> str | None:
    """What to say about this version, or None; refused where it cannot work. Pure."""
    numbers = re.match(r"(\d+)\.(\d+)", found)
    pair = (int(numbers[1]), int(numbers[2])) if numbers else None
    if pair is None or str(pair[0]) != tested.series or pair < tested.least:
        least = ".".join(map(str, tested.least))
        raise UsageError(
            f"{tested.package} {found} is outside of what tasuki's adapter can work with: "
            f"{least} or newer, before {int(tested.series) + 1}",
            hint=f'pip install "tasuki[{tested.extra}]"; or write the loop yourself and use '
            "tasuki.open_run, which needs no framework",
        )
    if f"{pair[0]}.{pair[1]}" in tested.known:
        return None
    return (
        f"WARNING: tasuki's adapter is tested with {tested.package} {tested.words}, and this is "
        f"{found}: what is restored is compared, but a resume may be refused or differ"
    )

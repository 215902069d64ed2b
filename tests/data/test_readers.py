"""Data whose code might read a generator's state are seeded throughout; others are not."""

from __future__ import annotations

import functools
import importlib
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tests.data import drawing

from tasuki.data import readers
from tasuki.data.buckets import plan_buckets
from tasuki.data.fetch import Fetcher
from tasuki.data.loader import Loader
from tasuki.data.order import Order
from tasuki.data.readers import may_read_states
from tasuki.data.shares import StepSplit
from tasuki.data.tempo import LoaderSettings

PLAIN = """
import random, torch, logging
import numpy as np
log = logging.getLogger(__name__)

class Data:
    def __init__(self, transform=None): self.transform = transform
    def __len__(self): return 60
    def __getitem__(self, index):
        drawn = torch.rand(2) if index % 11 == 5 else torch.zeros(2)
        return drawn + (0 if self.transform is None else self.transform(index))
"""
READERS = {
    "fork": "with torch.random.fork_rng(devices=[]): return torch.rand(2).tolist()",
    "numpy": "s = np.random.get_state(); r = np.random.rand(2); np.random.set_state(s); return r",
    "python": "return [random.Random(random.getstate()[1][5]).random(), 0]",
    "seed": "return np.random.default_rng(torch.initial_seed() % 2**63).random(2)",
}
RARE = """
import random, torch
import numpy as np

def read(index):
    %s

class Data:
    def __len__(self): return 60
    def __getitem__(self, index):
        found = [0, 0]
        if index %% 20 == 3: found = read(index)
        elif index %% 30 == 5: found = [random.random(), np.random.rand() + torch.rand(1).item()]
        return torch.tensor(np.asarray([index, *found], dtype=np.float64))
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Write modules of these contents, and import the first."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    known = set(sys.modules)

    def write(**texts: str) -> Any:
        for name, text in texts.items():
            path = tmp_path / f"{name.replace('__', '/')}.py"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        importlib.invalidate_caches()
        return importlib.import_module(next(iter(texts)).replace("__", "."))

    yield write
    for name in set(sys.modules) - known:
        del sys.modules[name]


def batches(data: Any, *, workers: int = 0, first: int = 0, seed: int = 3) -> list[torch.Tensor]:
    order = Order(plan_buckets(None, 60), seed=seed, stage="s", effective_batch=8)
    settings = LoaderSettings(workers=workers, context="fork")
    loader = Loader(
        Fetcher(data, None),
        order,
        StepSplit(micro_batch=4),
        first_step=first,
        total_steps=16,
        settings=settings,
    )
    found = [torch.cat([batch.data for batch in step]) for step, _ in loader.steps()]
    loader.stop()
    return found


@pytest.mark.parametrize("kind", READERS)
def test_rare_readers_give_the_same_batches_whoever_fetches_them(module: Any, kind: str) -> None:
    data = module(rare=RARE % READERS[kind]).Data()
    # In some of these orders the samples that are looked at beforehand neither read nor draw.
    for seed in range(10):
        expected = batches(data, seed=seed)
        rows = torch.cat(expected)
        read = rows[rows[:, 0] % 20 == 3][:, 1]
        assert len(set(read.tolist())) == len(read) > 3, "samples share their random numbers"
        for workers, first in ((0, 3), (0, 9), (2, 0))[: 3 if seed == 3 else 2]:
            found = batches(data, workers=workers, first=first, seed=seed)
            assert all(map(torch.equal, found, expected[first:])), (seed, workers, first)


def test_data_that_only_draw_are_no_readers(module: Any) -> None:
    plain = module(plain=PLAIN)
    assert not may_read_states(plain.Data())
    assert not may_read_states(torch.utils.data.Subset(plain.Data(torch.nn.Dropout()), [1]))
    assert not may_read_states(Fetcher(drawing.Data({}), drawing.collate_of_three))
    assert not may_read_states([{"path": str(i), "label": i} for i in range(100_000)])


READS = "import torch\ndef read(index): return torch.initial_seed()\n"


@pytest.mark.parametrize(
    "how",
    ["attribute", "partial", "closure", "bound", "default", "nested", "objects", "slots", "weak"],
)
def test_a_reader_is_found_wherever_the_data_hold_it(module: Any, how: str) -> None:
    import weakref

    plain, read = module(plain=PLAIN), module(elsewhere=READS).read

    class Slots:
        __slots__ = ("__weakref__", "held")

    slots = Slots()
    slots.held = read  # type: ignore[attr-defined]
    holders: dict[str, Any] = {
        "attribute": read,
        "partial": functools.partial(print, read),
        "closure": torch.utils.data.Subset(plain.Data(read), [1]),
        "bound": plain.Data(read).__getitem__,
        "default": {"a": [(1, {"b": read})]},
        "nested": torch.utils.data.ConcatDataset([plain.Data(), plain.Data(read)]),
        "objects": np.array([1, read], dtype=object),
        "slots": slots,
        "weak": weakref.ref(read),
    }
    data = plain.Data(holders[how])
    assert not may_read_states(plain.Data())
    assert may_read_states(data)


MINE = "from plain import Data as D\nimport importlib\nclass Data(D):\n    def f(self):\n"


@pytest.mark.parametrize(
    "line",
    [
        "pass\nfrom elsewhere import read",
        "import elsewhere",
        "pass; import parts.inner",
        "from parts import (  # (both)\n            other,\n            inner)",
        "exec('1')",
        "importlib.import_module('else' + 'where')",
        "import compiled",
    ],
)
def test_a_reader_is_found_in_what_the_data_import(module: Any, tmp_path: Path, line: str) -> None:
    (tmp_path / "compiled.so").write_bytes(b"")
    data = module(
        mine=f"{MINE}        {line}\n",
        plain=PLAIN,
        elsewhere=READS,
        parts____init__="",
        parts__inner="from . import deep",
        parts__deep=READS,
    ).Data()
    assert may_read_states(data)


def test_a_reader_is_found_in_a_registry_that_another_module_fills(module: Any) -> None:
    registry = module(registry=PLAIN + "\nKINDS = {}\n")
    assert not may_read_states(registry.Data())
    module(other="import registry\n" + READS + "registry.KINDS['x'] = [read]\n")
    assert may_read_states(registry.Data())


def test_a_reader_is_found_in_an_installed_package_also_where_it_loads_its_parts_by_name(
    module: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "augmenting"
    package.mkdir(parents=True)
    monkeypatch.syspath_prepend(package.parent)
    part = "import importlib\npart = importlib.import_module('augmenting._part')\n"
    (package / "__init__.py").write_text(part + "def plain(index): return 0\n")
    (package / "_part.py").write_text("import torch\ndef draw(): return torch.rand(2)\n")
    mine = "import augmenting\n" + PLAIN
    assert not may_read_states(module(mine=mine).Data())
    (package / "_part.py").write_text(READS)
    assert may_read_states(sys.modules["mine"].Data())


def test_a_module_that_is_called_like_one_of_pythons_is_read(module: Any, tmp_path: Path) -> None:
    mine = "from plain import Data as D\nclass Data(D):\n    def f(self): import colorsys\n"
    data = module(mine=mine, plain=PLAIN).Data()
    assert not may_read_states(data)
    sys.modules.pop("colorsys", None)
    (tmp_path / "colorsys.py").write_text(READS)
    assert may_read_states(data)


def test_code_without_a_file_is_judged_by_its_names() -> None:
    def made(body: str) -> Any:
        space: dict[str, Any] = {"torch": torch}
        exec(f"class Data:\n    def __getitem__(self, i): return {body}\n", space)
        return space["Data"]()

    assert not may_read_states(made("torch.rand(2)"))
    assert may_read_states(made("torch.initial_seed()"))
    assert may_read_states(made("(lambda: torch.default_generator)()"))


def test_data_too_large_to_be_searched_are_seeded(
    module: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = module(plain=PLAIN).Data()
    monkeypatch.setattr(readers, "_MOST", 5)
    assert may_read_states(data)

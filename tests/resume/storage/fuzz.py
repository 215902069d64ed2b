"""Parsers fed with anything: an answer, or the one exception that is documented for it. Those of
events, histories and jobs have tests of their own with nonsense in `unit/runs`.

Some inputs are arbitrary; most are good ones in which a value or two were replaced, which get
further in. Seeded: the same inputs each time.
"""

from __future__ import annotations

import copy
import hashlib
import json
import struct
import tempfile
import warnings
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.resume.storage.driver import make_small, memory
from tests.resume.storage.forge import MANIFEST, TENSORS, TREE, newest

from tasuki.checkpoint.lineage import find_latest, lineage
from tasuki.checkpoint.manifest import parse_manifest, parse_name
from tasuki.checkpoint.parts import read_part
from tasuki.checkpoint.records import FileRecord
from tasuki.checkpoint.weights import read_weights
from tasuki.errors import DamagedCheckpoint, NewerFormat, StoreError, UsageError, WeightsError
from tasuki.runs.attempts import live_runner, read_attempt_ends, read_holder
from tasuki.runs.control import everything_said
from tasuki.runs.lines import parse_lines
from tasuki.runs.runs import RunFolder
from tasuki.runs.view import read_losses, read_view
from tasuki.spec.load import load_spec

_WORDS = [
    "", "$tensor", "$int", "$dict", "$tuple", "$ordered", "dtype", "shape", "stride", "offset",
    "float32", "F32", "data_offsets", "format", "claim", "parent", "step-000000005.c1", "sha256",
    "exp", "stages", "name", "data", "epochs", "save", "every", "cluster", "word", "hold", "cause",
]  # fmt: skip
_INTS = st.one_of(st.integers(-3, 9), st.integers(-(2**70), 2**70), st.just(10**400))
_LEAVES = st.one_of(
    st.none(),
    st.booleans(),
    _INTS,
    st.floats(allow_nan=False),
    st.sampled_from(_WORDS),
    st.text(max_size=12),
)
ANY = st.recursive(
    _LEAVES,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(st.one_of(st.sampled_from(_WORDS), st.text(max_size=6)), inner, max_size=4),
    ),
    max_leaves=12,
)


def _mutants(good: Any) -> st.SearchStrategy[Any]:
    """The good value with something else in one or two of its places."""
    places = list(_places(good, ()))

    def put(pairs: list[tuple[tuple[Any, ...], Any]]) -> Any:
        value = copy.deepcopy(good)
        for place, other in pairs:
            value = _put(value, place, other)
        return value

    pairs = st.tuples(st.sampled_from(places), ANY)
    return st.lists(pairs, min_size=1, max_size=2).map(put)


def _places(value: Any, at: tuple[Any, ...]) -> Any:
    yield at
    items = (
        value.items() if isinstance(value, dict) else enumerate(value) if _is_list(value) else ()
    )
    for key, inner in items:
        yield from _places(inner, (*at, key))


def _is_list(value: Any) -> bool:
    return isinstance(value, list)


def _put(value: Any, place: tuple[Any, ...], other: Any) -> Any:
    if not place:
        return other
    with suppress(TypeError, KeyError, IndexError):  # the first replacement took this place away
        value[place[0]] = _put(value[place[0]], place[1:], other)
    return value


def _inputs(good: Any) -> st.SearchStrategy[Any]:
    return st.one_of(ANY, _mutants(good), _mutants(good))


def _dump(value: Any) -> bytes:
    return json.dumps(value).encode()


class Fuzz:
    """All parsers, each with its inputs and its exception."""

    def __init__(self, folder: Path, examples: int) -> None:
        self._run = make_small(folder / "runs" / "exp")
        self._examples = examples
        self.counts: dict[str, int] = {}
        self.problems: list[str] = []

    def _feed(
        self,
        name: str,
        inputs: st.SearchStrategy[Any],
        act: Callable[[Any], object],
        allowed: tuple[type[Exception], ...],
    ) -> None:
        self.counts[name] = 0

        @settings(
            max_examples=self._examples,
            database=None,
            derandomize=True,
            deadline=None,
            report_multiple_bugs=False,
            suppress_health_check=list(HealthCheck),
        )
        @given(inputs)
        def feed(value: Any) -> None:
            self.counts[name] += 1
            with suppress(*allowed):
                act(value)

        try:
            feed()
        except BaseException as error:
            note = "; ".join(getattr(error, "__notes__", []))[:300]
            self.problems.append(f"{name}: {type(error).__name__}: {str(error)[:200]} {note}")

    # -- checkpoints ------------------------------------------------------------------------

    def checkpoints(self) -> None:
        folder = newest(self._run)
        whole = (DamagedCheckpoint, NewerFormat)
        manifest = json.loads((folder / MANIFEST).read_bytes())
        self._feed("manifest bytes", st.binary(max_size=200), parse_manifest, whole)
        self._feed("manifest", _inputs(manifest), lambda v: parse_manifest(_sealed(v)), whole)
        record = manifest["files"][0]
        self._feed("record", _inputs(record), FileRecord.from_json, (DamagedCheckpoint,))
        self._feed("name", st.text(max_size=40), _check_name, ())
        tree = json.loads((folder / TREE).read_bytes())
        self._file("tree", folder / TREE, _inputs(tree).map(_dump), lambda: read_part(folder, 0))
        tensors = (folder / TENSORS).read_bytes()
        size = int.from_bytes(tensors[:8], "little")
        head, rest = json.loads(tensors[8 : 8 + size]), tensors[8 + size :]
        inputs = _inputs(head).map(lambda v: _with_header(_dump(v), rest))
        self._file("header", folder / TENSORS, inputs, lambda: read_part(folder, 0))
        inputs = st.binary(max_size=100)
        self._file("tensors", folder / TENSORS, inputs, lambda: read_part(folder, 0))

    def _file(
        self,
        name: str,
        path: Path,
        inputs: st.SearchStrategy[bytes],
        act: Callable[[], object],
        allowed: tuple[type[Exception], ...] = (DamagedCheckpoint,),
    ) -> None:
        before = path.read_bytes() if path.exists() else None

        def put(data: bytes) -> None:
            path.write_bytes(data)
            act()

        path.parent.mkdir(parents=True, exist_ok=True)
        self._feed(name, inputs, put, allowed)
        path.unlink(missing_ok=True)
        if before is not None:
            path.write_bytes(before)

    # -- run and job folders ------------------------------------------------------------------

    def folders(self) -> None:
        run, claim = self._run, self._run.claims / "1"
        parent = {"format": 1, "claim": 1, "parent": "step-000000010.c1"}
        self._json("parent", claim / "parent.json", parent, lambda: lineage(run))
        self._json("lineage", claim / "parent.json", parent, lambda: _find(run))
        holder = {
            "format": 1, "host": "h:1", "pid": 1, "born": "2", "job": "j", "start": 1, "at": 1,
        }  # fmt: skip
        self._json("holder", claim / "holder.json", holder, lambda: read_holder(run, 1))
        end = {
            "format": 1, "claim": 1, "ending": "failed", "cause": "none", "message": "", "hint": "",
            "has_progressed": True, "has_stepped": True, "at": 1.0,
        }  # fmt: skip
        run.spec.write_bytes(_dump(_SPEC))
        self._json("end", claim / "end.json", end, lambda: _look(run))
        word = {"format": 1, "word": "hold", "reason": "", "hint": "", "claim": 1}
        self._json("word", run.control / "000001.json", word, lambda: everything_said(run))
        runner = {"format": 1, "host": "h:1", "pid": 1, "born": "2"}
        self._json("runner", run.runner, runner, lambda: live_runner(run))
        self._json("spec.json", run.spec, _SPEC, lambda: _look(run))
        self._feed("lines", st.binary(max_size=200), lambda data: list(parse_lines(data)), ())

    def _json(self, name: str, path: Path, good: Any, act: Callable[[], object]) -> None:
        inputs = st.one_of(st.binary(max_size=60), _inputs(good).map(_dump))
        self._file(name, path, inputs, act, (StoreError,))

    # -- what people give -----------------------------------------------------------------------

    def given_by_people(self) -> None:
        path = self._run.path / "tasuki.yaml"
        load = lambda: load_spec(str(path), environ={})  # noqa: E731
        self._file("spec", path, _inputs(_YAML).map(_dump), load, (UsageError,))
        self._file("spec text", path, st.text(max_size=80).map(_encode), load, (UsageError,))
        weights = self._run.path / "w.safetensors"
        data = (newest(self._run) / TENSORS).read_bytes()
        size = int.from_bytes(data[:8], "little")
        inputs = _inputs(json.loads(data[8 : 8 + size])).map(
            lambda v: _with_header(_dump(v), data[8 + size :])
        )
        inputs = st.one_of(inputs, st.binary(max_size=100))
        self._file("weights", weights, inputs, lambda: read_weights(weights), (WeightsError,))


_SPEC = {
    "format": 1,
    "experiment": "exp",
    "stages": [{"name": "one", "evaluates": True, "reserve_s": 1.0}],
    "fingerprints": {"spec": "a", "code": "b"},
}
_YAML = {
    "project": "t",
    "recipe": "recipes:Learner",
    "cluster": {"gpu": "cpu", "gpus": 1, "grace": "30s", "limit": "2h"},
    "defaults": {"effective_batch": 8, "save": {"every": "7 steps", "keep": 2}, "params": {"a": 1}},
    "experiments": {
        "exp": {"stages": [{"name": "one", "data": "d", "epochs": 4, "buckets": "auto"}]}
    },
}


def _sealed(value: Any) -> bytes:
    """With the digest that fits, so that it gets past it."""
    if isinstance(value, dict):
        value = {key: item for key, item in value.items() if key != "sha256"}
        value["sha256"] = hashlib.sha256(_canonical(value)).hexdigest()
    return _canonical(value)


def _canonical(value: Any) -> bytes:
    text = json.dumps(value, ensure_ascii=False, sort_keys=True, separators=(",", ":"))
    return text.encode(errors="surrogatepass") + b"\n"


def _with_header(header: bytes, rest: bytes) -> bytes:
    return struct.pack("<Q", len(header)) + header + rest


def _encode(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _check_name(text: str) -> None:
    parsed = parse_name(text)
    assert parsed is None or str(parsed) == text


def _look(run: RunFolder) -> None:
    """As `status` and the relay do."""
    read_attempt_ends(run)
    read_view(run, until=None, requeue=True)
    read_losses(run)


def _find(run: RunFolder) -> None:
    from tasuki.errors import CheckpointError

    try:
        find_latest(run, lambda *_: None)
    except CheckpointError as error:
        if "nothing verifies" not in str(error):
            raise


def fuzz_all(*, examples: int) -> dict[str, Any]:
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory(dir=memory()) as folder:
        fuzz = Fuzz(Path(folder), examples)
        fuzz.checkpoints()
        fuzz.folders()
        fuzz.given_by_people()
    return {"counts": fuzz.counts, "problems": fuzz.problems}

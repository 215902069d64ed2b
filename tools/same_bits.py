"""Prove that a change left the trained bits alone: run the examples with two versions and compare.

    make same-bits BASE=main
    .venv/bin/python tools/same_bits.py main --cases matrix_gnn token_lm

BASE is any git revision. The other version is the working tree with its uncommitted changes. Each
case of `examples/cases.toml` is run twice with BASE and once with the working tree, one at a time
and in separate folders. A case whose two runs of BASE differ proves nothing, and fails.
Compared are every tensor of the final weights (name, dtype, shape and bytes) and every metric by
stage, split and step. Not compared are file bytes, times, rates and attempt numbers.

Virtual environments and the results of BASE stay in `.work/same-bits` for the next time.
Exit codes: 0 all cases equal, 1 at least one is not, 2 usage.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib.util
import io
import json
import math
import os
import platform
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
WORK = ROOT / ".work" / "same-bits"
COMMAND_TIMEOUT_S = 900

CASES_BEFORE = Path(__file__).with_name("same_bits_before.toml")
"""The cases of commits that have no examples/cases.toml."""

FORMATS = {
    "F64": "<d",
    "F32": "<f",
    "F16": "<e",
    "I64": "<q",
    "I32": "<i",
    "U8": "<B",
    "BOOL": "<?",
}

# Runs in every Python process of a version: notes which `tasuki` it imports, and its command line.
IMPORT_RECORDER = """\
import importlib.util, pathlib, sys

class RecordImport:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name != "tasuki":
            return None
        sys.meta_path.remove(RecordImport)
        spec = importlib.util.find_spec(name)
        with pathlib.Path(sys.prefix, "imports.txt").open("a") as file:
            file.write(f"{spec and spec.origin}\\t{' '.join(sys.orig_argv[1:4])!r}\\n")
        return spec

sys.meta_path.insert(0, RecordImport)
"""


class UsageError(Exception):
    """The command line or a cases file cannot be used. Exit code 2."""


class CaseError(Exception):
    """A case could not be run or left nothing to compare."""


@dataclass(frozen=True)
class Case:
    """One example with its commands, as a version's cases file describes it."""

    name: str
    commands: list[str]
    results: list[str]
    """Folders with runs, relative to where the commands run."""
    copy: str | None = None
    """The folder of the checkout in a copy of which the commands run; None: an empty folder."""
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Layout:
    """Where a version's run folder keeps what is compared."""

    weights: str
    metrics: str
    evaluations: str
    ignored: list[str]
    renamed: dict[str, str] = field(default_factory=dict)
    """Names of this version, and what earlier versions called them."""

    def common_name(self, name: str) -> str:
        """The name by which versions are compared: each part as earlier versions called it."""
        return "".join(self.renamed.get(part, part) for part in re.split(r"([./ ])", name))


@dataclass(frozen=True)
class Version:
    """A checkout of tasuki that can be run."""

    label: str
    folder: Path
    cases: dict[str, Case]
    layout: Layout
    packages_key: str
    environment: Path
    """A virtual environment of this version alone."""


@dataclass(frozen=True)
class Tensor:
    dtype: str
    shape: tuple[int, ...]
    data: bytes


@dataclass
class Results:
    """What a case left: tensors and metrics by name."""

    tensors: dict[str, Tensor] = field(default_factory=dict)
    metrics: dict[str, Any] = field(default_factory=dict)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="same_bits.py", description="Prove that a change left the trained bits alone."
    )
    parser.add_argument("base", metavar="BASE", help="any git revision to compare with")
    parser.add_argument("--cases", nargs="+", default=[], metavar="CASE", help="only these")
    parser.add_argument("--fresh", action="store_true", help="ignore the stored results of BASE")
    parser.add_argument("--keep", action="store_true", help="leave the folders of all runs")
    options = parser.parse_args()
    WORK.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="scratch-", dir=WORK))
    try:
        is_equal = compare_versions(options.base, options.cases, scratch, fresh=options.fresh)
        return 0 if is_equal else 1
    except UsageError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except (CaseError, subprocess.CalledProcessError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    finally:
        if options.keep:
            print(f"the folders of all runs are in {scratch}", file=sys.stderr)
        else:
            shutil.rmtree(scratch, ignore_errors=True)


def compare_versions(revision: str, names: list[str], scratch: Path, *, fresh: bool) -> bool:
    """Run and print case after case; whether all are equal."""
    folder, commit = check_out_base(revision, scratch)
    base = prepare_version("the base", folder, scratch)
    tree = prepare_version("the working tree", copy_working_tree(scratch), scratch)
    known = list(dict.fromkeys([*base.cases, *tree.cases]))
    if unknown := set(names) - set(known):
        raise UsageError(f"unknown case: {', '.join(unknown)} (cases: {', '.join(known)})")
    changed = len(_git("status", "--porcelain").splitlines())
    head = _git("rev-parse", "--short", "HEAD").decode().strip()
    print(f"base           {revision}, commit {commit[:7]}, packages {base.packages_key}")
    print(f"working tree   {head} and {changed} files with uncommitted changes, ", end="")
    print(f"packages {tree.packages_key}", flush=True)
    is_equal = True
    for name in names or known:
        state, rest = check_case(name, base, tree, commit, scratch, fresh=fresh)
        print(f"{name:<{max(map(len, known))}}   {state:<9}   {rest}", flush=True)
        is_equal = is_equal and state == "equal"
    return is_equal


def check_case(
    name: str, base: Version, tree: Version, commit: str, scratch: Path, *, fresh: bool
) -> tuple[str, str]:
    """The state of a case, `equal` or what else, and the rest of its line."""
    for version in (base, tree):
        if name not in version.cases:
            return "missing", f"{version.label} has no such case"
    try:
        before = run_base(base.cases[name], base, commit, scratch, fresh=fresh)
        started = time.monotonic()
        after = run_case(tree.cases[name], tree, scratch / "working-tree-1" / name)
        seconds = time.monotonic() - started
    except CaseError as error:
        return "failed", str(error)
    except (OSError, ValueError, KeyError, struct.error) as error:
        return "failed", f"cannot read what the case left: {error!r}"
    difference = describe_difference(before, after)
    details = difference or f"{len(after.tensors)} tensors, {len(after.metrics)} metrics"
    rest = f"{details}   (base against itself: equal)   {seconds:.0f} s"
    return "different" if difference else "equal", rest


def run_base(case: Case, base: Version, commit: str, scratch: Path, *, fresh: bool) -> Results:
    """The results of BASE, which must be the same in two runs; from the cache where it has them."""
    parts = [commit, base.packages_key, repr(case), repr(base.layout), describe_machine()]
    key = hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]
    cached = WORK / "results" / f"{case.name}-{key}"
    if cached.exists() and not fresh:
        return read_results(cached, case, base.layout)
    folders = [scratch / f"base-{number}" / case.name for number in (1, 2)]
    one, two = (run_case(case, base, folder) for folder in folders)
    if difference := describe_difference(one, two):
        raise CaseError(f"proves nothing: two runs of the base differ: {difference}")
    # Only what is compared is stored: a few megabytes for all cases.
    draft = scratch / "draft"
    for pattern in (base.layout.weights, base.layout.metrics, base.layout.evaluations):
        for name in case.results:
            for path in (folders[0] / name).glob(f"*/{pattern}"):
                target = draft / path.relative_to(folders[0])
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, target)
    shutil.rmtree(cached, ignore_errors=True)
    cached.parent.mkdir(parents=True, exist_ok=True)
    draft.rename(cached)
    return one


def run_case(case: Case, version: Version, folder: Path) -> Results:
    """Run all commands of a case in `folder`, which does not exist yet."""
    if case.copy is None:
        folder.mkdir(parents=True)
    else:
        shutil.copytree(version.folder / case.copy, folder, symlinks=False)
    (version.environment / "imports.txt").unlink(missing_ok=True)
    for command in case.commands:
        run_command(shlex.split(command), version, folder, case.environment)
    check_imports(version)
    return read_results(folder, case, version.layout)


def run_command(
    command: list[str], version: Version, folder: Path, environment: dict[str, str]
) -> None:
    """Run it without the variables of the caller's shell that could change what is trained."""
    left_out = re.compile(r"TASUKI_|PYTHON|SLURM_|TORCH|OMP_|MKL_|VIRTUAL_ENV")
    inherited = {key: text for key, text in os.environ.items() if not left_out.match(key)}
    path = os.pathsep.join([str(version.environment / "bin"), os.environ.get("PATH", os.defpath)])
    try:
        done = subprocess.run(
            [str(version.environment / "bin" / command[0]), *command[1:]],
            cwd=folder,
            env={**inherited, "PATH": path, **environment},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
        output, problem = done.stdout, f"exit code {done.returncode}" if done.returncode else None
    except subprocess.TimeoutExpired as error:
        output, problem = error.stdout or b"", f"not finished after {COMMAND_TIMEOUT_S} s"
    except FileNotFoundError:
        output, problem = b"", "only the version's own `python` and `tasuki` can be run"
    if problem:
        last = output.decode(errors="replace").splitlines()[-15:]
        raise CaseError(
            "\n    ".join([f"{version.label}: {problem}: {shlex.join(command)}", *last])
        )


def check_imports(version: Version) -> None:
    """Raise if a process of the case imported another tasuki than its version's."""
    for line in (version.environment / "imports.txt").read_text().splitlines():
        origin, _, command = line.partition("\t")
        if not Path(origin).is_relative_to(version.folder):
            raise CaseError(f"the process {command} imported {origin} and not {version.label}")


def describe_machine() -> str:
    """What may change the last bit of a sum: the CPU, and how many there are."""
    info = Path("/proc/cpuinfo")
    lines = re.findall(r"^(?:model name|flags).*", info.read_text(), re.M) if info.exists() else []
    return f"{platform.node()} {platform.machine()} {lines[:2]} {len(os.sched_getaffinity(0))}"


# -- versions --------------------------------------------------------------------------------------


def check_out_base(revision: str, scratch: Path) -> tuple[Path, str]:
    """BASE in a folder of its own, without git's knowledge, and its commit."""
    try:
        commit = _git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}").decode().strip()
    except subprocess.CalledProcessError:
        raise UsageError(f"unknown revision: {revision}") from None
    folder = scratch / "base"
    with tarfile.open(fileobj=io.BytesIO(_git("archive", commit))) as archive:
        archive.extractall(folder, filter="data")
    return folder, commit


def copy_working_tree(scratch: Path) -> Path:
    """All files that git tracks or would add: you can go on editing while the cases run."""
    folder = scratch / "working-tree"
    for name in _git("ls-files", "-z", "-co", "--exclude-standard").decode().split("\0"):
        if name and os.path.lexists(ROOT / name):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, folder / name, follow_symlinks=False)
    return folder


def prepare_version(label: str, folder: Path, scratch: Path) -> Version:
    try:
        cases, layout = read_cases(folder)
    except (KeyError, TypeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"examples/cases.toml of {label}: {error}") from error
    key = compute_packages_key(folder)
    is_own = key == compute_packages_key(ROOT)
    packages = find_own_packages() if is_own else install_packages(folder, key)
    environment = create_thin_environment(folder, packages, scratch)
    version = Version(label, folder, cases, layout, key, environment)
    run_command(["python", "-P", "-c", "import tasuki"], version, scratch, {})
    check_imports(version)
    return version


def read_cases(folder: Path) -> tuple[dict[str, Case], Layout]:
    path = folder / "examples" / "cases.toml"
    values = tomllib.loads((path if path.exists() else CASES_BEFORE).read_text())
    common = values.get("environment", {})
    cases = [
        Case(**{**table, "environment": {**common, **table.get("environment", {})}})
        for table in values["case"]
    ]
    return {case.name: case for case in cases}, Layout(**values["layout"])


def compute_packages_key(folder: Path) -> str:
    project = tomllib.loads((folder / "pyproject.toml").read_text())["project"]
    parts = [
        (folder / "constraints.txt").read_text(),
        json.dumps([project["dependencies"], project["optional-dependencies"]], sort_keys=True),
        platform.python_version(),
    ]
    return hashlib.sha256("\n".join(parts).encode()).hexdigest()[:16]


def find_own_packages() -> Path:
    """The folder where this interpreter has its packages. `make` keeps them up to date."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise UsageError("torch is not installed here: use `make same-bits` or .venv/bin/python")
    return Path(spec.origin).parents[1]


def install_packages(folder: Path, key: str) -> Path:
    """Install a version's pinned packages as its Makefile does, once for every `key`."""
    environment = WORK / "envs" / key
    if not (environment / "ready").exists():
        print(f"installing the packages of {folder.name} (once, minutes)", file=sys.stderr)
        shutil.rmtree(environment, ignore_errors=True)
        subprocess.run([sys.executable, "-m", "venv", environment], check=True)
        options = ["--quiet", "--no-cache-dir", "--disable-pip-version-check"]
        subprocess.run(
            [environment / "bin/python", "-m", "pip", "install", *options, "-e", f"{folder}[dev]"],
            env={**os.environ, "PIP_CONSTRAINT": str(folder / "constraints.txt")},
            check=True,
        )
        (environment / "ready").touch()
    return next(environment.glob("lib/python*/site-packages"))


def create_thin_environment(folder: Path, packages: Path, scratch: Path) -> Path:
    """A virtual environment that has the version's own `src` in front of shared packages.

    A .pth file, not PYTHONPATH: every child of this interpreter has it, whatever its environment.
    """
    environment = scratch / f"env-{folder.name}"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", environment], check=True)
    own = next(environment.glob("lib/python*/site-packages"))
    (own / "record_imports.py").write_text(IMPORT_RECORDER)
    (own / "paths.pth").write_text(f"{folder / 'src'}\n{packages}\nimport record_imports\n")
    scripts = tomllib.loads((folder / "pyproject.toml").read_text())["project"]["scripts"]
    for name, target in scripts.items():
        module, _, function = target.partition(":")
        script = environment / "bin" / name
        script.write_text(
            f"#!{environment}/bin/python\nimport sys\nfrom {module} import {function}\n"
            f"sys.exit({function}())\n"
        )
        script.chmod(0o755)
    return environment


def _git(*args: str) -> bytes:
    return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, check=True).stdout


# -- what a case left ------------------------------------------------------------------------------


def read_results(folder: Path, case: Case, layout: Layout) -> Results:
    """The tensors and metrics of all runs of a case."""
    results = Results()
    for name in case.results:
        runs = [path for path in sorted((folder / name).glob("*")) if path.name[0] != "."]
        for run in runs:
            label = f"{name}/{run.name}"
            for path in sorted(run.glob(layout.weights)):
                prefix = f"{label}/{path.parent.name}/"
                for key, tensor in read_tensors(path).items():
                    results.tensors[layout.common_name(prefix + key)] = tensor
            for key, value in _read_metrics(run, layout):
                results.metrics[layout.common_name(f"{label}/{key}")] = value
    if not results.tensors or not results.metrics:
        raise CaseError(f"no weights or no metrics in {', '.join(case.results)}")
    return results


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Those of a safetensors file: a length, a JSON header, then the bytes of all tensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    header.pop("__metadata__", None)
    return {
        key: Tensor(entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for key, entry in sorted(header.items())
    }


def _read_metrics(run: Path, layout: Layout) -> Iterator[tuple[str, Any]]:
    rows: dict[tuple[Any, ...], dict[str, Any]] = {}
    for path in sorted(run.glob(layout.metrics), key=lambda path: int(path.stem)):
        for line in path.read_text().splitlines():
            row = json.loads(line)
            if "step" in row:  # a later attempt repeats steps that an earlier one did not save
                rows[row.pop("stage"), row.pop("split"), row.pop("step")] = row
    for (stage, split, step), row in rows.items():
        for key in sorted(row.keys() - set(layout.ignored)):
            yield f"{stage}/{split} step {step} {key}", row[key]
    for path in sorted(run.glob(layout.evaluations)):
        for key, value in sorted(json.loads(path.read_text())["metrics"].items()):
            yield f"{path.parent.name}/evaluation {key}", value


# -- comparison ------------------------------------------------------------------------------------


def describe_difference(one: Results, other: Results) -> str | None:
    """The first tensor and the first metric that differ, with both values; None where none does."""
    found = [
        _first_difference("tensor", one.tensors, other.tensors, _describe_tensors),
        _first_difference("metric", one.metrics, other.metrics, _describe_values),
    ]
    return "; ".join(text for text in found if text) or None


def _first_difference(kind: str, one: Mapping, other: Mapping, describe: Any) -> str | None:
    for name in [*one, *(name for name in other if name not in one)]:
        if name not in other or name not in one:
            return f"{kind} {name} only in {'the first' if name in one else 'the second'}"
        if text := describe(one[name], other[name]):
            return f"{kind} {name}: {text}"
    return None


def _describe_tensors(one: Tensor, other: Tensor) -> str | None:
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return f"{one.dtype} {list(one.shape)} → {other.dtype} {list(other.shape)}"
    if one.data == other.data:
        return None
    at = next(i for i, (a, b) in enumerate(zip(one.data, other.data, strict=True)) if a != b)
    size = len(one.data) // max(1, math.prod(one.shape))
    values = [_read_element(t, at // size, size) for t in (one, other)]
    return f"[{at // size}] {values[0]} → {values[1]}"


def _read_element(tensor: Tensor, index: int, size: int) -> str:
    raw = tensor.data[index * size : (index + 1) * size]
    layout = FORMATS.get(tensor.dtype)
    # The bytes too: two floats may print alike and differ in a bit, as two NaN do.
    return f"{struct.unpack(layout, raw)[0]!r} ({raw.hex()})" if layout else raw.hex()


def _describe_values(one: Any, other: Any) -> str | None:
    # By repr, so that NaN equals NaN and -0.0 is not 0.0; a float's repr is exact.
    numbers = [float(v) if isinstance(v, int | float) else v for v in (one, other)]
    return None if repr(numbers[0]) == repr(numbers[1]) else f"{one!r} → {other!r}"


if __name__ == "__main__":
    sys.exit(main())

"""Plant the bugs of `planted.toml` in a copy of the source, one by one: which test notices each?

    python -m tools.plant [NAME …] [--full] [--only-hinted] [--jobs N] [--result FILE]

The tests that a row names run first, then the other quick ones, with `--full` also the long ones.
Only `.work/plant` is written. Exit codes: 0 all caught whose row says so, 1 one is not, 2 usage.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import queue
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
from tools import same_bits
from tools.planted import Bug, PlantError, plant, read_bugs, write_source

WORK = same_bits.ROOT / ".work" / "plant"
TIMEOUT_S = 7200  # of one pytest: each test has a timeout, too
OWN_TEST = "tests/unit/tools/test_plant.py"  # looks for each `old`, so it would notice every bug
Phases = list[tuple[bool, str]]  # (only the tests that the row names?, mark)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.plant")
    parser.add_argument("names", nargs="*", metavar="NAME", help="only these bugs")
    parser.add_argument("--full", action="store_true", help="run the long tests, too")
    parser.add_argument("--only-hinted", action="store_true", help="only the tests that rows name")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="bugs at once")
    parser.add_argument("--result", type=Path, metavar="FILE", help="write name → test as JSON")
    options = parser.parse_args()
    marks = ["not long", "long"] if options.full else ["not long"]
    phases = [(h, m) for m in marks for h in ([True] if options.only_hinted else [True, False])]
    try:
        WORK.mkdir(parents=True, exist_ok=True)
        bugs = read_bugs(names=options.names)
        for bug in bugs:
            plant(bug, (same_bits.ROOT / bug.file).read_text())
        with tempfile.TemporaryDirectory(dir=WORK, ignore_cleanup_errors=True) as scratch:
            found = run_all(bugs, phases, Path(scratch), options.jobs)
    except (PlantError, same_bits.CaseError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if options.result:
        options.result.write_text(json.dumps(found, indent=1) + "\n")
    print(f"{sum(test is not None for test in found.values())} of {len(found)} caught")
    required = ["quick", "full"] if options.full else ["quick"]
    return int(any(found[bug.name] is None and bug.caught in required for bug in bugs))


def run_all(bugs: list[Bug], phases: Phases, scratch: Path, jobs: int) -> dict[str, str | None]:
    """Print and return which test caught each bug."""
    copies: queue.SimpleQueue[same_bits.Version] = queue.SimpleQueue()
    for number in range(jobs):
        copies.put(make_copy(scratch / str(number)))

    def run(bug: Bug) -> str | None:
        copy, began = copies.get(), time.monotonic()
        test = find_catching_test(bug, copy, phases)
        copies.put(copy)
        seconds = time.monotonic() - began
        print(f"{bug.name:<40} {seconds:5.0f} s   {test or 'NOT CAUGHT'}", flush=True)
        return test

    with ThreadPoolExecutor(jobs) as pool:
        return dict(zip([bug.name for bug in bugs], pool.map(run, bugs), strict=True))


def make_copy(scratch: Path) -> same_bits.Version:
    """The working tree, and an environment in which every process imports its `tasuki`."""
    folder = same_bits.copy_working_tree(scratch)
    environment = same_bits.create_thin_environment(folder, same_bits.find_own_packages(), scratch)
    torchrun = Path(sys.prefix, "bin", "torchrun").read_text()
    (environment / "bin" / "torchrun").write_text(torchrun.replace(sys.prefix, str(environment)))
    (environment / "bin" / "torchrun").chmod(0o755)
    layout = same_bits.Layout("", "", "", [])
    return same_bits.Version("the copy", folder, {}, layout, "", environment)


def find_catching_test(bug: Bug, copy: same_bits.Version, phases: Phases) -> str | None:
    path, left_out = copy.folder / bug.file, [OWN_TEST]
    source = path.read_text()

    def run_planted(tests: list[str], mark: str) -> str | None:
        write_source(path, plant(bug, source))
        try:
            return run_tests(copy, tests, mark, left_out)
        finally:
            write_source(path, source)

    for is_hinted, mark in phases:
        while test := run_planted(bug.tests if is_hinted else ["tests"], mark):
            if not test.startswith("tests/"):
                return test
            # A flaky test catches nothing: it must fail twice, and pass without the bug.
            if run_planted([test], mark) and run_tests(copy, [test], mark, []) is None:
                return test
            left_out.append(test)
    return None


def run_tests(
    copy: same_bits.Version, tests: list[str], mark: str, left_out: list[str]
) -> str | None:
    """The first test that fails, if any."""
    python = f"{copy.environment}/bin/python"
    words = [python, "-m", "pytest", "-x", "-q", "-m", mark, *tests]
    words += [f"--deselect={test}" for test in left_out]
    dropped = re.compile(r"TASUKI_|PYTHON|SLURM_|PYTEST|VIRTUAL_ENV")
    env = {key: text for key, text in os.environ.items() if not dropped.match(key)}
    env["PATH"] = f"{copy.environment}/bin:{os.environ['PATH']}"
    with tempfile.TemporaryFile("w+") as file:  # leftovers would keep a pipe open
        process = subprocess.Popen(words, cwd=copy.folder, env=env, stdout=file, stderr=file)
        try:
            process.wait(TIMEOUT_S)
        except subprocess.TimeoutExpired:
            return "timeout"
        finally:
            kill_processes(copy.environment)
        file.seek(0)
        output = file.read()
    same_bits.check_imports(copy)  # every process of the tests imported the copy's `tasuki`
    if found := re.search(r"^(?:FAILED|ERROR) (.+?)(?: - .*)?$", output, re.M):
        return found[1]
    if process.returncode == 4 and "not found: " in output:
        raise PlantError(f"no such test among {' '.join(tests)}")
    return None if process.returncode in (0, 5) else f"pytest ended with {process.returncode}"


def kill_processes(environment: Path) -> None:
    """End all that the tests of a copy have left: ranks, and daemons of a private Slurm."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("PATH", "").startswith(f"{environment}/bin:"):
                process.kill()


if __name__ == "__main__":
    sys.exit(main())

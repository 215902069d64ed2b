"""Hostile names and values through spec, plan, run and job folders: nothing executes or leaves."""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.harness.audit import Guard
from tests.harness.project import all_of
from tests.resume.storage.driver import memory

from tasuki.clock import SystemClock
from tasuki.commands.plan import make_plan
from tasuki.commands.run import RunRequest, local_jobs, open_runs, take_up
from tasuki.errors import TasukiError
from tasuki.spec.load import load_spec

CANARY = "canary"
RECIPE = "class Learner: pass\n"
_NAME = re.compile(r"[A-Za-z0-9._-]{1,120}", re.ASCII)

# fmt: off
STRINGS = [
    # what a shell would do something with
    "$(touch canary)", "`touch canary`", "; touch canary", "a\ntouch canary",
    "x\n#SBATCH --wrap='touch canary'", "> canary", "${IFS}touch${IFS}canary", "a b", " a", "'",
    "\"; touch canary; \"", "*", "{a,b}", "~root", "#", "a\\", "$HOME", "%s%n",
    # paths
    ".", "..", "../../../../tmp/x", "/etc/passwd", "a/b", "a/../b", "\\..\\x", "a\0b",
    ".hidden", ".jobs", "a.tmp", "~/.ssh/authorized_keys", "C:\\x",
    # options
    "-rf", "--help", "-", "--output=/tmp/x",
    # what a terminal would obey, and letters that are not what they look like
    "\x1b[2J", "\x1b]0;owned\x07", "a\x08b", "\x9b31m", "\u202egnp.exe", "a\u200bb", "еxp",
    "\ud800", "💥", "٣",
    # what a parser would do something with
    "", "null", "1e3", "!!python/object/apply:os.system ['touch canary']", "&a", "<<", "{{7*7}}",
    "{0.__class__}", "${jndi:ldap://x}", "<script>x</script>",
    "__import__('os').system('touch canary')", "os:system", "a" * 101, "a" * 5000, "1" * 400,
]
# fmt: on


def _experiments(experiment: str = "exp", **stage: str) -> dict[str, Any]:
    stages = [{"name": "one", "data": "d", "epochs": 1, **stage}]
    return {"experiments": {experiment: {"stages": stages}}}


PLACES: dict[str, Callable[[str], tuple[dict[str, Any], dict[str, Any]]]] = {
    "experiment": lambda text: (_experiments(text), {}),
    "stage": lambda text: (_experiments(name=text), {}),
    "config": lambda text: ({"configs": {text: {"lr": 0.1}}}, {}),
    "project": lambda text: ({"project": text}, {}),
    "value": lambda text: ({"defaults": {"params": {"x": text}}}, {}),
    "key": lambda text: ({"defaults": {"params": {text: 1}}}, {}),
    "data": lambda text: (_experiments(data=text), {}),
    "setting": lambda text: ({}, {"settings": [f"params.x={text}"]}),
    "TASUKI_NAME": lambda text: ({}, {"environ": {"TASUKI_NAME": text}}),
    "recipe": lambda text: ({"recipe": text}, {}),
}
"""What of a spec is the string, and how the spec is loaded."""


def try_all(*, every: int = 1) -> dict[str, Any]:
    """Each string in each place; what happened that may not."""
    guard, problems, accepted, count = Guard(), [], 0, 0
    with tempfile.TemporaryDirectory(dir=memory()) as name:
        outer = Path(name).resolve()
        (outer / "project").mkdir()
        os.chdir(outer / "project")
        _go_through(outer / "project", {}, {})  # what is imported on the way, is now
        for place, text in _cases(every):
            count += 1
            changes, how = PLACES[place](text)
            with guard.armed(outer) as seen:
                try:
                    _go_through(outer / "project", changes, how)
                    accepted += 1
                except TasukiError:
                    pass
                except Exception as error:
                    problems.append(f"{place} {text[:60]!r}: {type(error).__name__}: {error}")
            found = [*_strange(seen, text), *_outside(outer)]
            problems += [f"{place} {text[:60]!r}: {words}" for words in found]
    return {"count": count, "accepted": accepted, "problems": problems}


def _cases(every: int) -> Iterator[tuple[str, str]]:
    """Every so many of them, in all places."""
    cases = [(place, text) for text in STRINGS for place in PLACES]
    assert math.gcd(every, len(PLACES)) == 1
    yield from cases[::every]


def _go_through(folder: Path, changes: dict[str, Any], how: dict[str, Any]) -> None:
    """From the spec to the folders of runs and jobs, as `tasuki run` does before it starts one."""
    shutil.rmtree(folder / "runs", ignore_errors=True)
    value = {
        "project": "t",
        "recipe": "recipes:Learner",
        "cluster": {"gpu": "cpu", "gpus": 1, "cpus": 1},
        "defaults": {"effective_batch": 8},
        **_experiments(),
        **changes,
    }
    (folder / "tasuki.yaml").write_text(json.dumps(value))
    (folder / "recipes.py").write_text(RECIPE)
    spec = load_spec(str(folder), **{"environ": {}, **how})
    request = RunRequest(plan=all_of(spec), clock=SystemClock())
    folders = open_runs(request)
    take_up(folders, request)
    local_jobs(make_plan(request.plan), folders, request)


def _strange(seen: list[str], text: str) -> Iterator[str]:
    """git is asked for the project's files, with a list of arguments that are ours; the recipe's
    file is parsed, to look for its class, and not executed: that would be heard as `exec`."""
    for event in dict.fromkeys(seen):
        if event.startswith(f"compile ({RECIPE.encode()!r}, "):
            continue
        is_git = event.startswith("subprocess.Popen") and "'git'" in event
        if not is_git or (len(text) > 3 and text in event):
            yield event


def _outside(outer: Path) -> Iterator[str]:
    """Anything that was made where or as it may not be."""
    for path in outer.rglob("*"):
        if path.name == CANARY:
            yield f"executed: {path}"
            path.unlink()
        if not _NAME.fullmatch(path.name):
            yield f"a file called {path.name!r}"
    for path in outer.iterdir():
        if path.name != "project":
            yield f"left the folder: {path}"
    known = {"runs", "tasuki.yaml", "recipes.py"}
    for name in {path.name for path in (outer / "project").iterdir()} - known:
        yield f"beside the runs: {name}"

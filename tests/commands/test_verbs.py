"""Every verb: its help, examples that parse, what it imports, and its Python function."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import click
import pytest

import tasuki
from tasuki.cli.main import cli
from tests.commands.projects import Project, make_project

VERBS = [
    *("submit", "extend", "new", "run", "status", "watch", "logs", "why", "cancel", "resume"),
    *("inspect", "estimate", "plan", "check", "tune", "doctor", "evaluate", "export", "history"),
    *("report", "board", "verify", "checkpoint", "data", "demo", "help", "completion"),
]
FUNCTIONS = {
    *("cancel", "check", "checkpoint_diff", "checkpoint_prune", "checkpoint_show"),
    *("checkpoint_verify", "data_check", "data_merge", "data_split", "data_tokenize", "doctor"),
    *("estimate", "evaluate", "export", "extend", "history", "inspect", "logs", "new", "plan"),
    *("report", "resume", "run", "status", "submit", "tune", "verify_gradients"),
    *("verify_resume", "verify_samples", "watch", "why"),
    # For recipes and own loops.
    *("pad_collate", "open_run", "is_complete"),
}


# -- help -----------------------------------------------------------------------------------------
def examples_of(command: click.Command) -> list[list[str]]:
    """The tasuki commands in a verb's examples, as words; pipes and quotes of the shell undone."""
    found = []
    for line in (command.epilog or "").replace("\b", "").splitlines():
        words = shlex.split(line.removeprefix("Example:"))
        if words[:1] == ["echo"]:  # echo 'eval "$(tasuki completion bash)"' >> ~/.bashrc
            words = words[1].partition("$(")[2].partition(")")[0].split()
        for part in _split(words):
            if part[:1] == ["tasuki"]:
                found.append(part[1:])
    return found


def _split(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word in ("&&", "|", ">>"):
            parts.append([])
        else:
            parts[-1].append(word)
    return parts


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example_that_parses(here, tmp_path, verb):
    said = here(tmp_path, verb, "--help")
    assert said.code == 0 and "Example:" in said.out and "Usage: tasuki" in said.out, said
    command = cli.get_command(click.Context(cli), verb)
    examples = examples_of(command)
    assert examples[0][0] == verb
    for one in getattr(command, "commands", {}).values():
        examples += examples_of(one)
    for name, *words in examples:
        # Raises on an unknown option, a missing argument or a value that cannot be.
        shown = cli.get_command(click.Context(cli), name).make_context(name, list(words))
        if name == "data":
            shown.command.commands[words[0]].make_context(words[0], list(words[1:]))


def test_the_first_page_shows_all_verbs_and_examples_of_some(here, tmp_path):
    assert sorted(cli.list_commands(click.Context(cli))) == sorted(VERBS)
    said = here(tmp_path, "--help")
    assert said.code == 0
    shown = [words[0] for words in examples_of(cli)]
    assert shown == ["new", "plan", "run", "status", "help"]
    for verb in VERBS:
        assert f"  {verb}  " in said.out
    nothing = here(tmp_path)
    assert nothing.code == 2 and "Every day" in nothing.out + nothing.err


def test_completion_prints_a_script_that_the_shell_accepts_and_completes_verbs(here, tmp_path):
    for shell in ("bash", "zsh", "fish"):
        said = here(tmp_path, "completion", shell)
        assert said.code == 0 and "_TASUKI_COMPLETE" in said.out
    script = here(tmp_path, "completion", "bash").out
    checked = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=60, check=False
    )
    assert checked.returncode == 0 and checked.stderr == "", checked
    project = make_project(tmp_path / "p")
    said = project.type(_TASUKI_COMPLETE="bash_complete", COMP_WORDS="tasuki st", COMP_CWORD="1")
    assert said.out.split() == ["plain,status"], said


# -- imports --------------------------------------------------------------------------------------
def run_python(folder: Path, *words: str, environment: dict[str, str] | None = None) -> str:
    done = subprocess.run(
        [sys.executable, *words],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


LIGHT = [
    *("--help", "--version", "status", "logs exp", "history", "why exp", "watch", "run"),
    *("plan --no-measure", "report --csv", "cancel exp --dry-run", "doctor", "checkpoint show"),
    "checkpoint show exp@latest --entries *.weight --json",
]
IMPORTS = """
import contextlib, io, json, sys
import tasuki

heavy = {"tasuki": sorted({"torch", "numpy", "msgspec", "click"} & {*sys.modules})}
from tasuki.cli.main import run

for words in json.loads(sys.argv[1]):
    sys.argv = ["tasuki", *words.split()]
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
        run()
    heavy[words] = sorted({"torch", "numpy", "safetensors", "h5py"} & {*sys.modules})
import tasuki.commands.curves, tasuki.commands.timeline, tasuki.views.board.app
import tasuki.commands.board, tasuki.views.report.page
heavy["pages"] = sorted({"torch", "numpy", "safetensors"} & {*sys.modules})
print(json.dumps(heavy))
"""


def test_torch_and_numpy_are_not_imported_where_they_are_not_needed(finished: Project):
    found = json.loads(run_python(finished.folder, "-c", IMPORTS, json.dumps(LIGHT)))
    assert found == {name: [] for name in ("tasuki", *LIGHT, "pages")}


def test_the_functions_that_ask_a_child_import_neither_torch_nor_numpy_here(tmp_path):
    """`inspect` and `estimate` go the same way."""
    (tmp_path / "c.txt").write_text("one two")
    code = (
        "import sys, tasuki\n"
        "tasuki.data_tokenize('c.txt', output='t', train=300)\n"
        "tasuki.data_check('t')\n"
        "print({'numpy', 'h5py', 'torch', 'tokenizers'} & {*sys.modules})"
    )
    assert run_python(tmp_path, "-c", code) == "set()\n"


def test_a_supervisor_of_a_finished_run_ends_at_once_without_torch(finished):
    before = finished.run().marker.read_bytes()
    imported = modules_of(finished, "tasuki.jobs", str(finished.jobs()[0].path))
    assert "tasuki.jobs" in imported
    assert not {"torch", "numpy", "safetensors", "msgspec", "ruamel", "rich"} & imported
    assert finished.run().marker.read_bytes() == before


def modules_of(project, module: str, *words: str) -> set[str]:
    """Every module that a command imports, as Python itself tells."""
    done = subprocess.run(
        [project.python, "-X", "importtime", "-m", module, *words],
        cwd=project.folder,
        env=project.environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


# -- functions ------------------------------------------------------------------------------------
@pytest.mark.long
def test_every_name_in_all_is_what_it_says_whichever_is_used_first(tmp_path):
    code = (
        "import json, tasuki\n"
        "tasuki.status\n"
        "print(json.dumps({n: type(getattr(tasuki, n)).__name__ for n in tasuki.__all__}))"
    )
    kinds = json.loads(run_python(tmp_path, "-c", code))
    assert {name for name, kind in kinds.items() if kind == "function"} == FUNCTIONS
    assert "module" not in kinds.values()
    assert set(tasuki.__all__) <= set(dir(tasuki))
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        tasuki.runn  # noqa: B018


def test_the_functions_give_what_the_command_line_prints_for_a_spec_in_python_too(tmp_path):
    made = tasuki.new(tmp_path / "first")
    spec = tmp_path / "first" / "tasuki.yaml"
    assert spec.exists() and made["format"] == 1
    planned = tasuki.plan(spec, settings=["expect.wall=1h", "cluster.time_limit=90m"])
    assert [job["limit_s"] for job in planned["jobs"]] == [5400.0, 5400.0]
    assert tasuki.status(runs=tmp_path / "first" / "runs") == {"format": 1, "runs": []}
    with pytest.raises(tasuki.TasukiError, match="no run `sine`"):
        tasuki.cancel("sine", runs=tmp_path / "first" / "runs")
    (tmp_path / "first" / "specs.py").write_text(
        "import tasuki\n"
        "def make():\n"
        "    expect = tasuki.Expect(wall='1h')\n"
        "    stage = tasuki.Stage(name='a', data='generated', epochs=1, expect=expect)\n"
        "    experiment = tasuki.Experiment(stages=[stage])\n"
        "    return tasuki.Spec(recipe='recipe:Sine', experiments={'sine': experiment})\n"
    )
    planned = tasuki.plan(f"{tmp_path / 'first' / 'specs.py'}:make")
    assert [p["stage"] for j in planned["jobs"] for p in j["lanes"][0]["stages"]] == ["a"]

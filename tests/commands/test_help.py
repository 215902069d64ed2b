"""Help: every verb has an example, every example is one that works."""

from __future__ import annotations

import shlex
import subprocess

import click
import pytest

from tests.commands.person import make_project

VERBS = [
    "submit",
    "extend",
    *(
        "new",
        "run",
        "status",
        "watch",
        "logs",
        "why",
        "cancel",
        "resume",
        "inspect",
        "estimate",
        "plan",
        "check",
        "tune",
        "doctor",
        "evaluate",
        "export",
        "history",
        "report",
        "board",
        "verify",
        "checkpoint",
        "data",
        "demo",
        "help",
    ),
    "completion",
]


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


def test_the_list_of_verbs_here_is_the_list_of_verbs():
    from tasuki.cli.main import cli

    assert sorted(cli.list_commands(click.Context(cli))) == sorted(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_the_help_of_every_verb_shows_an_example_that_parses(here, tmp_path, verb):
    from tasuki.cli.main import cli

    said = here(tmp_path, verb, "--help")
    assert said.code == 0 and "Example:" in said.out and "Usage: tasuki" in said.out, said
    command = cli.get_command(click.Context(cli), verb)
    examples = examples_of(command)
    assert examples[0][0] == verb
    for name, *arguments in examples:
        # Raises on an unknown option, a missing argument or a value that cannot be.
        cli.get_command(click.Context(cli), name).make_context(name, list(arguments))


def test_the_first_page_shows_examples_of_verbs_that_exist(here, tmp_path):
    from tasuki.cli.main import cli

    said = here(tmp_path, "--help")
    assert said.code == 0
    shown = [words[0] for words in examples_of(cli)]
    assert shown == ["new", "plan", "run", "status", "help"]
    for verb in VERBS:
        assert f"  {verb}  " in said.out


def test_the_example_of_plan_works_as_printed(here, tmp_path):
    stages = [{"name": f"small_{n}", "data": "d", "epochs": 1} for n in (512, 1024)]
    folder = make_project(tmp_path / "p", stages=stages).folder
    words = ["plan", "--set", "cluster.time_limit=8h", "--stages", "small_512", "small_1024"]
    said = here(folder, *words, "--no-measure", "--json")
    assert said.code == 0, said
    (job,) = said.json()["jobs"]
    assert job["limit_s"] == 8 * 3600
    assert [piece["stage"] for piece in job["lanes"][0]["stages"]] == ["small_512", "small_1024"]


def test_python_m_tasuki_is_tasuki(tmp_path):
    project = make_project(tmp_path / "p")
    said = project.type("--version")
    assert said.code == 0 and said.out.startswith("tasuki, version "), said


def test_no_words_at_all_show_the_help_and_are_a_usage_error(here, tmp_path):
    said = here(tmp_path)
    assert said.code == 2 and "Every day" in said.out + said.err


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(here, tmp_path, shell):
    said = here(tmp_path, "completion", shell)
    assert said.code == 0 and "_TASUKI_COMPLETE" in said.out


def test_bash_accepts_the_completion_script_and_completes_verbs_with_it(here, tmp_path):
    script = here(tmp_path, "completion", "bash").out
    checked = subprocess.run(
        ["bash", "-n"], input=script, capture_output=True, text=True, timeout=20, check=False
    )
    assert checked.returncode == 0 and checked.stderr == "", checked
    project = make_project(tmp_path / "p")
    said = project.type(_TASUKI_COMPLETE="bash_complete", COMP_WORDS="tasuki st", COMP_CWORD="1")
    assert said.out.split() == ["plain,status"], said


TORCH_FREE = [
    ("--help",),
    ("status",),
    ("logs", "exp"),
    ("history",),
    ("plan", "--no-measure"),
    ("run",),
]


@pytest.mark.parametrize("words", TORCH_FREE, ids=" ".join)
def test_torch_and_numpy_are_not_imported_where_they_are_not_needed(finished, words):
    imported = modules_of(finished, "tasuki", *words)
    assert "tasuki.cli" in imported
    assert not {"torch", "numpy", "safetensors"} & imported


def test_cancel_imports_no_torch(real_project, here):
    made = real_project(cluster__python="/bin/false")
    here(made.folder, "run")
    imported = modules_of(made, "tasuki", "cancel", "exp")
    assert "tasuki.commands.cancel" in imported
    assert not {"torch", "numpy"} & imported


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

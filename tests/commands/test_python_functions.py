"""Every verb is also one Python function that returns what `--json` prints."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import tasuki

VERBS = {
    "cancel",
    "check",
    "checkpoint_diff",
    "checkpoint_prune",
    "checkpoint_show",
    "checkpoint_verify",
    "data_check",
    "data_merge",
    "data_split",
    "data_tokenize",
    "doctor",
    "estimate",
    "evaluate",
    "export",
    "extend",
    "history",
    "inspect",
    "logs",
    "new",
    "plan",
    "report",
    "resume",
    "run",
    "status",
    "submit",
    "tune",
    "verify_gradients",
    "verify_resume",
    "verify_samples",
    "watch",
    "why",
}
FOR_RECIPES = {"pad_collate"}


def in_a_fresh_process(code: str, cwd=None) -> str:
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_importing_tasuki_imports_nothing_heavy():
    heavy = "{'torch', 'numpy', 'msgspec', 'click'}"
    code = f"import sys, tasuki; print(sorted({heavy} & set(sys.modules)))"
    assert in_a_fresh_process(code) == "[]\n"


@pytest.mark.long
def test_every_name_in_all_is_what_it_says_whichever_is_used_first():
    code = (
        "import tasuki, json\n"
        "tasuki.status\n"
        "print(json.dumps({n: type(getattr(tasuki, n)).__name__ for n in tasuki.__all__}))"
    )
    kinds = json.loads(in_a_fresh_process(code))
    assert {name for name, kind in kinds.items() if kind == "function"} == VERBS | FOR_RECIPES | {
        "open_run",
        "is_complete",
    }
    assert "module" not in kinds.values()
    assert set(tasuki.__all__) <= set(dir(tasuki))


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'runn'"):
        tasuki.runn  # noqa: B018


def test_the_functions_give_what_the_command_line_prints(tmp_path, here):
    made = tasuki.new(tmp_path / "first")
    assert (tmp_path / "first" / "tasuki.yaml").exists() and made["format"] == 1
    spec = tmp_path / "first" / "tasuki.yaml"
    planned = tasuki.plan(spec, settings=["expect.wall=1h", "cluster.time_limit=90m"])
    assert [job["limit_s"] for job in planned["jobs"]] == [5400.0, 5400.0]
    assert tasuki.status(runs=tmp_path / "first" / "runs") == {"format": 1, "runs": []}
    with pytest.raises(tasuki.TasukiError, match="no run `sine`"):
        tasuki.cancel("sine", runs=tmp_path / "first" / "runs")


def test_a_spec_can_be_written_in_python(tmp_path):
    tasuki.new(tmp_path / "first")
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

"""`sinks:` in a spec: what may be written, and what is said about the rest, with its place."""

from __future__ import annotations

import sys

import pytest

from tasuki.commands.sinks import check_sinks
from tasuki.errors import SpecError, TasukiError, UsageError
from tasuki.spec.sinks import SinkOrder, parse_sinks

SMALL = "recipe: a:B\nexperiments: {e: {epochs: 1}}\n"


@pytest.mark.parametrize(
    ("written", "names"),
    [
        (None, []),
        ([], []),  # `--set sinks=[]` where the spec has some
        ("tensorboard", ["tensorboard"]),
        (["tensorboard", "my.module:MySink"], ["tensorboard", "my.module:MySink"]),
        ({"tensorboard": None, "mine:Sink": {"project": "x"}}, ["tensorboard", "mine:Sink"]),
        (["tensorboard", {"mine:Sink": {}}], ["tensorboard", "mine:Sink"]),
    ],
)
def test_sinks_are_a_name_a_list_or_a_mapping_with_options(written, names):
    assert [order.name for order in parse_sinks(written)] == names


def test_options_belong_to_their_sink():
    found = parse_sinks([{"tensorboard": {"folder": "tb"}}, {"mine:Sink": {"depth": 3}}])
    assert found == (
        SinkOrder(name="tensorboard", options={"folder": "tb"}),
        SinkOrder(name="mine:Sink", options={"depth": 3}),
    )


@pytest.mark.parametrize(
    ("written", "message", "hint"),
    [
        ("[tensorbord]", "there is no sink `tensorbord`", "did you mean `tensorboard`?"),
        ("[tensorboard, tensorboard]", "`tensorboard` is named twice", "once"),
        ("{tensorboard: {foldr: x}}", "has no option `foldr`", "did you mean `folder`?"),
        ("{tensorboard: {folder: 3}}", "`folder` of `tensorboard` must be a path", "tb"),
        ("{tensorboard: {folder: ~/tb}}", "do not expand", "as it is"),
        ("{'mine:Sink': 3}", "options of `mine:Sink` must be a mapping", "tensorboard"),
        ("['mine:9']", "there is no sink `mine:9`", "module:Class"),
    ],
)
def test_what_names_no_sink_is_refused_with_its_line(project, written, message, hint):
    with pytest.raises(SpecError) as caught:
        project.load(f"project: p\nsinks: {written}\n{SMALL}")
    assert f"{project.folder}/tasuki.yaml:2:" in caught.value.message
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_a_package_that_is_missing_is_named_with_its_extra_before_anything_starts(
    project, monkeypatch
):
    spec = project.load(f"sinks: [tensorboard]\n{SMALL}")
    assert spec.warnings == ()
    check_sinks(spec)
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    with pytest.raises(UsageError) as caught:
        check_sinks(spec)
    assert "needs tensorboardX, which is not installed" in caught.value.message
    assert 'pip install "tasuki[tensorboard]"' in caught.value.hint
    elsewhere = project.load(f"sinks: [tensorboard]\ncluster: {{python: /opt/python}}\n{SMALL}")
    check_sinks(elsewhere)  # a job with another Python finds out for itself


def test_a_class_of_ones_own_must_be_there(project):
    (project.folder / "mine.py").write_text("class Mine: ...\n")
    check_sinks(project.load(f"sinks: ['mine:Mine']\n{SMALL}"))
    for name, words in (("mine:Other", "has no `Other`"), ("nowhere:Sink", "cannot be found")):
        with pytest.raises(TasukiError, match=words):
            check_sinks(project.load(f"sinks: ['{name}']\n{SMALL}"))
